//! BERT and NomicBERT from GGUF files, as candle-transformers asks for their tensors and numbers.

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{bert, nomic_bert};
use worker::gguf::{self, Gguf, MappedGguf, Weights};

/// Widest and deepest that a file may claim.
const MAX_DIMENSION: u32 = 1 << 24;

/// Names of tensors in checkpoints and in GGUF files, by their parts.
pub(super) type Names = &'static [(&'static str, &'static str)];

/// BERT's.
pub(super) const BERT: Names = &[
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

/// NomicBERT's.
pub(super) const NOMIC_BERT: Names = &[
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
];

/// A number of the file's architecture.
fn number(header: &Gguf, key: &str) -> std::result::Result<usize, String> {
    let key = full_key(header, key)?;
    let value = header.require_u32(&key).map_err(|e| e.to_string())?;
    match (1..=MAX_DIMENSION).contains(&value) {
        true => Ok(value as usize),
        false => Err(format!("metadata {key} is {value}, which no model has")),
    }
}

fn epsilon(header: &Gguf) -> std::result::Result<f64, String> {
    let key = full_key(header, "attention.layer_norm_epsilon")?;
    let value = header.require_f32(&key).map_err(|e| e.to_string())?;
    Ok(f64::from(value))
}

/// A key behind the name of the file's architecture.
fn full_key(header: &Gguf, key: &str) -> std::result::Result<String, String> {
    let name = header.require_str("general.architecture");
    Ok(format!("{}.{key}", name.map_err(|e| e.to_string())?))
}

/// Rows of a table of the file.
fn rows(header: &Gguf, table: &str) -> std::result::Result<usize, String> {
    match header.tensor(table).map(|tensor| &tensor.dims[..]) {
        Some(&[_, rows]) => Ok(rows as usize),
        // A single row is a vector.
        Some(&[_]) => Ok(1),
        _ => Err(format!("tensor {table} is missing")),
    }
}

/// BERT's numbers.
pub(super) fn bert_config(header: &Gguf) -> std::result::Result<bert::Config, String> {
    let number = |key: &str| number(header, key);
    Ok(bert::Config {
        vocab_size: rows(header, "token_embd.weight")?,
        hidden_size: number("embedding_length")?,
        num_hidden_layers: number("block_count")?,
        num_attention_heads: number("attention.head_count")?,
        intermediate_size: number("feed_forward_length")?,
        max_position_embeddings: rows(header, "position_embd.weight")?,
        type_vocab_size: rows(header, "token_types.weight")?,
        layer_norm_eps: epsilon(header)?,
        ..bert::Config::default()
    })
}

/// NomicBERT's numbers.
pub(super) fn nomic_bert_config(header: &Gguf) -> std::result::Result<nomic_bert::Config, String> {
    let number = |key: &str| number(header, key);
    let base = header.get_f32(&full_key(header, "rope.freq_base")?);
    let bias = header.tensor("blk.0.attn_qkv.bias").is_some();
    serde_json::from_value(serde_json::json!({
        "vocab_size": rows(header, "token_embd.weight")?,
        "n_embd": number("embedding_length")?,
        "n_head": number("attention.head_count")?,
        "n_layer": number("block_count")?,
        "n_inner": number("feed_forward_length")?,
        "n_positions": number("context_length")?,
        "type_vocab_size": rows(header, "token_types.weight")?,
        "layer_norm_epsilon": epsilon(header)?,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_base": base.ok().flatten().unwrap_or(1000.0),
        "rotary_emb_interleaved": false,
        "qkv_proj_bias": bias,
        "mlp_fc1_bias": bias,
        "mlp_fc2_bias": bias,
        "activation_function": "swiglu",
        "prenorm": false,
    }))
    .map_err(|e| e.to_string())
}

/// A file as candle-transformers reads weights, dequantized.
pub(super) fn weights(file: MappedGguf, names: Names, device: &Device) -> VarBuilder<'static> {
    let backend = Box::new(Backend { file, names });
    VarBuilder::from_backend(backend, DType::F32, device.clone())
}

struct Backend {
    file: MappedGguf,
    names: Names,
}

impl Backend {
    fn name(&self, name: &str) -> String {
        // The longer of two names that fit comes first: "attention.output.dense" before "output.dense".
        self.names
            .iter()
            .fold(name.to_string(), |name, (from, to)| match name.find(from) {
                Some(start) if start == 0 || name.as_bytes()[start - 1] == b'.' => {
                    name.replacen(from, to, 1)
                }
                _ => name,
            })
    }
}

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        self.get_unchecked(name, dtype, device)?.reshape(shape)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let name = self.name(name);
        let tensor = gguf::load(&self.file, &name, device).map_err(Error::wrap)?;
        tensor.dequantize(device)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.file.header().tensor(&self.name(name)).is_some()
    }
}
