//! `quantization_config`: which modules are quantized, and how.

use super::float4::Kind;
use super::integers::{self, Packer};
use super::names::{Pattern, Patterns, Spelling};
use super::scales::Shared;
use crate::architectures::ExpertFiles;
use serde_json::Value as Json;

/// How the matrix of a module is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// 8-bit floats (e4m3).
    Float8(Shared),
    /// 4-bit floats (e2m1). Of NVFP4, scales of whole matrices are what weights were multiplied with, and not what they
    /// are to be multiplied with, if they are inverted.
    Float4 { kind: Kind, inverted: bool },
    /// Integers with scales of groups.
    Integers(Packer),
}

/// Modules with one scheme; none for those that stay as they are.
#[derive(Debug, Clone)]
struct Group {
    modules: Patterns,
    scheme: Option<Scheme>,
}

/// See the module.
#[derive(Debug, Clone)]
pub(in crate::hf) struct Quantization {
    /// For messages.
    method: String,
    /// Those before come first, of such whose names fit as well.
    groups: Vec<Group>,
    /// Modules that stay as they are.
    ignored: Patterns,
}

/// What is said of activations and caches, which keep their types here.
const BESIDE: [&str; 4] = [
    "kv_cache_scheme",
    "kv_cache_quant_algo",
    "kv_cache_quant_config",
    "kv_cache_post_rope",
];

impl Quantization {
    /// Reads that of a model whose experts are stored like that; none if nothing is quantized in a way that is read
    /// here.
    pub(in crate::hf) fn read(json: &Json, experts: ExpertFiles) -> Result<Option<Self>, String> {
        let homes = [
            &json["quantization_config"],
            &json["text_config"]["quantization_config"],
            &json["thinker_config"]["quantization_config"],
            &json["compression_config"],
        ];
        let Some(json) = homes.into_iter().find(|home| !home.is_null()) else {
            return Ok(None);
        };
        let named = json["quant_method"].as_str();
        // Before it had a name, it had formats.
        let method = match named {
            None if json["config_groups"].is_object() => "compressed-tensors",
            None if json["quantization"]["quant_algo"].is_string() => "modelopt",
            None => return refuse("quant_method", &json["quant_method"]),
            Some(named) => named,
        };
        let read = match method {
            // Their tensors have names and shapes of their own.
            "mxfp4" if experts == ExpertFiles::Turns => return Ok(None),
            "fp8" => fp8(json)?,
            "fbgemm_fp8" => fbgemm(json)?,
            "compressed-tensors" => compressed_tensors(json)?,
            "modelopt" | "modelopt_fp4" | "modelopt_mxfp8" | "modelopt_mixed" => modelopt(json)?,
            "quark" => quark(json)?,
            "gptq" => {
                let packer = integers::gptq(json)?;
                Quantization::of_all(Scheme::Integers(packer), Patterns::default())?
            }
            "awq" => {
                let key = "modules_to_not_convert";
                let ignored = Patterns::read(&json[key], key, Spelling::Transformers)?;
                Quantization::of_all(Scheme::Integers(integers::awq(json)?), ignored)?
            }
            _ => return refuse("quant_method", &json["quant_method"]),
        };
        for key in BESIDE {
            let nested = [json, &json["quantization"]].map(|part| &part[key]);
            if let Some(value) = nested.into_iter().find(|value| !value.is_null()) {
                tracing::info!("quantization_config: {key} {value} is not used: --kv-cache chooses how keys and values are stored");
            }
        }
        Ok(Some(Self {
            method: method.to_string(),
            ..read
        }))
    }

    /// The maker's name of the method.
    pub(in crate::hf) fn method(&self) -> &str {
        &self.method
    }

    /// How the matrix of a module is stored; none if as it is.
    pub(super) fn of_module(&self, module: &str) -> Option<Scheme> {
        if self.ignored.rank(module).is_some() {
            return None;
        }
        let ranks = self.groups.iter().filter_map(|group| {
            let rank = group.modules.rank(module)?;
            Some((rank, group))
        });
        ranks.min_by_key(|(rank, _)| *rank)?.1.scheme
    }

    /// One scheme for all modules but these.
    fn of_all(scheme: Scheme, ignored: Patterns) -> Result<Self, String> {
        Ok(Self {
            method: String::new(),
            groups: vec![Group {
                modules: Patterns::one(Pattern::read("*", Spelling::Wildcards)?),
                scheme: Some(scheme),
            }],
            ignored,
        })
    }
}

/// What is not implemented.
pub(super) fn refuse<T>(key: &str, value: &Json) -> Result<T, String> {
    Err(format!(
        "config.json: quantization_config: {key} {value} is not implemented; take another quantization of the model, or a GGUF file"
    ))
}

/// A key that says nothing, or one of these.
pub(super) fn only(json: &Json, key: &str, accepted: &[&str]) -> Result<(), String> {
    match &json[key] {
        Json::Null => Ok(()),
        Json::String(value) if accepted.contains(&value.as_str()) => Ok(()),
        other => refuse(key, other),
    }
}

/// transformers' and DeepSeek's.
fn fp8(json: &Json) -> Result<Quantization, String> {
    only(json, "fmt", &["e4m3", "float8_e4m3fn"])?;
    only(json, "activation_scheme", &["dynamic", "static"])?;
    only(json, "scale_fmt", &["float", "ue8m0"])?;
    only(json, "expert_dtype", &["fp8"])?;
    let shared = match &json["weight_block_size"] {
        Json::Null => Shared::Tensor,
        size => Shared::Block(block(size, "weight_block_size")?),
    };
    let lists = ["modules_to_not_convert", "ignored_layers", "ignore"];
    let list = lists.iter().find(|key| !json[**key].is_null());
    let list = list.unwrap_or(&lists[0]);
    let ignored = Patterns::read(&json[*list], list, Spelling::Transformers)?;
    Quantization::of_all(Scheme::Float8(shared), ignored)
}

/// A size in rows and columns.
fn block(size: &Json, key: &str) -> Result<[usize; 2], String> {
    let sizes = size.as_array().map(Vec::as_slice);
    let whole = |size: &Json| Some(size.as_u64()? as usize).filter(|s| (1..1 << 31).contains(s));
    match sizes {
        Some([rows, columns]) => match (whole(rows), whole(columns)) {
            (Some(rows), Some(columns)) => Ok([rows, columns]),
            _ => refuse(key, size),
        },
        _ => refuse(key, size),
    }
}

fn fbgemm(json: &Json) -> Result<Quantization, String> {
    let key = "modules_to_not_convert";
    let ignored = Patterns::read(&json[key], key, Spelling::Transformers)?;
    Quantization::of_all(Scheme::Float8(Shared::Channel), ignored)
}

fn compressed_tensors(json: &Json) -> Result<Quantization, String> {
    let sparsity = &json["sparsity_config"];
    if !matches!(sparsity["format"].as_str(), None | Some("dense")) {
        return refuse("sparsity_config", sparsity);
    }
    for key in ["transform_config", "moe_sparsity_config"] {
        let value = &json[key];
        let is_empty = value.as_object().is_some_and(|keys| keys.is_empty());
        let no_groups = value["config_groups"]
            .as_object()
            .is_some_and(|groups| groups.is_empty());
        if !(value.is_null() || is_empty || no_groups) {
            return refuse(key, value);
        }
    }
    let Some(groups) = json["config_groups"].as_object() else {
        return refuse("config_groups", &json["config_groups"]);
    };
    let mut read = Vec::new();
    for group in groups.values() {
        // A name of the package's for a scheme would stand before a list of modules.
        if !group.is_object() {
            return refuse("config_groups", &json["config_groups"]);
        }
        let format = match &group["format"] {
            Json::Null => &json["format"],
            own => own,
        };
        let scheme = match &group["weights"] {
            Json::Null => None,
            weights => of_weights(weights, format)?,
        };
        read.push(Group {
            modules: Patterns::read(&group["targets"], "targets", Spelling::Tensors)?,
            scheme,
        });
    }
    Ok(Quantization {
        method: String::new(),
        groups: read,
        ignored: Patterns::read(&json["ignore"], "ignore", Spelling::Tensors)?,
    })
}

/// What compressed-tensors says of weights, and of the format in which they are stored.
fn of_weights(weights: &Json, format: &Json) -> Result<Option<Scheme>, String> {
    let is = |bits: u64, kind: &str| {
        let stored = weights["type"].as_str().unwrap_or("int");
        weights["num_bits"].as_u64() == Some(bits) && stored.eq_ignore_ascii_case(kind)
    };
    if weights["type"]
        .as_str()
        .is_none_or(|kind| kind.eq_ignore_ascii_case("int"))
    {
        return match format.as_str() {
            Some("dense") => Ok(None),
            Some(format @ ("pack-quantized" | "int-quantized" | "naive-quantized")) => {
                Ok(Some(Scheme::Integers(integers::tensors(weights, format)?)))
            }
            _ => refuse("format", format),
        };
    }
    if !matches!(weights["symmetric"], Json::Null | Json::Bool(true)) {
        return refuse("weights", weights);
    }
    let size = weights["group_size"].as_u64();
    Ok(match format.as_str() {
        Some("dense") => None,
        Some("float-quantized" | "naive-quantized" | "mxfp8-quantized") if is(8, "float") => {
            Some(Scheme::Float8(shared(weights)?))
        }
        Some("mxfp4-pack-quantized") if is(4, "float") && size == Some(32) => {
            Some(Scheme::Float4 {
                kind: Kind::Mx,
                inverted: false,
            })
        }
        Some("nvfp4-pack-quantized") if is(4, "float") && size == Some(16) => {
            Some(Scheme::Float4 {
                kind: Kind::Nv,
                inverted: true,
            })
        }
        Some("mxfp4-pack-quantized" | "nvfp4-pack-quantized") => return refuse("weights", weights),
        Some("float-quantized" | "naive-quantized" | "mxfp8-quantized") => {
            return refuse("weights", weights)
        }
        _ => return refuse("format", format),
    })
}

/// What shares a scale in words of compressed-tensors.
fn shared(weights: &Json) -> Result<Shared, String> {
    let size = match weights["group_size"].as_u64() {
        Some(size) if (1..1 << 31).contains(&size) => Some(size as usize),
        _ => None,
    };
    match (weights["strategy"].as_str(), size) {
        (Some("tensor"), _) => Ok(Shared::Tensor),
        (Some("channel"), _) => Ok(Shared::Channel),
        (Some("block"), _) => Ok(Shared::Block(block(
            &weights["block_structure"],
            "block_structure",
        )?)),
        (Some("group") | None, Some(size)) => Ok(Shared::Block([1, size])),
        // As the package fills it in.
        (None, None) if weights["group_size"] == -1 => Ok(Shared::Channel),
        (None, None) if weights["group_size"].is_null() => Ok(Shared::Tensor),
        _ => refuse("strategy", &weights["strategy"]),
    }
}

/// ModelOpt's, of `config.json` or of `hf_quant_config.json`.
fn modelopt(json: &Json) -> Result<Quantization, String> {
    let json = match &json["quantization"] {
        Json::Null => json,
        inner => inner,
    };
    let list = match &json["exclude_modules"] {
        Json::Null => "ignore",
        _ => "exclude_modules",
    };
    let ignored = Patterns::read(&json[list], list, Spelling::Wildcards)?;
    let is_mixed = json["quant_algo"]
        .as_str()
        .is_some_and(|algorithm| algorithm.eq_ignore_ascii_case("MIXED_PRECISION"));
    if !is_mixed {
        return match modelopt_scheme(json)? {
            Some(scheme) => Quantization::of_all(scheme, ignored),
            None => refuse("quant_algo", &json["quant_algo"]),
        };
    }
    let Some(layers) = json["quantized_layers"].as_object() else {
        return refuse("quantized_layers", &json["quantized_layers"]);
    };
    let mut groups = Vec::new();
    for (name, layer) in layers {
        groups.push(Group {
            modules: Patterns::one(match name.contains('*') {
                true => Pattern::read(name, Spelling::Wildcards)?,
                false => Pattern::Exact(name.clone()),
            }),
            scheme: modelopt_scheme(layer)?,
        });
    }
    Ok(Quantization {
        method: String::new(),
        groups,
        ignored,
    })
}

fn modelopt_scheme(json: &Json) -> Result<Option<Scheme>, String> {
    let algorithm = match &json["quant_algo"] {
        Json::Null => return Ok(None),
        Json::String(name) => name.to_ascii_uppercase(),
        other => return refuse("quant_algo", other),
    };
    let size = |expected: u64| match json["group_size"].as_u64() {
        None | Some(0) => Ok(()),
        Some(size) if size == expected => Ok(()),
        Some(_) => refuse("group_size", &json["group_size"]),
    };
    Ok(Some(match algorithm.as_str() {
        "FP8" => Scheme::Float8(Shared::Tensor),
        "FP8_PER_CHANNEL_PER_TOKEN" => Scheme::Float8(Shared::Channel),
        "FP8_PB_WO" => {
            size(128)?;
            Scheme::Float8(Shared::Block([128, 128]))
        }
        "MXFP8" => {
            size(32)?;
            Scheme::Float8(Shared::Block([1, 32]))
        }
        "NVFP4" | "W4A16_NVFP4" => {
            size(16)?;
            Scheme::Float4 {
                kind: Kind::Nv,
                inverted: false,
            }
        }
        _ => return refuse("quant_algo", &json["quant_algo"]),
    }))
}

fn quark(json: &Json) -> Result<Quantization, String> {
    only(&json["export"], "weight_format", &["real_quantized"])?;
    if let Some(algorithms) = json["algo_config"].as_array() {
        // Those that leave nothing to do when the model runs.
        let is_folded = |algorithm: &Json| {
            let name = algorithm["name"].as_str();
            matches!(
                name,
                Some("awq" | "gptq" | "gptaq" | "smooth" | "autosmoothquant")
            )
        };
        if let Some(other) = algorithms.iter().find(|algorithm| !is_folded(algorithm)) {
            return refuse("algo_config", &other["name"]);
        }
    }
    let of_types = &json["layer_type_quant_config"];
    if of_types.as_object().is_some_and(|types| !types.is_empty()) {
        return refuse("layer_type_quant_config", of_types);
    }
    let mut groups = Vec::new();
    for (name, layer) in json["layer_quant_config"].as_object().into_iter().flatten() {
        // Caches are spoken of here, too, by modules whose outputs they hold.
        groups.push(Group {
            modules: Patterns::one(Pattern::read(name, Spelling::Wildcards)?),
            scheme: quark_scheme(&layer["weight"])?,
        });
    }
    groups.push(Group {
        modules: Patterns::one(Pattern::read("*", Spelling::Wildcards)?),
        scheme: quark_scheme(&json["global_quant_config"]["weight"])?,
    });
    Ok(Quantization {
        method: String::new(),
        groups,
        ignored: Patterns::read(&json["exclude"], "exclude", Spelling::Wildcards)?,
    })
}

fn quark_scheme(weight: &Json) -> Result<Option<Scheme>, String> {
    if weight.is_null() {
        return Ok(None);
    }
    let axis = weight["ch_axis"].as_i64();
    let size = weight["group_size"].as_u64();
    let scheme = weight["qscheme"].as_str();
    let float8 = |shared| Ok(Some(Scheme::Float8(shared)));
    match (weight["dtype"].as_str(), scheme) {
        (Some("fp8_e4m3"), Some("per_tensor")) => float8(Shared::Tensor),
        (Some("fp8_e4m3"), Some("per_channel")) if matches!(axis, None | Some(0)) => {
            float8(Shared::Channel)
        }
        (Some("fp8_e4m3"), Some("per_group")) if matches!(axis, Some(-1 | 1)) => match size {
            Some(size @ 1..=0x7fff_ffff) => float8(Shared::Block([1, size as usize])),
            _ => refuse("weight", weight),
        },
        (Some("fp4"), Some("per_group"))
            if size == Some(32) && weight["scale_format"] == "e8m0" =>
        {
            Ok(Some(Scheme::Float4 {
                kind: Kind::Mx,
                inverted: false,
            }))
        }
        _ => refuse("weight", weight),
    }
}
