//! Families with latent vectors in place of keys and values.

use super::formats::{
    difference_in_steps, difference_of_both, difference_of_prompt, each, load, write_gguf,
};
use super::transformers::{tolerance, Case};
use llm_worker_rocm::engine::api::{KvDType, KvRotation, KvTypes};
use llm_worker_rocm::engine::forward::CacheOptions;
use llm_worker_rocm::model::{open_weights, ModelFile};
use serde_json::json;
use std::borrow::Cow;
use std::path::Path;
use worker::gguf::{Gguf, TensorInfo, Value, Weights};

#[test]
fn latent_attention_computes_what_transformers_does() {
    let names = [
        "deepseek2",
        "deepseek2-groups",
        "deepseek2-yarn",
        "deepseek3",
        "deepseek3-yarn",
        "moonlight",
        "glm4-moe-lite",
    ];
    each(&names, difference_of_both);
}

#[test]
fn chosen_keys_compute_what_transformers_does() {
    each(&["deepseek32", "glm-dsa"], difference_of_both);
}

/// The sizes of the cases' heads.
const HEADS: usize = 4;
const PLAIN: usize = 12;
const TURNING: usize = 8;
const VALUE: usize = 10;
const RANK: usize = 16;

/// A file as llama.cpp wrote it before it had matrices for keys and values apart.
struct Older<'a> {
    newer: &'a dyn Weights,
    header: Gguf,
}

impl<'a> Older<'a> {
    fn new(newer: &'a dyn Weights) -> Self {
        let header = newer.header();
        let mut metadata = Vec::new();
        for (key, value) in header.metadata() {
            let value = match key.strip_prefix("deepseek2.attention.") {
                Some("key_length_mla" | "value_length_mla") => continue,
                Some("key_length") => Value::U32((PLAIN + TURNING) as u32),
                Some("value_length") => Value::U32(VALUE as u32),
                Some("head_count_kv") => Value::U32(HEADS as u32),
                _ => value.clone(),
            };
            metadata.push((key.to_string(), value));
        }
        let mut tensors = Vec::new();
        for (name, info) in header.tensors() {
            if name.ends_with("attn_v_b.weight") {
                continue;
            }
            let mut info = info.clone();
            let mut name = name.to_string();
            if let Some(block) = name.strip_suffix("attn_k_b.weight") {
                name = format!("{block}attn_kv_b.weight");
                let rows = HEADS * (PLAIN + VALUE);
                info.dims = vec![RANK as u64, rows as u64];
                info.bytes = 4 * (RANK * rows) as u64;
            }
            tensors.push((name, info));
        }
        Self {
            newer,
            header: Gguf::from_parts(metadata, tensors),
        }
    }

    fn part(&self, block: &str, part: &str) -> Vec<u8> {
        let name = format!("{block}{part}.weight");
        let info = self.newer.header().tensor(&name).unwrap();
        self.newer.bytes(&name, info).into_owned()
    }
}

impl Weights for Older<'_> {
    fn path(&self) -> &Path {
        self.newer.path()
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        let Some(block) = name.strip_suffix("attn_kv_b.weight") else {
            return self.newer.bytes(name, info);
        };
        let keys = self.part(block, "attn_k_b");
        let values = self.part(block, "attn_v_b");
        let mut whole = Vec::new();
        for head in 0..HEADS {
            for key in 0..PLAIN {
                for element in 0..RANK {
                    let at = 4 * ((head * RANK + element) * PLAIN + key);
                    whole.extend_from_slice(&keys[at..at + 4]);
                }
            }
            let size = 4 * VALUE * RANK;
            whole.extend_from_slice(&values[head * size..][..size]);
        }
        Cow::Owned(whole)
    }

    fn give_back(&self, _name: &str, _info: &TensorInfo) {}
}

#[test]
fn older_files_have_keys_and_values_in_one_matrix() {
    let case = Case::read("deepseek3");
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let path = folder.path().join("older.gguf");
    let newer = open_weights(folder.path()).unwrap();
    write_gguf(&Older::new(&*newer), &path);
    let difference = difference_in_steps(&case, &path);
    assert!(difference <= tolerance(), "{difference:e}");
}

/// What predicts more than the next token is no part of the answer.
#[test]
fn blocks_that_predict_more_are_left_alone() {
    let mut case = Case::read("deepseek3");
    case.json["config"]["num_nextn_predict_layers"] = json!(1);
    let last = case.json["tensors"].as_object().unwrap().clone();
    let tensors = case.json["tensors"].as_object_mut().unwrap();
    for (name, shape) in last {
        if let Some(part) = name.strip_prefix("model.layers.2.") {
            tensors.insert(format!("model.layers.3.{part}"), shape);
        }
    }
    for (part, shape) in [
        ("eh_proj.weight", json!([32, 64])),
        ("enorm.weight", json!([32])),
        ("hnorm.weight", json!([32])),
        ("embed_tokens.weight", json!([40, 32])),
        ("shared_head.norm.weight", json!([32])),
        ("shared_head.head.weight", json!([40, 32])),
    ] {
        tensors.insert(format!("model.layers.3.{part}"), shape);
    }
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let path = folder.path().join("model.gguf");
    let weights = open_weights(folder.path()).unwrap();
    write_gguf(&*weights, &path);
    for path in [folder.path(), &path] {
        let difference = difference_of_prompt(&case, path);
        assert!(difference <= tolerance(), "{difference:e}");
    }
    // Not so without being announced.
    case.json["config"]["num_nextn_predict_layers"] = json!(0);
    case.write(folder.path());
    let error = ModelFile::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("model.layers.3."), "{error}");
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut case = Case::read("deepseek3-yarn");
        change(&mut case.json["config"]);
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        ModelFile::open(folder.path()).err().unwrap().to_string()
    };
    let check = |message: String, why: &str| assert!(message.contains(why), "{message}");
    let mut case = Case::read("deepseek32");
    case.json["config"]["q_lora_rank"] = json!(null);
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    check(
        ModelFile::open(folder.path()).err().unwrap().to_string(),
        "q_lora_rank",
    );
    check(
        refusal(&|c| c["rope_parameters"]["mscale"] = json!(0.5)),
        "mscale",
    );
    check(refusal(&|c| c["scoring_func"] = json!("tanh")), "tanh");
    check(refusal(&|c| c["topk_method"] = json!("random")), "random");
    check(
        refusal(&|c| c["rope_interleave"] = json!(false)),
        "rope_interleave",
    );
    check(
        refusal(&|c| c["n_group"] = json!(3)),
        "cannot be shared evenly",
    );
    check(
        refusal(&|c| c["quantization_config"] = json!({"quant_method": "bitsandbytes"})),
        "bitsandbytes",
    );
}

#[test]
fn latent_vectors_have_one_type_of_those_with_kernels() {
    let folder = tempfile::tempdir().unwrap();
    Case::read("deepseek3").write(folder.path());
    let mut forward = load(folder.path()).forward;
    let mut refusal = |keys, values, rotation| {
        let cache = CacheOptions {
            blocks: 2,
            block_size: 16,
            dtype: KvTypes {
                keys,
                values,
                rotation,
            },
            context: 32,
            states: 1,
            window_blocks: 0,
        };
        forward.reserve(&cache).err().map(|error| error.to_string())
    };
    let check = |message: Option<String>, why: &str| {
        let message = message.unwrap();
        assert!(message.contains(why), "{message}");
    };
    let (auto, on) = (KvRotation::Auto, KvRotation::On);
    check(refusal(KvDType::Q4_0, KvDType::Q4_0, auto), "not in Q4_0");
    check(refusal(KvDType::F16, KvDType::Q8_0, auto), "f16 and q8_0");
    check(refusal(KvDType::Q8_0, KvDType::Q8_0, on), "--kv-rotation");
    assert_eq!(refusal(KvDType::F16, KvDType::F16, on), None);
}
