//! Parts of families: what a compiler on the user's machine makes of a family at once.
//!
//! A family that takes a compiler seconds has a part for each dtype, or for each quantized format. Its file instantiates them one to a line,
//! `MACRO(part, ...)`, and its kernels' names hold them as a word: `add_f32`, `matvec_q4_0_1`. What belongs to two dtypes goes by the
//! first: `cast_f16_f32`. Objects that are built in hold whole families.

use crate::family::Family;

/// Every part, as macros' arguments and kernels' names have it.
const PARTS: &[&str] = &[
    "u8", "u32", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "f8e4m3", "q4_0", "q4_1",
    "q5_0", "q5_1", "q8_0", "q8_1", "q2k", "q3k", "q4k", "q5k", "q6k", "q8k", "iq1_s", "iq1_m",
    "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0",
    "mxfp4", "nvfp4",
];

impl Family {
    /// Whether a compiler on the user's machine makes the family in parts.
    pub const fn is_in_parts(self) -> bool {
        matches!(
            self,
            Self::Unary
                | Self::Binary
                | Self::Cast
                | Self::Reduce
                | Self::ReducePacks
                | Self::Norm
                | Self::GroupNorm
                | Self::AttentionDecode
                | Self::MatvecSmall
                | Self::MatvecK
                | Self::MatvecCodebook
                | Self::MatvecLevels
                | Self::MatmulSmall
                | Self::MatmulK
                | Self::MatmulCodebook
                | Self::MatmulLevels
                | Self::MoeQuantized
        )
    }

    /// The part that has the kernel, of a family in parts; `""` is what every part has.
    pub fn part_of(self, kernel: &str) -> Option<&'static str> {
        self.is_in_parts()
            .then(|| part_in(kernel).unwrap_or_default())
    }

    /// [`Family::source`] without the instances of other parts.
    pub fn part(self, part: &str) -> String {
        let mut source = String::with_capacity(self.source().len());
        for line in self.source().lines() {
            if instance(line).is_none_or(|of| of == part) {
                source.push_str(line);
            }
            // What is left out leaves the numbers of lines as they are.
            source.push('\n');
        }
        source
    }
}

/// The first part that a name of words between underscores holds.
fn part_in(name: &str) -> Option<&'static str> {
    let words = format!("_{name}_");
    PARTS
        .iter()
        .filter_map(|part| Some((words.find(&format!("_{part}_"))?, *part)))
        .min()
        .map(|(_, part)| part)
}

/// The part that a line instantiates.
fn instance(line: &str) -> Option<&'static str> {
    let (name, arguments) = line.split_once('(')?;
    let is_macro = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(is_macro) {
        return None;
    }
    part_in(arguments.split([',', ')']).next()?)
}
