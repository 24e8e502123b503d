//! The folder's safetensors files: names and rows as GGUF has them.

use super::config::Config;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use worker::gguf::{give_back, map_file, GgmlType, TensorInfo};
use worker::{Error, Result};

/// Where a tensor's data is.
struct Place {
    shard: usize,
    start: usize,
    info: TensorInfo,
    /// Heads whose rows are to be reordered.
    heads: Option<u32>,
}

/// All shards, mapped.
pub(super) struct Shards {
    maps: Vec<Mmap>,
    places: HashMap<String, Place>,
    rope_factors: Option<Vec<u8>>,
}

impl Shards {
    pub(super) fn open(folder: &Path, config: &Config) -> Result<Self> {
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
            .map_err(|source| Error::Io {
                path: folder.to_path_buf(),
                source,
            })?
            .into_iter()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
            .collect();
        files.sort();
        if files.is_empty() {
            return Err(Error::BadModel {
                path: folder.to_path_buf(),
                reason: "it has no .safetensors file; pickled checkpoints (.bin, .pt) can run code and are not read, convert them with the safetensors package".to_string(),
            });
        }
        let mut shards = Self {
            maps: Vec::new(),
            places: HashMap::new(),
            rope_factors: config
                .rope_factors
                .as_ref()
                .map(|factors| factors.iter().flat_map(|f| f.to_le_bytes()).collect()),
        };
        for path in files {
            let map = map_file(&path)?;
            shards
                .add(&map, config)
                .map_err(|reason| Error::BadModel { path, reason })?;
            shards.maps.push(map);
        }
        Ok(shards)
    }

    /// Adds a shard's tensors. The library has checked every offset and size of the header.
    fn add(&mut self, map: &Mmap, config: &Config) -> std::result::Result<(), String> {
        let tensors = SafeTensors::deserialize(map).map_err(|e| format!("damaged: {e}"))?;
        for (name, view) in tensors.iter() {
            let Some((new, heads)) = gguf_name(name, config)? else {
                continue;
            };
            let ty = match view.dtype() {
                Dtype::F32 => "F32",
                Dtype::F16 => "F16",
                Dtype::BF16 => "BF16",
                other => {
                    return Err(format!(
                        "tensor {name} has dtype {other:?}; F32, F16 and BF16 are read"
                    ))
                }
            };
            let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
            let info = TensorInfo {
                dims: view.shape().iter().rev().map(|&d| d as u64).collect(),
                ggml_type: GgmlType::from_name(ty).ok_or("the type table lacks a plain type")?,
                offset: 0,
                bytes: view.data().len() as u64,
            };
            if info.dims.contains(&0) {
                return Err(format!("tensor {name} has a dimension of zero"));
            }
            if let Some(heads) = heads {
                let rows = info.dims.get(1).copied().unwrap_or(0);
                if rows == 0 || rows % (2 * u64::from(heads)) != 0 {
                    return Err(format!(
                        "tensor {name} of {rows} rows does not belong to {heads} heads"
                    ));
                }
            }
            let place = Place {
                shard: self.maps.len(),
                start,
                info,
                heads,
            };
            if self.places.insert(new.clone(), place).is_some() {
                return Err(format!("tensor {name} appears twice"));
            }
        }
        Ok(())
    }

    /// Every tensor under its GGUF name, in the order of the model.
    pub(super) fn table(&self) -> Vec<(String, TensorInfo)> {
        let mut table: Vec<(String, TensorInfo)> = self
            .places
            .iter()
            .map(|(name, place)| (name.clone(), place.info.clone()))
            .collect();
        if let Some(factors) = &self.rope_factors {
            let info = TensorInfo {
                dims: vec![factors.len() as u64 / 4],
                ggml_type: GgmlType::ALL[0],
                offset: 0,
                bytes: factors.len() as u64,
            };
            table.push((ROPE_FACTORS.to_string(), info));
        }
        table
    }

    pub(super) fn bytes(&self, name: &str) -> Cow<'_, [u8]> {
        let Some(place) = self.places.get(name) else {
            // The table has one name that is in no file.
            return Cow::Borrowed(self.rope_factors.as_deref().unwrap_or_default());
        };
        let data = &self.maps[place.shard][place.start..place.start + place.info.bytes as usize];
        match place.heads {
            Some(heads) => Cow::Owned(interleave(
                data,
                place.info.dims[1] as usize,
                heads as usize,
            )),
            None if place.start % 4 == 0 => Cow::Borrowed(data),
            // The format does not promise alignment; fresh memory has it.
            None => Cow::Owned(data.to_vec()),
        }
    }

    pub(super) fn give_back(&self, name: &str) {
        if let Some(place) = self.places.get(name) {
            give_back(
                &self.maps[place.shard],
                place.start,
                place.info.bytes as usize,
            );
        }
    }
}

const ROPE_FACTORS: &str = "rope_freqs.weight";

/// GGUF's name of a tensor and the heads whose rows it reorders; `None` for what GGUF leaves out.
fn gguf_name(
    name: &str,
    config: &Config,
) -> std::result::Result<Option<(String, Option<u32>)>, String> {
    let plain = |name: &str| Ok(Some((name.to_string(), None)));
    match name {
        "model.embed_tokens.weight" => return plain("token_embd.weight"),
        "model.norm.weight" => return plain("output_norm.weight"),
        "lm_head.weight" if config.tied => return Ok(None),
        "lm_head.weight" => return plain("output.weight"),
        _ => {}
    }
    let unknown = || format!("tensor {name} has no place in a llama model");
    let (block, part) = name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(block, part)| Some((block.parse::<u32>().ok()?, part)))
        .ok_or_else(unknown)?;
    let (part, heads) = match part {
        "input_layernorm.weight" => ("attn_norm", None),
        "self_attn.q_proj.weight" => ("attn_q", Some(config.heads)),
        "self_attn.k_proj.weight" => ("attn_k", Some(config.kv_heads)),
        "self_attn.v_proj.weight" => ("attn_v", None),
        "self_attn.o_proj.weight" => ("attn_output", None),
        "post_attention_layernorm.weight" => ("ffn_norm", None),
        "mlp.gate_proj.weight" => ("ffn_gate", None),
        "mlp.up_proj.weight" => ("ffn_up", None),
        "mlp.down_proj.weight" => ("ffn_down", None),
        // Older files carry what is computed from the base.
        "self_attn.rotary_emb.inv_freq" => return Ok(None),
        _ => return Err(unknown()),
    };
    if block >= config.blocks {
        return Err(format!(
            "tensor {name}: the model has {} blocks",
            config.blocks
        ));
    }
    Ok(Some((format!("blk.{block}.{part}.weight"), heads)))
}

/// Rows of each head from halves, as transformers rotates them, to neighbours, as GGUF's llama does.
fn interleave(data: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let row = data.len() / rows;
    let half = rows / heads / 2;
    let mut out = Vec::with_capacity(data.len());
    for head in 0..heads {
        for pair in 0..half {
            for part in 0..2 {
                let from = ((head * 2 + part) * half + pair) * row;
                out.extend_from_slice(&data[from..from + row]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn halves_become_neighbours() {
        // Two heads of four rows, one byte each.
        let rows = [0, 1, 2, 3, 10, 11, 12, 13];
        assert_eq!(super::interleave(&rows, 8, 2), [0, 2, 1, 3, 10, 12, 11, 13]);
    }
}
