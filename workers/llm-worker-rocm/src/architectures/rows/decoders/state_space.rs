//! Families with state spaces or other recurrences, beside attention or alone.

use super::usual::{GEMMA, GEMMA_FOLDER, HALVES, LLAMA, USUAL, WINDOW};
use crate::architectures::folder::{Accepted, ConfigRule, FolderTraits, RecurrentFolder};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{
    Activation, BlockParts, DecoderTraits, Layers, NormKind, Recurrence, Routing,
};
use Accepted::{Absent, Bool, Number};
use ConfigRule::{Count, Float, Only};

const MAMBA: DecoderTraits = DecoderTraits {
    recurrence: Recurrence::Mamba,
    parts: BlockParts::Recurrent,
    ..LLAMA
};

const NEMOTRON: DecoderTraits = DecoderTraits {
    recurrence: Recurrence::Mamba2,
    parts: BlockParts::One,
    activation: Activation::SquaredRelu,
    layers: Layers::Positionless { period: 1 },
    routing: Routing::SIGMOID,
    ..LLAMA
};

const fn folder(recurrent: RecurrentFolder) -> FolderTraits {
    FolderTraits {
        recurrent: Some(recurrent),
        ..USUAL
    }
}

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder("mamba", "Mamba, Falcon Mamba", MAMBA)
        .folders(
            &["MambaForCausalLM", "FalconMambaForCausalLM"],
            FolderTraits {
                tied: true,
                ..folder(RecurrentFolder::Mamba)
            },
        )
        .compared_with("transformers"),
    ArchitectureRow::decoder(
        "jamba",
        "Jamba",
        DecoderTraits {
            recurrence: Recurrence::Mamba,
            parts: BlockParts::RecurrentWithoutHeads,
            layers: Layers::Positionless { period: 1 },
            routing: Routing::PLAIN,
            experts_where_routed: true,
            ..LLAMA
        },
    )
    .folders(&["JambaForCausalLM"], folder(RecurrentFolder::Jamba))
    .compared_with("transformers"),
    ArchitectureRow::decoder(
        "mamba2",
        "Mamba 2",
        DecoderTraits {
            recurrence: Recurrence::Mamba2,
            ..MAMBA
        },
    )
    .folders(
        &["Mamba2ForCausalLM"],
        FolderTraits {
            rules: &[
                Only("rms_norm", &[Absent, Bool(true)]),
                Only("norm_before_gate", &[Absent, Bool(false)]),
            ],
            ..folder(RecurrentFolder::Mamba2)
        },
    )
    .compared_with("transformers: one group, several groups and limits of steps"),
    ArchitectureRow::decoder(
        "granitehybrid",
        "Granite 4",
        DecoderTraits {
            recurrence: Recurrence::Mamba2,
            parts: BlockParts::RecurrentWithoutHeads,
            ..LLAMA
        },
    )
    .folders(
        &["GraniteMoeHybridForCausalLM"],
        FolderTraits {
            rules: &[
                Float("attention_multiplier", "attention.scale"),
                Float("embedding_multiplier", "embedding_scale"),
                Float("residual_multiplier", "residual_scale"),
                Float("logits_scaling", "logit_scale"),
            ],
            ..folder(RecurrentFolder::Granite)
        },
    )
    .compared_with("transformers: with and without Mamba layers, experts"),
    ArchitectureRow::decoder(
        "falcon-h1",
        "Falcon-H1",
        DecoderTraits {
            recurrence: Recurrence::Mamba2,
            parts: BlockParts::Beside,
            ..HALVES
        },
    )
    .folders(
        &["FalconH1ForCausalLM"],
        FolderTraits {
            rules: &[Only("mamba_norm_before_gate", &[Absent, Bool(false)])],
            ..folder(RecurrentFolder::FalconH1)
        },
    )
    .compared_with("transformers: with and without a norm of the state space"),
    ArchitectureRow::decoder("nemotron_h_moe", "Nemotron 3", NEMOTRON)
        .compared_with("transformers: with and without fewer channels for experts"),
    ArchitectureRow::decoder("nemotron_h", "Nemotron-H", NEMOTRON)
        .folders(
            &["NemotronHForCausalLM"],
            FolderTraits {
                activations: &["relu2"],
                ..folder(RecurrentFolder::Nemotron)
            },
        )
        .compared_with("transformers"),
    ArchitectureRow::decoder(
        "minimax-01",
        "MiniMax-Text-01, M1",
        DecoderTraits {
            recurrence: Recurrence::Lightning,
            parts: BlockParts::RecurrentBetween,
            normed_stream: true,
            ..HALVES
        },
    )
    .folders(
        &[
            "MiniMaxForCausalLM",
            "MiniMaxText01ForCausalLM",
            "MiniMaxM1ForCausalLM",
        ],
        FolderTraits {
            rules: &[
                Only("postnorm", &[Absent, Bool(true)]),
                Only("shared_intermediate_size", &[Absent, Number(0)]),
            ],
            ..folder(RecurrentFolder::MiniMax)
        },
    )
    .compared_with("transformers"),
    ArchitectureRow::decoder(
        "rwkv7",
        "RWKV 7",
        DecoderTraits {
            norm: NormKind::Layer,
            recurrence: Recurrence::Rwkv7,
            ..MAMBA
        },
    )
    .folders(
        &["RWKV7ForCausalLM"],
        FolderTraits {
            activations: &["sqrelu", "relu2"],
            rules: &[
                Only("attn", &[Absent]),
                Only("norm_first", &[Absent, Bool(true)]),
            ],
            ..folder(RecurrentFolder::Rwkv7)
        },
    )
    .compared_with("f64, both formats"),
    ArchitectureRow::decoder(
        "recurrentgemma",
        "RecurrentGemma; GGUF as `quantize` writes it, llama.cpp has none",
        DecoderTraits {
            recurrence: Recurrence::Griffin,
            parts: BlockParts::RecurrentWithoutHeads,
            ..GEMMA
        },
    )
    .folders(
        &["RecurrentGemmaForCausalLM"],
        FolderTraits {
            recurrent: Some(RecurrentFolder::Griffin),
            rules: &[
                Float("logits_soft_cap", "final_logit_softcapping"),
                Count("attention_window_size", WINDOW),
            ],
            ..GEMMA_FOLDER
        },
    )
    .compared_with("transformers: with and without a full window"),
];
