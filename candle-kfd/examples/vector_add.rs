//! Adds two vectors on a GPU with the kernel driver alone.
//!
//! ```sh
//! clang++ -x hip --cuda-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -fuse-ld=lld -O3 \
//!     --offload-arch=gfx1100 -o vector_add.elf candle-kfd/examples/vector_add.hip
//! cargo run -p candle-kfd --example vector_add vector_add.elf
//! ```

use candle_kfd::{ComputeQueue, Displays, Kfd, Kind, Launch, Program, Signal};
use std::time::Duration;

const COUNT: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("which code object?")?;
    let gpu = Kfd::open()?.gpu(0, Displays::Refuse)?;
    println!("{} at {}", gpu.node().arch, gpu.node().pci_id);
    let program = Program::load(&gpu, &std::fs::read(file)?)?;
    let add = program.kernel("add")?;
    let queue = ComputeQueue::new(&gpu, 64)?;

    let bytes = COUNT as usize * 4;
    let memory = gpu.allocate(3 * bytes, Kind::Gtt)?;
    let host = memory.host().ok_or("the host sees its own memory")?;
    for at in 0..COUNT {
        host.write(at as usize * 4, &(at as f32).to_le_bytes())?;
        host.write(bytes + at as usize * 4, &(0.5_f32).to_le_bytes())?;
    }
    let address = memory.address();
    let mut arguments = Vec::new();
    for vector in [2, 0, 1] {
        arguments.extend((address + vector * bytes as u64).to_le_bytes());
    }
    arguments.extend(COUNT.to_le_bytes());

    let done = Signal::with_event(&gpu, 1)?;
    let launch = Launch {
        kernel: &add,
        blocks: [COUNT.div_ceil(256), 1, 1],
        block: [256, 1, 1],
        dynamic_lds: 0,
        arguments: &arguments,
        completion: Some(&done),
        barrier: false,
    };
    // SAFETY: the kernel reads and writes the three vectors, each as long as it is told; all of it lives until it is done.
    unsafe { queue.launch(&launch) }?;
    queue.wait(&done, TIMEOUT)?;

    for at in 0..COUNT {
        let mut sum = [0; 4];
        host.read(2 * bytes + at as usize * 4, &mut sum)?;
        assert_eq!(f32::from_le_bytes(sum), at as f32 + 0.5, "element {at}");
    }
    let (began, ended) = done.times();
    println!(
        "{COUNT} sums are right, {} ticks of the GPU's clock",
        ended - began
    );
    Ok(())
}
