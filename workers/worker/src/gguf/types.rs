//! Tensor types of GGUF: their codes and block layouts.

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
    /// Whether candle can compute with it.
    pub supported: bool,
}

impl GgmlType {
    /// The type with this code, `None` if the format has no such code.
    pub fn from_code(code: u32) -> Option<Self> {
        TYPES.iter().copied().find(|t| t.code == code)
    }
}

const fn ty(code: u32, name: &'static str, block_elements: u64, block_bytes: u64) -> GgmlType {
    GgmlType {
        code,
        name,
        block_elements,
        block_bytes,
        supported: true,
    }
}

const fn foreign(code: u32, name: &'static str, block_elements: u64, block_bytes: u64) -> GgmlType {
    GgmlType {
        supported: false,
        ..ty(code, name, block_elements, block_bytes)
    }
}

/// Every type of the format. Codes 4, 5, 31..33 and 36..38 were withdrawn.
const TYPES: &[GgmlType] = &[
    ty(0, "F32", 1, 4),
    ty(1, "F16", 1, 2),
    ty(2, "Q4_0", 32, 18),
    ty(3, "Q4_1", 32, 20),
    ty(6, "Q5_0", 32, 22),
    ty(7, "Q5_1", 32, 24),
    ty(8, "Q8_0", 32, 34),
    ty(9, "Q8_1", 32, 36),
    ty(10, "Q2_K", 256, 84),
    ty(11, "Q3_K", 256, 110),
    ty(12, "Q4_K", 256, 144),
    ty(13, "Q5_K", 256, 176),
    ty(14, "Q6_K", 256, 210),
    ty(15, "Q8_K", 256, 292),
    foreign(16, "IQ2_XXS", 256, 66),
    foreign(17, "IQ2_XS", 256, 74),
    foreign(18, "IQ3_XXS", 256, 98),
    foreign(19, "IQ1_S", 256, 50),
    foreign(20, "IQ4_NL", 32, 18),
    foreign(21, "IQ3_S", 256, 110),
    foreign(22, "IQ2_S", 256, 82),
    foreign(23, "IQ4_XS", 256, 136),
    foreign(24, "I8", 1, 1),
    foreign(25, "I16", 1, 2),
    foreign(26, "I32", 1, 4),
    foreign(27, "I64", 1, 8),
    foreign(28, "F64", 1, 8),
    foreign(29, "IQ1_M", 256, 56),
    ty(30, "BF16", 1, 2),
    foreign(34, "TQ1_0", 256, 54),
    foreign(35, "TQ2_0", 256, 66),
    foreign(39, "MXFP4", 32, 17),
];

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::GgmlDType;

    #[test]
    fn block_layouts_agree_with_candle() {
        for (code, dtype) in [
            (0, GgmlDType::F32),
            (1, GgmlDType::F16),
            (2, GgmlDType::Q4_0),
            (3, GgmlDType::Q4_1),
            (6, GgmlDType::Q5_0),
            (7, GgmlDType::Q5_1),
            (8, GgmlDType::Q8_0),
            (9, GgmlDType::Q8_1),
            (10, GgmlDType::Q2K),
            (11, GgmlDType::Q3K),
            (12, GgmlDType::Q4K),
            (13, GgmlDType::Q5K),
            (14, GgmlDType::Q6K),
            (15, GgmlDType::Q8K),
            (30, GgmlDType::BF16),
        ] {
            let ty = GgmlType::from_code(code).unwrap();
            assert!(ty.supported, "{}", ty.name);
            assert_eq!(ty.block_elements, dtype.block_size() as u64, "{}", ty.name);
            assert_eq!(ty.block_bytes, dtype.type_size() as u64, "{}", ty.name);
        }
    }

    #[test]
    fn withdrawn_codes_are_unknown() {
        for code in [4, 5, 31, 32, 33, 36, 37, 38, 40, u32::MAX] {
            assert_eq!(GgmlType::from_code(code), None);
        }
    }
}
