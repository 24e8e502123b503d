//! Kernels that each need something of the runtime: scratch, LDS, hidden arguments, order, relocations.
//!
//! Compiled and run as `vector_add`, from `kernels.hip`.

use candle_kfd::{ComputeQueue, Displays, Gpu, Kfd, Kind, Launch, Memory, Program, Timeline};
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const TIMEOUT: Duration = Duration::from_secs(60);

struct Bench {
    gpu: Arc<Gpu>,
    program: Arc<Program>,
    queue: ComputeQueue,
    out: Memory,
}

impl Bench {
    /// Runs a kernel whose first argument is the address of words, and another word.
    fn launch(
        &self,
        name: &str,
        blocks: [u32; 3],
        threads: u32,
        dynamic_lds: u32,
        word: u32,
    ) -> Result<()> {
        let kernel = self.program.kernel(name)?;
        let mut arguments = self.out.address().to_le_bytes().to_vec();
        if kernel.facts().arguments.len() > 1 {
            arguments.extend(word.to_le_bytes());
        }
        let launch = Launch {
            kernel: &kernel,
            blocks,
            block: [threads, 1, 1],
            dynamic_lds,
            arguments: &arguments,
            completion: None,
            barrier: true,
        };
        // SAFETY: each kernel writes as many words as it has threads or blocks at most, and there are more; the program
        // and the words live as long as the queue.
        unsafe { self.queue.launch(&launch) }?;
        Ok(())
    }

    /// Waits, and checks the first words against what they should be.
    fn check(&self, what: &str, count: u32, want: impl Fn(u32) -> u32) -> Result<()> {
        self.queue.idle(TIMEOUT)?;
        let host = self.out.host().ok_or("the host sees its own memory")?;
        for at in 0..count {
            let mut word = [0; 4];
            host.read(at as usize * 4, &mut word)?;
            let (is, want) = (u32::from_le_bytes(word), want(at));
            if is != want {
                return Err(format!("{what}: word {at} is {is} instead of {want}").into());
            }
        }
        println!("{what}: right");
        Ok(())
    }
}

fn main() -> Result<()> {
    let file = std::env::args().nth(1).ok_or("which code object?")?;
    let gpu = Kfd::open()?.gpu(0, Displays::Refuse)?;
    println!("{} at {}", gpu.node().arch, gpu.node().pci_id);
    let bench = Bench {
        program: Program::load(&gpu, &std::fs::read(file)?)?,
        queue: ComputeQueue::new(&gpu, 64)?,
        out: gpu.allocate(4096, Kind::Gtt)?,
        gpu,
    };
    bench.launch("scratch", [3, 1, 1], 64, 0, 17)?;
    bench.check("scratch and sizes of blocks", 192, |thread| {
        thread * 100 + 17
    })?;
    bench.launch("lds", [1, 5, 1], 128, 128 * 4, 0)?;
    bench.check("dynamic LDS and two dimensions", 5, |block| {
        127 * 64 + 128 * block
    })?;
    bench.launch("follow", [1, 1, 1], 1, 0, 0)?;
    bench.check("relocations", 1, |_| 7)?;

    // Around the ring and more than once through the memory of arguments.
    const TIMES: u32 = 200;
    bench
        .out
        .host()
        .ok_or("the host sees its own memory")?
        .write(0, &[0; 4])?;
    for _ in 0..TIMES {
        bench.launch("next", [1, 1, 1], 1, 0, 0)?;
    }
    let value = (0..TIMES).fold(0_u32, |value, _| value.wrapping_mul(3).wrapping_add(1));
    bench.check("order", 1, |_| value)?;

    let timeline = Timeline::new(&bench.gpu)?;
    for _ in 0..3 {
        bench.queue.barrier(&[], Some(timeline.signal()))?;
    }
    timeline.wait_for(3, TIMEOUT)?;
    println!("timeline: right");
    Ok(())
}
