//! Newer families with the usual attention, with and without experts.

use super::usual::{HALVES, LLAMA, USUAL};
use crate::architectures::folder::{Accepted, ConfigRule, FolderTraits};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{Activation, DecoderTraits, Layers};
use Accepted::{Absent, Bool};
use ConfigRule::{Only, Windows};

const TRANSFORMERS: &str = "transformers, both formats";

/// `post_attention_layernorm` keeps its name in GGUF, whatever it is before or behind.
const NAMED: FolderTraits = FolderTraits {
    post_attention_is_ffn_norm: false,
    ..USUAL
};

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder(
        "exaone4",
        "EXAONE 4",
        DecoderTraits {
            pre_norms: false,
            post_norms: true,
            qk_norms: true,
            layers: Layers::MaybeWindowed {
                period: 4,
                unscaled: false,
                positionless: true,
            },
            ..HALVES
        },
    )
    .folders(&["Exaone4ForCausalLM"], NAMED.rules(&[Windows(4)]))
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("seed_oss", "Seed-OSS", HALVES)
        .folders(&["SeedOssForCausalLM"], NAMED)
        .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "hunyuan-dense",
        "Hunyuan",
        DecoderTraits {
            qk_norms: true,
            qk_norms_behind: true,
            ..HALVES
        },
    )
    .folders(
        &["HunYuanDenseV1ForCausalLM"],
        USUAL.rules(&[
            Only("use_qk_norm", &[Absent, Bool(true)]),
            Only("use_cla", &[Absent, Bool(false)]),
        ]),
    )
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "arcee",
        "Arcee (AFM)",
        DecoderTraits {
            activation: Activation::SquaredRelu,
            ..LLAMA
        },
    )
    .folders(
        &["ArceeForCausalLM"],
        FolderTraits {
            activations: &["relu2"],
            ..USUAL
        },
    )
    .compared_with(TRANSFORMERS),
];
