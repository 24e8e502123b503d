//! Llama and those that differ from it in a few traits.

use crate::architectures::folder::{Accepted, ConfigRule, FolderTraits};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{
    Activation, DecoderTraits, EmbeddingScale, Layers, LogitScale, NormKind, Routing,
};
use Accepted::{Absent, Bool, Text};
use ConfigRule::{
    Count, Float, FullAttentionEvery, Only, OnlyWithExperts, OptionalCount, ScoreRoot,
    TurnedLayers, Windows,
};

pub(super) const USUAL: FolderTraits = FolderTraits::USUAL;
pub(super) const F64_AND_TRANSFORMERS: &str = "f64, transformers";

/// Llama and what is built like it: the rotary embedding turns neighbours.
pub(super) const LLAMA: DecoderTraits = DecoderTraits::LLAMA;

/// Llama, but that the rotary embedding turns halves.
pub(super) const HALVES: DecoderTraits = DecoderTraits {
    interleaved: false,
    ..LLAMA
};

pub(super) const GEMMA: DecoderTraits = DecoderTraits {
    activation: Activation::Gelu,
    embedding: EmbeddingScale::Root,
    ..HALVES
};

pub(super) const COHERE: DecoderTraits = DecoderTraits {
    norm: NormKind::Layer,
    parallel: true,
    logit_scale: LogitScale::Multiplies,
    ..LLAMA
};

pub(super) const NEOX: DecoderTraits = DecoderTraits {
    norm: NormKind::Layer,
    activation: Activation::Gelu,
    ..HALVES
};

/// Those whose own code turns neighbours, as GGUF does.
pub(super) const NEIGHBOURS: FolderTraits = FolderTraits {
    interleaved: true,
    ..USUAL
};

pub(super) const GEMMA_FOLDER: FolderTraits = FolderTraits {
    norm_plus_one: true,
    // Gemma's "gelu" has always been the approximation.
    activations: &["gelu_pytorch_tanh", "gelu"],
    tied: true,
    ..USUAL
};

pub(super) const WINDOW: &str = "attention.sliding_window";
/// A window that may be absent.
pub(super) const OPTIONAL_WINDOW: ConfigRule = OptionalCount("sliding_window", WINDOW);
/// A switch for windows that may not be on.
pub(super) const NO_WINDOW: ConfigRule = Only("use_sliding_window", &[Absent, Bool(false)]);
/// The chosen experts' probabilities are used as they are.
pub(super) const PLAIN_EXPERTS: ConfigRule =
    OnlyWithExperts("norm_topk_prob", &[Absent, Bool(false)]);
pub(super) const COHERE_SCALE: ConfigRule = Float("logit_scale", "logit_scale");
pub(super) const NO_QK_NORM: ConfigRule = Only("use_qk_norm", &[Absent, Bool(false)]);

pub(super) const GRANITE_SCALES: &[ConfigRule] = &[
    Float("attention_multiplier", "attention.scale"),
    Float("embedding_multiplier", "embedding_scale"),
    Float("residual_multiplier", "residual_scale"),
    Float("logits_scaling", "logit_scale"),
];

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder("llama", "Llama 1 to 3, Mistral, Mixtral, InternLM 3", LLAMA)
        .folders(
            &[
                "LlamaForCausalLM",
                "MistralForCausalLM",
                "MixtralForCausalLM",
                "InternLM3ForCausalLM",
            ],
            // The window of Mistral's first models.
            USUAL.rules(&[OPTIONAL_WINDOW]),
        )
        .compared_with("f64, transformers: plain, biases, Llama 3 and linear scaling"),
    ArchitectureRow::decoder(
        "mistral3",
        "Mistral 3, Ministral 3",
        DecoderTraits {
            tempered: true,
            ..LLAMA
        },
    )
    .folders(
        &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        USUAL.rules(&[
            OPTIONAL_WINDOW,
            Only("model_type", &[Absent, Text("mistral"), Text("ministral3")]),
        ]),
    )
    .compared_with("transformers, both formats"),
    ArchitectureRow::decoder("ernie4_5", "ERNIE 4.5", LLAMA)
        .folders(
            &["Ernie4_5ForCausalLM"],
            NEIGHBOURS.rules(&[Only("use_bias", &[Absent, Bool(false)])]),
        )
        .compared_with("transformers"),
    ArchitectureRow::decoder("granite", "Granite 2, 3", LLAMA)
        .folders(&["GraniteForCausalLM"], USUAL.rules(GRANITE_SCALES))
        .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "smollm3",
        "SmolLM 3",
        DecoderTraits {
            layers: Layers::Positionless { period: 4 },
            ..LLAMA
        },
    )
    .folders(
        &["SmolLM3ForCausalLM"],
        USUAL.rules(&[NO_WINDOW, TurnedLayers(4)]),
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder("chatglm", "GLM 4", LLAMA)
        .folders(&["GlmForCausalLM"], NEIGHBOURS)
        .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "glm4",
        "GLM 4 (0414)",
        DecoderTraits {
            post_norms: true,
            ..LLAMA
        },
    )
    .folders(&["Glm4ForCausalLM"], NEIGHBOURS)
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder("qwen2", "Qwen 2, 2.5", HALVES)
        .folders(&["Qwen2ForCausalLM"], USUAL.rules(&[NO_WINDOW]))
        .compared_with("f64, transformers: plain, YaRN"),
    ArchitectureRow::decoder(
        "qwen2moe",
        "Qwen 1.5, 2 with experts",
        DecoderTraits {
            routing: Routing::PLAIN,
            ..HALVES
        },
    )
    .folders(
        &["Qwen2MoeForCausalLM"],
        USUAL.rules(&[PLAIN_EXPERTS, NO_WINDOW]),
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "qwen3",
        "Qwen 3",
        DecoderTraits {
            qk_norms: true,
            ..HALVES
        },
    )
    .folders(&["Qwen3ForCausalLM"], USUAL.rules(&[NO_WINDOW]))
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "qwen3moe",
        "Qwen 3 with experts",
        DecoderTraits {
            qk_norms: true,
            ..HALVES
        },
    )
    .folders(
        &["Qwen3MoeForCausalLM"],
        USUAL.rules(&[OnlyWithExperts("norm_topk_prob", &[Bool(true)]), NO_WINDOW]),
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder("phi3", "Phi 3, 4", HALVES)
        .folders(&["Phi3ForCausalLM"], USUAL.rules(&[OPTIONAL_WINDOW]))
        .compared_with("f64, transformers: window, longrope, partial rotation"),
    ArchitectureRow::decoder(
        "olmo2",
        "OLMo 2, 3",
        DecoderTraits {
            pre_norms: false,
            post_norms: true,
            qk_norms: true,
            // OLMo 3's windows.
            layers: Layers::MaybeWindowed {
                period: 4,
                unscaled: true,
                positionless: false,
            },
            ..HALVES
        },
    )
    .folders(
        &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        FolderTraits {
            post_attention_is_ffn_norm: false,
            rules: &[Windows(4)],
            ..USUAL
        },
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "olmoe",
        "OLMoE",
        DecoderTraits {
            qk_norms: true,
            routing: Routing::PLAIN,
            ..HALVES
        },
    )
    .folders(
        &["OlmoeForCausalLM"],
        USUAL.rules(&[PLAIN_EXPERTS, Only("clip_qkv", &[Absent])]),
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder("gemma", "Gemma", GEMMA)
        .folders(&["GemmaForCausalLM"], GEMMA_FOLDER)
        .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "gemma2",
        "Gemma 2",
        DecoderTraits {
            post_norms: true,
            layers: Layers::Windowed {
                period: 2,
                local_base: None,
                positionless: false,
            },
            // The 27-billion model.
            scores_by_width_at: Some(46),
            ..GEMMA
        },
    )
    .folders(
        &["Gemma2ForCausalLM"],
        FolderTraits {
            post_attention_is_ffn_norm: false,
            rules: &[
                Count("sliding_window", WINDOW),
                ScoreRoot("query_pre_attn_scalar"),
                Float("attn_logit_softcapping", "attn_logit_softcapping"),
                Float("final_logit_softcapping", "final_logit_softcapping"),
            ],
            ..GEMMA_FOLDER
        },
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "gemma3",
        "Gemma 3 (text)",
        DecoderTraits {
            post_norms: true,
            qk_norms: true,
            layers: Layers::Windowed {
                period: 6,
                local_base: Some(10_000),
                positionless: false,
            },
            // The 27-billion model.
            scores_by_width_at: Some(62),
            ..GEMMA
        },
    )
    .folders(
        &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        FolderTraits {
            post_attention_is_ffn_norm: false,
            rules: &[
                Count("sliding_window", WINDOW),
                ScoreRoot("query_pre_attn_scalar"),
                Only("attn_logit_softcapping", &[Absent]),
                Only("final_logit_softcapping", &[Absent]),
                FullAttentionEvery(6),
            ],
            ..GEMMA_FOLDER
        },
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "command-r",
        "Command R, R+",
        DecoderTraits {
            norms_of_heads: true,
            ..COHERE
        },
    )
    .folders(
        &["CohereForCausalLM"],
        FolderTraits {
            tied: true,
            rules: &[COHERE_SCALE],
            ..NEIGHBOURS
        },
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "cohere2",
        "Command R7B",
        DecoderTraits {
            layers: Layers::Windowed {
                period: 4,
                local_base: None,
                positionless: true,
            },
            ..COHERE
        },
    )
    .folders(
        &["Cohere2ForCausalLM"],
        FolderTraits {
            tied: true,
            rules: &[
                COHERE_SCALE,
                NO_QK_NORM,
                Count("sliding_window", WINDOW),
                FullAttentionEvery(4),
            ],
            ..NEIGHBOURS
        },
    )
    .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder("starcoder2", "StarCoder 2", NEOX)
        .folders(
            &["Starcoder2ForCausalLM"],
            FolderTraits {
                activations: &["gelu_pytorch_tanh"],
                rules: &[Only("use_bias", &[Absent, Bool(true)]), OPTIONAL_WINDOW],
                ..USUAL
            },
        )
        .compared_with(F64_AND_TRANSFORMERS),
    ArchitectureRow::decoder(
        "phi2",
        "Phi 2",
        DecoderTraits {
            parallel: true,
            ..NEOX
        },
    )
    .folders(
        &["PhiForCausalLM"],
        FolderTraits {
            activations: &["gelu_new", "gelu_pytorch_tanh"],
            rules: &[Only("qk_layernorm", &[Absent, Bool(false)])],
            ..USUAL
        },
    )
    .compared_with(F64_AND_TRANSFORMERS),
];
