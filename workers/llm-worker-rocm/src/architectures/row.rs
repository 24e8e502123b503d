//! What a row of the register says.

use super::folder::FolderTraits;
use crate::engine::decoder::DecoderTraits;

/// An architecture: one set of names, one way to run it.
#[derive(Debug, Clone, Copy)]
pub struct ArchitectureRow {
    /// Its models, as people call them.
    pub models: &'static str,
    /// Its name in GGUF (`general.architecture`), if GGUF files of it are read.
    pub gguf: Option<&'static str>,
    /// Its names in `config.json` (`architectures`), if folders of it are read.
    pub folders: &'static [&'static str],
    /// What runs it.
    pub engine: Engine,
    /// What its results were compared with in tests.
    pub compared_with: &'static str,
}

/// What runs an architecture, with what the architecture does in its own way.
#[derive(Debug, Clone, Copy)]
pub enum Engine {
    /// The engine's decoder, for many sequences at once. Folders are seen in GGUF's terms.
    Decoder {
        /// What the decoder does for it.
        traits: DecoderTraits,
        /// How its folders differ from the usual ones.
        folder: FolderTraits,
    },
    /// An encoder of candle-transformers: vectors of texts, no answers.
    Encoder(EncoderKind),
    /// Speech to text.
    Speech,
}

/// The encoders that embedding models are built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncoderKind {
    /// BERT.
    Bert,
    /// RoBERTa, of one language or of many.
    XlmRoberta,
    /// ModernBERT.
    ModernBert,
    /// NomicBERT.
    NomicBert,
}

impl Engine {
    /// What it is called in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Decoder { .. } => "decoder",
            Self::Encoder(_) => "encoder",
            Self::Speech => "speech",
        }
    }
}

impl ArchitectureRow {
    /// A row of the decoder, by its name in GGUF.
    pub(in crate::architectures) const fn decoder(
        gguf: &'static str,
        models: &'static str,
        traits: DecoderTraits,
    ) -> Self {
        Self {
            models,
            gguf: Some(gguf),
            folders: &[],
            engine: Engine::Decoder {
                traits,
                folder: FolderTraits::USUAL,
            },
            compared_with: "nothing",
        }
    }

    /// A row of an encoder.
    pub(in crate::architectures) const fn encoder(
        gguf: Option<&'static str>,
        folders: &'static [&'static str],
        models: &'static str,
        encoder: EncoderKind,
    ) -> Self {
        Self {
            models,
            gguf,
            folders,
            engine: Engine::Encoder(encoder),
            compared_with: "nothing",
        }
    }

    /// A row of speech to text, by its name in `config.json`.
    pub(in crate::architectures) const fn speech(
        folders: &'static [&'static str],
        models: &'static str,
    ) -> Self {
        Self {
            models,
            gguf: None,
            folders,
            engine: Engine::Speech,
            compared_with: "nothing",
        }
    }

    /// The same, read from folders too.
    pub(in crate::architectures) const fn folders(
        self,
        folders: &'static [&'static str],
        folder: FolderTraits,
    ) -> Self {
        let engine = match self.engine {
            Engine::Decoder { traits, .. } => Engine::Decoder { traits, folder },
            other => other,
        };
        Self {
            folders,
            engine,
            ..self
        }
    }

    /// The same, with what its results were compared with.
    pub(in crate::architectures) const fn compared_with(self, compared_with: &'static str) -> Self {
        Self {
            compared_with,
            ..self
        }
    }

    /// What the decoder does for it and how its folders differ, if the decoder runs it.
    pub fn decoder_parts(&self) -> Option<(&DecoderTraits, &FolderTraits)> {
        match &self.engine {
            Engine::Decoder { traits, folder } => Some((traits, folder)),
            _ => None,
        }
    }
}
