//! What a model is, for people and tables.

use worker::gguf::Gguf;

/// What a model is, for people and tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// What its makers call it.
    pub name: String,
    /// What it is built like, in the words of its format.
    pub architecture: String,
    /// Size of the weights in bytes.
    pub bytes: u64,
    /// Numbers of the weights.
    pub parameters: u64,
}

impl Description {
    /// From GGUF's metadata and tensor table.
    pub(crate) fn of(header: &Gguf) -> Option<Self> {
        let text = |key: &str| header.get_str(key).ok().flatten().map(str::to_string);
        Some(Self {
            name: text("general.name").unwrap_or("unnamed".to_string()),
            architecture: text("general.architecture")?,
            bytes: header.tensors().map(|(_, info)| info.bytes).sum(),
            parameters: header.tensors().map(|(_, info)| info.elem_count()).sum(),
        })
    }
}
