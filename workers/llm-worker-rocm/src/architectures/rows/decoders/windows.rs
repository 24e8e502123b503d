//! Families of windows, sinks, and caches that layers share.

use super::usual::{HALVES, USUAL, WINDOW};
use crate::architectures::folder::{ConfigRule, ExpertFiles, FolderTraits};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{ClampedGate, DecoderTraits, Layers};
use ConfigRule::{Count, FullAttentionEvery, OnlyFloat};

const BOTH_FORMATS: &str = "transformers, both formats";

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[ArchitectureRow::decoder(
    "gpt-oss",
    "gpt-oss",
    DecoderTraits {
        layers: Layers::Windowed {
            period: 2,
            local_base: None,
            positionless: false,
        },
        sinks: true,
        clamped_gates: Some(ClampedGate {
            alpha: 1.702,
            limit: 7.0,
        }),
        yarn_whole_pairs: false,
        ..HALVES
    },
)
.folders(
    &["GptOssForCausalLM"],
    FolderTraits {
        post_attention_is_ffn_norm: false,
        experts: ExpertFiles::Turns,
        rules: &[
            Count("sliding_window", WINDOW),
            Count("intermediate_size", "expert_feed_forward_length"),
            FullAttentionEvery(2),
            OnlyFloat("swiglu_alpha", 1.702),
            OnlyFloat("swiglu_limit", 7.0),
        ],
        ..USUAL
    },
)
.compared_with(BOTH_FORMATS)];
