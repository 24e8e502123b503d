//! Decoders from GGUF files. The CPU quantises activations to 8 bits, so that the limits are those of quantised
//! products.

use std::io::Cursor;

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::GgmlDType::{self, Q4K, Q4_0, Q5K, Q6K, Q8_0};
use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models as m;
use models::gguf::{Gguf, Sizes};
use models::{agree_in, weight};

/// Largest NMSE of a whole model.
const LIMIT: f64 = 2e-3;

/// A prompt and one cached step of the model that `load` makes of a file.
fn decoder<M>(
    gguf: impl Fn() -> Result<Gguf>,
    load: impl Fn(Content, &mut Cursor<Vec<u8>>, &Device) -> Result<M>,
    forward: impl Fn(&mut M, &Tensor, usize) -> Result<Tensor>,
) {
    agree_in(DType::F32, LIMIT, |vb| {
        let (content, mut file) = gguf()?.read()?;
        let mut model = load(content, &mut file, vb.device())?;
        vb.prompt_and_step(|ids, at| forward(&mut model, ids, at))
    });
}

fn llama(sizes: Sizes, dtype: GgmlDType) {
    use m::quantized_llama::ModelWeights;
    decoder(
        || {
            Gguf::default()
                .decoder("llama", &sizes)
                .ends(&sizes, dtype)?
                .head(&sizes, dtype)?
                .blocks(&sizes, &[], dtype)
        },
        ModelWeights::from_gguf,
        |model, ids, at| model.forward(ids, at),
    );
}

#[test]
fn llama_q4_0() {
    llama(Sizes::SMALL, Q4_0);
}

#[test]
fn llama_q8_0() {
    llama(Sizes::SMALL, Q8_0);
}

#[test]
fn llama_q4_k() {
    llama(Sizes::WIDE, Q4K);
}

#[test]
fn llama_q5_k() {
    llama(Sizes::WIDE, Q5K);
}

#[test]
fn llama_q6_k() {
    llama(Sizes::WIDE, Q6K);
}

#[test]
fn qwen2() {
    use m::quantized_qwen2::ModelWeights;
    let sizes = Sizes::SMALL;
    let biases = [
        ("attn_q.bias", 64),
        ("attn_k.bias", 32),
        ("attn_v.bias", 32),
    ];
    decoder(
        || {
            Gguf::default()
                .decoder("qwen2", &sizes)
                .ends(&sizes, Q8_0)?
                .blocks(&sizes, &biases, Q8_0)
        },
        ModelWeights::from_gguf,
        |model, ids, at| model.forward(ids, at),
    );
}

/// Norms of queries and keys, in Qwen 3 and Gemma 3.
const HEAD_NORMS: [(&str, usize); 2] = [("attn_q_norm.weight", 16), ("attn_k_norm.weight", 16)];

#[test]
fn qwen3() {
    use m::quantized_qwen3::ModelWeights;
    let sizes = Sizes::SMALL;
    decoder(
        || {
            Gguf::default()
                .decoder("qwen3", &sizes)
                .ends(&sizes, Q8_0)?
                .blocks(&sizes, &HEAD_NORMS, Q8_0)
        },
        ModelWeights::from_gguf,
        |model, ids, at| model.forward(ids, at),
    );
}

/// Norms after attention and after the feed-forward part, in Gemma 3 and GLM 4.
const POST_NORMS: [(&str, usize); 2] = [
    ("post_attention_norm.weight", 64),
    ("post_ffw_norm.weight", 64),
];

#[test]
fn gemma3() {
    use m::quantized_gemma3::ModelWeights;
    let sizes = Sizes::SMALL;
    decoder(
        || {
            Gguf::default()
                .decoder("gemma3", &sizes)
                .set("gemma3", &[("attention.sliding_window", Value::U32(4))])
                .ends(&sizes, Q8_0)?
                .blocks(&sizes, &[HEAD_NORMS, POST_NORMS].concat(), Q8_0)
        },
        ModelWeights::from_gguf,
        |model, ids, at| model.forward(ids, at),
    );
}

/// One matrix for queries, keys and values, and one for both inner halves.
#[test]
fn phi3() {
    use m::quantized_phi3::ModelWeights;
    let sizes = Sizes::SMALL;
    decoder(
        || {
            let mut gguf = Gguf::default()
                .decoder("phi3", &sizes)
                .ends(&sizes, Q8_0)?
                .head(&sizes, Q8_0)?;
            for block in 0..sizes.blocks {
                let matrices = [
                    ("attn_qkv", 128, 64),
                    ("attn_output", 64, 64),
                    ("ffn_up", 192, 64),
                    ("ffn_down", 64, 96),
                ];
                for (name, rows, columns) in matrices {
                    gguf =
                        gguf.made(&format!("blk.{block}.{name}.weight"), (rows, columns), Q8_0)?;
                }
                for name in ["attn_norm", "ffn_norm"] {
                    gguf = gguf.made(&format!("blk.{block}.{name}.weight"), 64, Q8_0)?;
                }
            }
            Ok(gguf)
        },
        |content, file, device| ModelWeights::from_gguf(false, content, file, device),
        |model, ids, at| model.forward(ids, at),
    );
}

/// Experts in one matrix each for all of them.
#[test]
fn qwen3_moe() {
    use m::quantized_qwen3_moe::GGUFQWenMoE;
    let sizes = Sizes::SMALL;
    decoder(
        || {
            let mut gguf = Gguf::default()
                .decoder("qwen3moe", &sizes)
                .set(
                    "qwen3moe",
                    &[
                        ("expert_feed_forward_length", Value::U32(32)),
                        ("expert_count", Value::U32(4)),
                        ("expert_used_count", Value::U32(2)),
                    ],
                )
                .ends(&sizes, Q8_0)?
                .blocks(&sizes, &HEAD_NORMS, Q8_0)?;
            for block in 0..sizes.blocks {
                let experts = [
                    ("ffn_gate_exps", 32, 64),
                    ("ffn_up_exps", 32, 64),
                    ("ffn_down_exps", 64, 32),
                ];
                for (name, rows, columns) in experts {
                    let name = format!("blk.{block}.{name}.weight");
                    let experts = weight(&name, &(4 * rows, columns).into())?;
                    gguf = gguf.tensor(&name, &experts.reshape((4, rows, columns))?, Q8_0)?;
                }
                gguf = gguf.made(&format!("blk.{block}.ffn_gate_inp.weight"), (4, 64), Q8_0)?;
            }
            Ok(gguf)
        },
        |content, file, device| GGUFQWenMoE::from_gguf(content, file, device, DType::F32),
        |model, ids, at| model.forward(ids, at),
    );
}
