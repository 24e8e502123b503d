//! The kernels of `memory-pattern` on a device: compiled for the GPU at hand, and kept with the other kernels.

use candle_rocm::{Args, Buffer, Device, Kernel, LaunchConfig, Result};
pub use memory_pattern::{work_on_host, Mismatch, Pattern, WORD};

/// The kernels, on one device.
#[derive(Debug)]
pub struct Patterns {
    device: Device,
    fill: Kernel,
    check: Kernel,
    work: Kernel,
    compare: Kernel,
    found: Buffer,
}

impl Patterns {
    /// Compiles or loads the kernels.
    ///
    /// # Errors
    /// Those of [`Device::custom_kernel`] and [`Device::alloc`].
    pub fn new(device: &Device) -> Result<Self> {
        let kernel = |name| device.custom_kernel(memory_pattern::SOURCE, name);
        Ok(Patterns {
            device: device.clone(),
            fill: kernel("pattern_fill")?,
            check: kernel("pattern_check")?,
            work: kernel("pattern_work")?,
            compare: kernel("pattern_compare")?,
            found: device.alloc(4 * size_of::<u64>())?,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Fills a buffer from its start with the words from `first` on, as many as there is room for.
    ///
    /// # Errors
    /// HIP's.
    pub fn fill(&self, buffer: &Buffer, pattern: Pattern, seed: u32, first: u64) -> Result<()> {
        let words = buffer.len() / WORD;
        let args = Args::new()
            .ptr(buffer, 0)
            .u64(words as u64)
            .u64(first)
            .u32(pattern as u32)
            .u32(seed);
        // SAFETY: these are the arguments of the kernel, which writes so many words, and they lie in the buffer.
        unsafe { self.fill.launch(LaunchConfig::for_elements(words), &args) }
    }

    /// Looks at the first `bytes` bytes of a buffer, and waits for what was found.
    ///
    /// # Errors
    /// HIP's; [`candle_rocm::Error::OutOfBounds`] if the buffer is shorter.
    pub fn check(
        &self,
        buffer: &Buffer,
        bytes: usize,
        pattern: Pattern,
        seed: u32,
        first: u64,
    ) -> Result<Option<Mismatch>> {
        let words = bytes.min(buffer.len()) / WORD;
        self.begin()?;
        let args = Args::new()
            .ptr(buffer, 0)
            .u64(words as u64)
            .u64(first)
            .u32(pattern as u32)
            .u32(seed)
            .ptr(&self.found, 0);
        // SAFETY: these are the arguments of the kernel, which reads so many words, and they lie in the buffer; what
        // it found has room for four numbers.
        unsafe {
            self.check
                .launch(LaunchConfig::for_elements(words), &args)?
        };
        self.end()
    }

    /// Computes words that need `steps` steps each: [`work_on_host`] knows them.
    ///
    /// # Errors
    /// HIP's.
    pub fn work(&self, buffer: &Buffer, steps: u32, seed: u32) -> Result<()> {
        let words = buffer.len() / WORD;
        let args = Args::new()
            .ptr(buffer, 0)
            .u64(words as u64)
            .u32(steps)
            .u32(seed);
        // SAFETY: these are the arguments of the kernel, which writes so many words, and they lie in the buffer.
        unsafe { self.work.launch(LaunchConfig::for_elements(words), &args) }
    }

    /// Compares two buffers of the same length.
    ///
    /// # Errors
    /// HIP's.
    pub fn compare(&self, buffer: &Buffer, with: &Buffer) -> Result<Option<Mismatch>> {
        let words = buffer.len().min(with.len()) / WORD;
        self.begin()?;
        let args = Args::new()
            .ptr(buffer, 0)
            .ptr(with, 0)
            .u64(words as u64)
            .ptr(&self.found, 0);
        // SAFETY: these are the arguments of the kernel, which reads so many words of both buffers; what it found has
        // room for four numbers.
        unsafe {
            self.compare
                .launch(LaunchConfig::for_elements(words), &args)?
        };
        self.end()
    }

    fn begin(&self) -> Result<()> {
        let none = Mismatch::NONE_FOUND.map(u64::to_le_bytes).concat();
        self.device.upload_into(&none, &self.found, 0)
    }

    fn end(&self) -> Result<Option<Mismatch>> {
        let mut bytes = [0; 4 * size_of::<u64>()];
        self.device.download(&self.found, 0, &mut bytes)?;
        let mut numbers = [0u64; 4];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            let mut word = [0; size_of::<u64>()];
            word.copy_from_slice(bytes);
            *number = u64::from_le_bytes(word);
        }
        Ok(Mismatch::of(numbers))
    }
}
