//! What runs through candle-transformers.

use crate::architectures::row::ArchitectureRow;
use crate::engine::sequential::{load, SequentialModel};

/// What runs through candle-transformers.
pub(in crate::architectures) static SEQUENTIAL: &[ArchitectureRow] = &[
    ArchitectureRow::sequential(
        &["FalconForCausalLM"],
        "Falcon 7B (one head of keys and values)",
        SequentialModel {
            tied: true,
            halves: true,
            stand_ins: &[("lm_head.weight", "transformer.word_embeddings.weight")],
            ..SequentialModel::of(load::falcon)
        },
    ),
    ArchitectureRow::sequential(
        &["StableLmForCausalLM"],
        "StableLM",
        SequentialModel {
            halves: true,
            ..SequentialModel::of(load::stable_lm)
        },
    ),
    ArchitectureRow::sequential(
        &["OlmoForCausalLM"],
        "OLMo 1",
        SequentialModel {
            halves: true,
            ..SequentialModel::of(load::olmo)
        },
    ),
    ArchitectureRow::sequential(
        &["GPTBigCodeForCausalLM"],
        "StarCoder 1",
        SequentialModel {
            tied: true,
            ..SequentialModel::of(load::bigcode)
        },
    ),
    ArchitectureRow::sequential(
        &["HeliumForCausalLM"],
        "Helium",
        SequentialModel::of(load::helium),
    ),
];
