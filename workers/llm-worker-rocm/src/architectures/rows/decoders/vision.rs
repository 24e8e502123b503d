//! Families whose rows turn by time, row and column of pictures. Those that see and whose text part is another family's
//! stand with that.

use super::usual::{HALVES, NO_WINDOW, USUAL};
use crate::architectures::folder::ConfigRule::{OnlyWithExperts, PictureSections};
use crate::architectures::folder::{Accepted, ExpertFiles, FolderTraits};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{DecoderTraits, Sections};
use Accepted::{Absent, Bool};

const QWEN3: DecoderTraits = DecoderTraits {
    qk_norms: true,
    sections: Sections::Interleaved,
    ..HALVES
};

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
    ArchitectureRow::decoder("qwen3vl", "Qwen 3-VL", QWEN3)
        .folders(
            &["Qwen3VLForConditionalGeneration"],
            USUAL.rules(&[NO_WINDOW, PictureSections]),
        )
        .compared_with("transformers, with pictures"),
    ArchitectureRow::decoder("qwen3vlmoe", "Qwen 3-VL with experts", QWEN3)
        .folders(
            &["Qwen3VLMoeForConditionalGeneration"],
            FolderTraits {
                experts: ExpertFiles::Halves,
                ..USUAL.rules(&[
                    NO_WINDOW,
                    PictureSections,
                    OnlyWithExperts("norm_topk_prob", &[Absent, Bool(true)]),
                ])
            },
        )
        .compared_with("transformers, with pictures"),
];
