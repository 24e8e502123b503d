//! Vectors of tiny embedding models against those of Hugging Face transformers, from folders and from GGUF files.

use super::common::{self, tiny_llama, File, Tensor as FileTensor};
use super::device;
use super::transformers::{tokens, tolerance, Case};
use llm_worker_rocm::embedding::EmbeddingModel;
use llm_worker_rocm::model::ModelFile;
use serde_json::json;
use std::path::Path;

/// Compares all vectors of a case, each text alone and all together.
fn compare(case: &Case, path: &Path) {
    assert!(EmbeddingModel::recognises(path));
    let model = EmbeddingModel::open(path, &device()).unwrap();
    assert_eq!(model.dimensions(), 32);
    let rows: Vec<(usize, Vec<f32>)> = serde_json::from_value(case.json["rows"].clone()).unwrap();
    let texts: Vec<Vec<u32>> = rows
        .iter()
        .map(|(count, _)| tokens()[..*count].to_vec())
        .collect();
    let together = model.embed_tokens(&texts).unwrap();
    let alone = texts.iter().map(|text| {
        let embedded = model.embed_tokens(std::slice::from_ref(text)).unwrap();
        embedded.into_iter().next().unwrap()
    });
    for (found, (count, want)) in together.into_iter().chain(alone).zip(rows.iter().cycle()) {
        assert_eq!(found.tokens, *count);
        let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
        let pairs = found.values.iter().zip(want);
        let error = pairs.fold(0f32, |a, (x, y)| a.max((x - y).abs())) / largest;
        assert!(error <= tolerance(), "{}: {error:e}", path.display());
    }
}

/// The case as llama.cpp would write it, its names changed by parts.
pub fn gguf(case: &Case, architecture: &str, parts: &[(&str, &str)]) -> File {
    let mut file = File::default();
    for (key, value) in tiny_llama().metadata {
        if key.starts_with("tokenizer.") {
            file.metadata.push((key, value));
        }
    }
    file.set("general.architecture", common::string(architecture));
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 128),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
    ] {
        file.set(&format!("{architecture}.{key}"), common::u32(value));
    }
    for (name, shape, data) in case.tensors() {
        let name = parts
            .iter()
            .fold(name, |name, (from, to)| name.replace(from, to));
        file.tensors.push(FileTensor {
            name,
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            type_code: 0,
            offset: None,
            data,
        });
    }
    file.tensors
        .retain(|tensor| !tensor.name.starts_with("pooler"));
    file
}

/// BERT's names in checkpoints and in GGUF files.
pub const BERT: [(&str, &str); 13] = [
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("encoder.layer", "blk"),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
];

/// Qwen 3's, but for the last norm.
pub const QWEN3: [(&str, &str); 13] = [
    ("embed_tokens", "token_embd"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("layers", "blk"),
];

#[test]
fn a_decoder_embeds_with_its_last_token() {
    let case = Case::read("qwen3-embedding");
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    assert!(!EmbeddingModel::recognises(folder.path()));
    let pooling = folder.path().join("1_Pooling");
    std::fs::create_dir(&pooling).unwrap();
    let settings = json!({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false});
    std::fs::write(pooling.join("config.json"), settings.to_string()).unwrap();
    compare(&case, folder.path());
    // Without output matrix it answers nothing.
    let error = ModelFile::open(folder.path()).err().unwrap();
    assert!(error.to_string().contains("Qwen3Model"), "{error}");
    let modules = json!([{"type": "sentence_transformers.models.Dense"}]);
    std::fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    let error = EmbeddingModel::open(folder.path(), &device())
        .err()
        .unwrap();
    assert!(error.to_string().contains("Dense"), "{error}");

    let mut file = gguf(&case, "qwen3", &QWEN3);
    for tensor in &mut file.tensors {
        if tensor.name == "norm.weight" {
            tensor.name = "output_norm.weight".to_string();
        }
    }
    file.set("qwen3.attention.head_count_kv", common::u32(2))
        .set("qwen3.attention.key_length", common::u32(16))
        .set("qwen3.attention.value_length", common::u32(16))
        .set("qwen3.attention.layer_norm_rms_epsilon", common::f32(1e-5))
        .set("qwen3.rope.freq_base", common::f32(10_000.0));
    let path = folder.path().join("model.gguf");
    file.write(&path);
    assert!(!EmbeddingModel::recognises(&path));
    file.set("qwen3.pooling_type", common::u32(3)).write(&path);
    compare(&case, &path);
    file.set("qwen3.pooling_type", common::u32(4)).write(&path);
    let error = EmbeddingModel::open(&path, &device()).err().unwrap();
    assert!(error.to_string().contains("pooling of type 4"), "{error}");
}

#[test]
fn encoders_are_read_from_gguf_files_too() {
    let case = Case::read("bert");
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    compare(&case, folder.path());
    let path = folder.path().join("bert.gguf");
    let mut file = gguf(&case, "bert", &BERT);
    file.set("bert.attention.layer_norm_epsilon", common::f32(1e-12))
        .set("bert.pooling_type", common::u32(1))
        .write(&path);
    compare(&case, &path);
    file.set("bert.attention.head_count", common::u32(0))
        .write(&path);
    let error = EmbeddingModel::open(&path, &device()).err().unwrap();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("head_count"), "{error}");

    let case = Case::read("nomic-bert");
    let mut file = gguf(
        &case,
        "nomic-bert",
        &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("emb_ln", "token_embd_norm"),
            ("encoder.layers", "blk"),
            ("attn.Wqkv", "attn_qkv"),
            ("attn.out_proj", "attn_output"),
            ("mlp.fc11", "ffn_up"),
            ("mlp.fc12", "ffn_gate"),
            ("mlp.fc2", "ffn_down"),
            ("norm1", "attn_output_norm"),
            ("norm2", "layer_output_norm"),
        ],
    );
    file.set(
        "nomic-bert.attention.layer_norm_epsilon",
        common::f32(1e-12),
    )
    .set("nomic-bert.rope.freq_base", common::f32(1000.0))
    .set("nomic-bert.pooling_type", common::u32(1));
    let path = folder.path().join("nomic.gguf");
    file.write(&path);
    compare(&case, &path);
}
