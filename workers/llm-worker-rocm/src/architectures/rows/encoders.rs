//! What gives vectors of texts and no answers.

use crate::architectures::row::{ArchitectureRow, EncoderKind};

/// What gives vectors of texts and no answers.
pub(in crate::architectures) static ENCODERS: &[ArchitectureRow] = &[
    ArchitectureRow::encoder(
        Some("bert"),
        &["BertModel", "BertForMaskedLM"],
        "BERT",
        EncoderKind::Bert,
    )
    .compared_with("transformers, both formats"),
    ArchitectureRow::encoder(
        None,
        &["XLMRobertaModel", "RobertaModel"],
        "RoBERTa, XLM-RoBERTa",
        EncoderKind::XlmRoberta,
    ),
    ArchitectureRow::encoder(
        None,
        &["ModernBertModel", "ModernBertForMaskedLM"],
        "ModernBERT",
        EncoderKind::ModernBert,
    ),
    ArchitectureRow::encoder(
        Some("nomic-bert"),
        &["NomicBertModel", "NomicBertForPreTraining"],
        "NomicBERT",
        EncoderKind::NomicBert,
    )
    .compared_with("transformers, GGUF"),
];
