//! What of a GPU's instructions kernels can do without: macros with which their plainer forms are compiled.

use crate::{DeclaredKernel, Only};

/// A kind of instruction that has a plainer form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Exchange of words between lanes inside the vector unit: DPP, swizzles, permlanex16.
    Lanes,
    /// Shared memory in the order of a wave.
    Lds,
    /// Bytes and halves of words put together by one instruction.
    Bytes,
    /// Products of four bytes.
    Dot,
    /// Loads from addresses that are no multiples of their size.
    Loads,
    /// Matrix instructions.
    Matrix,
}

impl Feature {
    pub const ALL: [Self; 6] = [
        Self::Lanes,
        Self::Lds,
        Self::Bytes,
        Self::Dot,
        Self::Loads,
        Self::Matrix,
    ];

    /// The macro of `plain.h` without it.
    const fn option(self) -> &'static str {
        match self {
            Self::Lanes => "-DCANDLE_ROCM_PLAIN_LANES=1",
            Self::Lds => "-DCANDLE_ROCM_PLAIN_LDS=1",
            Self::Bytes => "-DCANDLE_ROCM_PLAIN_BYTES=1",
            Self::Dot => "-DCANDLE_ROCM_PLAIN_DOT=1",
            Self::Loads => "-DCANDLE_ROCM_PLAIN_LOADS=1",
            Self::Matrix => "-DCANDLE_ROCM_NO_MATRIX=1",
        }
    }
}

/// What is verified of instructions, and the feature that falls away where it is wrong. Without one there is no plainer
/// form: kernels that need it will be found to be wrong themselves.
pub(super) const INSTRUCTIONS: [(&str, Option<Feature>); 7] = [
    ("lanes", Some(Feature::Lanes)),
    ("lds", Some(Feature::Lds)),
    ("bytes", Some(Feature::Bytes)),
    ("dot", Some(Feature::Dot)),
    ("loads", Some(Feature::Loads)),
    ("matrix", Some(Feature::Matrix)),
    ("waves", None),
];

/// A form of the kernels: the features that it does without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Plain(u8);

impl Plain {
    /// With everything.
    pub const NONE: Self = Plain(0);

    /// Without anything, as far as there is such a form of the kernel.
    pub fn form_of(kernel: &DeclaredKernel) -> Self {
        let mut plain = Plain::NONE;
        for feature in Feature::ALL {
            let is_needed = feature == Feature::Matrix
                && matches!(kernel.only, Some(Only::Matrix | Only::Float8 | Only::Mx));
            if !is_needed {
                plain.insert(feature);
            }
        }
        plain
    }

    pub fn from_bits(bits: u8) -> Self {
        Plain(bits)
    }

    pub fn bits(self) -> u8 {
        self.0
    }

    pub fn insert(&mut self, feature: Feature) {
        self.0 |= 1 << feature as u8;
    }

    /// Without what either does without.
    pub fn and(self, other: Self) -> Self {
        Plain(self.0 | other.0)
    }

    pub fn lacks(self, feature: Feature) -> bool {
        self.0 & 1 << feature as u8 != 0
    }

    /// What a compiler is told.
    pub fn options(self) -> Vec<String> {
        let lacking = Feature::ALL
            .into_iter()
            .filter(|feature| self.lacks(*feature));
        lacking
            .map(|feature| feature.option().to_string())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_are_those_of_the_header() {
        let header = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../candle-rocm-kernels/hip/plain.h"
        );
        let header = std::fs::read_to_string(header).unwrap();
        let mut all = Plain::NONE;
        for feature in Feature::ALL {
            assert!(!all.lacks(feature));
            all.insert(feature);
            let name = feature.option().strip_prefix("-D").unwrap();
            let name = name.strip_suffix("=1").unwrap();
            assert!(header.contains(&format!("#ifndef {name}\n#define {name} 0\n")));
        }
        assert_eq!(
            all.options().len(),
            header.matches("#ifndef CANDLE_ROCM_").count() - 1
        );
    }
}
