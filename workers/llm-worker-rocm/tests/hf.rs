//! A Hugging Face folder and the GGUF file of the same model are the same model.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::Device;
use common::tiny_llama;
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::hf::HfFolder;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use serde_json::{json, Value as Json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use worker::gguf::{Value, Weights};

const HEADS: [(&str, usize); 2] = [("attn_q", 4), ("attn_k", 2)];

/// The tiny model as both formats.
struct Both {
    folder: tempfile::TempDir,
    config: Json,
    tokenizer: Json,
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
}

fn hf_name(name: &str) -> String {
    let parts = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("attn_norm", "input_layernorm"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_", "self_attn."),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_", "mlp."),
        ("blk.", "model.layers."),
    ];
    let name = parts
        .iter()
        .fold(name.to_string(), |name, (from, to)| name.replace(from, to));
    [
        "self_attn.q",
        "self_attn.k",
        "self_attn.v",
        "mlp.gate",
        "mlp.up",
        "mlp.down",
    ]
    .iter()
    .fold(name, |name, part| {
        name.replace(&format!("{part}.weight"), &format!("{part}_proj.weight"))
    })
}

/// Rows of each head from neighbours to halves.
fn halves(data: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let row = data.len() / rows;
    let dim = rows / heads;
    let order = (0..rows).map(|to| {
        let (head, within) = (to / dim, to % dim);
        head * dim + within % (dim / 2) * 2 + within / (dim / 2)
    });
    order
        .flat_map(|from| data[from * row..(from + 1) * row].to_vec())
        .collect()
}

impl Both {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = tiny_llama();
        let gguf_path = folder.path().join("model.gguf");
        file.write(&gguf_path);
        let gguf = worker::gguf::MappedGguf::open(&gguf_path).unwrap();
        let header = gguf.header();
        let strings = |key: &str| header.require_strings(key).unwrap().to_vec();
        let tokens = strings("tokenizer.ggml.tokens");
        let vocab: serde_json::Map<String, Json> = tokens
            .iter()
            .enumerate()
            .skip(3)
            .map(|(id, text)| (text.clone(), id.into()))
            .collect();
        let added: Vec<Json> = (0..3)
            .map(|id| json!({"id": id, "content": tokens[id], "special": true}))
            .collect();
        let tokenizer = json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": strings("tokenizer.ggml.merges")},
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true},
                {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            ]},
        });
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
            "vocab_size": tokens.len(), "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": true,
            "bos_token_id": 1, "eos_token_id": 2,
        });
        let tensors = file
            .tensors
            .iter()
            .map(|t| {
                let shape: Vec<usize> = t.dims.iter().rev().map(|&d| d as usize).collect();
                let heads = HEADS.iter().find(|(part, _)| t.name.contains(part));
                let data = match heads {
                    Some(&(_, heads)) => halves(&t.data, shape[0], heads),
                    None => t.data.clone(),
                };
                (hf_name(&t.name), (shape, data))
            })
            .collect();
        Self {
            folder,
            config,
            tokenizer,
            tensors,
        }
    }

    fn gguf(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    /// Writes the folder, its tensors spread over `shards` files.
    fn write(&self, shards: usize) -> PathBuf {
        let path = self.folder.path().join("hf");
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        let write =
            |name: &str, json: &Json| std::fs::write(path.join(name), json.to_string()).unwrap();
        write("config.json", &self.config);
        write("tokenizer.json", &self.tokenizer);
        for shard in 0..shards {
            let views =
                self.tensors
                    .iter()
                    .skip(shard)
                    .step_by(shards)
                    .map(|(name, (shape, data))| {
                        let view = safetensors::tensor::TensorView::new(
                            safetensors::Dtype::F32,
                            shape.clone(),
                            data,
                        );
                        (name.clone(), view.unwrap())
                    });
            let file = path.join(format!("model-{shard}.safetensors"));
            safetensors::serialize_to_file(views, None, &file).unwrap();
        }
        path
    }

    fn refusal(&self) -> String {
        let error = HfFolder::open(&self.write(1))
            .err()
            .expect("it must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }
}

fn logits(path: &Path) -> (Vec<u32>, Vec<Vec<f32>>) {
    let file = ModelFile::open(path).unwrap();
    let tokens = file.tokenizer().encode("the cat<|im_end|>", true).unwrap();
    let model = file.load(&Device::Cpu, &LoadOptions::default()).unwrap();
    let logits = Scorer::new(model).all_logits(&tokens).unwrap();
    (tokens, logits.to_vec2().unwrap())
}

#[test]
fn both_formats_are_one_model() {
    let both = Both::new();
    let expected = logits(&both.gguf());
    assert!(expected.0.len() > 3);
    assert_eq!(logits(&both.write(1)), expected);
    assert_eq!(logits(&both.write(3)), expected);
}

#[test]
fn the_metadata_is_that_of_the_gguf_file() {
    let both = Both::new();
    let gguf = worker::gguf::MappedGguf::open(&both.gguf()).unwrap();
    let folder = HfFolder::open(&both.write(1)).unwrap();
    for (key, value) in gguf.header().metadata() {
        // The template lies in a file that this folder does not have, and nothing says whether texts begin with BOS.
        if !["tokenizer.chat_template", "tokenizer.ggml.add_bos_token"].contains(&key) {
            assert_eq!(folder.header().get(key), Some(value), "{key}");
        }
    }
}

#[test]
fn a_chat_template_and_bos_come_from_the_settings() {
    let both = Both::new();
    let path = both.write(1);
    let settings = json!({"add_bos_token": true, "chat_template": [{"name": "default", "template": "{{ x }}"}]});
    std::fs::write(path.join("tokenizer_config.json"), settings.to_string()).unwrap();
    let generation = json!({"eos_token_id": [2, 0]});
    std::fs::write(path.join("generation_config.json"), generation.to_string()).unwrap();
    let get = |key: &str| HfFolder::open(&path).unwrap().header().get(key).cloned();
    assert_eq!(get("tokenizer.ggml.add_bos_token"), Some(Value::Bool(true)));
    assert_eq!(
        get("tokenizer.chat_template"),
        Some(Value::String("{{ x }}".to_string()))
    );
    assert_eq!(get("tokenizer.ggml.eot_token_id"), Some(Value::U32(0)));
    std::fs::write(path.join("chat_template.jinja"), "{{ y }}").unwrap();
    assert_eq!(
        get("tokenizer.chat_template"),
        Some(Value::String("{{ y }}".to_string()))
    );
}

#[test]
fn llama_3_1_scaling_becomes_rotary_factors() {
    let mut both = Both::new();
    both.config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let folder = HfFolder::open(&both.write(1)).unwrap();
    let factors = worker::gguf::load(&folder, "rope_freqs.weight", &Device::Cpu).unwrap();
    let factors: Vec<f32> = factors.dequantize(&Device::Cpu).unwrap().to_vec1().unwrap();
    // Wavelengths 6.28, 62.8, 628, 6283 against a context of 64: 10 turns, 1.02, 0.1, 0.01.
    assert_eq!(factors[0], 1.0);
    assert!(factors[1] > 7.5 && factors[1] < 8.0, "{factors:?}");
    assert_eq!(factors[2..], [8.0, 8.0]);
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let refusal = |change: fn(&mut Both)| {
        let mut both = Both::new();
        change(&mut both);
        both.refusal()
    };
    let check = |message: String, why: &str| assert!(message.contains(why), "{message}");
    check(
        refusal(|b| b.config["architectures"] = json!(["GemmaForCausalLM"])),
        "GemmaForCausalLM",
    );
    check(
        refusal(|b| b.config["attention_bias"] = json!(true)),
        "attention_bias true",
    );
    check(
        refusal(|b| b.config["rope_scaling"] = json!({"rope_type": "yarn"})),
        "yarn",
    );
    check(
        refusal(|b| b.config["num_attention_heads"] = json!(0)),
        "num_attention_heads",
    );
    check(
        refusal(|b| b.config["vocab_size"] = json!(5)),
        "the model has 5",
    );
    check(
        refusal(|b| b.tokenizer["model"]["byte_fallback"] = json!(true)),
        "byte-level",
    );
    check(
        refusal(|b| b.tokenizer["pre_tokenizer"] = json!({"type": "Metaspace"})),
        "splitting rules",
    );
    check(
        refusal(|b| b.tokenizer["model"]["merges"] = json!([1])),
        "is no pair",
    );
    check(
        refusal(|b| {
            let bias = (
                "model.layers.0.mlp.up_proj.bias".to_string(),
                (vec![1], vec![0; 4]),
            );
            b.tensors.extend([bias]);
        }),
        "model.layers.0.mlp.up_proj.bias",
    );
}

#[test]
fn damaged_folders_are_refused() {
    let both = Both::new();
    let path = both.write(1);
    let weights = path.join("model-0.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let open = || {
        HfFolder::open(&path)
            .err()
            .expect("it must be refused")
            .to_string()
    };
    std::fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    assert!(open().contains("damaged"), "{}", open());
    let mut huge = bytes.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(&weights, huge).unwrap();
    assert!(open().contains("damaged"), "{}", open());
    std::fs::remove_file(&weights).unwrap();
    std::fs::write(path.join("pytorch_model.bin"), "").unwrap();
    assert!(open().contains("pickled"), "{}", open());
    std::fs::write(path.join("config.json"), "{").unwrap();
    assert!(open().contains("config.json"), "{}", open());
    std::fs::remove_file(path.join("config.json")).unwrap();
    assert!(open().contains("has no config.json"), "{}", open());
}
