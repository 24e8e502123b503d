//! Latent attention in `config.json` and safetensors, and what GGUF has for it.

use super::change::{Change, Places};
use super::config::{number, optional, refuse_others};
use super::metadata::MetadataWriter;
use super::names::TensorName;
use crate::architectures::Accepted;
use crate::engine::decoder::Latent;
use serde_json::Value as Json;

/// Sizes of latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LatentSizes {
    heads: u32,
    query_rank: Option<u32>,
    rank: u32,
    turning: u32,
    plain: u32,
    value: u32,
}

/// What a head has in the one matrix that a folder has for keys and values; GGUF has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadPart {
    /// Transposed.
    Keys,
    Values,
}

impl HeadPart {
    const ALL: [Self; 2] = [Self::Keys, Self::Values];
    /// GGUF's name of the whole in older files.
    const WHOLE: &'static str = "attn_kv_b.weight";

    /// GGUF's name.
    fn name(self) -> &'static str {
        match self {
            Self::Keys => "attn_k_b.weight",
            Self::Values => "attn_v_b.weight",
        }
    }
}

impl LatentSizes {
    /// Reads them, if the architecture has them.
    pub(super) fn read(json: &Json, heads: u32, latent: Latent) -> Result<Option<Self>, String> {
        if latent == Latent::None {
            return Ok(None);
        }
        refuse_others(
            json,
            "rope_interleave",
            &[Accepted::Absent, Accepted::Bool(true)],
        )?;
        Ok(Some(Self {
            heads,
            query_rank: optional(json, "q_lora_rank")?,
            rank: number(json, "kv_lora_rank")?,
            turning: number(json, "qk_rope_head_dim")?,
            plain: number(json, "qk_nope_head_dim")?,
            value: number(json, "v_head_dim")?,
        }))
    }

    /// Elements of what is stored for a token, of its values, and of it what turns.
    pub(super) fn stored(&self) -> (u32, u32, u32) {
        (self.rank + self.turning, self.rank, self.turning)
    }

    pub(super) fn write(
        &self,
        json: &Json,
        latent: Latent,
        writer: &mut MetadataWriter,
    ) -> Result<(), String> {
        if let Some(rank) = self.query_rank {
            writer.number("attention.q_lora_rank", rank);
        }
        writer.number("attention.kv_lora_rank", self.rank);
        writer.number("attention.key_length_mla", self.plain + self.turning);
        writer.number("attention.value_length_mla", self.value);
        if matches!(latent, Latent::Indexed { .. }) {
            for (key, gguf) in [
                ("index_n_heads", "attention.indexer.head_count"),
                ("index_head_dim", "attention.indexer.key_length"),
                ("index_topk", "attention.indexer.top_k"),
            ] {
                writer.number(gguf, number(json, key)?);
            }
            if let Some(own) = indexers(json)? {
                writer.switches("attention.indexer.types", own);
            }
        }
        Ok(())
    }

    /// The parts of the one matrix for keys and values, if a tensor is that.
    pub(super) fn places(&self, whole: &TensorName) -> Option<Places> {
        let block = whole.name.strip_suffix(HeadPart::WHOLE)?;
        let part = |part: HeadPart| {
            let name = TensorName {
                name: format!("{block}{}", part.name()),
                heads: None,
                expert: None,
            };
            (name, Some(Change::HeadPart(part, *self)))
        };
        Some(HeadPart::ALL.map(part).into())
    }

    /// The shape of a part of all heads, outermost first.
    pub(super) fn shape(&self, part: HeadPart) -> Vec<usize> {
        let [heads, rank] = [self.heads, self.rank].map(|n| n as usize);
        match part {
            HeadPart::Keys => vec![heads, rank, self.plain as usize],
            HeadPart::Values => vec![heads, self.value as usize, rank],
        }
    }

    /// Rows and columns of the whole.
    pub(super) fn whole(&self) -> [usize; 2] {
        let rows = self.heads * (self.plain + self.value);
        [rows as usize, self.rank as usize]
    }

    /// A part of the whole, whose rows have so many bytes; keys need those of plain numbers.
    pub(super) fn take(&self, part: HeadPart, whole: &[u8], row: usize) -> Vec<u8> {
        let bytes = row / self.rank as usize;
        let (plain, value) = (self.plain as usize, self.value as usize);
        let mut taken = Vec::new();
        for head in whole.chunks_exact((plain + value) * row) {
            let (keys, values) = head.split_at(plain * row);
            match part {
                HeadPart::Values => taken.extend_from_slice(values),
                HeadPart::Keys => {
                    for column in (0..row).step_by(bytes) {
                        for key in keys.chunks_exact(row) {
                            taken.extend_from_slice(&key[column..column + bytes]);
                        }
                    }
                }
            }
        }
        taken
    }
}

/// Whether each block has an indexer of its own, where configurations say it: as a list, as a pattern of letters, or as
/// every how many blocks from which on there is one.
fn indexers(json: &Json) -> Result<Option<Vec<bool>>, String> {
    let blocks = number(json, "num_hidden_layers")? as usize;
    let own = |kind: &str| match kind {
        "full" | "F" => Ok(true),
        "shared" | "S" => Ok(false),
        kind => Err(format!(
            "config.json: an indexer {kind:?} is not implemented"
        )),
    };
    let list = match (&json["indexer_types"], &json["index_topk_pattern"]) {
        (Json::Array(kinds), _) | (Json::Null, Json::Array(kinds)) => {
            let kinds = kinds.iter().map(|kind| own(kind.as_str().unwrap_or("")));
            kinds.collect::<Result<Vec<_>, _>>()?
        }
        (Json::Null, Json::String(pattern)) => {
            let kinds = pattern.chars().map(|kind| own(&kind.to_string()));
            kinds.collect::<Result<Vec<_>, _>>()?
        }
        (Json::Null, Json::Null) => {
            let Some(every) = optional(json, "index_topk_freq")?.filter(|every| *every > 1) else {
                return Ok(None);
            };
            let first = json["index_skip_topk_offset"].as_u64().unwrap_or(2) as usize;
            let kind = |block: usize| {
                (block + 1)
                    .saturating_sub(first)
                    .is_multiple_of(every as usize)
            };
            (0..blocks).map(kind).collect()
        }
        _ => return Err("config.json: these indexer_types are not implemented".to_string()),
    };
    match list.len() == blocks {
        true => Ok(Some(list)),
        false => Err(format!(
            "config.json: indexers of {} blocks, the model has {blocks}",
            list.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_heads_lie_behind_each_other() {
        let sizes = LatentSizes {
            heads: 2,
            query_rank: None,
            rank: 2,
            turning: 2,
            plain: 3,
            value: 1,
        };
        // Rows of two elements of one byte.
        let whole: Vec<u8> = (0..16).collect();
        let keys = sizes.take(HeadPart::Keys, &whole, 2);
        assert_eq!(keys, [0, 2, 4, 1, 3, 5, 8, 10, 12, 9, 11, 13]);
        assert_eq!(sizes.take(HeadPart::Values, &whole, 2), [6, 7, 14, 15]);
    }
}
