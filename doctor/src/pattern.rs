//! Words in device memory that tell where they belong: written, copied, and looked at on the device or the host.

use candle_rocm::{Args, Buffer, Device, Kernel, LaunchConfig, Result};
use std::fmt;

/// Compiled for the GPU at hand, and kept with the other kernels.
const SOURCE: &str = include_str!("pattern.hip");

/// Bytes of a word.
pub const WORD: usize = size_of::<u32>();

/// What words hold. The numbers are those of the device's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Pattern {
    /// Bits without order that depend on place and seed.
    Random = 0,
    /// The word's own number.
    Address = 1,
    /// The same with every bit turned.
    AddressInverted = 2,
    /// One bit, the next one in each word; the seed moves it.
    WalkingOne = 3,
    /// All bits but that one.
    WalkingZero = 4,
}

impl Pattern {
    /// What the word of an index holds.
    pub fn word(self, seed: u32, index: u64) -> u32 {
        let address = index as u32 ^ ((index >> 32) as u32).wrapping_mul(0x9E37_79B1);
        let bit = 1 << (index.wrapping_add(seed.into()) & 31);
        match self {
            Pattern::Random => mixed(index ^ u64::from(seed) << 40) as u32,
            Pattern::Address => address,
            Pattern::AddressInverted => !address,
            Pattern::WalkingOne => bit,
            Pattern::WalkingZero => !bit,
        }
    }

    /// Fills bytes with the words from `first` on.
    pub fn fill(self, seed: u32, first: u64, bytes: &mut [u8]) {
        for (i, word) in bytes.chunks_exact_mut(WORD).enumerate() {
            word.copy_from_slice(&self.word(seed, first + i as u64).to_le_bytes());
        }
    }

    /// What differs from the words from `first` on.
    pub fn compare(self, seed: u32, first: u64, bytes: &[u8]) -> Option<Mismatch> {
        let mut found = Mismatch::NONE;
        for (i, word) in bytes.chunks_exact(WORD).enumerate() {
            let index = first + i as u64;
            let is = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            found.note(index, is, self.word(seed, index));
        }
        found.any()
    }
}

fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Words that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// How many.
    pub words: u64,
    /// Index of the first.
    pub first: u64,
    /// Bits that are set in some of them and should not be.
    pub set: u32,
    /// Bits that should be set in some of them and are not.
    pub cleared: u32,
}

impl Mismatch {
    const NONE: Self = Mismatch {
        words: 0,
        first: u64::MAX,
        set: 0,
        cleared: 0,
    };

    fn note(&mut self, index: u64, is: u32, should: u32) {
        if is != should {
            self.words += 1;
            self.first = self.first.min(index);
            self.set |= is & !should;
            self.cleared |= should & !is;
        }
    }

    fn any(self) -> Option<Self> {
        (self.words > 0).then_some(self)
    }

    /// Byte offset of the first.
    pub fn byte(&self) -> u64 {
        self.first * WORD as u64
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, s) = if self.words == 1 {
            ("is", "")
        } else {
            ("are", "s")
        };
        write!(
            f,
            "{} word{s} {verb} wrong, the first at byte {}",
            self.words,
            self.byte()
        )?;
        for (bits, state) in [(self.set, "set"), (self.cleared, "not set")] {
            if bits != 0 {
                write!(f, ", bits {bits:#010x} wrongly {state}")?;
            }
        }
        Ok(())
    }
}

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
        let kernel = |name| device.custom_kernel(SOURCE, name);
        Ok(Patterns {
            device: device.clone(),
            fill: kernel("doctor_fill")?,
            check: kernel("doctor_check")?,
            work: kernel("doctor_work")?,
            compare: kernel("doctor_compare")?,
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
        let none = [0u64, u64::MAX, 0, 0].map(u64::to_le_bytes).concat();
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
        let [words, first, set, cleared] = numbers;
        let found = Mismatch {
            words,
            first,
            set: set as u32,
            cleared: cleared as u32,
        };
        Ok(found.any())
    }
}

/// What [`Patterns::work`] computes.
pub fn work_on_host(count: usize, steps: u32, seed: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * WORD);
    for index in 0..count as u64 {
        let mut x = Pattern::Random.word(seed, index) | 1;
        for _ in 0..steps {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
        }
        bytes.extend(x.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Pattern; 5] = [
        Pattern::Random,
        Pattern::Address,
        Pattern::AddressInverted,
        Pattern::WalkingOne,
        Pattern::WalkingZero,
    ];

    #[test]
    fn what_was_filled_is_found_and_every_other_word_is_not() {
        for pattern in ALL {
            let mut bytes = vec![0; 1024 * WORD];
            pattern.fill(7, 1 << 33, &mut bytes);
            assert_eq!(pattern.compare(7, 1 << 33, &bytes), None);
            bytes[4 * 100 + 1] ^= 4;
            let found = pattern.compare(7, 1 << 33, &bytes).unwrap();
            assert_eq!((found.words, found.first), (1, (1 << 33) + 100));
            assert_eq!(found.set | found.cleared, 4 << 8);
            assert!(found.to_string().contains("1 word is wrong"), "{found}");
        }
    }

    #[test]
    fn places_seeds_and_patterns_give_other_words() {
        let mut seen: Vec<u32> = (0..1000).map(|i| Pattern::Random.word(1, i)).collect();
        seen.extend((0..1000).map(|i| Pattern::Random.word(2, i)));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 2000);
        assert_eq!(Pattern::Address.word(0, 5), 5);
        assert_ne!(Pattern::Address.word(0, 5 + (1 << 32)), 5);
        let ones: Vec<u32> = (0..32).map(|i| Pattern::WalkingOne.word(3, i)).collect();
        assert_eq!(ones.iter().fold(0, |all, bit| all | bit), u32::MAX);
        assert!(ones.iter().all(|bit| bit.is_power_of_two()));
    }
}
