//! The encoder of pictures in a model's folder, seen as an `mmproj` file: llama.cpp's `clip.*` metadata from
//! `config.json` and `preprocessor_config.json`, and its names of tensors.
//!
//! | Module    | Has                                                       |
//! |-----------|-----------------------------------------------------------|
//! | `source`  | what a folder says, and the metadata that become of it    |
//! | `names`   | names of tensors                                          |
//! | others    | what a family says in its own way                         |

mod gemma;
mod gemma4;
mod idefics;
mod internvl;
mod llava;
mod names;
mod pixtral;
mod qwen;
mod source;

use self::names::gguf_name;
use self::source::{list, Clip, Source};
use super::names::is_of_vision;
use super::tensors::interleave;
use crate::folder::{read_json, required_json, weight_files};
use crate::vision::{traits_of_folder, Kind};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use worker::gguf::{give_back, map_file, Format, Gguf, TensorInfo, Weights};
use worker::{Error, Result};

/// What a family of encoders says in its own way.
struct Family {
    /// Names of tensors outside of blocks, whole or without `.weight` and `.bias`, and llama.cpp's; an empty one for
    /// what counts for nothing.
    names: &'static [(&'static str, &'static str)],
    /// Writes the encoder's shape.
    shape: fn(&Source, &mut Clip) -> std::result::Result<(), String>,
    /// Writes what of the preprocessor's configuration the metadata have; the rest is followed or refused.
    preprocessing: fn(&Source, &mut Clip) -> std::result::Result<(), String>,
}

/// A kind's family.
fn family(kind: Kind) -> &'static Family {
    match kind {
        Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl => &qwen::FAMILY,
        Kind::Gemma3 => &gemma::FAMILY,
        Kind::Gemma4 => &gemma4::FAMILY,
        Kind::Llava => &llava::FAMILY,
        Kind::Idefics3 => &idefics::FAMILY,
        Kind::InternVl => &internvl::FAMILY,
        Kind::Pixtral => &pixtral::FAMILY,
    }
}

/// What is done to a tensor's numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// One is added: norms that store their weight less one.
    PlusOne,
    /// Rows of each of so many heads from halves to neighbours.
    Neighbours(usize),
    /// One of two frames of `(outputs, channels, frames, rows, columns)`.
    Frame(usize),
    /// From `(outputs, rows x columns x channels)` to `(outputs, channels, rows, columns)` of squares of this side.
    Channels(usize),
}

/// A tensor as GGUF has it.
struct Place {
    shard: usize,
    start: usize,
    bytes: usize,
    dtype: Dtype,
    /// In the file, outermost first.
    shape: Vec<usize>,
    change: Change,
}

/// Red, green and blue.
const CHANNELS: usize = 3;

/// A folder's encoder.
pub(crate) struct VisionFolder {
    path: PathBuf,
    header: Gguf,
    maps: Vec<Mmap>,
    places: HashMap<String, Place>,
}

impl Place {
    /// Shape as GGUF has it, outermost first.
    fn shape(&self) -> Vec<usize> {
        match self.change {
            Change::Frame(_) => [&self.shape[..2], &self.shape[3..]].concat(),
            Change::Channels(side) => vec![self.shape[0], CHANNELS, side, side],
            _ => self.shape.clone(),
        }
    }

    fn info(&self) -> TensorInfo {
        let shape = self.shape();
        let elements: usize = shape.iter().product();
        let (format, size) = match self.dtype {
            _ if self.change == Change::PlusOne => (Format::F32, 4),
            Dtype::F16 => (Format::F16, 2),
            Dtype::BF16 => (Format::BF16, 2),
            _ => (Format::F32, 4),
        };
        TensorInfo {
            format,
            offset: 0,
            dims: shape.iter().rev().map(|&d| d as u64).collect(),
            bytes: (elements * size) as u64,
        }
    }

    fn size(&self) -> usize {
        if self.dtype == Dtype::F32 {
            4
        } else {
            2
        }
    }
}

impl VisionFolder {
    /// The encoder of a folder, `None` if the model has none that this program knows of.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be read, [`Error::BadModel`] naming what is damaged or not implemented.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let outer = required_json(path, "config.json")?;
        let config = super::of_thinker(&outer);
        let tower = config["vision_config"]["model_type"].as_str();
        let model = config["model_type"].as_str().unwrap_or_default();
        let traits = traits_of_folder(model, tower);
        if traits.is_none() && traits_of_folder(model, None).is_some() {
            return Err(Error::BadModel {
                path: path.to_path_buf(),
                reason: format!(
                    "config.json: an encoder of type {} is not implemented here",
                    tower.unwrap_or_default()
                ),
            });
        }
        let (Some(traits), true) = (traits, config["vision_config"].is_object()) else {
            return Ok(None);
        };
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let preprocessor = read_json(path, "preprocessor_config.json")?.unwrap_or(Json::Null);
        let video = read_json(path, "video_preprocessor_config.json")?.unwrap_or(Json::Null);
        let source = Source {
            kind: traits.kind,
            config,
            vision: &config["vision_config"],
            text: config.get("text_config").unwrap_or(config),
            preprocessor: &preprocessor,
            video: &video,
        };
        let metadata = source.metadata(traits.projector, family(traits.kind));
        let metadata = metadata.map_err(bad)?;
        let deep: Vec<u64> = list(&config["vision_config"]["deepstack_visual_indexes"]);
        let mut maps = Vec::new();
        let mut places = HashMap::new();
        for file in weight_files(path)? {
            let map = map_file(&file)?;
            let heads = config["vision_config"]["num_attention_heads"].as_u64();
            let model = (traits.kind, heads.unwrap_or(1) as usize);
            add(&map, maps.len(), model, &deep, &mut places).map_err(bad)?;
            maps.push(map);
        }
        let info = |(name, place): (&String, &Place)| (name.clone(), place.info());
        let table: Vec<_> = places.iter().map(info).collect();
        Ok(Some(Self {
            path: path.to_path_buf(),
            header: Gguf::from_parts(metadata, table),
            maps,
            places,
        }))
    }
}

/// Adds a shard's tensors. The library has checked every offset and size of the header.
fn add(
    map: &Mmap,
    shard: usize,
    (kind, heads): (Kind, usize),
    deep: &[u64],
    places: &mut HashMap<String, Place>,
) -> std::result::Result<(), String> {
    let tensors = SafeTensors::deserialize(map).map_err(|e| format!("damaged: {e}"))?;
    for (name, view) in tensors.iter().filter(|(name, _)| is_of_vision(name)) {
        let Some(found) = gguf_name(kind, name, deep)
            .ok_or_else(|| format!("tensor {name} has no place in this encoder of pictures"))?
        else {
            continue;
        };
        if !matches!(view.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(format!(
                "tensor {name} has dtype {:?}; F32, F16 and BF16 are read",
                view.dtype()
            ));
        }
        // A number by itself is a list of one.
        let shape = match view.shape() {
            [] => &[1],
            shape => shape,
        };
        if shape.contains(&0) {
            return Err(format!("tensor {name} has no elements"));
        }
        let place = |change: Change| Place {
            shard,
            start: view.data().as_ptr() as usize - map.as_ptr() as usize,
            bytes: view.data().len(),
            dtype: view.dtype(),
            shape: match found.as_str() {
                // One row of a class or of positions, with dimensions of 1 before it.
                "v.class_embd" | "v.position_embd.weight" => {
                    shape.iter().copied().skip_while(|d| *d == 1).collect()
                }
                _ => shape.to_vec(),
            },
            change,
        };
        match shape {
            [_, _, 2, _, _] => {
                places.insert("v.patch_embd.weight".to_string(), place(Change::Frame(0)));
                places.insert("v.patch_embd.weight.1".to_string(), place(Change::Frame(1)));
            }
            [rows, _]
                if kind == Kind::Pixtral
                    && (found.ends_with(".attn_q.weight") || found.ends_with(".attn_k.weight")) =>
            {
                if heads == 0 || rows % (2 * heads) != 0 {
                    return Err(format!("tensor {name} does not belong to {heads} heads"));
                }
                places.insert(found.clone(), place(Change::Neighbours(heads)));
            }
            [_, columns] if found == "v.patch_embd.weight" => {
                let side = (columns / CHANNELS).isqrt();
                if side * side * CHANNELS != *columns {
                    return Err(format!("tensor {name} is not of square patches"));
                }
                places.insert(found.clone(), place(Change::Channels(side)));
            }
            _ if found == "mm.soft_emb_norm.weight" => {
                places.insert(found.clone(), place(Change::PlusOne));
            }
            _ => {
                places.insert(found.clone(), place(Change::None));
            }
        }
    }
    Ok(())
}

impl Weights for VisionFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, _info: &TensorInfo) -> Cow<'_, [u8]> {
        let Some(place) = self.places.get(name) else {
            return Cow::Borrowed(&[]);
        };
        let data = &self.maps[place.shard][place.start..place.start + place.bytes];
        match place.change {
            Change::None if place.start % 4 == 0 => Cow::Borrowed(data),
            Change::None => Cow::Owned(data.to_vec()),
            Change::Neighbours(heads) => Cow::Owned(interleave(data, place.shape[0], heads)),
            Change::Frame(frame) => {
                let bytes: usize = place.shape[3..].iter().product::<usize>() * place.size();
                let frames = data.chunks_exact(bytes).skip(frame).step_by(2);
                Cow::Owned(frames.flatten().copied().collect())
            }
            Change::Channels(side) => {
                let size = place.size();
                let of_output = data.chunks_exact(side * side * CHANNELS * size);
                let channels = of_output.flat_map(|pixels| {
                    (0..CHANNELS).flat_map(move |channel| {
                        let numbers = pixels.chunks_exact(size).skip(channel);
                        numbers.step_by(CHANNELS).flatten().copied()
                    })
                });
                Cow::Owned(channels.collect())
            }
            Change::PlusOne => {
                let plus_one = |x: f32| (x + 1.0).to_le_bytes();
                let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
                Cow::Owned(match place.dtype {
                    Dtype::F16 => halves()
                        .flat_map(|b| plus_one(f16::from_le_bytes(b).to_f32()))
                        .collect(),
                    Dtype::BF16 => halves()
                        .flat_map(|b| plus_one(bf16::from_le_bytes(b).to_f32()))
                        .collect(),
                    _ => data
                        .chunks_exact(4)
                        .flat_map(|b| plus_one(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
                        .collect(),
                })
            }
        }
    }

    fn give_back(&self, name: &str, _info: &TensorInfo) {
        if let Some(place) = self.places.get(name) {
            give_back(&self.maps[place.shard], place.start, place.bytes);
        }
    }
}
