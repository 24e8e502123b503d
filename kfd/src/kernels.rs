//! The kernels of memory-pattern on a GPU.

use crate::error::read;
use crate::Result;
use candle_kfd::{ComputeQueue, Gpu, Kernel, Kind, Launch, Memory, Program, Signal};
use candle_rocm_kernels::{translation_unit, Cache, Clang, CompileRequest};
use code_object::Processor;
use memory_pattern::{Mismatch, Pattern, WORD};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// Threads of a block.
const BLOCK: u32 = 256;
/// Blocks of a launch at most; kernels go over their words in strides.
const MOST_BLOCKS: u64 = 4096;
/// Packets of the queue.
const PACKETS: u32 = 64;
/// Bytes of what kernels find: four numbers.
const FOUND_BYTES: usize = 4 * size_of::<u64>();

/// See the [module](self).
#[derive(Debug)]
pub struct Kernels {
    queue: ComputeQueue,
    fill: Kernel,
    check: Kernel,
    work: Kernel,
    compare: Kernel,
    copy: Kernel,
    found: Memory,
    timeout: Duration,
}

impl Kernels {
    /// Loads them, from a file if there is one; the inner error is why there are none for this GPU.
    ///
    /// # Errors
    /// candle-kfd's, if they cannot be loaded; [`Error::File`](crate::Error::File).
    pub fn new(
        gpu: &Arc<Gpu>,
        file: Option<&Path>,
        timeout: Duration,
    ) -> Result<std::result::Result<Self, String>> {
        let object = match file {
            Some(file) => Ok(read(file)?),
            None => object(&gpu.node().arch),
        };
        let object = match object {
            Ok(object) => object,
            Err(why) => return Ok(Err(why)),
        };
        let program = Program::load(gpu, &object)?;
        let kernel = |name| program.kernel(name);
        Ok(Ok(Kernels {
            queue: ComputeQueue::new(gpu, PACKETS)?,
            fill: kernel("pattern_fill")?,
            check: kernel("pattern_check")?,
            work: kernel("pattern_work")?,
            compare: kernel("pattern_compare")?,
            copy: kernel("pattern_copy")?,
            found: gpu.allocate(FOUND_BYTES, Kind::Gtt)?,
            timeout,
        }))
    }

    /// Fills a memory with the words of a pattern from `first` on.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn fill(&self, memory: &Memory, pattern: Pattern, seed: u32, first: u64) -> Result<()> {
        let words = (memory.len() / WORD) as u64;
        let arguments = Arguments::default()
            .u64(memory.address())
            .u64(words)
            .u64(first)
            .u32(pattern as u32)
            .u32(seed);
        // SAFETY: these are the kernel's arguments; it writes so many words, which lie in the memory.
        unsafe { self.run(&self.fill, words, &arguments) }
    }

    /// Looks for words of a memory that differ from the pattern.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn check(
        &self,
        memory: &Memory,
        pattern: Pattern,
        seed: u32,
        first: u64,
    ) -> Result<Option<Mismatch>> {
        let words = (memory.len() / WORD) as u64;
        self.begin()?;
        let arguments = Arguments::default()
            .u64(memory.address())
            .u64(words)
            .u64(first)
            .u32(pattern as u32)
            .u32(seed)
            .u64(self.found.address());
        // SAFETY: these are the kernel's arguments; it reads so many words, which lie in the memory, and what it found has
        // room for four numbers.
        unsafe { self.run(&self.check, words, &arguments) }?;
        self.end()
    }

    /// Computes words that need so many steps each: [`memory_pattern::work_on_host`] knows them.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn work(&self, memory: &Memory, steps: u32, seed: u32) -> Result<()> {
        let words = (memory.len() / WORD) as u64;
        let arguments = Arguments::default()
            .u64(memory.address())
            .u64(words)
            .u32(steps)
            .u32(seed);
        // SAFETY: these are the kernel's arguments; it writes so many words, which lie in the memory.
        unsafe { self.run(&self.work, words, &arguments) }
    }

    /// Compares two memories as far as both go.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn compare(&self, memory: &Memory, with: &Memory) -> Result<Option<Mismatch>> {
        let words = (memory.len().min(with.len()) / WORD) as u64;
        self.begin()?;
        let arguments = Arguments::default()
            .u64(memory.address())
            .u64(with.address())
            .u64(words)
            .u64(self.found.address());
        // SAFETY: these are the kernel's arguments; it reads so many words, which lie in both memories, and what it found
        // has room for four numbers.
        unsafe { self.run(&self.compare, words, &arguments) }?;
        self.end()
    }

    /// Copies whole words; the ranges do not overlap.
    ///
    /// # Errors
    /// candle-kfd's, such as for a range beyond a memory.
    pub fn copy(
        &self,
        (to, to_offset): (&Memory, u64),
        (from, from_offset): (&Memory, u64),
        bytes: u64,
    ) -> Result<()> {
        let words = bytes / WORD as u64;
        let arguments = Arguments::default()
            .u64(to.range(to_offset, bytes)?)
            .u64(from.range(from_offset, bytes)?)
            .u64(words);
        // SAFETY: these are the kernel's arguments; both ranges lie in their memories.
        unsafe { self.run(&self.copy, words, &arguments) }
    }

    /// Runs a kernel over so many words and waits for it.
    ///
    /// # Safety
    /// The arguments are the kernel's, and what it reads and writes lies in memory that is there.
    unsafe fn run(&self, kernel: &Kernel, words: u64, arguments: &Arguments) -> Result<()> {
        let blocks = words.div_ceil(BLOCK.into()).clamp(1, MOST_BLOCKS) as u32;
        let done = Signal::new(self.queue.gpu(), 1)?;
        let launch = Launch {
            kernel,
            blocks: [blocks, 1, 1],
            block: [BLOCK, 1, 1],
            dynamic_lds: 0,
            arguments: &arguments.0,
            completion: Some(&done),
            barrier: true,
        };
        // SAFETY: the caller's promise; the memory is borrowed until the kernel is done, or the GPU is lost.
        unsafe { self.queue.launch(&launch) }?;
        Ok(self.queue.wait(&done, self.timeout)?)
    }

    fn begin(&self) -> Result<()> {
        if let Some(host) = self.found.host() {
            for (i, number) in Mismatch::NONE_FOUND.into_iter().enumerate() {
                host.long(8 * i)?.store(number, Ordering::Release);
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<Option<Mismatch>> {
        let mut found = Mismatch::NONE_FOUND;
        if let Some(host) = self.found.host() {
            for (i, number) in found.iter_mut().enumerate() {
                *number = host.long(8 * i)?.load(Ordering::Acquire);
            }
        }
        Ok(Mismatch::of(found))
    }
}

/// Arguments of a kernel, each at a multiple of its size, as C lays them out.
#[derive(Clone, Debug, Default)]
struct Arguments(Vec<u8>);

impl Arguments {
    fn u32(mut self, value: u32) -> Self {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_le_bytes());
        self
    }
}

/// The code object for a processor: built in, of the cache on disk, or compiled now.
///
/// # Errors
/// Why there is none.
pub fn object(arch: &str) -> std::result::Result<Vec<u8>, String> {
    let generic = Processor::named(arch).and_then(|processor| processor.generic);
    let targets = [Some(arch), generic];
    let built_in = targets.into_iter().flatten().find_map(|wanted| {
        let object = OBJECTS.iter().find(|(target, _)| *target == wanted);
        object.map(|(_, object)| object.to_vec())
    });
    if let Some(object) = built_in {
        return Ok(object);
    }
    let source = translation_unit("pattern.hip", memory_pattern::SOURCE)
        .map_err(|error| error.to_string())?;
    let clang = Clang::find().map_err(|error| {
        format!("{error}; or take a file with --kernels that `kfd kernels {arch} FILE` writes on a machine with clang")
    })?;
    let request = CompileRequest {
        name: "pattern.hip",
        source: &source,
        arch,
        options: &[],
    };
    let object = Cache::from_env().get_or_compile(&clang, &request);
    object.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_where_c_has_them() {
        let arguments = Arguments::default().u32(1).u64(2).u32(3).u32(4).u64(5);
        assert_eq!(arguments.0.len(), 32);
        assert_eq!(arguments.0[8], 2);
        assert_eq!(
            (arguments.0[16], arguments.0[20], arguments.0[24]),
            (3, 4, 5)
        );
    }

    #[test]
    fn the_kernels_take_what_they_are_given() {
        let object = object("gfx1100").unwrap();
        let object = code_object::CodeObject::parse(&object).unwrap();
        for (name, sizes) in [
            ("pattern_fill", [8, 8, 8, 4, 4].as_slice()),
            ("pattern_check", &[8, 8, 8, 4, 4, 8]),
            ("pattern_work", &[8, 8, 4, 4]),
            ("pattern_compare", &[8, 8, 8, 8]),
            ("pattern_copy", &[8, 8, 8]),
        ] {
            let kernel = object.kernel(name).unwrap();
            let takes: Vec<u32> = kernel
                .arguments
                .iter()
                .map(|argument| argument.size)
                .collect();
            assert_eq!(takes, sizes, "{name}");
            assert!(kernel.max_block >= BLOCK);
        }
    }
}
