//! Families with a gated delta rule or short convolutions beside attention.

use super::usual::{HALVES, USUAL};
use crate::architectures::folder::{Accepted, ConfigRule, DeltaFolder, FolderTraits};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{BlockParts, DecoderTraits, Recurrence, Routing, Sections};
use Accepted::{Absent, Bool};
use ConfigRule::Only;

const NEXT: DecoderTraits = DecoderTraits {
    qk_norms: true,
    recurrence: Recurrence::Delta,
    parts: BlockParts::RecurrentBetween,
    gated_attention: true,
    ..HALVES
};

const QWEN35: DecoderTraits = DecoderTraits {
    tiled_heads: true,
    sections: Sections::Interleaved,
    ..NEXT
};

const LFM2: DecoderTraits = DecoderTraits {
    qk_norms: true,
    recurrence: Recurrence::ShortConvolution,
    parts: BlockParts::RecurrentWithoutHeads,
    ..HALVES
};

const fn qwen(delta: DeltaFolder) -> FolderTraits {
    FolderTraits {
        norm_plus_one: true,
        post_attention_is_ffn_norm: false,
        delta: Some(delta),
        rules: &[Only("attention_bias", &[Absent, Bool(false)])],
        ..USUAL
    }
}

const LFM2_FOLDER: FolderTraits = FolderTraits {
    tied: true,
    delta: Some(DeltaFolder::Lfm2),
    ..USUAL
};

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder("qwen3next", "Qwen3-Next", NEXT)
        .folders(&["Qwen3NextForCausalLM"], qwen(DeltaFolder::Qwen3Next))
        .compared_with("transformers"),
    ArchitectureRow::decoder("qwen35", "Qwen 3.5", QWEN35)
        .folders(
            &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
            qwen(DeltaFolder::Qwen35),
        )
        .compared_with("transformers, with pictures"),
    ArchitectureRow::decoder("qwen35moe", "Qwen 3.5 with experts", QWEN35)
        .folders(
            &[
                "Qwen3_5MoeForCausalLM",
                "Qwen3_5MoeForConditionalGeneration",
            ],
            qwen(DeltaFolder::Qwen35),
        )
        .compared_with("transformers, with pictures"),
    ArchitectureRow::decoder("lfm2", "LFM2", LFM2)
        .folders(&["Lfm2ForCausalLM"], LFM2_FOLDER)
        .compared_with("transformers"),
    ArchitectureRow::decoder(
        "lfm2moe",
        "LFM2 with experts",
        DecoderTraits {
            routing: Routing {
                epsilon: 1e-6,
                ..Routing::SIGMOID
            },
            ..LFM2
        },
    )
    .folders(&["Lfm2MoeForCausalLM"], LFM2_FOLDER)
    .compared_with("transformers"),
];
