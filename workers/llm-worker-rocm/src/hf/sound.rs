//! The encoder of sounds in a model's folder, seen as an `mmproj` file: llama.cpp's `clip.audio.*` metadata from
//! `config.json` and `preprocessor_config.json`, and its names of tensors.

use super::names::is_of_sound;
use crate::folder::{read_json, required_json, weight_files};
use crate::sound::{traits_of, Kind};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use worker::gguf::{give_back, map_file, Format, Gguf, TensorInfo, Value, Weights};
use worker::{Error, Result};

/// The table of positions.
const POSITIONS: &str = "a.position_embd.weight";

/// The longest wave of computed positions, as a share of the shortest.
const LONGEST_WAVE: f64 = 10_000.0;

/// A tensor as GGUF has it.
struct Place {
    shard: usize,
    start: usize,
    bytes: usize,
    info: TensorInfo,
    dtype: Dtype,
    /// Whether GGUF has the logarithms of the numbers' exponentials and 1.
    softplus: bool,
}

/// A folder's encoder.
pub(crate) struct SoundFolder {
    path: PathBuf,
    header: Gguf,
    maps: Vec<Mmap>,
    places: HashMap<String, Place>,
    /// Positions of a model that computes them.
    positions: Option<Vec<u8>>,
}

impl SoundFolder {
    /// The encoder of a folder, `None` if the model has none that this program knows of.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be read, [`Error::BadModel`] naming what is damaged or not implemented.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let outer = required_json(path, "config.json")?;
        let config = super::of_thinker(&outer);
        let audio = &config["audio_config"];
        let traits = traits_of(config["model_type"].as_str().unwrap_or_default());
        let (Some(traits), true) = (traits, audio.is_object()) else {
            return Ok(None);
        };
        let extractor = match read_json(path, "preprocessor_config.json")? {
            Some(json) => json,
            // Where one file describes all that a processor does.
            None => read_json(path, "processor_config.json")?
                .map_or(Json::Null, |mut json| json["feature_extractor"].take()),
        };
        let metadata = metadata(traits.kind, traits.projector, config, &extractor).map_err(bad)?;
        let mut maps = Vec::new();
        let mut places = HashMap::new();
        for file in weight_files(path)? {
            let map = map_file(&file)?;
            add(&map, maps.len(), traits.kind, &mut places).map_err(bad)?;
            maps.push(map);
        }
        let mut table: Vec<_> = places
            .iter()
            .map(|(name, place)| (name.clone(), place.info.clone()))
            .collect();
        let positions = match traits.kind {
            Kind::Qwen25Omni => {
                let count = number(audio, &["max_source_positions"]).map_err(bad)? as usize;
                let width = number(audio, WIDTH).map_err(bad)? as usize;
                let bytes = waves(count, width);
                let info = TensorInfo {
                    format: Format::F32,
                    offset: 0,
                    dims: vec![width as u64, count as u64],
                    bytes: bytes.len() as u64,
                };
                table.push((POSITIONS.to_string(), info));
                Some(bytes)
            }
            _ => None,
        };
        Ok(Some(Self {
            path: path.to_path_buf(),
            header: Gguf::from_parts(metadata, table),
            maps,
            places,
            positions,
        }))
    }
}

/// Logarithms of numbers' exponentials and 1, as floats.
fn softplus(data: &[u8], dtype: Dtype) -> Vec<u8> {
    let of = |x: f32| (1.0 + x.exp()).ln().to_le_bytes();
    let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        Dtype::F16 => halves()
            .flat_map(|b| of(f16::from_le_bytes(b).to_f32()))
            .collect(),
        Dtype::BF16 => halves()
            .flat_map(|b| of(bf16::from_le_bytes(b).to_f32()))
            .collect(),
        _ => data
            .chunks_exact(4)
            .flat_map(|b| of(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
    }
}

/// Sines and cosines of places, the waves from one place long to [`LONGEST_WAVE`] times that.
fn waves(places: usize, width: usize) -> Vec<u8> {
    let half = width / 2;
    let step = LONGEST_WAVE.ln() / (half.max(2) - 1) as f64;
    let scales: Vec<f32> = (0..half).map(|i| (-step as f32 * i as f32).exp()).collect();
    let angles = |place: usize| scales.iter().map(move |scale| place as f32 * scale);
    (0..places)
        .flat_map(|place| {
            angles(place)
                .map(f32::sin)
                .chain(angles(place).map(f32::cos))
        })
        .flat_map(f32::to_le_bytes)
        .collect()
}

/// Adds a shard's tensors. The library has checked every offset and size of the header.
fn add(
    map: &Mmap,
    shard: usize,
    kind: Kind,
    places: &mut HashMap<String, Place>,
) -> std::result::Result<(), String> {
    let tensors = SafeTensors::deserialize(map).map_err(|e| format!("damaged: {e}"))?;
    for (name, view) in tensors.iter().filter(|(name, _)| is_of_sound(name)) {
        let Some(found) = gguf_name(kind, name)
            .ok_or_else(|| format!("tensor {name} has no place in this encoder of sounds"))?
        else {
            continue;
        };
        let format = match view.dtype() {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::BF16,
            other => {
                return Err(format!(
                    "tensor {name} has dtype {other:?}; F32, F16 and BF16 are read"
                ))
            }
        };
        let shape = view.shape();
        if shape.contains(&0) {
            return Err(format!("tensor {name} has no elements"));
        }
        let mut dims: Vec<u64> = shape.iter().rev().map(|&d| d as u64).collect();
        match found.as_str() {
            // Columns in llama.cpp's files, the one channel of each kernel left out, single numbers as lists.
            name if name.starts_with("a.conv1d.") && name.ends_with(".bias") => dims.insert(0, 1),
            name if name.ends_with(".conv_dw.weight") && dims.len() == 3 => {
                dims.remove(1);
            }
            _ if dims.is_empty() => dims.push(1),
            _ => {}
        }
        let softplus = found.ends_with(".per_dim_scale.weight");
        let elements: u64 = dims.iter().product();
        let place = Place {
            shard,
            start: view.data().as_ptr() as usize - map.as_ptr() as usize,
            bytes: view.data().len(),
            info: TensorInfo {
                format: if softplus { Format::F32 } else { format },
                offset: 0,
                dims,
                bytes: if softplus {
                    elements * 4
                } else {
                    view.data().len() as u64
                },
            },
            dtype: view.dtype(),
            softplus,
        };
        places.insert(found, place);
    }
    Ok(())
}

/// llama.cpp's name of a tensor: `Some(None)` for what counts for nothing, `None` for a name that is unknown.
fn gguf_name(kind: Kind, name: &str) -> Option<Option<String>> {
    match kind {
        Kind::Gemma3n => return gemma3n_name(name).map(Some),
        Kind::Gemma4 => return gemma4_name(name).map(Some),
        _ => {}
    }
    let mut inner = name;
    for prefix in [
        "thinker.",
        "model.",
        "audio_tower.",
        "multi_modal_projector.",
    ] {
        inner = inner.strip_prefix(prefix).unwrap_or(inner);
    }
    let (part, end) = inner.rsplit_once('.')?;
    if !matches!(end, "weight" | "bias") {
        return None;
    }
    if let Some(rest) = part.strip_prefix("layers.") {
        let (block, part) = rest.split_once('.')?;
        let block: usize = block.parse().ok()?;
        let part = match part {
            "self_attn_layer_norm" => "ln1",
            "final_layer_norm" => "ln2",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.out_proj" => "attn_out",
            "fc1" => "ffn_up",
            "fc2" => "ffn_down",
            _ => return None,
        };
        return Some(Some(format!("a.blk.{block}.{part}.{end}")));
    }
    let part = match part {
        // Ends that the code does not look at.
        "audio_bos_eos_token" => return Some(None),
        "conv1" => "a.conv1d.1",
        "conv2" => "a.conv1d.2",
        "embed_positions" => "a.position_embd",
        "layer_norm" | "ln_post" => "a.post_ln",
        "linear_1" => "mm.a.mlp.1",
        "linear_2" => "mm.a.mlp.2",
        "linear" | "proj" => "mm.a.fc",
        _ => return None,
    };
    Some(Some(format!("{part}.{end}")))
}

/// The same for Gemma 4.
fn gemma4_name(name: &str) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    if name == "embed_audio.embedding_projection.weight" {
        return Some("mm.a.input_projection.weight".to_string());
    }
    let inner = name.strip_prefix("audio_tower.")?;
    if let Some(rest) = inner.strip_prefix("subsample_conv_projection.") {
        return Some(match rest {
            "layer0.conv.weight" => "a.conv1d.0.weight".to_string(),
            "layer1.conv.weight" => "a.conv1d.1.weight".to_string(),
            "layer0.norm.weight" => "a.conv1d.0.norm.weight".to_string(),
            "layer1.norm.weight" => "a.conv1d.1.norm.weight".to_string(),
            "input_proj_linear.weight" => "a.input_projection.weight".to_string(),
            _ => return None,
        });
    }
    if let Some(end) = inner.strip_prefix("output_proj.") {
        return matches!(end, "weight" | "bias").then(|| format!("a.pre_encode.out.{end}"));
    }
    let (block, part) = inner.strip_prefix("layers.")?.split_once('.')?;
    let block: usize = block.parse().ok()?;
    if part == "self_attn.per_dim_scale" {
        return Some(format!("a.blk.{block}.per_dim_scale.weight"));
    }
    let (part, end) = part.rsplit_once('.')?;
    if !matches!(
        end,
        "weight" | "input_min" | "input_max" | "output_min" | "output_max"
    ) {
        return None;
    }
    let part = match part.strip_suffix(".linear").unwrap_or(part) {
        "feed_forward1.pre_layer_norm" => "ffn_norm",
        "feed_forward1.ffw_layer_1" => "ffn_up",
        "feed_forward1.ffw_layer_2" => "ffn_down",
        "feed_forward1.post_layer_norm" => "ffn_post_norm",
        "feed_forward2.pre_layer_norm" => "ffn_norm_1",
        "feed_forward2.ffw_layer_1" => "ffn_up_1",
        "feed_forward2.ffw_layer_2" => "ffn_down_1",
        "feed_forward2.post_layer_norm" => "ffn_post_norm_1",
        "norm_pre_attn" => "attn_pre_norm",
        "norm_post_attn" => "attn_post_norm",
        "norm_out" => "ln2",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.post" => "attn_out",
        "self_attn.relative_k_proj" => "attn_k_rel",
        // llama.cpp has the names of the two norms the other way round.
        "lconv1d.pre_layer_norm" => "conv_norm",
        "lconv1d.conv_norm" => "norm_conv",
        "lconv1d.linear_start" => "conv_pw1",
        "lconv1d.depthwise_conv1d" => "conv_dw",
        "lconv1d.linear_end" => "conv_pw2",
        _ => return None,
    };
    Some(format!("a.blk.{block}.{part}.{end}"))
}

/// The same for Gemma 3n, of whose tensors llama.cpp reads none: names as Gemma 4's.
fn gemma3n_name(name: &str) -> Option<String> {
    let inner = name.strip_prefix("model.").unwrap_or(name);
    if let Some(part) = inner.strip_prefix("embed_audio.") {
        return Some(match part {
            "embedding.weight" => "mm.a.embedding.weight".to_string(),
            "hard_embedding_norm.weight" => "mm.a.hard_emb_norm.weight".to_string(),
            "soft_embedding_norm.weight" => "mm.a.soft_emb_norm.weight".to_string(),
            "embedding_projection.weight" => "mm.a.input_projection.weight".to_string(),
            _ => return None,
        });
    }
    let inner = inner.strip_prefix("audio_tower.")?;
    if let Some(part) = inner.strip_prefix("subsample_conv_projection.conv_") {
        let (layer, part) = part.split_once('.')?;
        return gemma4_name(&format!(
            "audio_tower.subsample_conv_projection.layer{layer}.{part}"
        ));
    }
    let Some(rest) = inner.strip_prefix("conformer.") else {
        return gemma4_name(name);
    };
    let (block, part) = rest.split_once('.')?;
    let part = match part {
        "norm.weight" => "norm_out.weight".to_string(),
        "attention.pre_attn_norm.weight" => "norm_pre_attn.weight".to_string(),
        "attention.post_norm.weight" => "norm_post_attn.weight".to_string(),
        "attention.post.weight" => "self_attn.post.weight".to_string(),
        "attention.attn.relative_position_embedding.pos_proj.weight" => {
            "self_attn.relative_k_proj.weight".to_string()
        }
        part => part
            .replace("attention.attn.", "self_attn.")
            .replace("ffw_layer_start.", "feed_forward1.")
            .replace("ffw_layer_end.", "feed_forward2."),
    };
    gemma4_name(&format!("audio_tower.layers.{block}.{part}"))
}

/// Names of the same number in configurations of different classes.
const WIDTH: &[&str] = &["d_model", "hidden_size"];

fn number(json: &Json, names: &[&str]) -> std::result::Result<u32, String> {
    let found = names.iter().find_map(|name| json[*name].as_u64());
    let number = found.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    number.ok_or_else(|| format!("config.json: audio_config.{} is missing", names[0]))
}

/// `clip.*` metadata.
fn metadata(
    kind: Kind,
    projector: &str,
    config: &Json,
    extractor: &Json,
) -> std::result::Result<Vec<(String, Value)>, String> {
    let audio = &config["audio_config"];
    let text = config.get("text_config").unwrap_or(config);
    let only = |json: &Json, key: &str, accepted: Json| match &json[key] {
        Json::Null => Ok(()),
        value if *value == accepted => Ok(()),
        value if value.is_number() && value.as_f64() == accepted.as_f64() => Ok(()),
        value => Err(format!(
            "config.json: {key} {value} is not implemented here"
        )),
    };
    let width = number(audio, WIDTH)?;
    let (hidden, bands) = match kind {
        Kind::Gemma4 => {
            for (key, accepted) in [
                ("hidden_act", Json::from("silu")),
                ("attention_chunk_size", 12.into()),
                ("attention_context_left", 13.into()),
                ("attention_context_right", 0.into()),
                ("attention_logit_cap", 50.0.into()),
                ("conv_kernel_size", 5.into()),
                ("residual_weight", 0.5.into()),
                ("rms_norm_eps", 1e-6.into()),
                ("gradient_clipping", 1e10.into()),
            ] {
                only(audio, key, accepted)?;
            }
            let bands = extractor["feature_size"].as_u64().unwrap_or(128);
            let bands = u32::try_from(bands).map_err(|e| e.to_string())?;
            (width.saturating_mul(4), bands)
        }
        Kind::Gemma3n => {
            for (key, accepted) in [
                ("conf_attention_chunk_size", Json::from(12)),
                ("conf_attention_context_left", 13.into()),
                ("conf_attention_context_right", 0.into()),
                ("conf_attention_logit_cap", 50.0.into()),
                ("conf_conv_kernel_size", 5.into()),
                ("conf_reduction_factor", 4.into()),
                ("conf_residual_weight", 0.5.into()),
                ("sscp_conv_group_norm_eps", 1e-3.into()),
                ("sscp_conv_kernel_size", serde_json::json!([[3, 3], [3, 3]])),
                ("sscp_conv_stride_size", serde_json::json!([[2, 2], [2, 2]])),
                ("rms_norm_eps", 1e-6.into()),
                ("gradient_clipping", 1e10.into()),
            ] {
                only(audio, key, accepted)?;
            }
            (
                width.saturating_mul(4),
                number(audio, &["input_feat_size"])?,
            )
        }
        _ => {
            only(audio, "activation_function", "gelu".into())?;
            only(audio, "scale_embedding", false.into())?;
            only(config, "projector_hidden_act", "gelu".into())?;
            (
                number(audio, &["encoder_ffn_dim", "intermediate_size"])?,
                number(audio, &["num_mel_bins"])?,
            )
        }
    };
    let output = text["hidden_size"]
        .as_u64()
        .and_then(|n| u32::try_from(n).ok());
    let mut all = vec![
        (
            "general.architecture".to_string(),
            Value::String("clip".to_string()),
        ),
        (
            match kind {
                // The encoder of pictures beside it is of another type.
                Kind::Gemma3n | Kind::Gemma4 => "clip.audio.projector_type".to_string(),
                _ => "clip.projector_type".to_string(),
            },
            Value::String(projector.to_string()),
        ),
        ("clip.has_audio_encoder".to_string(), Value::Bool(true)),
    ];
    let mut set = |key: &str, value: Value| all.push((format!("clip.audio.{key}"), value));
    set("embedding_length", Value::U32(width));
    set("feed_forward_length", Value::U32(hidden));
    set(
        "block_count",
        Value::U32(number(
            audio,
            &[
                "encoder_layers",
                "num_hidden_layers",
                "conf_num_hidden_layers",
            ],
        )?),
    );
    set(
        "attention.head_count",
        Value::U32(number(
            audio,
            &[
                "encoder_attention_heads",
                "num_attention_heads",
                "conf_num_attention_heads",
            ],
        )?),
    );
    set("attention.layer_norm_epsilon", Value::F32(1e-5));
    set("num_mel_bins", Value::U32(bands));
    set(
        "projection_dim",
        Value::U32(output.ok_or("config.json: hidden_size is missing")?),
    );
    match kind {
        Kind::Voxtral => set("projector.stack_factor", Value::U32(hidden / width)),
        Kind::Qwen2Audio => {}
        Kind::Qwen25Omni => set("chunk_size", Value::U32(2 * number(audio, &["n_window"])?)),
        Kind::Gemma3n => {
            let rows = config["audio_soft_tokens_per_image"]
                .as_u64()
                .unwrap_or(188);
            let rows = u32::try_from(rows).map_err(|e| e.to_string())?;
            set("soft_tokens", Value::U32(rows));
        }
        Kind::Gemma4 => {}
    }
    extraction(kind, bands, extractor, &mut set)?;
    Ok(all)
}

/// What of the extractor's configuration the metadata have; the rest is followed or refused.
fn extraction(
    kind: Kind,
    bands: u32,
    json: &Json,
    set: &mut impl FnMut(&str, Value),
) -> std::result::Result<(), String> {
    const FILE: &str = "preprocessor_config.json";
    if json.is_null() {
        return Err(format!("{FILE} is missing: how sounds become frames"));
    }
    let refuse = |key: &str| Err(format!("{FILE}: {key} {} is not implemented", json[key]));
    let common: &[(&str, f64)] = &[
        ("feature_size", f64::from(bands)),
        ("sampling_rate", 16_000.0),
        ("hop_length", 160.0),
        ("dither", 0.0),
        ("padding_value", 0.0),
    ];
    let own: &[(&str, f64)] = match kind {
        Kind::Gemma4 => &[
            ("frame_length", 320.0),
            ("fft_length", 512.0),
            ("min_frequency", 0.0),
            ("max_frequency", 8_000.0),
            ("preemphasis", 0.0),
            ("input_scale_factor", 1.0),
            ("mel_floor", 1e-3),
        ],
        Kind::Gemma3n => &[
            ("frame_length", 512.0),
            ("fft_length", 1_024.0),
            ("min_frequency", 125.0),
            ("max_frequency", 7_600.0),
            ("preemphasis", 0.97),
            ("input_scale_factor", 1.0),
            ("mel_floor", 1e-5),
        ],
        _ => &[("n_fft", 400.0)],
    };
    for (key, expected) in [common, own].concat() {
        if json[key].as_f64().is_some_and(|value| value != expected) {
            return refuse(key);
        }
    }
    let htk = &json["preemphasis_htk_flavor"];
    if kind == Kind::Gemma3n && *htk == false {
        return refuse("preemphasis_htk_flavor");
    }
    for key in ["do_normalize", "per_bin_mean", "per_bin_stddev"] {
        if !(json[key].is_null() || json[key] == false) {
            return refuse(key);
        }
    }
    let samples = json["n_samples"].as_u64();
    if let (false, Some(samples)) = (kind == Kind::Voxtral, samples) {
        let samples = u32::try_from(samples).map_err(|_| format!("{FILE}: n_samples {samples}"))?;
        set("max_samples", Value::U32(samples));
    }
    Ok(())
}

impl Weights for SoundFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, _info: &TensorInfo) -> Cow<'_, [u8]> {
        match (self.places.get(name), &self.positions) {
            (Some(place), _) => {
                let data = &self.maps[place.shard][place.start..place.start + place.bytes];
                if place.softplus {
                    return Cow::Owned(softplus(data, place.dtype));
                }
                match place.start % 4 {
                    0 => Cow::Borrowed(data),
                    _ => Cow::Owned(data.to_vec()),
                }
            }
            (None, Some(positions)) if name == POSITIONS => Cow::Borrowed(positions),
            _ => Cow::Borrowed(&[]),
        }
    }

    fn give_back(&self, name: &str, _info: &TensorInfo) {
        if let Some(place) = self.places.get(name) {
            give_back(&self.maps[place.shard], place.start, place.bytes);
        }
    }
}
