//! Tokens around the parts of a text whose middle is to be filled in.

use super::Encoder;
use worker::gguf::{Gguf, GgufError};

/// Tokens around the parts of a text whose middle is to be filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillIn {
    /// Before what stands before the middle.
    pub prefix: u32,
    /// Before what stands behind it.
    pub suffix: u32,
    /// Before the middle.
    pub middle: u32,
    /// Before a repository's name.
    pub repository: Option<u32>,
    /// Before a file's name.
    pub file: Option<u32>,
}

/// The tokens as far as a file names them, in the order of [`FillIn`].
pub(super) type Named = [Option<u32>; 5];

/// Keys of GGUF's metadata, the newer ones first, and spellings of the families that have such tokens: Qwen, StarCoder,
/// Granite, DeepSeek, CodeLlama, GLM.
const MARKS: [(&[&str], &[&str]); 5] = [
    (
        &[
            "tokenizer.ggml.fim_pre_token_id",
            "tokenizer.ggml.prefix_token_id",
        ],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
        ],
    ),
    (
        &[
            "tokenizer.ggml.fim_suf_token_id",
            "tokenizer.ggml.suffix_token_id",
        ],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
        ],
    ),
    (
        &[
            "tokenizer.ggml.fim_mid_token_id",
            "tokenizer.ggml.middle_token_id",
        ],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
        ],
    ),
    (
        &["tokenizer.ggml.fim_rep_token_id"],
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    (&["tokenizer.ggml.fim_sep_token_id"], &["<|file_sep|>"]),
];

/// The tokens that a GGUF file names.
pub(super) fn named(gguf: &Gguf) -> Result<Named, GgufError> {
    let mut all = Named::default();
    for (found, (keys, _)) in all.iter_mut().zip(MARKS) {
        for key in keys {
            *found = found.or(gguf.get_u32(key)?);
        }
    }
    Ok(all)
}

impl FillIn {
    /// The tokens by name or spelling, if there are all that are needed.
    pub(super) fn find(named: Named, encoder: &Encoder, vocab_size: usize) -> Option<Self> {
        let mut all = named;
        for (found, (_, spellings)) in all.iter_mut().zip(MARKS) {
            *found = found
                .filter(|id| (*id as usize) < vocab_size)
                .or_else(|| spellings.iter().find_map(|text| encoder.id(text)));
        }
        let [prefix, suffix, middle, repository, file] = all;
        Some(Self {
            prefix: prefix?,
            suffix: suffix?,
            middle: middle?,
            repository,
            file,
        })
    }
}
