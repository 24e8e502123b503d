//! Words in memory that tell where they belong: written, copied, and looked at on the device or the host.
//!
//! [`SOURCE`] is the device's side. Its kernels take a pattern by number and seed, and write what they find as four
//! numbers, which [`Mismatch::of`] reads.

use std::fmt;

/// The kernels, on top of candle-rocm-kernels' `device.h`: `pattern_fill`, `pattern_check`, `pattern_work`,
/// `pattern_compare` and `pattern_copy`.
pub const SOURCE: &str = include_str!("pattern.hip");

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
    /// All of them, by number.
    pub const ALL: [Pattern; 5] = [
        Pattern::Random,
        Pattern::Address,
        Pattern::AddressInverted,
        Pattern::WalkingOne,
        Pattern::WalkingZero,
    ];

    /// For users.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Address => "address",
            Pattern::AddressInverted => "address inverted",
            Pattern::WalkingOne => "walking one",
            Pattern::WalkingZero => "walking zero",
        }
    }

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
    /// What kernels find before they look: four numbers.
    pub const NONE_FOUND: [u64; 4] = [0, u64::MAX, 0, 0];

    const NONE: Self = Mismatch {
        words: 0,
        first: u64::MAX,
        set: 0,
        cleared: 0,
    };

    /// Of the four numbers that kernels write.
    pub fn of(found: [u64; 4]) -> Option<Self> {
        let [words, first, set, cleared] = found;
        let found = Mismatch {
            words,
            first,
            set: set as u32,
            cleared: cleared as u32,
        };
        found.any()
    }

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

/// What `pattern_work` computes.
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

    #[test]
    fn what_was_filled_is_found_and_every_other_word_is_not() {
        for pattern in Pattern::ALL {
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
