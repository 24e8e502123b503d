//! The folder's safetensors files: names and rows as GGUF has them.

use super::activations::Activations;
use super::change::{Change, Places};
use super::config::Config;
use super::files::{plain_format, Files, Source, Stored};
use super::names::{RotatedHeads, TensorName};
use super::packed::{self, PackedExperts};
use super::place::{Origin, Place};
use super::quantized::{Known, Parts, Quantization};
use crate::folder::weight_files;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::SafeTensors;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use worker::gguf::{give_back, map_file, Format, SharedBytes, TensorInfo};
use worker::{Error, Result};

/// A tensor that is in no file.
struct Extra {
    format: Format,
    bytes: Vec<u8>,
}

impl Extra {
    fn floats(values: &[f32]) -> Self {
        Self {
            format: Format::F32,
            bytes: values.iter().flat_map(|f| f.to_le_bytes()).collect(),
        }
    }
}

/// All shards, mapped.
pub(super) struct Shards {
    files: Files,
    places: HashMap<String, Place>,
    /// Experts whose matrices lie in one tensor.
    packed: PackedExperts,
    /// What GGUF has among its metadata.
    pub activations: Activations,
    /// Vectors that are in no file.
    extra: HashMap<String, Extra>,
    /// Blocks behind the model's own that predict tokens further ahead.
    pub heads: u32,
    /// What was wrong with tensors that have been read.
    damage: OnceLock<String>,
}

/// A tensor, or a matrix of several, on its way to its places.
struct Found<'a> {
    name: &'a str,
    origin: Origin,
    /// In which rows come.
    format: Format,
    shape: &'a [usize],
}

impl Shards {
    pub(super) fn open(
        folder: &Path,
        config: &Config,
        quantization: Option<&Quantization>,
    ) -> Result<Self> {
        let tables = config.rope.tensors.iter();
        let mut shards = Self {
            files: Files::default(),
            places: HashMap::new(),
            activations: Activations::default(),
            packed: PackedExperts::default(),
            extra: tables
                .map(|(name, values)| (name.to_string(), Extra::floats(values)))
                .collect(),
            heads: 0,
            damage: OnceLock::new(),
        };
        let mut parts = quantization.map(|_| Parts::default());
        for path in weight_files(folder)? {
            let map = Arc::new(map_file(&path)?);
            shards
                .add(&map, config, parts.as_mut())
                .map_err(|reason| Error::BadModel { path, reason })?;
            shards.files.maps.push(map);
        }
        let bad = |reason: String| Error::BadModel {
            path: folder.to_path_buf(),
            reason,
        };
        if let (Some(quantization), Some(parts)) = (quantization, parts) {
            let added = shards.add_quantized(config, quantization, parts);
            added.map_err(bad)?;
        }
        shards.count_heads(config);
        let incomplete = shards.places.iter().find(|(name, place)| {
            let of_block = name.starts_with("blk.");
            // Every one, from the first to the last.
            let all = 0..config.stacked(name).0;
            of_block && place.stacked && !place.origins.keys().copied().eq(all)
        });
        if let Some((name, place)) = incomplete {
            let (all, of) = config.stacked(name);
            return Err(bad(format!(
                "{name} has {} of {all} {of}",
                place.origins.len()
            )));
        }
        shards.packed.check(config.experts).map_err(bad)?;
        shards.add_beside().map_err(bad)?;
        Ok(shards)
    }

    /// Counts the heads whose weights are there, which not all folders have that announce them, and drops what is left of
    /// others.
    fn count_heads(&mut self, config: &Config) {
        let blocks = config.blocks..config.heads_behind.all_blocks();
        let joins = |block: &u32| {
            let name = format!("blk.{block}.nextn.eh_proj.weight");
            self.places.contains_key(&name)
        };
        self.heads = blocks.take_while(joins).count() as u32;
        let end = config.blocks + self.heads;
        self.places
            .retain(|name, _| block_of(name).is_none_or(|block| block < end));
    }

    /// Adds a shard's tensors, but for those of quantized matrices, which are gathered. The library has checked every
    /// offset and size of the header.
    fn add(
        &mut self,
        map: &Mmap,
        config: &Config,
        mut parts: Option<&mut Parts>,
    ) -> std::result::Result<(), String> {
        let tensors = SafeTensors::deserialize(map).map_err(|e| format!("damaged: {e}"))?;
        for (name, view) in tensors.iter() {
            if self.activations.take(name, &view)? {
                continue;
            }
            let source = Source {
                shard: self.files.maps.len(),
                start: view.data().as_ptr() as usize - map.as_ptr() as usize,
                bytes: view.data().len(),
            };
            let (dtype, shape) = (view.dtype(), view.shape());
            if let Some(parts) = &mut parts {
                let stored = Stored {
                    source,
                    dtype,
                    shape: shape.to_vec(),
                };
                if parts.take(name, stored)? {
                    continue;
                }
            }
            if self.packed.take(config, name, source, dtype, shape)? {
                continue;
            }
            let places = self.places_of(config, name)?;
            for (place, change) in places {
                let Some(format) = plain_format(dtype) else {
                    return Err(format!(
                        "tensor {name} has dtype {dtype:?}; F32, F16 and BF16 are read"
                    ));
                };
                let found = Found {
                    name,
                    origin: Origin::File(source),
                    format,
                    shape,
                };
                self.place(found, config, place, change)?;
            }
        }
        Ok(())
    }

    fn places_of(&self, config: &Config, name: &str) -> std::result::Result<Places, String> {
        config.places(name).map_err(|()| {
            format!(
                "tensor {name} has no place in a {} model",
                config.architecture
            )
        })
    }

    /// Adds matrices that were gathered from all files.
    fn add_quantized(
        &mut self,
        config: &Config,
        quantization: &Quantization,
        parts: Parts,
    ) -> std::result::Result<(), String> {
        let mut formats: BTreeMap<&str, usize> = BTreeMap::new();
        let mut plain = None;
        for (name, module) in parts.modules {
            let tensor = module.tensor.clone();
            let (places, turned) = match packed::places_of_halves(config, &tensor)? {
                Some(places) => (places, true),
                None => (self.places_of(config, &tensor)?, false),
            };
            if places.is_empty() {
                continue;
            }
            let known = Known {
                fused: &|count, outputs| config.fused(&name, count, outputs),
                turned: &|shape| turned && packed::has_turned_rows(config, &name, shape),
            };
            let matrix = quantization.matrix(&name, module, &self.files, &known);
            let matrix = Arc::new(matrix.map_err(|reason| format!("tensor {tensor}: {reason}"))?);
            let best = matrix.layout.format();
            *formats.entry(best.name()).or_default() += 1;
            if best.block_size() == 1 {
                plain.get_or_insert(tensor.clone());
            }
            for (place, change) in places {
                // What needs elements gets them, and what is read without a factor beside it.
                let best = match matrix.scales.is_none() || has_factor(&place.name) {
                    true => best,
                    false => matrix.layout.plain(),
                };
                let moves = change
                    .as_ref()
                    .is_none_or(|change| change.moves_blocks(best, &matrix.shape));
                // Whole rows of one matrix can have their columns in another order, stacks cannot.
                let is_stack = place.expert.is_some() || matrix.shape.len() > 2;
                let keeps = change.as_ref().is_none_or(Change::keeps_columns);
                let moves = moves && (matrix.order.is_none() || (keeps && !is_stack));
                let format = match moves && !is_vector(&place.name, &matrix.shape) {
                    true => best,
                    false => matrix.layout.plain(),
                };
                let found = Found {
                    name: &tensor,
                    origin: Origin::Matrix(matrix.clone()),
                    format,
                    shape: &matrix.shape,
                };
                self.place(found, config, place, change)?;
            }
        }
        let formats: Vec<String> = formats
            .into_iter()
            .map(|(name, count)| format!("{count} as {name}"))
            .collect();
        let method = quantization.method();
        match formats.is_empty() {
            true => tracing::warn!("{method} is announced, and no matrix is stored so"),
            false => tracing::info!("quantized matrices ({method}): {}", formats.join(", ")),
        }
        if let Some(first) = plain {
            tracing::warn!("{first} and perhaps others fit no format of blocks: they take the memory of plain numbers");
        }
        Ok(())
    }

    /// Adds a tensor, or one of those that it becomes.
    fn place(
        &mut self,
        mut found: Found,
        config: &Config,
        place: TensorName,
        change: Option<Change>,
    ) -> std::result::Result<(), String> {
        let Found { name, shape, .. } = found;
        if block_of(&place.name).is_some_and(|block| block >= config.heads_behind.all_blocks()) {
            return Err(format!(
                "tensor {name}: the model has {} blocks",
                config.blocks
            ));
        }
        if shape.contains(&0) || shape.is_empty() {
            return Err(format!("tensor {name} has no elements"));
        }
        if let Some(reason) = change.as_ref().and_then(|c| c.refuses(shape)) {
            return Err(format!("tensor {name}: {reason}"));
        }
        let heads = place.heads.map(|heads| match heads {
            RotatedHeads::Query => config.heads,
            RotatedHeads::Key => config.kv_heads,
        });
        let rows = shape[0];
        if heads.is_some_and(|heads| rows % (2 * heads as usize) != 0) {
            return Err(format!(
                "tensor {name} of {rows} rows does not belong to {} heads",
                heads.unwrap_or_default()
            ));
        }
        let shape = match is_vector(&place.name, shape) {
            true => vec![shape[1]],
            false => shape.to_vec(),
        };
        let of_name = self
            .places
            .entry(place.name.clone())
            .or_insert_with(|| Place {
                origins: BTreeMap::new(),
                format: found.format,
                shape: shape.clone(),
                stacked: place.expert.is_some(),
                plus_one: config.folder.norm_plus_one && place.name.ends_with("norm.weight"),
                heads,
                change,
            });
        // Experts' matrices that are not made of the same blocks are made of plain numbers.
        if of_name.format != found.format {
            let plain = |origin: &Origin| match origin {
                Origin::Matrix(matrix) => Some(matrix.layout.plain()),
                Origin::File(_) => None,
            };
            let mut origins = of_name.origins.values().chain([&found.origin]);
            let own = plain(&found.origin);
            if let (Some(format), true) = (own, origins.all(|origin| plain(origin) == own)) {
                (of_name.format, found.format) = (format, format);
            }
        }
        if of_name.shape != shape || of_name.format != found.format {
            return Err(format!("tensor {name} differs from the other experts'"));
        }
        let expert = place.expert.unwrap_or(0);
        if of_name.origins.insert(expert, found.origin).is_some() {
            return Err(format!("tensor {name} appears twice"));
        }
        Ok(())
    }

    /// Adds what belongs to matrices and is not in them, under the names that GGUF files have for it.
    fn add_beside(&mut self) -> std::result::Result<(), String> {
        for (name, place) in &self.places {
            let Some(stem) = name.strip_suffix(".weight") else {
                continue;
            };
            // Elements have it all.
            if place.format.block_size() == 1 {
                continue;
            }
            let matrices = place.origins.values().filter_map(|origin| match origin {
                Origin::Matrix(matrix) => Some(matrix),
                Origin::File(_) => None,
            });
            let mut scales = Vec::new();
            for matrix in matrices {
                scales.extend(matrix.scales.iter().flatten());
                if let Some(order) = &matrix.order {
                    let extra = Extra {
                        format: Format::I32,
                        bytes: order.iter().flat_map(|i| i.to_le_bytes()).collect(),
                    };
                    self.extra.insert(format!("{stem}.order"), extra);
                }
            }
            if !scales.is_empty() {
                let name = format!("{stem}.scale");
                if self.places.contains_key(&name) {
                    return Err(format!(
                        "{stem}.weight has scales of whole matrices, and the model has others of that name: this is not implemented"
                    ));
                }
                self.extra.insert(name, Extra::floats(&scales));
            }
        }
        Ok(())
    }

    /// Every tensor under its GGUF name.
    pub(super) fn table(&self) -> Vec<(String, TensorInfo)> {
        let mut table = Vec::with_capacity(self.places.len() + self.extra.len());
        for (name, place) in &self.places {
            table.push((name.clone(), place.info()));
        }
        table.extend(self.packed.table());
        for (name, extra) in &self.extra {
            let info = TensorInfo {
                dims: vec![extra.bytes.len() as u64 / 4],
                format: extra.format,
                offset: 0,
                bytes: extra.bytes.len() as u64,
            };
            table.push((name.clone(), info));
        }
        table
    }

    pub(super) fn bytes(&self, name: &str) -> Cow<'_, [u8]> {
        if let Some(bytes) = self.packed.bytes(name, |source| self.files.bytes(source)) {
            return Cow::Owned(bytes);
        }
        let Some(place) = self.places.get(name) else {
            let extra = self.extra.get(name);
            return Cow::Borrowed(extra.map_or(&[], |extra| &extra.bytes[..]));
        };
        place.bytes(&self.files).unwrap_or_else(|reason| {
            self.note(name, reason);
            Cow::Owned(vec![0; place.info().bytes as usize])
        })
    }

    /// Some bytes of a tensor that lies in several pieces, or is made; none of others.
    pub(super) fn parts(&self, name: &str, ranges: &[Range<usize>]) -> Option<Vec<u8>> {
        let parts = self.places.get(name)?.parts(&self.files, ranges)?;
        Some(parts.unwrap_or_else(|reason| {
            self.note(name, reason);
            vec![0; ranges.iter().map(|range| range.len()).sum()]
        }))
    }

    /// Takes note of what is wrong with a tensor.
    fn note(&self, name: &str, reason: String) {
        // The first is told.
        let _ = self.damage.set(format!("tensor {name}: {reason}"));
    }

    /// What was wrong with the first damaged tensor that has been read.
    pub(super) fn damage(&self) -> Option<&str> {
        self.damage.get().map(String::as_str)
    }

    /// A tensor where it lies, if it is in a file as GGUF has it.
    pub(super) fn shared(&self, name: &str) -> Option<SharedBytes> {
        self.places.get(name)?.shared(&self.files)
    }

    pub(super) fn give_back(&self, name: &str) {
        let of_place = self.places.get(name).into_iter();
        let of_place = of_place.flat_map(Place::sources);
        for source in of_place.chain(self.packed.sources(name)) {
            give_back(&self.files.maps[source.shard], source.start, source.bytes);
        }
    }
}

/// Whether the decoder looks for a factor beside a tensor of this name. Tables and matrices of heads have none.
fn has_factor(name: &str) -> bool {
    const WITHOUT: [&str; 9] = [
        "token_embd",
        "attn_k_b",
        "attn_v_b",
        "attn_kv_b",
        "per_layer_",
        "altup_",
        "ssm_dt",
        "recurrent_gate",
        "input_gate",
    ];
    !WITHOUT.iter().any(|part| name.contains(part))
}

/// Whether a matrix is of one row, which GGUF has as a vector.
fn is_vector(name: &str, shape: &[usize]) -> bool {
    matches!(shape, [1, _])
        && (name.ends_with("ffn_gate_inp_shexp.weight") || name.ends_with("exp_probs_b.bias"))
}

/// The block of a tensor's name in GGUF.
fn block_of(name: &str) -> Option<u32> {
    let (block, _) = name.strip_prefix("blk.")?.split_once('.')?;
    block.parse().ok()
}

/// Numbers as float32, with something added.
pub(super) fn floats(data: &[u8], format: Format, added: f32) -> Vec<u8> {
    let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
    let values: Vec<f32> = match format {
        Format::F16 => halves().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        Format::BF16 => halves().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => data
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
    };
    values
        .into_iter()
        .flat_map(|v| (v + added).to_le_bytes())
        .collect()
}

/// Rows of each head from halves, as transformers rotates them, to neighbours, as GGUF's llama does.
pub(crate) fn interleave<T: Copy>(data: &[T], rows: usize, heads: usize) -> Vec<T> {
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
    use super::*;

    #[test]
    fn halves_become_neighbours() {
        // Two heads of four rows, one byte each.
        let rows = [0, 1, 2, 3, 10, 11, 12, 13];
        assert_eq!(interleave(&rows, 8, 2), [0, 2, 1, 3, 10, 12, 11, 13]);
    }

    #[test]
    fn vectors_become_float32() {
        let halves: Vec<u8> = [1.5f32, -2.0]
            .iter()
            .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
            .collect();
        let expected: Vec<u8> = [2.5f32, -1.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(floats(&halves, Format::BF16, 1.0), expected);
        assert_eq!(floats(&expected, Format::F32, 0.0), expected);
    }
}
