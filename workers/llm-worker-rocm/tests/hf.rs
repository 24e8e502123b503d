//! A Hugging Face folder and the GGUF file of the same model are the same model.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::Device;
use common::tiny_llama;
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::hf::HfFolder;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use llm_worker_rocm::tokenizer::Tokenizer;
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

/// A control token of `tokenizer.json`.
fn special(id: usize, text: &str) -> Json {
    json!({"id": id, "content": text, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
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
            .map(|(id, text)| (text.clone(), id.into()))
            .collect();
        let added: Vec<Json> = (0..3).map(|id| special(id, &tokens[id])).collect();
        let tokenizer = json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": strings("tokenizer.ggml.merges")},
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
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
        refusal(|b| b.config["architectures"] = json!(["RwkvForCausalLM"])),
        "RwkvForCausalLM",
    );
    check(
        refusal(|b| b.config["rope_scaling"] = json!({"rope_type": "made-up"})),
        "made-up",
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
        refusal(|b| b.config["hidden_act"] = json!("relu")),
        "hidden_act \"relu\"",
    );
    check(
        refusal(|b| b.config["vocab_size"] = json!(u32::MAX)),
        "at most",
    );
    check(
        refusal(|b| b.tokenizer["model"]["merges"] = json!([1])),
        "is not a pair",
    );
    check(
        refusal(|b| {
            let bias = (
                "model.layers.0.mlp.mid_proj.weight".to_string(),
                (vec![1], vec![0; 4]),
            );
            b.tensors.extend([bias]);
        }),
        "model.layers.0.mlp.mid_proj.weight",
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

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A tensor of the folder in GGUF's terms: dimensions and numbers.
fn converted(folder: &HfFolder, name: &str) -> (Vec<u64>, Vec<f32>) {
    let info = folder
        .header()
        .tensor(name)
        .unwrap_or_else(|| panic!("{name} is missing"));
    assert_eq!(info.bytes, folder.bytes(name, info).len() as u64);
    let tensor = worker::gguf::load(folder, name, &Device::Cpu).unwrap();
    let tensor = tensor.dequantize(&Device::Cpu).unwrap();
    let values = tensor.flatten_all().unwrap().to_vec1().unwrap();
    (info.dims.clone(), values)
}

#[test]
fn experts_become_one_tensor() {
    let mut both = Both::new();
    both.config["architectures"] = json!(["MixtralForCausalLM"]);
    both.config["num_local_experts"] = json!(2);
    both.config["num_experts_per_tok"] = json!(1);
    both.tensors.retain(|name, _| !name.contains(".mlp."));
    let moe = "model.layers.0.block_sparse_moe";
    for expert in 0..2 {
        for (matrix, shape) in [("w1", [2, 3]), ("w3", [2, 3]), ("w2", [3, 2])] {
            let values: Vec<f32> = (0..6).map(|i| (expert * 10 + i) as f32).collect();
            both.tensors.insert(
                format!("{moe}.experts.{expert}.{matrix}.weight"),
                (shape.to_vec(), floats(&values)),
            );
        }
    }
    both.tensors.insert(
        format!("{moe}.gate.weight"),
        (vec![2, 32], floats(&[0.5; 64])),
    );
    let folder = HfFolder::open(&both.write(3)).unwrap();
    let values: Vec<f32> = (0..6).chain(10..16).map(|i| i as f32).collect();
    let gate = converted(&folder, "blk.0.ffn_gate_exps.weight");
    assert_eq!(gate, (vec![3, 2, 2], values.clone()));
    assert_eq!(
        converted(&folder, "blk.0.ffn_down_exps.weight"),
        (vec![2, 3, 2], values)
    );
    assert_eq!(converted(&folder, "blk.0.ffn_gate_inp.weight").0, [32, 2]);
    assert_eq!(
        folder.header().get("llama.expert_count"),
        Some(&Value::U32(2))
    );
    assert_eq!(
        folder.header().get("llama.expert_used_count"),
        Some(&Value::U32(1))
    );
    both.tensors.remove(&format!("{moe}.experts.1.w3.weight"));
    assert!(both.refusal().contains("1 of 2 experts"));
}

#[test]
fn gemmas_norms_are_stored_less_one() {
    let mut both = Both::new();
    both.config["architectures"] = json!(["Gemma2ForCausalLM"]);
    both.config["hidden_activation"] = json!("gelu_pytorch_tanh");
    both.config["head_dim"] = json!(8);
    both.config["query_pre_attn_scalar"] = json!(16);
    both.config["sliding_window"] = json!(64);
    both.config["attn_logit_softcapping"] = json!(50.0);
    both.config["final_logit_softcapping"] = json!(30.0);
    let norm = both.tensors["model.norm.weight"].1.clone();
    let query = both.tensors["model.layers.0.self_attn.q_proj.weight"]
        .1
        .clone();
    let folder = HfFolder::open(&both.write(1)).unwrap();
    let expected: Vec<f32> = norm
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()) + 1.0)
        .collect();
    assert_eq!(converted(&folder, "output_norm.weight").1, expected);
    // Its rows stay where they are, and so do the names of its four norms.
    let info = folder.header().tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!(*folder.bytes("blk.0.attn_q.weight", info), query);
    assert!(folder
        .header()
        .tensor("blk.0.post_attention_norm.weight")
        .is_some());
    for (key, value) in [
        ("attention.scale", 0.25),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
    ] {
        assert_eq!(
            folder.header().get(&format!("gemma2.{key}")),
            Some(&Value::F32(value)),
            "{key}"
        );
    }
}

#[test]
fn every_family_has_an_architecture() {
    let with = |name: &str, changes: Json| {
        let mut both = Both::new();
        both.config["architectures"] = json!([name]);
        for (key, value) in changes.as_object().unwrap() {
            both.config[key] = value.clone();
        }
        let folder = HfFolder::open(&both.write(1)).unwrap();
        folder
            .header()
            .require_str("general.architecture")
            .unwrap()
            .to_string()
    };
    let granite = json!({"attention_multiplier": 0.1, "embedding_multiplier": 12.0, "residual_multiplier": 0.2, "logits_scaling": 8.0});
    let gemma3 = json!({"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 64, "query_pre_attn_scalar": 8, "head_dim": 8, "rope_local_base_freq": 10000.0});
    for (name, architecture, changes) in [
        (
            "MistralForCausalLM",
            "llama",
            json!({"sliding_window": null}),
        ),
        (
            "Qwen2ForCausalLM",
            "qwen2",
            json!({"use_sliding_window": false, "sliding_window": 64}),
        ),
        ("Qwen3ForCausalLM", "qwen3", json!({"head_dim": 8})),
        ("Qwen3MoeForCausalLM", "qwen3moe", json!({"head_dim": 8})),
        ("GemmaForCausalLM", "gemma", json!({"hidden_act": "gelu"})),
        ("Gemma3ForCausalLM", "gemma3", gemma3),
        ("Phi3ForCausalLM", "phi3", json!({"sliding_window": 64})),
        ("GraniteForCausalLM", "granite", granite),
        ("Olmo2ForCausalLM", "olmo2", json!({})),
        (
            "SmolLM3ForCausalLM",
            "smollm3",
            json!({"no_rope_layer_interval": 4}),
        ),
        (
            "Starcoder2ForCausalLM",
            "starcoder2",
            json!({"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5}),
        ),
        (
            "Glm4ForCausalLM",
            "glm4",
            json!({"partial_rotary_factor": 0.5}),
        ),
    ] {
        assert_eq!(with(name, changes), architecture);
    }
}

#[test]
fn long_texts_have_rotary_factors_of_their_own() {
    let mut both = Both::new();
    both.config["architectures"] = json!(["Phi3ForCausalLM"]);
    both.config["original_max_position_embeddings"] = json!(64);
    both.config["rope_scaling"] =
        json!({"type": "longrope", "long_factor": [1, 2, 3, 4], "short_factor": [1, 1, 1, 1]});
    let folder = HfFolder::open(&both.write(1)).unwrap();
    assert_eq!(
        converted(&folder, "rope_factors_long.weight"),
        (vec![4], vec![1.0, 2.0, 3.0, 4.0])
    );
    assert_eq!(converted(&folder, "rope_factors_short.weight").1, [1.0; 4]);
    // sqrt(1 + ln 2 / ln 64)
    assert_eq!(
        folder.header().get("phi3.rope.scaling.attn_factor"),
        Some(&Value::F32((1.0f64 + 1.0 / 6.0).sqrt() as f32))
    );
    both.config["rope_scaling"]["long_factor"] = json!([1]);
    assert!(both.refusal().contains("long_factor must be 4 numbers"));
}

/// Tokens of the folder's own tokenizer, and of what its metadata describe.
fn both_encodings(path: &Path, text: &str) -> (Vec<u32>, Vec<u32>) {
    let folder = HfFolder::open(path).unwrap();
    let own = Tokenizer::open(path, folder.header()).unwrap();
    let described = Tokenizer::from_gguf(folder.header()).unwrap();
    let encode = |tokenizer: &Tokenizer| {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(
            tokenizer.decode(&ids).trim_start(),
            text.replace("<|im_end|>", "")
        );
        ids
    };
    assert_eq!(own.end_ids(), described.end_ids());
    (encode(&own), encode(&described))
}

#[test]
fn the_tokenizer_is_the_one_that_its_metadata_describe() {
    let both = Both::new();
    let path = both.write(1);
    let (own, described) = both_encodings(&path, "the cat<|im_end|>");
    assert_eq!(own, described);
    assert_eq!(own, [6, 3, 9, 7, 26, 2]);
}

#[test]
fn sentencepiece_as_merges_is_converted_to_scores() {
    let mut both = Both::new();
    let mut vocab = serde_json::Map::new();
    let bytes: Vec<String> = (0..=255u8).map(|b| format!("<0x{b:02X}>")).collect();
    let texts = ["<unk>", "<s>", "</s>"]
        .into_iter()
        .chain(bytes.iter().map(String::as_str));
    let pieces = [
        "\u{2581}",
        "a",
        "b",
        "c",
        "bc",
        "ab",
        "\u{2581}a",
        "\u{2581}abc",
    ];
    for (id, text) in texts.chain(pieces).enumerate() {
        vocab.insert(text.to_string(), id.into());
    }
    both.tokenizer = json!({
        "model": {
            "type": "BPE", "vocab": vocab, "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
            "merges": [["b", "c"], ["a", "b"], ["\u{2581}", "a"], ["\u{2581}a", "bc"]],
        },
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
    });
    let rows = 3 + 256 + pieces.len();
    both.config["vocab_size"] = json!(rows);
    both.tensors.insert(
        "model.embed_tokens.weight".to_string(),
        (vec![rows, 32], vec![0; rows * 32 * 4]),
    );
    let path = both.write(1);
    std::fs::write(
        path.join("tokenizer_config.json"),
        r#"{"add_bos_token": true, "bos_token": "<s>"}"#,
    )
    .unwrap();
    for text in ["abc", "ab", "a bc", "cab é", "bcbc"] {
        let (own, described) = both_encodings(&path, text);
        assert_eq!(own, described, "{text}");
        assert_eq!(own[0], 1);
    }
    assert_eq!(both_encodings(&path, "abc").0, [1, 3 + 256 + 7]);
}

#[test]
fn a_tokenizer_that_gguf_cannot_describe_is_used_as_it_is() {
    let mut both = Both::new();
    both.tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
    let path = both.write(1);
    let folder = HfFolder::open(&path).unwrap();
    assert_eq!(folder.header().get("tokenizer.ggml.model"), None);
    assert!(folder.header().get("tokenizer.ggml.tokens").is_some());
    let tokenizer = Tokenizer::open(&path, folder.header()).unwrap();
    assert_eq!(
        tokenizer.encode("the cat", false).unwrap(),
        [6, 3, 9, 7, 26]
    );
}
