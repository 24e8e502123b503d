//! The storage formats of quantized weights: one table.

use crate::{DType, Error, Result};

/// One line per format: what it is, its number in GGUF files, its name, elements and bytes of a block.
macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident = $number:literal, $name:literal, $elements:literal, $bytes:literal;)*) => {
        /// Storage format of a weight, as GGUF files number them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum GgmlType {
            $($(#[$doc])* $format,)*
        }

        impl GgmlType {
            /// Every format.
            pub const ALL: &[Self] = &[$(Self::$format),*];

            /// The format's number in a GGUF file.
            pub const fn to_u32(self) -> u32 {
                match self { $(Self::$format => $number,)* }
            }

            /// The name in kernel names and messages.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$format => $name,)* }
            }

            /// Elements of a block; 1 for the plain formats.
            pub const fn block_size(self) -> usize {
                match self { $(Self::$format => $elements,)* }
            }

            /// Bytes of a block.
            pub const fn type_size(self) -> usize {
                match self { $(Self::$format => $bytes,)* }
            }
        }
    };
}

formats! {
    /// Plain binary32.
    F32 = 0, "f32", 1, 4;
    /// Plain binary16.
    F16 = 1, "f16", 1, 2;
    /// Plain bfloat16.
    BF16 = 30, "bf16", 1, 2;
    /// 4 bits, blocks of 32 with a scale.
    Q4_0 = 2, "q4_0", 32, 18;
    /// 4 bits, blocks of 32 with a scale and a minimum.
    Q4_1 = 3, "q4_1", 32, 20;
    /// 5 bits, blocks of 32 with a scale.
    Q5_0 = 6, "q5_0", 32, 22;
    /// 5 bits, blocks of 32 with a scale and a minimum.
    Q5_1 = 7, "q5_1", 32, 24;
    /// 8 bits, blocks of 32 with a scale.
    Q8_0 = 8, "q8_0", 32, 34;
    /// 8 bits, blocks of 32 with a scale and the sum of the block.
    Q8_1 = 9, "q8_1", 32, 36;
    /// 2 bits, blocks of 256 with 16 4-bit scales and minima.
    Q2K = 10, "q2k", 256, 84;
    /// 3 bits, blocks of 256 with 16 6-bit scales.
    Q3K = 11, "q3k", 256, 110;
    /// 4 bits, blocks of 256 with 8 6-bit scales and minima.
    Q4K = 12, "q4k", 256, 144;
    /// 5 bits, blocks of 256 with 8 6-bit scales and minima.
    Q5K = 13, "q5k", 256, 176;
    /// 6 bits, blocks of 256 with 16 8-bit scales.
    Q6K = 14, "q6k", 256, 210;
    /// 8 bits, blocks of 256 with a binary32 scale.
    Q8K = 15, "q8k", 256, 292;
    /// 2.06 bits, blocks of 256: groups of 8 from a codebook of 256, 8 scales of 4 bits.
    IQ2XXS = 16, "iq2_xxs", 256, 66;
    /// 2.31 bits, blocks of 256: groups of 8 from a codebook of 512, 16 scales of 4 bits.
    IQ2XS = 17, "iq2_xs", 256, 74;
    /// 2.56 bits, blocks of 256: groups of 8 from a codebook of 1024, 16 scales of 4 bits.
    IQ2S = 22, "iq2_s", 256, 82;
    /// 3.06 bits, blocks of 256: groups of 4 from a codebook of 256, 8 scales of 4 bits.
    IQ3XXS = 18, "iq3_xxs", 256, 98;
    /// 3.44 bits, blocks of 256: groups of 4 from a codebook of 512, 8 scales of 4 bits.
    IQ3S = 21, "iq3_s", 256, 110;
    /// 1.56 bits, blocks of 256: groups of 8 from a codebook of 2048, 8 scales of 3 bits.
    IQ1S = 19, "iq1_s", 256, 50;
    /// 1.75 bits, blocks of 256: groups of 8 from a codebook of 2048, 16 scales of 3 bits.
    IQ1M = 29, "iq1_m", 256, 56;
    /// 4 bits that stand for uneven levels, blocks of 32 with a scale.
    IQ4NL = 20, "iq4_nl", 32, 18;
    /// 4 bits that stand for uneven levels, blocks of 256 with 8 6-bit scales.
    IQ4XS = 23, "iq4_xs", 256, 136;
    /// Ternary, five to a byte, blocks of 256 with a scale.
    TQ1_0 = 34, "tq1_0", 256, 54;
    /// Ternary, four to a byte, blocks of 256 with a scale.
    TQ2_0 = 35, "tq2_0", 256, 66;
    /// 4-bit floats, blocks of 32 with a power of two as scale.
    MXFP4 = 39, "mxfp4", 32, 17;
    /// 4-bit floats, blocks of 64 with 4 unsigned 8-bit floats as scales.
    NVFP4 = 40, "nvfp4", 64, 36;
}

impl GgmlType {
    /// The format with the given number in a GGUF file; none for numbers of formats not listed here.
    pub fn from_u32(number: u32) -> Option<Self> {
        let mut formats = Self::ALL.iter().copied();
        formats.find(|format| format.to_u32() == number)
    }

    /// Whether files have quantized weights in it: neither a plain format nor one of activations.
    pub const fn is_weight(self) -> bool {
        self.block_size() > 1 && !matches!(self, Self::Q8_1 | Self::Q8K)
    }

    /// Whether values are a scale times one of few levels: the IQ formats, the ternary ones and the 4-bit floats, whose readers
    /// are in `quantized/iq.h`.
    pub(super) const fn has_levels(self) -> bool {
        matches!(
            self,
            Self::IQ1S
                | Self::IQ1M
                | Self::IQ2XXS
                | Self::IQ2XS
                | Self::IQ2S
                | Self::IQ3XXS
                | Self::IQ3S
                | Self::IQ4NL
                | Self::IQ4XS
                | Self::TQ1_0
                | Self::TQ2_0
                | Self::MXFP4
                | Self::NVFP4
        )
    }

    /// The dtype of the plain formats.
    pub(crate) const fn plain(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// Bytes that `elements` take.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless they fill whole blocks and their size can be represented.
    pub(crate) fn size_of(self, op: &'static str, elements: usize) -> Result<usize> {
        if !elements.is_multiple_of(self.block_size()) {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "{elements} elements are not whole blocks of {}, which hold {} each",
                    self.name(),
                    self.block_size()
                ),
            });
        }
        (elements / self.block_size())
            .checked_mul(self.type_size())
            .ok_or(Error::TooLarge {
                op,
                what: "element count",
                value: elements,
                limit: (usize::MAX / self.type_size()).saturating_mul(self.block_size()),
            })
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
