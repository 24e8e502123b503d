//! Newer families with the usual attention, with and without experts.

use super::usual::{GRANITE_SCALES, HALVES, LLAMA, NEIGHBOURS, NO_WINDOW, OPTIONAL_WINDOW, USUAL};
use crate::architectures::folder::{Accepted, ConfigRule, FolderTraits, OlderFolder};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{Activation, DecoderTraits, Layers, NormKind, Routing};
use Accepted::{Absent, Bool, Each, Number, Text};
use ConfigRule::{Count, Only, OnlyFloat, Windows};

const TRANSFORMERS: &str = "transformers, both formats";

/// `post_attention_layernorm` keeps its name in GGUF, whatever it is before or behind.
const NAMED: FolderTraits = FolderTraits {
    post_attention_is_ffn_norm: false,
    ..USUAL
};

/// DeepSeek-V3's router beside the usual attention.
const ROUTED: DecoderTraits = DecoderTraits {
    routing: Routing::SIGMOID,
    ..HALVES
};

/// Hunyuan's attention.
const HUNYUAN: DecoderTraits = DecoderTraits {
    qk_norms: true,
    qk_norms_behind: true,
    ..HALVES
};
const HUNYUAN_RULES: &[ConfigRule] = &[
    Only("use_qk_norm", &[Absent, Bool(true)]),
    Only("use_cla", &[Absent, Bool(false)]),
];

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
        "apertus",
        "Apertus",
        DecoderTraits {
            qk_norms: true,
            activation: Activation::Xielu,
            ..HALVES
        },
    )
    .folders(
        &["ApertusForCausalLM"],
        FolderTraits {
            activations: &["xielu"],
            ..USUAL
        },
    )
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("hunyuan-dense", "Hunyuan", HUNYUAN)
        .folders(&["HunYuanDenseV1ForCausalLM"], USUAL.rules(HUNYUAN_RULES))
        .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("hunyuan-moe", "Hunyuan with experts (A13B)", HUNYUAN)
        .folders(&["HunYuanMoEV1ForCausalLM"], USUAL.rules(HUNYUAN_RULES))
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
    ArchitectureRow::decoder(
        "glm4moe",
        "GLM 4.5 to 4.7",
        DecoderTraits {
            optional_qk_norms: true,
            ..ROUTED
        },
    )
    .folders(&["Glm4MoeForCausalLM"], NAMED)
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "dots1",
        "dots.llm1",
        DecoderTraits {
            qk_norms: true,
            ..ROUTED
        },
    )
    .folders(
        &["Dots1ForCausalLM"],
        USUAL.rules(&[
            NO_WINDOW,
            Only("layer_types", &[Absent, Each("full_attention")]),
        ]),
    )
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "bailingmoe2",
        "Ling 2, Ring 2",
        DecoderTraits {
            qk_norms: true,
            ..ROUTED
        },
    )
    .folders(
        &["BailingMoeV2ForCausalLM"],
        USUAL.rules(&[
            Only("use_qk_norm", &[Absent, Bool(true)]),
            Only("use_rmsnorm", &[Absent, Bool(true)]),
            Only("router_type", &[Absent, Text("group_limited_topk")]),
            Only("norm_head", &[Absent, Bool(false)]),
        ]),
    )
    .compared_with("transformers' numbers of GLM 4.5, which is built alike, both formats"),
    ArchitectureRow::decoder("bailingmoe", "Ling 1", LLAMA)
        .folders(
            &["BailingMoeForCausalLM"],
            FolderTraits {
                older: Some(OlderFolder::Ling),
                rules: &[
                    Only("norm_head", &[Absent, Bool(false)]),
                    Only("multi_gate", &[Absent, Bool(false)]),
                    Only("norm_softmax", &[Absent, Bool(false)]),
                ],
                ..USUAL
            },
        )
        .compared_with(
            "transformers' numbers of Granite 3 with shared experts, built alike, both formats",
        ),
    ArchitectureRow::decoder("granitemoe", "Granite 3 with experts", LLAMA)
        .folders(
            &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
            FolderTraits {
                older: Some(OlderFolder::GraniteMoe),
                rules: GRANITE_SCALES,
                ..USUAL
            },
        )
        .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "phimoe",
        "Phi 3.5 with experts",
        DecoderTraits {
            norm: NormKind::Layer,
            routing: Routing::NEAR,
            ..HALVES
        },
    )
    .folders(
        &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
        USUAL.rules(&[
            OPTIONAL_WINDOW,
            OnlyFloat("router_jitter_noise", Routing::NEARNESS),
        ]),
    )
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "minimax-m2",
        "MiniMax M2",
        DecoderTraits {
            qk_norms: true,
            ..ROUTED
        },
    )
    .folders(
        &["MiniMaxM2ForCausalLM"],
        USUAL.rules(&[
            Only("use_qk_norm", &[Absent, Bool(true)]),
            Only("qk_norm_type", &[Absent, Text("per_layer")]),
            Only("shared_intermediate_size", &[Absent, Number(0)]),
            Count("intermediate_size", "expert_feed_forward_length"),
        ]),
    )
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("ernie4_5-moe", "ERNIE 4.5 with experts", LLAMA)
        .folders(
            &["Ernie4_5_MoeForCausalLM"],
            NEIGHBOURS.rules(&[Only("use_bias", &[Absent, Bool(false)])]),
        )
        .compared_with(TRANSFORMERS),
];
