//! The mapped files, and places in them.

use memmap2::Mmap;
use safetensors::Dtype;
use std::sync::Arc;
use worker::gguf::Format;

/// Where a tensor's data is, or an expert's part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub shard: usize,
    pub start: usize,
    pub bytes: usize,
}

/// A tensor as a file has it.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub source: Source,
    pub dtype: Dtype,
    /// Outermost first.
    pub shape: Vec<usize>,
}

/// All shards, mapped.
#[derive(Default)]
pub(super) struct Files {
    pub maps: Vec<Arc<Mmap>>,
}

impl Files {
    /// What lies at a place.
    pub(super) fn bytes(&self, source: Source) -> &[u8] {
        &self.maps[source.shard][source.start..source.start + source.bytes]
    }
}

/// The format of plain numbers of a dtype that is read, and of no other.
pub(super) fn plain_format(dtype: Dtype) -> Option<Format> {
    match dtype {
        Dtype::F32 => Some(Format::F32),
        Dtype::F16 => Some(Format::F16),
        Dtype::BF16 => Some(Format::BF16),
        _ => None,
    }
}

/// Bytes of so many elements in whole blocks.
pub(super) fn bytes_of(format: Format, elements: usize) -> usize {
    elements / format.block_size() * format.type_size()
}
