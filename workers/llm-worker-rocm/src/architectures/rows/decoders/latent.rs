//! Families whose attention keeps a latent vector in place of keys and values.

use super::usual::{LLAMA, NEIGHBOURS};
use crate::architectures::folder::{Accepted, ConfigRule};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{DecoderTraits, Latent, Routing};
use ConfigRule::{NumberOf, Only};

/// DeepSeek-V2's. What V3 does otherwise its files say.
const DEEPSEEK: DecoderTraits = DecoderTraits {
    latent: Latent::Plain,
    routing: Routing {
        epsilon: Routing::SIGMOID.epsilon,
        ..Routing::PLAIN
    },
    ..LLAMA
};

/// GGUF's number of sigmoids as scores of experts.
const SIGMOID: u32 = 2;
const FEED_FORWARD_BIAS: ConfigRule = Only("mlp_bias", &[Accepted::Absent, Accepted::Bool(false)]);

/// Sigmoids as scores of experts, in folders of a name whose configuration says nothing of them.
const fn sigmoids(name: &'static str) -> ConfigRule {
    NumberOf(name, "scoring_func", "expert_gating_func", SIGMOID)
}

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder(
        "deepseek2",
        "DeepSeek V2, V2-Lite, V3, R1, Kimi K2, Moonlight, GLM 4.7 Flash",
        DEEPSEEK,
    )
    .folders(
        &[
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "Glm4MoeLiteForCausalLM",
        ],
        NEIGHBOURS.rules(&[
            FEED_FORWARD_BIAS,
            sigmoids("DeepseekV3ForCausalLM"),
            sigmoids("Glm4MoeLiteForCausalLM"),
        ]),
    )
    .compared_with("transformers, both formats: V2, V3, GLM 4.7 Flash, YaRN"),
    ArchitectureRow::decoder(
        "deepseek32",
        "DeepSeek V3.2",
        DecoderTraits {
            latent: Latent::Indexed { interleaved: false },
            routing: Routing::SIGMOID,
            ..DEEPSEEK
        },
    )
    .folders(
        &["DeepseekV32ForCausalLM"],
        NEIGHBOURS.rules(&[FEED_FORWARD_BIAS]),
    )
    .compared_with("transformers, both formats"),
    ArchitectureRow::decoder(
        "glm-dsa",
        "GLM 5",
        DecoderTraits {
            latent: Latent::Indexed { interleaved: true },
            routing: Routing::SIGMOID,
            ..DEEPSEEK
        },
    )
    .folders(
        &["GlmMoeDsaForCausalLM"],
        NEIGHBOURS.rules(&[FEED_FORWARD_BIAS]),
    )
    .compared_with("transformers, both formats"),
];
