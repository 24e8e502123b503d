//! Which blocks of a model a decoder has: all, or those of one stage of several.

use super::config::{DecoderConfig, MixerKind};
use super::tensors::POSITIONS;
use std::ops::Range;
use worker::gguf::Gguf;

/// Some of a model's blocks, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The blocks.
    pub blocks: Range<usize>,
    /// Blocks of the model.
    pub all: usize,
}

/// Where a model may be cut into stages, and what each block and the ends take: what a plan is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSizes {
    /// Bytes of each block's weights, in the file's formats.
    pub blocks: Vec<u64>,
    /// Of these, those of experts, which may stay in the host's memory.
    pub experts: Vec<u64>,
    /// Elements of keys and values that a token leaves in each block.
    pub kv_elements: Vec<usize>,
    /// Bytes of what only the first stage has besides its blocks, and only the last one.
    pub first: u64,
    /// See [`PartSizes::first`].
    pub last: u64,
    /// Bytes of what every stage has.
    pub each: u64,
    /// Blocks that a stage behind the first may begin with, ascending.
    pub cuts: Vec<usize>,
}

/// The block that a tensor belongs to, if it belongs to one.
fn block_of(tensor: &str) -> Option<usize> {
    tensor.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

impl Part {
    /// All of a model's blocks.
    pub fn whole(config: &DecoderConfig) -> Self {
        Self {
            blocks: 0..config.blocks,
            all: config.blocks,
        }
    }

    /// Whether tokens become rows here.
    pub fn is_first(&self) -> bool {
        self.blocks.start == 0
    }

    /// Whether rows become logits here.
    pub fn is_last(&self) -> bool {
        self.blocks.end == self.all
    }

    /// Whether the decoder that has it loads a tensor of this name; `tied` tells that the table of embeddings is the
    /// output matrix, too.
    pub(super) fn has(&self, tensor: &str, tied: bool) -> bool {
        if let Some(block) = block_of(tensor) {
            // Behind the last block are those of heads.
            return self.blocks.contains(&block) || (block >= self.all && self.is_last());
        }
        match tensor {
            "token_embd.weight" => self.is_first() || (tied && self.is_last()),
            POSITIONS => self.is_first(),
            _ if tensor.starts_with("per_layer_") => self.is_first(),
            _ if tensor.starts_with("output") || tensor.starts_with("cls.") => self.is_last(),
            _ => true,
        }
    }
}

impl DecoderConfig {
    /// Number of blocks, without those of heads that predict further tokens.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks that a stage behind the first may begin with, ascending: blocks that look at the keys of an earlier one, or
    /// at those that an earlier one chose, stay with it.
    pub fn stage_starts(&self) -> Vec<usize> {
        let may_begin = |block: &usize| {
            let chooses = (self.latent.as_ref())
                .and_then(|latent| latent.indexer.as_ref())
                .is_none_or(|indexer| indexer.is_in(*block));
            let mut behind = *block..self.blocks;
            let reaches_back = |later| self.source_of_keys(later).is_some_and(|of| of < *block);
            chooses && !behind.any(reaches_back)
        };
        (1..self.blocks).filter(may_begin).collect()
    }

    /// What blocks and ends of a file take.
    pub fn part_sizes(&self, gguf: &Gguf) -> PartSizes {
        let tied = gguf.tensor("output.weight").is_none();
        // Ends without blocks of the model between them.
        let first = Part {
            blocks: 0..0,
            all: self.blocks,
        };
        let last = Part {
            blocks: self.blocks..self.blocks,
            all: self.blocks,
        };
        let mut sizes = PartSizes {
            blocks: vec![0; self.blocks],
            experts: vec![0; self.blocks],
            kv_elements: (0..self.blocks)
                .map(|block| self.kv_elements(block))
                .collect(),
            first: 0,
            last: 0,
            each: 0,
            cuts: self.stage_starts(),
        };
        for (name, info) in gguf.tensors() {
            match block_of(name) {
                Some(block) if block < self.blocks => {
                    sizes.blocks[block] += info.bytes;
                    if name.contains("_exps.") {
                        sizes.experts[block] += info.bytes;
                    }
                }
                // Heads are loaded if they are asked for only.
                Some(_) => {}
                None => match (first.has(name, tied), last.has(name, tied)) {
                    (true, true) if name == "token_embd.weight" => {
                        sizes.first += info.bytes;
                        sizes.last += info.bytes;
                    }
                    (true, true) => sizes.each += info.bytes,
                    (true, false) => sizes.first += info.bytes,
                    (false, _) => sizes.last += info.bytes,
                },
            }
        }
        sizes
    }

    /// Elements of keys and values that a token leaves in a block.
    fn kv_elements(&self, block: usize) -> usize {
        let attends = matches!(self.mixer(block), MixerKind::Attention | MixerKind::Both);
        if !attends || self.source_of_keys(block).is_some() {
            return 0;
        }
        let own = self.of_block(block);
        match &self.latent {
            // The latent vector is both.
            Some(latent) => latent.stored(),
            None => own.kv_heads * (own.head_dim + own.v_head_dim),
        }
    }
}
