//! Newer families from folders and from the GGUF files that `quantize` writes of them, against Hugging Face
//! transformers.

use super::device;
use super::formats::{difference_of_both, difference_of_file, each};
use super::transformers::{tolerance, Case};
use llm_worker_rocm::architectures::decoder_config;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use serde_json::json;
use std::path::Path;
use worker::gguf::{Gguf, MappedGguf, TensorInfo, Value, Weights};

#[test]
fn folders_and_files_compute_what_transformers_does() {
    let names = [
        "smollm3-list",
        "smollm3-interval",
        "exaone4",
        "exaone4-small",
        "seed-oss",
        "hunyuan-dense",
        "arcee",
        "olmo3",
        "apertus",
        "glm4-moe",
        "glm4-moe-air",
        "dots1",
        "minimax-m2",
        "ernie4_5-moe",
        "hunyuan-moe",
        "granite-moe",
        "granite-moe-shared",
        "phimoe",
        "ministral3",
    ];
    each(&names, difference_of_both);
}

#[test]
fn ling_computes_what_glm_does() {
    let mut case = Case::read("ling2");
    let folder = tempfile::tempdir().unwrap();
    write_as_ling(&mut case, folder.path());
    let difference = difference_of_both(&case, folder.path());
    println!("ling2: {difference:.1e}");
    assert!(difference <= tolerance(), "{difference:e}");
}

/// Writes GLM 4.5 with norms of queries and keys and without biases under Ling's names: queries, keys and values in one.
pub fn write_as_ling(case: &mut Case, folder: &Path) {
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, shape, data) in case.tensors() {
        let parts = [
            ("embed_tokens", "word_embeddings"),
            ("self_attn.o_proj", "attention.dense"),
            ("self_attn.q_norm", "attention.query_layernorm"),
            ("self_attn.k_norm", "attention.key_layernorm"),
            ("self_attn.q_proj", "attention.query_key_value"),
            ("self_attn.k_proj", "attention.query_key_value"),
            ("self_attn.v_proj", "attention.query_key_value"),
            ("e_score_correction_bias", "expert_bias"),
            ("shared_head.norm", "final_layernorm"),
        ];
        let name = (parts.iter()).fold(name, |name, (from, to)| name.replace(from, to));
        // By name: keys come first, then queries and values.
        match tensors.iter_mut().find(|(known, ..)| *known == name) {
            None => tensors.push((name, shape, data)),
            Some((_, rows, all)) if rows[0] < shape[0] => {
                rows[0] += shape[0];
                all.splice(0..0, data);
            }
            Some((_, rows, all)) => {
                rows[0] += shape[0];
                all.extend(data);
            }
        }
    }
    let config = case.json["config"].as_object_mut().unwrap();
    for (from, to) in [
        ("n_routed_experts", "num_experts"),
        ("n_shared_experts", "num_shared_experts"),
    ] {
        let value = config.remove(from).unwrap();
        config.insert(to.to_string(), value);
    }
    config.insert(
        "architectures".to_string(),
        json!(["BailingMoeV2ForCausalLM"]),
    );
    config.insert("score_function".to_string(), json!("sigmoid"));
    case.write_tensors(folder, safetensors::Dtype::F32, &tensors);
}

/// Layers that predict further tokens are no part of the answer.
#[test]
fn layers_behind_the_last_are_left_alone() {
    let mut case = Case::read("glm4-moe-air");
    let layers = case.json["config"]["num_hidden_layers"].as_u64().unwrap();
    let tensors = case.json["tensors"].as_object_mut().unwrap();
    for part in ["eh_proj", "self_attn.q_proj", "shared_head.norm"] {
        tensors.insert(
            format!("model.layers.{layers}.{part}.weight"),
            json!([8, 8]),
        );
    }
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let difference = difference_of_file(&case, folder.path());
    assert!(difference <= tolerance(), "{difference:e}");
    // They are among the blocks, and only those that say so are left alone.
    let path = folder.path().join("model.gguf");
    let gguf = MappedGguf::open(&path).unwrap();
    let metadata = gguf.header().metadata();
    let metadata: Vec<(String, Value)> = metadata
        .filter(|(key, _)| *key != "glm4moe.nextn_predict_layers")
        .map(|(key, value)| (key.to_string(), value.clone()))
        .collect();
    let refused = Gguf::from_parts(metadata, table(&gguf));
    let error = decoder_config(&refused).err().unwrap().to_string();
    assert!(error.contains(&format!("blk.{layers}.")), "{error}");
    // Nor is a head that has not all that it needs.
    let file = ModelFile::open(&path).unwrap();
    let options = LoadOptions {
        head: true,
        ..LoadOptions::default()
    };
    let error = file.load(&device(), &options).err().unwrap().to_string();
    assert!(error.contains("eh_proj"), "{error}");

    case.json["config"]["num_nextn_predict_layers"] = json!(0);
    case.write(folder.path());
    let error = ModelFile::open(folder.path()).err().unwrap().to_string();
    assert!(
        error.contains(&format!("model.layers.{layers}.")),
        "{error}"
    );
}

fn table(file: &MappedGguf) -> Vec<(String, TensorInfo)> {
    let tensors = file.header().tensors();
    tensors
        .map(|(name, info)| (name.to_string(), info.clone()))
        .collect()
}

/// Mistral's numbers as the language part of a model that sees.
#[test]
fn mistral_3_computes_what_mistral_does() {
    let mut case = Case::read("mistral");
    let mut tensors = case.tensors();
    for (name, ..) in &mut tensors {
        *name = format!("language_model.{name}");
    }
    let eye = (
        "vision_tower.patch_conv.weight".to_string(),
        vec![2, 2],
        vec![0; 16],
    );
    tensors.push(eye);
    let text = case.json["config"].clone();
    case.json["config"] = json!({
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": text,
        "vision_config": {"model_type": "pixtral"},
    });
    let folder = tempfile::tempdir().unwrap();
    case.write_tensors(folder.path(), safetensors::Dtype::F32, &tensors);
    let difference = difference_of_file(&case, folder.path());
    println!("mistral3: {difference:.1e}");
    assert!(difference <= tolerance(), "{difference:e}");
    case.json["config"]["text_config"]["model_type"] = json!("mistral4");
    case.write_tensors(folder.path(), safetensors::Dtype::F32, &tensors);
    let error = ModelFile::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("mistral4"), "{error}");
}
