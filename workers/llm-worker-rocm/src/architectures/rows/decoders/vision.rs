//! Families whose rows turn by time, row and column of pictures. Those that see and whose text part is another family's
//! stand with that.

use super::usual::{HALVES, NO_WINDOW, USUAL};
use crate::architectures::folder::ConfigRule::PictureSections;
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{DecoderTraits, Sections};

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder(
        "qwen2vl",
        "Qwen 2-VL, 2.5-VL, 2.5-Omni",
        DecoderTraits {
            sections: Sections::Split,
            ..HALVES
        },
    )
    .folders(
        &[
            "Qwen2VLForConditionalGeneration",
            "Qwen2_5_VLForConditionalGeneration",
            "Qwen2_5OmniThinkerForConditionalGeneration",
            "Qwen2_5OmniForConditionalGeneration",
            "Qwen2_5OmniModel",
        ],
        USUAL.rules(&[NO_WINDOW, PictureSections]),
    )
    .compared_with("transformers, with pictures and sounds"),
    ArchitectureRow::decoder(
        "qwen3vl",
        "Qwen 3-VL",
        DecoderTraits {
            qk_norms: true,
            sections: Sections::Interleaved,
            ..HALVES
        },
    )
    .folders(
        &["Qwen3VLForConditionalGeneration"],
        USUAL.rules(&[NO_WINDOW, PictureSections]),
    )
    .compared_with("transformers, with pictures"),
];
