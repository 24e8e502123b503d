//! Older families, and some that took up what these had.

use super::usual::{HALVES, LLAMA, NEIGHBOURS, NEOX, USUAL};
use crate::architectures::folder::{FolderTraits, OlderFolder};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{Activation, DecoderTraits, Layers, NormKind};

const TRANSFORMERS: &str = "transformers, both formats";

/// GPT-NeoX's and Falcon's: both parts of a block beside each other.
const BESIDE: DecoderTraits = DecoderTraits {
    activation: Activation::ExactGelu,
    parallel: true,
    ..NEOX
};

/// GPT-2's: positions have embeddings, and nothing turns.
const GPT: DecoderTraits = DecoderTraits {
    layers: Layers::Positionless { period: 1 },
    learned_positions: true,
    ..NEOX
};

const fn folder(older: OlderFolder) -> FolderTraits {
    FolderTraits {
        older: Some(older),
        ..USUAL
    }
}

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder("falcon", "Falcon 7B, 40B, 180B, Falcon 2", BESIDE)
        .folders(
            &["FalconForCausalLM"],
            FolderTraits {
                tied: true,
                activations: &["gelu"],
                ..folder(OlderFolder::Falcon)
            },
        )
        .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("gptneox", "GPT-NeoX, Pythia", BESIDE)
        .folders(
            &["GPTNeoXForCausalLM"],
            FolderTraits {
                activations: &["gelu"],
                ..folder(OlderFolder::Neox)
            },
        )
        .compared_with("f64, transformers, both formats"),
    ArchitectureRow::decoder(
        "stablelm",
        "StableLM 1 to 3",
        DecoderTraits {
            norm: NormKind::Layer,
            norms_of_heads: true,
            parallel_without_norm: true,
            ..HALVES
        },
    )
    .folders(&["StableLmForCausalLM"], folder(OlderFolder::StableLm))
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "olmo",
        "OLMo 1",
        DecoderTraits {
            norm: NormKind::Layer,
            plain_norms: true,
            ..LLAMA
        },
    )
    .folders(&["OlmoForCausalLM"], folder(OlderFolder::Olmo))
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("starcoder", "StarCoder 1", GPT)
        .folders(
            &["GPTBigCodeForCausalLM"],
            FolderTraits {
                tied: true,
                activations: &["gelu_pytorch_tanh"],
                ..folder(OlderFolder::BigCode)
            },
        )
        .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("gpt2", "GPT-2", GPT)
        .folders(
            &["GPT2LMHeadModel"],
            FolderTraits {
                tied: true,
                activations: &["gelu_new", "gelu_pytorch_tanh"],
                ..folder(OlderFolder::Gpt2)
            },
        )
        .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder(
        "helium",
        "Helium; GGUF as `quantize` writes it, llama.cpp has none",
        LLAMA,
    )
    .folders(&["HeliumForCausalLM"], NEIGHBOURS)
    .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("exaone", "EXAONE 3, 3.5", HALVES)
        .folders(&["ExaoneForCausalLM"], folder(OlderFolder::Exaone))
        .compared_with(TRANSFORMERS),
    ArchitectureRow::decoder("internlm2", "InternLM 2, 2.5", LLAMA)
        .folders(&["InternLM2ForCausalLM"], folder(OlderFolder::InternLm2))
        .compared_with("transformers' numbers of Llama, which is built alike, both formats"),
];
