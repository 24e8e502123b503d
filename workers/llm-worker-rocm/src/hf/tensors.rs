//! The folder's safetensors files: names and rows as GGUF has them.

use super::activations::Activations;
use super::change::Change;
use super::config::Config;
use super::names::{RotatedHeads, TensorName};
use super::packed::PackedExperts;
use crate::folder::weight_files;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use worker::gguf::{give_back, map_file, Format, SharedBytes, TensorInfo};
use worker::{Error, Result};

/// Where a tensor's data is, or an expert's part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub shard: usize,
    pub start: usize,
    pub bytes: usize,
}

/// A tensor as GGUF has it.
struct Place {
    /// One for each expert, or just one.
    sources: BTreeMap<u32, Source>,
    dtype: Dtype,
    /// Shape in the file, outermost first, of one expert.
    shape: Vec<usize>,
    /// Heads whose rows are to be reordered.
    heads: Option<u32>,
    /// Whether the experts are stacked.
    stacked: bool,
    /// Added to each element.
    plus_one: bool,
    /// What becomes of it, if it does not stay as it is.
    change: Option<Change>,
}

impl Place {
    /// Vectors are float32 in GGUF files.
    fn as_floats(&self) -> bool {
        self.shape.len() == 1
    }

    fn info(&self) -> TensorInfo {
        if let Some(change) = &self.change {
            return change.info(self.dtype, &self.shape);
        }
        let format = match self.dtype {
            _ if self.as_floats() => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::BF16,
            _ => Format::F32,
        };
        let mut dims: Vec<u64> = self.shape.iter().rev().map(|&d| d as u64).collect();
        if self.stacked {
            dims.push(self.sources.len() as u64);
        }
        let one: u64 = self.sources.values().map(|s| s.bytes as u64).sum();
        let bytes = match self.dtype {
            Dtype::F16 | Dtype::BF16 if self.as_floats() => one * 2,
            _ => one,
        };
        TensorInfo {
            format,
            offset: 0,
            dims,
            bytes,
        }
    }
}

/// All shards, mapped.
pub(super) struct Shards {
    maps: Vec<Arc<Mmap>>,
    places: HashMap<String, Place>,
    /// Experts whose matrices lie in one tensor.
    packed: PackedExperts,
    /// What GGUF has among its metadata.
    pub activations: Activations,
    /// Tensors that are in no file, float32.
    extra: HashMap<&'static str, Vec<u8>>,
    /// Blocks behind the model's own that predict tokens further ahead.
    pub heads: u32,
}

impl Shards {
    pub(super) fn open(folder: &Path, config: &Config) -> Result<Self> {
        let floats = |values: &[f32]| values.iter().flat_map(|f| f.to_le_bytes()).collect();
        let mut shards = Self {
            maps: Vec::new(),
            places: HashMap::new(),
            activations: Activations::default(),
            packed: PackedExperts::default(),
            extra: config
                .rope
                .tensors
                .iter()
                .map(|(name, values)| (*name, floats(values)))
                .collect(),
            heads: 0,
        };
        for path in weight_files(folder)? {
            let map = Arc::new(map_file(&path)?);
            shards
                .add(&map, config)
                .map_err(|reason| Error::BadModel { path, reason })?;
            shards.maps.push(map);
        }
        shards.count_heads(config);
        let incomplete = shards.places.iter().find(|(name, place)| {
            let of_block = name.starts_with("blk.");
            // Every one, from the first to the last.
            let all = 0..config.stacked(name).0;
            of_block && place.stacked && !place.sources.keys().copied().eq(all)
        });
        if let Some((name, place)) = incomplete {
            let (all, of) = config.stacked(name);
            return Err(Error::BadModel {
                path: folder.to_path_buf(),
                reason: format!("{name} has {} of {all} {of}", place.sources.len()),
            });
        }
        shards
            .packed
            .check(config.experts)
            .map_err(|reason| Error::BadModel {
                path: folder.to_path_buf(),
                reason,
            })?;
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

    /// Adds a shard's tensors. The library has checked every offset and size of the header.
    fn add(&mut self, map: &Mmap, config: &Config) -> std::result::Result<(), String> {
        let tensors = SafeTensors::deserialize(map).map_err(|e| format!("damaged: {e}"))?;
        for (name, view) in tensors.iter() {
            if self.activations.take(name, &view)? {
                continue;
            }
            let source = Source {
                shard: self.maps.len(),
                start: view.data().as_ptr() as usize - map.as_ptr() as usize,
                bytes: view.data().len(),
            };
            let (dtype, shape) = (view.dtype(), view.shape());
            if self.packed.take(config, name, source, dtype, shape)? {
                continue;
            }
            let found = config.places(name).map_err(|()| {
                format!(
                    "tensor {name} has no place in a {} model",
                    config.architecture
                )
            })?;
            for (found, change) in found {
                self.place((name, source, &view), config, found, change)?;
            }
        }
        Ok(())
    }

    /// Adds a tensor, or one of those that it becomes.
    fn place(
        &mut self,
        (name, source, view): (&str, Source, &TensorView),
        config: &Config,
        found: TensorName,
        change: Option<Change>,
    ) -> std::result::Result<(), String> {
        if block_of(&found.name).is_some_and(|block| block >= config.heads_behind.all_blocks()) {
            return Err(format!(
                "tensor {name}: the model has {} blocks",
                config.blocks
            ));
        }
        if !matches!(view.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(format!(
                "tensor {name} has dtype {:?}; F32, F16 and BF16 are read",
                view.dtype()
            ));
        }
        if view.shape().contains(&0) || view.shape().is_empty() {
            return Err(format!("tensor {name} has no elements"));
        }
        if let Some(reason) = change.as_ref().and_then(|c| c.refuses(view.shape())) {
            return Err(format!("tensor {name}: {reason}"));
        }
        let heads = found.heads.map(|heads| match heads {
            RotatedHeads::Query => config.heads,
            RotatedHeads::Key => config.kv_heads,
        });
        let rows = view.shape()[0];
        if heads.is_some_and(|heads| rows % (2 * heads as usize) != 0) {
            return Err(format!(
                "tensor {name} of {rows} rows does not belong to {} heads",
                heads.unwrap_or_default()
            ));
        }
        // A matrix of one row, which GGUF has as a vector.
        let shape = match view.shape() {
            [1, columns]
                if found.name.ends_with("ffn_gate_inp_shexp.weight")
                    || found.name.ends_with("exp_probs_b.bias") =>
            {
                vec![*columns]
            }
            shape => shape.to_vec(),
        };
        let place = self
            .places
            .entry(found.name.clone())
            .or_insert_with(|| Place {
                sources: BTreeMap::new(),
                dtype: view.dtype(),
                shape: shape.clone(),
                stacked: found.expert.is_some(),
                plus_one: config.folder.norm_plus_one && found.name.ends_with("norm.weight"),
                heads,
                change,
            });
        if place.shape != shape || place.dtype != view.dtype() {
            return Err(format!("tensor {name} differs from the other experts'"));
        }
        let expert = found.expert.unwrap_or(0);
        if place.sources.insert(expert, source).is_some() {
            return Err(format!("tensor {name} appears twice"));
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
        for (name, bytes) in &self.extra {
            let info = TensorInfo {
                dims: vec![bytes.len() as u64 / 4],
                format: Format::F32,
                offset: 0,
                bytes: bytes.len() as u64,
            };
            table.push(((*name).to_string(), info));
        }
        table
    }

    pub(super) fn bytes(&self, name: &str) -> Cow<'_, [u8]> {
        let of =
            |source: Source| &self.maps[source.shard][source.start..source.start + source.bytes];
        if let Some(bytes) = self.packed.bytes(name, of) {
            return Cow::Owned(bytes);
        }
        let Some(place) = self.places.get(name) else {
            return Cow::Borrowed(self.extra.get(name).map_or(&[], Vec::as_slice));
        };
        let part = |source: &Source| of(*source);
        let mut sources = place.sources.values();
        let data = match (sources.next(), sources.next()) {
            // The format does not promise alignment; fresh memory has it.
            (Some(only), None) if only.start % 4 == 0 => Cow::Borrowed(part(only)),
            _ => Cow::Owned(
                place
                    .sources
                    .values()
                    .flat_map(|s| part(s).iter().copied())
                    .collect(),
            ),
        };
        if let Some(change) = &place.change {
            return Cow::Owned(change.apply(&data, place.dtype, &place.shape));
        }
        let data = match place.heads {
            Some(heads) => Cow::Owned(interleave(&data, place.shape[0], heads as usize)),
            None => data,
        };
        if place.as_floats() && (place.dtype != Dtype::F32 || place.plus_one) {
            let added = if place.plus_one { 1.0 } else { 0.0 };
            return Cow::Owned(floats(&data, place.dtype, added));
        }
        data
    }

    /// Some bytes of a stacked tensor, which lies in as many pieces as it has experts; none of others.
    pub(super) fn parts(&self, name: &str, ranges: &[Range<usize>]) -> Option<Vec<u8>> {
        let place = self.places.get(name)?;
        let changes = place.change.is_some() || place.heads.is_some() || place.plus_one;
        if changes || place.as_floats() || place.sources.len() < 2 {
            return None;
        }
        let mut parts = Vec::with_capacity(ranges.iter().map(|range| range.len()).sum());
        // The pieces and the ranges ascend.
        let mut start = 0;
        for source in place.sources.values() {
            let own = start..start + source.bytes;
            start = own.end;
            let first = ranges.partition_point(|range| range.end <= own.start);
            for range in ranges[first..]
                .iter()
                .take_while(|range| range.start < own.end)
            {
                let (from, to) = (range.start.max(own.start), range.end.min(own.end));
                let from = source.start + from - own.start;
                let to = source.start + to - own.start;
                parts.extend_from_slice(&self.maps[source.shard][from..to]);
            }
        }
        Some(parts)
    }

    /// A tensor where it lies, if it is in a file as GGUF has it.
    pub(super) fn shared(&self, name: &str) -> Option<SharedBytes> {
        let place = self.places.get(name)?;
        let moved = place.change.is_some() || place.heads.is_some();
        let changes = moved || place.as_floats() || place.plus_one;
        let mut sources = place.sources.values();
        match (sources.next(), sources.next()) {
            (Some(only), None) if !changes => {
                let range = only.start..only.start + only.bytes;
                Some(SharedBytes::of_map(&self.maps[only.shard], range))
            }
            _ => None,
        }
    }

    pub(super) fn give_back(&self, name: &str) {
        let of_place = self.places.get(name).into_iter();
        let of_place = of_place.flat_map(|place| place.sources.values().copied());
        for source in of_place.chain(self.packed.sources(name)) {
            give_back(&self.maps[source.shard], source.start, source.bytes);
        }
    }
}

/// The block of a tensor's name in GGUF.
fn block_of(name: &str) -> Option<u32> {
    let (block, _) = name.strip_prefix("blk.")?.split_once('.')?;
    block.parse().ok()
}

/// Numbers as float32, with something added.
pub(super) fn floats(data: &[u8], dtype: Dtype, added: f32) -> Vec<u8> {
    let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
    let values: Vec<f32> = match dtype {
        Dtype::F16 => halves().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => halves().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
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
        assert_eq!(floats(&halves, Dtype::BF16, 1.0), expected);
        assert_eq!(floats(&expected, Dtype::F32, 0.0), expected);
    }
}
