//! Tensor types of GGUF: their codes and block layouts.

use candle_core::quantized::GgmlDType;

/// A tensor type known to the format: code, name, elements per block, bytes per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgmlType {
    /// The code in the file.
    pub code: u32,
    /// The usual name, as in file names.
    pub name: &'static str,
    /// Elements that share one block.
    pub block_elements: u64,
    /// Size of one block in bytes.
    pub block_bytes: u64,
    /// What candle calls it, `None` if candle cannot compute with it.
    pub dtype: Option<GgmlDType>,
}

impl GgmlType {
    /// Every type of the format.
    pub const ALL: &'static [Self] = TYPES;

    /// The type with this code, `None` if the format has no such code.
    pub fn from_code(code: u32) -> Option<Self> {
        TYPES.iter().copied().find(|t| t.code == code)
    }

    /// The type of this name in any case, `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES
            .iter()
            .copied()
            .find(|t| t.name.eq_ignore_ascii_case(name))
    }
}

const fn ty(
    code: u32,
    name: &'static str,
    block_elements: u64,
    block_bytes: u64,
    dtype: GgmlDType,
) -> GgmlType {
    GgmlType {
        code,
        name,
        block_elements,
        block_bytes,
        dtype: Some(dtype),
    }
}

const fn foreign(code: u32, name: &'static str, block_elements: u64, block_bytes: u64) -> GgmlType {
    GgmlType {
        code,
        name,
        block_elements,
        block_bytes,
        dtype: None,
    }
}

/// Every type of the format. Codes 4, 5, 31..33 and 36..38 were withdrawn.
const TYPES: &[GgmlType] = &[
    ty(0, "F32", 1, 4, GgmlDType::F32),
    ty(1, "F16", 1, 2, GgmlDType::F16),
    ty(2, "Q4_0", 32, 18, GgmlDType::Q4_0),
    ty(3, "Q4_1", 32, 20, GgmlDType::Q4_1),
    ty(6, "Q5_0", 32, 22, GgmlDType::Q5_0),
    ty(7, "Q5_1", 32, 24, GgmlDType::Q5_1),
    ty(8, "Q8_0", 32, 34, GgmlDType::Q8_0),
    ty(9, "Q8_1", 32, 36, GgmlDType::Q8_1),
    ty(10, "Q2_K", 256, 84, GgmlDType::Q2K),
    ty(11, "Q3_K", 256, 110, GgmlDType::Q3K),
    ty(12, "Q4_K", 256, 144, GgmlDType::Q4K),
    ty(13, "Q5_K", 256, 176, GgmlDType::Q5K),
    ty(14, "Q6_K", 256, 210, GgmlDType::Q6K),
    ty(15, "Q8_K", 256, 292, GgmlDType::Q8K),
    ty(16, "IQ2_XXS", 256, 66, GgmlDType::IQ2XXS),
    ty(17, "IQ2_XS", 256, 74, GgmlDType::IQ2XS),
    ty(18, "IQ3_XXS", 256, 98, GgmlDType::IQ3XXS),
    ty(19, "IQ1_S", 256, 50, GgmlDType::IQ1S),
    ty(20, "IQ4_NL", 32, 18, GgmlDType::IQ4NL),
    ty(21, "IQ3_S", 256, 110, GgmlDType::IQ3S),
    ty(22, "IQ2_S", 256, 82, GgmlDType::IQ2S),
    ty(23, "IQ4_XS", 256, 136, GgmlDType::IQ4XS),
    foreign(24, "I8", 1, 1),
    foreign(25, "I16", 1, 2),
    foreign(26, "I32", 1, 4),
    foreign(27, "I64", 1, 8),
    foreign(28, "F64", 1, 8),
    ty(29, "IQ1_M", 256, 56, GgmlDType::IQ1M),
    ty(30, "BF16", 1, 2, GgmlDType::BF16),
    ty(34, "TQ1_0", 256, 54, GgmlDType::TQ1_0),
    ty(35, "TQ2_0", 256, 66, GgmlDType::TQ2_0),
    ty(39, "MXFP4", 32, 17, GgmlDType::MXFP4),
    ty(40, "NVFP4", 64, 36, GgmlDType::NVFP4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_layouts_agree_with_candle() {
        for ty in TYPES {
            if let Some(dtype) = ty.dtype {
                assert_eq!(ty.block_elements, dtype.block_size() as u64, "{}", ty.name);
                assert_eq!(ty.block_bytes, dtype.type_size() as u64, "{}", ty.name);
                // candle writes no underscores but between digits.
                let name = ty.name.replace("_0", "-0").replace("_1", "-1");
                let name = name.replace('_', "").replace('-', "_");
                assert_eq!(format!("{dtype:?}"), name);
            }
        }
    }

    #[test]
    fn withdrawn_codes_are_unknown() {
        for code in [4, 5, 31, 32, 33, 36, 37, 38, 41, u32::MAX] {
            assert_eq!(GgmlType::from_code(code), None);
        }
    }
}
