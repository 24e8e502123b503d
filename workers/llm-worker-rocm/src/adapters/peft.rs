//! Adapters in folders of Hugging Face PEFT: `adapter_config.json` and `adapter_model.safetensors`, in transformers'
//! names.

use super::{bad, pair_up, shape_of, Halves, Matrix, Part, EMBEDDING, OUTPUT};
use crate::architectures::by_gguf_name;
use crate::folder::required_json;
use crate::hf::{interleave, RotatedHeads, TensorNames};
use candle_core::{DType, Device};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;
use worker::gguf::Gguf;
use worker::{file, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

pub(super) fn read(folder: &Path, base: &Gguf) -> Result<BTreeMap<String, Part>> {
    let config = required_json(folder, CONFIG)?;
    let path = folder.join(WEIGHTS);
    file::check_all(std::slice::from_ref(&path))?;
    parts(&config, &path, base).map_err(|reason| bad(folder, reason))
}

fn parts(
    config: &Json,
    path: &Path,
    base: &Gguf,
) -> std::result::Result<BTreeMap<String, Part>, String> {
    let scaling = Scaling::read(config)?;
    let names = Names::of(base)?;
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)
        .map_err(|e| format!("{WEIGHTS}: {e}"))?;
    let mut halves = Halves::new();
    for (name, tensor) in tensors {
        if let Some(copied) = names.copy_of_base(&name) {
            check_copy(&name, tensor.dims(), shape_of(base, copied)?)?;
            continue;
        }
        let (place, half) = names.place(&name)?;
        let tensor = match place.name == EMBEDDING && half == 0 {
            // A row for each token.
            true => tensor.t().map_err(|e| format!("tensor {name}: {e}"))?,
            false => tensor,
        };
        let matrix = || {
            let (rows, columns) = tensor.dims2()?;
            let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            Ok::<_, candle_core::Error>(Matrix {
                rows,
                columns,
                values,
            })
        };
        let mut matrix = matrix().map_err(|e| format!("tensor {name}: {e}"))?;
        // GGUF has the rows of some heads in another order.
        if let Some(heads) = place.heads.filter(|_| half == 1) {
            if matrix.rows == 0 || matrix.rows % (2 * heads) != 0 {
                return Err(format!(
                    "tensor {name} of {} rows has no {heads} heads",
                    matrix.rows
                ));
            }
            matrix.values = interleave(&matrix.values, matrix.rows, heads);
        }
        let of_tensor = halves.entry(place.name).or_default();
        of_tensor.entry(place.expert).or_default()[half] = Some(matrix);
    }
    pair_up(halves, base, |rank| scaling.factor(rank))
}

/// Refuses a copy of one of the base model's matrices that is of another model, one with more tokens perhaps.
fn check_copy(
    name: &str,
    dims: &[usize],
    [inputs, outputs, _]: [usize; 3],
) -> std::result::Result<(), String> {
    let own = [inputs, outputs];
    let same = dims == own || dims == [outputs, inputs];
    match same {
        true => Ok(()),
        false => Err(format!(
            "tensor {name} of {dims:?} is another one than the model's: adapters with tokens of their own are not implemented"
        )),
    }
}

/// What products are multiplied by.
struct Scaling {
    alpha: f32,
    /// By the root of the rank ("A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA", Kalajdzievski, 2023).
    stabilised: bool,
}

impl Scaling {
    /// Reads and checks `adapter_config.json`.
    fn read(config: &Json) -> std::result::Result<Self, String> {
        let kind = config["peft_type"].as_str().unwrap_or("none");
        if kind != "LORA" {
            return Err(format!(
                "{CONFIG}: peft_type {kind} is not implemented; LORA is"
            ));
        }
        let is_nothing = |value: &Json| match value {
            Json::Null | Json::Bool(false) => true,
            Json::Array(list) => list.is_empty(),
            Json::Object(object) => object.is_empty(),
            _ => false,
        };
        for key in [
            "use_dora",
            "modules_to_save",
            "fan_in_fan_out",
            "rank_pattern",
            "alpha_pattern",
            "target_parameters",
            "lora_bias",
            "trainable_token_indices",
            "alora_invocation_tokens",
            "layer_replication",
        ] {
            if !is_nothing(&config[key]) {
                return Err(format!(
                    "{CONFIG}: {key} {} is not implemented",
                    config[key]
                ));
            }
        }
        if config["bias"].as_str().is_some_and(|bias| bias != "none") {
            return Err(format!(
                "{CONFIG}: bias {} is not implemented",
                config["bias"]
            ));
        }
        let alpha = config["lora_alpha"]
            .as_f64()
            .filter(|alpha| alpha.is_finite());
        Ok(Self {
            alpha: alpha.ok_or_else(|| format!("{CONFIG}: lora_alpha must be a number"))? as f32,
            stabilised: config["use_rslora"].as_bool() == Some(true),
        })
    }

    fn factor(&self, rank: usize) -> f32 {
        match self.stabilised {
            true => self.alpha / (rank as f32).sqrt(),
            false => self.alpha / rank as f32,
        }
    }
}

/// Names of tensors in the terms of the base model.
struct Names {
    names: TensorNames,
    heads: usize,
    kv_heads: usize,
}

struct Place {
    name: String,
    /// Which expert's; 0 for what is of none.
    expert: u32,
    heads: Option<usize>,
}

impl Names {
    fn of(base: &Gguf) -> std::result::Result<Self, String> {
        let architecture = base
            .require_str("general.architecture")
            .map_err(|e| e.to_string())?;
        let row = by_gguf_name(architecture).filter(|row| !row.folders.is_empty());
        let Some((traits, folder)) = row.and_then(|row| row.decoder_parts()) else {
            return Err(format!(
                "folders of {architecture} are not implemented, so their names are not known; take a GGUF adapter"
            ));
        };
        let number = |key: &str| {
            let number = base.get_u32(&format!("{architecture}.attention.{key}"));
            number.ok().flatten().map(|n| n as usize)
        };
        let heads = number("head_count").unwrap_or(1).max(1);
        Ok(Self {
            names: TensorNames::of(traits, folder),
            heads,
            kv_heads: number("head_count_kv").unwrap_or(heads).max(1),
        })
    }

    /// The matrix of the base model of which a tensor is a copy: PEFT saves those of a model's ends beside their
    /// adapters (`save_embedding_layers`).
    fn copy_of_base(&self, name: &str) -> Option<&'static str> {
        let inner = name.strip_prefix("base_model.model.").unwrap_or(name);
        let module = inner
            .strip_suffix(".base_layer.weight")
            .or_else(|| inner.strip_suffix(".weight"))
            .filter(|module| !module.contains(".lora_"))?;
        let found = self.names.place(&format!("{module}.weight"), false);
        let found = found.ok().flatten()?;
        let name = found.name.strip_suffix(".weight")?;
        [EMBEDDING, OUTPUT].into_iter().find(|own| *own == name)
    }

    /// Where a tensor belongs, and which half of a pair it is.
    fn place(&self, name: &str) -> std::result::Result<(Place, usize), String> {
        let unknown = || format!("tensor {name} is not implemented for adapters");
        let inner = name.strip_prefix("base_model.model.").unwrap_or(name);
        let marks = [
            (".lora_A", 0),
            (".lora_B", 1),
            (".lora_embedding_A", 0),
            (".lora_embedding_B", 1),
        ];
        let (module, half) = (marks.into_iter())
            .find_map(|(mark, half)| {
                let (module, rest) = inner.rsplit_once(mark)?;
                // Files may have the adapter's name between.
                ["", ".weight", ".default", ".default.weight"]
                    .contains(&rest)
                    .then_some((module, half))
            })
            .ok_or_else(unknown)?;
        let found = self.names.place(&format!("{module}.weight"), false);
        let found = found.ok().flatten().ok_or_else(unknown)?;
        let heads = found.heads.map(|heads| match heads {
            RotatedHeads::Query => self.heads,
            RotatedHeads::Key => self.kv_heads,
        });
        let name = found.name.strip_suffix(".weight").ok_or_else(unknown)?;
        Ok((
            Place {
                name: name.to_string(),
                expert: found.expert.unwrap_or(0),
                heads,
            },
            half,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_low_rank_is_refused_by_name() {
        let read = |more: Json| {
            let mut config = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none"});
            let object = config.as_object_mut().unwrap();
            object.extend(more.as_object().unwrap().clone());
            Scaling::read(&config)
        };
        let error = |more: Json| read(more).err().unwrap();
        assert_eq!(read(json!({})).unwrap().factor(8), 2.0);
        assert_eq!(read(json!({"use_rslora": true})).unwrap().factor(16), 4.0);
        for key in ["use_dora", "fan_in_fan_out", "lora_bias"] {
            assert!(error(json!({key: true})).contains(key));
        }
        assert!(error(json!({"modules_to_save": ["lm_head"]})).contains("modules_to_save"));
        assert!(error(json!({"bias": "all"})).contains("bias"));
        assert!(error(json!({"peft_type": "LOHA"})).contains("LOHA"));
        assert!(error(json!({"lora_alpha": null})).contains("lora_alpha"));
    }
}
