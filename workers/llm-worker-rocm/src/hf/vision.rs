//! The encoder of pictures in a model's folder, seen as an `mmproj` file: llama.cpp's `clip.*` metadata from
//! `config.json` and `preprocessor_config.json`, and its names of tensors.

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
use worker::gguf::{give_back, map_file, Array, Format, Gguf, TensorInfo, Value, Weights};
use worker::{Error, Result};

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
        let config = required_json(path, "config.json")?;
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
        let metadata = metadata(traits.kind, traits.projector, &config, &preprocessor);
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
        let shape = view.shape();
        if shape.contains(&0) || shape.is_empty() {
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

/// llama.cpp's name of a tensor: `Some(None)` for what counts for nothing, `None` for a name that is unknown.
fn gguf_name(kind: Kind, name: &str, deep: &[u64]) -> Option<Option<String>> {
    const PREFIXES: [&str; 9] = [
        "model.",
        "visual.",
        "vision_tower.",
        "vision_model.",
        "multi_modal_projector.",
        "connector.",
        "embeddings.",
        "encoder.",
        "transformer.",
    ];
    let mut inner = name;
    for prefix in PREFIXES {
        inner = inner.strip_prefix(prefix).unwrap_or(inner);
    }
    // Pooling that no language model takes.
    if inner.starts_with("head.") || inner.ends_with("position_ids") {
        return Some(None);
    }
    let whole = match inner {
        "class_embedding" | "cls_token" => Some("v.class_embd"),
        "position_embeddings" | "position_embedding.weight" | "pos_embed.weight" => {
            Some("v.position_embd.weight")
        }
        "mm_input_projection_weight" => Some("mm.input_projection.weight"),
        "mm_soft_emb_norm.weight" => Some("mm.soft_emb_norm.weight"),
        "modality_projection.proj.weight" => Some("mm.model.fc.weight"),
        // It counts for nothing where features are taken before it.
        "post_layernorm.weight" | "post_layernorm.bias" if kind == Kind::Llava => {
            return Some(None)
        }
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(Some(whole.to_string()));
    }
    let (part, end) = inner.rsplit_once('.')?;
    let is_lambda = end.starts_with("lambda_");
    if !matches!(end, "weight" | "bias") && !is_lambda {
        return None;
    }
    let rest = |prefix: &str| {
        let (number, rest) = part
            .strip_prefix(prefix)?
            .split_once('.')
            .unwrap_or((part.strip_prefix(prefix)?, ""));
        Some((number.parse::<usize>().ok()?, rest))
    };
    if let Some((block, part)) = rest("blocks.")
        .or_else(|| rest("layers."))
        .or_else(|| rest("layer."))
    {
        let part = match (part, end) {
            ("", "lambda_1") => return Some(Some(format!("v.blk.{block}.ls1.weight"))),
            ("", "lambda_2") => return Some(Some(format!("v.blk.{block}.ls2.weight"))),
            ("norm1" | "layer_norm1" | "layernorm_before" | "attention_norm", _) => "ln1",
            ("norm2" | "layer_norm2" | "layernorm_after" | "ffn_norm", _) => "ln2",
            ("attn.qkv", _) => "attn_qkv",
            (
                "attn.proj"
                | "self_attn.out_proj"
                | "attention.projection_layer"
                | "attention.o_proj",
                _,
            ) => "attn_out",
            ("self_attn.q_proj" | "attention.q_proj", _) => "attn_q",
            ("self_attn.k_proj" | "attention.k_proj", _) => "attn_k",
            ("self_attn.v_proj" | "attention.v_proj", _) => "attn_v",
            ("mlp.gate_proj" | "feed_forward.gate_proj", _) => "ffn_gate",
            ("mlp.up_proj" | "mlp.fc1" | "mlp.linear_fc1" | "feed_forward.up_proj", _) => "ffn_up",
            ("mlp.down_proj" | "mlp.fc2" | "mlp.linear_fc2" | "feed_forward.down_proj", _) => {
                "ffn_down"
            }
            _ => return None,
        };
        return Some(Some(format!("v.blk.{block}.{part}.{end}")));
    }
    if let Some((index, part)) = rest("deepstack_merger_list.") {
        let part = match part {
            "norm" => "norm",
            "linear_fc1" => "fc1",
            "linear_fc2" => "fc2",
            _ => return None,
        };
        let block = deep.get(index)?;
        return Some(Some(format!("v.deepstack.{block}.{part}.{end}")));
    }
    let part = match (kind, part) {
        (_, "patch_embed.proj" | "patch_embedding" | "patch_embeddings.projection") => {
            "v.patch_embd"
        }
        (_, "patch_conv") => "v.patch_embd",
        (_, "pre_layrnorm" | "ln_pre") => "v.pre_ln",
        (Kind::Pixtral, "norm") => "mm.input_norm",
        (Kind::Pixtral, "patch_merger.merging_layer") => "mm.patch_merger",
        (Kind::Pixtral, "linear_1") => "mm.1",
        (Kind::Pixtral, "linear_2") => "mm.2",
        (_, "post_layernorm" | "layernorm" | "merger.ln_q" | "merger.norm") => "v.post_ln",
        (Kind::InternVl, "layer_norm") => "mm.0",
        (Kind::InternVl, "linear_1") => "mm.1",
        (Kind::InternVl, "linear_2") => "mm.3",
        (_, "merger.mlp.0" | "merger.linear_fc1" | "linear_1") => "mm.0",
        (_, "merger.mlp.2" | "merger.linear_fc2" | "linear_2") => "mm.2",
        _ => return None,
    };
    Some(Some(format!("{part}.{end}")))
}

fn list(json: &Json) -> Vec<u64> {
    let items = json.as_array().into_iter().flatten();
    items.filter_map(Json::as_u64).collect()
}

/// `clip.*` metadata.
fn metadata(
    kind: Kind,
    projector: &str,
    config: &Json,
    preprocessor: &Json,
) -> std::result::Result<Vec<(String, Value)>, String> {
    let vision = &config["vision_config"];
    let text = config.get("text_config").unwrap_or(config);
    let mut all = vec![
        (
            "general.architecture".to_string(),
            Value::String("clip".to_string()),
        ),
        (
            "clip.projector_type".to_string(),
            Value::String(projector.to_string()),
        ),
        ("clip.has_vision_encoder".to_string(), Value::Bool(true)),
    ];
    let mut set = |key: &str, value: Value| all.push((format!("clip.vision.{key}"), value));
    // A square's side may be given twice.
    let side = |json: &Json| match json {
        Json::Array(two) if two.len() == 2 && two[0] == two[1] => two[0].as_u64(),
        json => json.as_u64(),
    };
    let number = |names: &[&str]| -> std::result::Result<u32, String> {
        let found = names.iter().find_map(|name| side(&vision[*name]));
        let number = found.and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| format!("config.json: vision_config.{} is missing", names[0]))
    };
    let (width_names, hidden_names): (&[&str], &[&str]) = match kind {
        Kind::Qwen2Vl => (&["embed_dim"], &["intermediate_size"]),
        _ => (&["hidden_size"], &["intermediate_size"]),
    };
    let width = number(width_names)?;
    let hidden = match (kind, vision["mlp_ratio"].as_f64()) {
        (Kind::Qwen2Vl, ratio) => (f64::from(width) * ratio.unwrap_or(4.0)) as u32,
        _ => number(hidden_names)?,
    };
    let heads = number(&["num_attention_heads", "num_heads"])?;
    let mut blocks = number(&["num_hidden_layers", "depth"])?;
    if kind == Kind::Llava {
        // Features are taken before the last one.
        blocks = blocks.saturating_sub(1);
        let layer = Array::I32(vec![blocks as i32]);
        set("feature_layer", Value::Array(layer));
    }
    if vision["norm_type"]
        .as_str()
        .is_some_and(|norm| norm != "layer_norm")
    {
        return Err(format!(
            "config.json: vision_config.norm_type {} is not implemented here",
            vision["norm_type"]
        ));
    }
    let output = text["hidden_size"]
        .as_u64()
        .and_then(|n| u32::try_from(n).ok());
    set("embedding_length", Value::U32(width));
    set("feed_forward_length", Value::U32(hidden));
    set("attention.head_count", Value::U32(heads));
    set("block_count", Value::U32(blocks));
    set("patch_size", Value::U32(number(&["patch_size"])?));
    set(
        "projection_dim",
        Value::U32(output.ok_or("config.json: hidden_size is missing")?),
    );
    let epsilon = match kind {
        // Their code's own.
        Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl => 1e-6,
        Kind::Pixtral => 1e-5,
        Kind::Llava => vision["layer_norm_eps"].as_f64().unwrap_or(1e-5),
        _ => vision["layer_norm_eps"].as_f64().unwrap_or(1e-6),
    };
    set("attention.layer_norm_epsilon", Value::F32(epsilon as f32));
    let usual = match kind {
        Kind::Qwen2Vl | Kind::Llava => "quick_gelu",
        Kind::Qwen25Vl => "silu",
        Kind::InternVl | Kind::Pixtral => "gelu",
        _ => "gelu_pytorch_tanh",
    };
    let activation = vision["hidden_act"].as_str().unwrap_or(usual);
    if activation != usual && (kind, activation) != (Kind::Pixtral, "silu") {
        return Err(format!(
            "config.json: vision_config.hidden_act {activation} is not implemented here"
        ));
    }
    match activation {
        "quick_gelu" => {}
        "silu" => all.push(("clip.use_silu".to_string(), Value::Bool(true))),
        _ => all.push(("clip.use_gelu".to_string(), Value::Bool(true))),
    }
    let mut set = |key: &str, value: Value| all.push((format!("clip.vision.{key}"), value));
    let merge = match kind {
        Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl => {
            let merge = number(&["spatial_merge_size"]).unwrap_or(2);
            set("spatial_merge_size", Value::U32(merge));
            if side(&vision["temporal_patch_size"]).is_some_and(|n| n != 2) {
                return Err("config.json: vision_config.temporal_patch_size is not 2".to_string());
            }
            merge
        }
        Kind::Gemma3 => {
            let tokens = config["mm_tokens_per_image"].as_u64().unwrap_or(256);
            let grid = number(&["image_size"])? / number(&["patch_size"])?;
            let merge = grid / (tokens.isqrt() as u32).max(1);
            set("projector.scale_factor", Value::U32(merge));
            merge
        }
        Kind::Idefics3 => {
            let merge = config["scale_factor"].as_u64().unwrap_or(2) as u32;
            set("projector.scale_factor", Value::U32(merge));
            merge
        }
        Kind::InternVl => {
            let ratio = config["downsample_ratio"].as_f64().unwrap_or(0.5);
            let merge = (1.0 / ratio).round() as u32;
            set("projector.scale_factor", Value::U32(merge));
            merge
        }
        Kind::Pixtral => {
            let merge = config["spatial_merge_size"].as_u64().unwrap_or(1) as u32;
            set("spatial_merge_size", Value::U32(merge));
            let own = |json: &Json, key: &str, expected: f64| match json[key].as_f64() {
                Some(value) if value != expected => Err(format!(
                    "config.json: {key} {value} is not implemented here"
                )),
                _ => Ok(()),
            };
            own(vision, "rope_theta", 10_000.0)?;
            own(&vision["rope_parameters"], "rope_theta", 10_000.0)?;
            if merge > 1 {
                // That of the projector's norm.
                own(text, "rms_norm_eps", 1e-5)?;
            }
            if config["vision_feature_layer"]
                .as_i64()
                .is_some_and(|layer| layer != -1)
            {
                return Err("config.json: vision_feature_layer is not -1".to_string());
            }
            merge
        }
        Kind::Llava => 1,
    };
    if kind == Kind::Qwen25Vl {
        let full = list(&vision["fullatt_block_indexes"]);
        let period = full.first().map_or(0, |first| first + 1);
        let places: Vec<u64> = (1..)
            .map(|n| n * period)
            .take_while(|_| period > 0)
            .map(|n| n - 1)
            .take_while(|n| *n < u64::from(blocks))
            .collect();
        if places != full || period == 0 {
            return Err(format!(
                "config.json: vision_config.fullatt_block_indexes {full:?} are not every so many blocks"
            ));
        }
        set("n_wa_pattern", Value::U32(period as u32));
        set("window_size", Value::U32(number(&["window_size"])?));
    }
    if kind == Kind::Qwen3Vl {
        let deep = list(&vision["deepstack_visual_indexes"]);
        let flags = (0..u64::from(blocks))
            .map(|block| deep.contains(&block))
            .collect();
        set("is_deepstack_layers", Value::Array(Array::Bool(flags)));
    }
    if kind == Kind::Llava {
        if config["vision_feature_layer"]
            .as_i64()
            .is_some_and(|layer| layer != -2)
        {
            return Err("config.json: vision_feature_layer is not -2".to_string());
        }
        let select = config["vision_feature_select_strategy"].as_str();
        if select.is_some_and(|select| select != "default") {
            return Err(
                "config.json: vision_feature_select_strategy is not \"default\"".to_string(),
            );
        }
    }
    let bounded = kind == Kind::Pixtral;
    if let Some(size) = side(&vision["image_size"]).filter(|_| !bounded) {
        set("image_size", Value::U32(size as u32));
    }
    preprocessing(kind, merge, vision, preprocessor, &mut set)?;
    Ok(all)
}

/// What of the preprocessor's configuration the metadata have; the rest is followed or refused.
fn preprocessing(
    kind: Kind,
    merge: u32,
    vision: &Json,
    json: &Json,
    set: &mut impl FnMut(&str, Value),
) -> std::result::Result<(), String> {
    const FILE: &str = "preprocessor_config.json";
    if json.is_null() {
        return Err(format!("{FILE} is missing: how pictures become pixels"));
    }
    let refuse = |key: &str| Err(format!("{FILE}: {key} {} is not implemented", json[key]));
    for key in ["do_resize", "do_rescale", "do_normalize"] {
        if json[key] == false {
            return refuse(key);
        }
    }
    let factor = json["rescale_factor"].as_f64();
    if factor.is_some_and(|factor| (factor * 255.0 - 1.0).abs() > 1e-6) {
        return refuse("rescale_factor");
    }
    let resample = match kind {
        Kind::Gemma3 => 2,
        Kind::Idefics3 => 1,
        _ => 3,
    };
    if json["resample"].as_u64().is_some_and(|n| n != resample) {
        return refuse("resample");
    }
    for key in ["image_mean", "image_std"] {
        let numbers: Vec<f32> = json[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Json::as_f64)
            .map(|x| x as f32)
            .collect();
        set(key, Value::Array(Array::F32(numbers)));
    }
    let size = &json["size"];
    let same = |key: &str, expected: u64| match json[key].as_u64() {
        Some(value) if value != expected => refuse(key),
        _ => Ok(()),
    };
    let pixels = |size: &Json| size.as_u64().and_then(|n| u32::try_from(n).ok());
    match kind {
        Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl => {
            same("merge_size", merge.into())?;
            same("temporal_patch_size", 2)?;
            same("patch_size", vision["patch_size"].as_u64().unwrap_or(14))?;
            // The older names come first.
            let fewest = pixels(&json["min_pixels"]).or_else(|| pixels(&size["shortest_edge"]));
            let most = pixels(&json["max_pixels"]).or_else(|| pixels(&size["longest_edge"]));
            set("image_min_pixels", Value::U32(fewest.unwrap_or(56 * 56)));
            set(
                "image_max_pixels",
                Value::U32(most.unwrap_or(28 * 28 * 1280)),
            );
        }
        Kind::Gemma3 | Kind::InternVl => {
            let side = vision["image_size"]
                .as_array()
                .map_or(&vision["image_size"], |two| &two[0]);
            if size["height"] != *side || size["width"] != *side {
                return refuse("size");
            }
            if json["do_pan_and_scan"] == true {
                return refuse("do_pan_and_scan");
            }
            if kind == Kind::InternVl {
                // Without it the picture is one tile.
                let cut = json["crop_to_patches"] == true;
                let count = |key: &str, usual: u32| match cut {
                    true => pixels(&json[key]).unwrap_or(usual),
                    false => 1,
                };
                set("preproc_min_tiles", Value::U32(count("min_patches", 1)));
                set("preproc_max_tiles", Value::U32(count("max_patches", 12)));
            }
        }
        Kind::Pixtral => {
            let patch = &json["patch_size"];
            let patch = patch.get("height").unwrap_or(patch);
            if !patch.is_null() && *patch != vision["patch_size"] {
                return refuse("patch_size");
            }
            let longest = pixels(&size["longest_edge"]);
            let longest = longest.ok_or_else(|| format!("{FILE}: size.longest_edge is missing"))?;
            set("image_size", Value::U32(longest));
        }
        Kind::Llava => {
            let side = &vision["image_size"];
            let shortest = size.get("shortest_edge").unwrap_or(size);
            let crop = &json["crop_size"];
            let crop = crop.get("height").unwrap_or(crop);
            if shortest != side {
                return refuse("size");
            }
            if crop != side || json["do_center_crop"] == false {
                return refuse("crop_size");
            }
            if json["do_pad"] == true {
                return refuse("do_pad");
            }
        }
        Kind::Idefics3 => {
            let side = &vision["image_size"];
            if json["max_image_size"]["longest_edge"] != *side {
                return refuse("max_image_size");
            }
            if json["do_image_splitting"] == false {
                return refuse("do_image_splitting");
            }
            let longest = pixels(&size["longest_edge"]);
            let longest = longest.ok_or_else(|| format!("{FILE}: size.longest_edge is missing"))?;
            set("preproc_image_size", Value::U32(longest));
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
