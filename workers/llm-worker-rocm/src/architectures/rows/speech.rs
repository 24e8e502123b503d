//! What writes speech down.

use crate::architectures::row::ArchitectureRow;

/// What writes speech down.
pub(in crate::architectures) static SPEECH: &[ArchitectureRow] = &[ArchitectureRow::speech(
    &["WhisperForConditionalGeneration"],
    "Whisper, Distil-Whisper",
)
.compared_with("transformers, also from whisper.cpp's files")];
