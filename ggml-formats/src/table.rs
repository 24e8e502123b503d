//! The table of formats: one row each, from which everything else that knows formats is made.

/// Hands the table to a macro: `formats!(then ARGS)` is `then! { ARGS ENCODING { rows } ... }`, where `ARGS` is one
/// token tree.
///
/// A row is `Variant (number in GGUF files, name in GGUF's spelling, word in kernels' names, elements of a block, bytes
/// of a block, whether a minimum is added)`. A format without a number is in no GGUF file.
#[macro_export]
macro_rules! formats {
    ($then:ident $args:tt) => {
        $then! { $args
            Plain {
                /// Binary32.
                F32 (Some(0), "F32", "f32", 1, 4, false)
                /// Binary16.
                F16 (Some(1), "F16", "f16", 1, 2, false)
                /// Bfloat16.
                BF16 (Some(30), "BF16", "bf16", 1, 2, false)
                /// Binary64.
                F64 (Some(28), "F64", "f64", 1, 8, false)
                /// Integers of 8 bits.
                I8 (Some(24), "I8", "i8", 1, 1, false)
                /// Integers of 16 bits.
                I16 (Some(25), "I16", "i16", 1, 2, false)
                /// Integers of 32 bits.
                I32 (Some(26), "I32", "i32", 1, 4, false)
                /// Integers of 64 bits.
                I64 (Some(27), "I64", "i64", 1, 8, false)
            }
            Small {
                /// 4 bits, blocks of 32 with a scale.
                Q4_0 (Some(2), "Q4_0", "q4_0", 32, 18, false)
                /// 4 bits, blocks of 32 with a scale and a minimum.
                Q4_1 (Some(3), "Q4_1", "q4_1", 32, 20, true)
                /// 5 bits, blocks of 32 with a scale.
                Q5_0 (Some(6), "Q5_0", "q5_0", 32, 22, false)
                /// 5 bits, blocks of 32 with a scale and a minimum.
                Q5_1 (Some(7), "Q5_1", "q5_1", 32, 24, true)
                /// 8 bits, blocks of 32 with a scale.
                Q8_0 (Some(8), "Q8_0", "q8_0", 32, 34, false)
                /// 8 bits, blocks of 32 with a scale and the sum of the block.
                Q8_1 (Some(9), "Q8_1", "q8_1", 32, 36, false)
            }
            K {
                /// 2 bits, blocks of 256 with 16 4-bit scales and minima.
                Q2K (Some(10), "Q2_K", "q2k", 256, 84, true)
                /// 3 bits, blocks of 256 with 16 6-bit scales.
                Q3K (Some(11), "Q3_K", "q3k", 256, 110, false)
                /// 4 bits, blocks of 256 with 8 6-bit scales and minima.
                Q4K (Some(12), "Q4_K", "q4k", 256, 144, true)
                /// 5 bits, blocks of 256 with 8 6-bit scales and minima.
                Q5K (Some(13), "Q5_K", "q5k", 256, 176, true)
                /// 6 bits, blocks of 256 with 16 8-bit scales.
                Q6K (Some(14), "Q6_K", "q6k", 256, 210, false)
                /// 8 bits, blocks of 256 with a binary32 scale.
                Q8K (Some(15), "Q8_K", "q8k", 256, 292, false)
            }
            Codebook {
                /// 2.06 bits, blocks of 256: groups of 8 from a codebook of 256, 8 scales of 4 bits.
                IQ2XXS (Some(16), "IQ2_XXS", "iq2_xxs", 256, 66, false)
                /// 2.31 bits, blocks of 256: groups of 8 from a codebook of 512, 16 scales of 4 bits.
                IQ2XS (Some(17), "IQ2_XS", "iq2_xs", 256, 74, false)
                /// 2.56 bits, blocks of 256: groups of 8 from a codebook of 1024, 16 scales of 4 bits.
                IQ2S (Some(22), "IQ2_S", "iq2_s", 256, 82, false)
                /// 3.06 bits, blocks of 256: groups of 4 from a codebook of 256, 8 scales of 4 bits.
                IQ3XXS (Some(18), "IQ3_XXS", "iq3_xxs", 256, 98, false)
                /// 3.44 bits, blocks of 256: groups of 4 from a codebook of 512, 8 scales of 4 bits.
                IQ3S (Some(21), "IQ3_S", "iq3_s", 256, 110, false)
                /// 1.56 bits, blocks of 256: groups of 8 from a codebook of 2048, 8 scales of 3 bits.
                IQ1S (Some(19), "IQ1_S", "iq1_s", 256, 50, false)
                /// 1.75 bits, blocks of 256: groups of 8 from a codebook of 2048, 16 scales of 3 bits.
                IQ1M (Some(29), "IQ1_M", "iq1_m", 256, 56, false)
            }
            Levels {
                /// 4 bits that stand for uneven levels, blocks of 32 with a scale.
                IQ4NL (Some(20), "IQ4_NL", "iq4_nl", 32, 18, false)
                /// 4 bits that stand for uneven levels, blocks of 256 with 8 6-bit scales.
                IQ4XS (Some(23), "IQ4_XS", "iq4_xs", 256, 136, false)
                /// Ternary, five to a byte, blocks of 256 with a scale.
                TQ1_0 (Some(34), "TQ1_0", "tq1_0", 256, 54, false)
                /// Ternary, four to a byte, blocks of 256 with a scale.
                TQ2_0 (Some(35), "TQ2_0", "tq2_0", 256, 66, false)
                /// 4-bit floats, blocks of 32 with a power of two as scale.
                MXFP4 (Some(39), "MXFP4", "mxfp4", 32, 17, false)
                /// 4-bit floats, blocks of 64 with 4 unsigned 8-bit floats as scales.
                NVFP4 (Some(40), "NVFP4", "nvfp4", 64, 36, false)
            }
            Floats {
                /// 8-bit floats (e4m3, without NaN and -0), blocks of 64 with a binary32 scale. Of checkpoints in FP8,
                /// whose numbers it holds exactly: no other program knows its number.
                F8E4M3 (Some(4096), "F8_E4M3", "f8_e4m3", 64, 68, false)
            }
        }
    };
}

macro_rules! define {
    (() $($encoding:ident { $($(#[$doc:meta])* $format:ident ($number:expr, $name:literal, $word:literal, $elements:literal, $bytes:literal, $min:literal))* })*) => {
        /// How the elements of a tensor are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($($(#[$doc])* $format,)*)*
        }

        impl Format {
            /// Every format, those of one encoding after another.
            pub const ALL: &[Self] = &[$($(Self::$format),*),*];

            /// The number in GGUF files; none for formats that they do not have.
            pub const fn number(self) -> Option<u32> {
                match self { $($(Self::$format => $number,)*)* }
            }

            /// The name as GGUF files and their names spell it.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$format => $name,)*)* }
            }

            /// The word for it in kernels' names, and in messages about them.
            pub const fn word(self) -> &'static str {
                match self { $($(Self::$format => $word,)*)* }
            }

            /// Elements of a block; 1 for plain numbers.
            pub const fn block_size(self) -> usize {
                match self { $($(Self::$format => $elements,)*)* }
            }

            /// Bytes of a block.
            pub const fn type_size(self) -> usize {
                match self { $($(Self::$format => $bytes,)*)* }
            }

            /// Whether an element is a scale times an integer plus a minimum, not a scale times an integer alone.
            pub const fn has_min(self) -> bool {
                match self { $($(Self::$format => $min,)*)* }
            }

            /// How a block is encoded.
            pub const fn encoding(self) -> Encoding {
                match self { $($(Self::$format => Encoding::$encoding,)*)* }
            }
        }
    };
}

formats!(define());

/// How a block holds its elements: which reader, and so which kernels, a format needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// One number, no block.
    Plain,
    /// 32 integers under one scale.
    Small,
    /// 256 integers; scales of 16 or 32 of them are integers, too, under a scale of the block.
    K,
    /// Groups of neighbours, each an entry of a codebook.
    Codebook,
    /// Each element one of at most 16 levels.
    Levels,
    /// Each element a float, multiplied with activations as they are.
    Floats,
}

impl Format {
    /// The format with this number in GGUF files, `None` if there is none.
    pub fn from_number(number: u32) -> Option<Self> {
        let mut formats = Self::ALL.iter().copied();
        formats.find(|format| format.number() == Some(number))
    }

    /// The format of this name, as GGUF spells it but in any case, `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut formats = Self::ALL.iter().copied();
        formats.find(|format| format.name().eq_ignore_ascii_case(name))
    }

    /// Whether it holds activations while a product is computed; no file has tensors in it.
    pub const fn is_of_activations(self) -> bool {
        matches!(self, Self::Q8_1 | Self::Q8K)
    }

    /// Whether elements are integers within a scale, so that products with 8-bit activations are of integers.
    pub const fn has_integers(self) -> bool {
        !matches!(self.encoding(), Encoding::Plain | Encoding::Floats)
    }

    /// Whether files have quantized weights in it: neither plain numbers nor a format of activations.
    pub const fn is_weight(self) -> bool {
        !matches!(self.encoding(), Encoding::Plain) && !self.is_of_activations()
    }
}

/// The word of kernels' names.
impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_numbers_and_words_are_unique_and_found() {
        let mut words = HashSet::new();
        for &format in Format::ALL {
            assert_eq!(Format::from_name(format.name()), Some(format));
            assert_eq!(
                Format::from_name(&format.name().to_lowercase()),
                Some(format)
            );
            if let Some(number) = format.number() {
                assert_eq!(Format::from_number(number), Some(format));
            }
            assert!(words.insert(format.word()), "{format}");
        }
        assert_eq!(Format::from_name("Q9_9"), None);
    }

    #[test]
    fn withdrawn_numbers_are_unknown() {
        for number in [4, 5, 31, 32, 33, 36, 37, 38, 41, u32::MAX] {
            assert_eq!(Format::from_number(number), None);
        }
    }
}
