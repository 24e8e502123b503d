//! Models whose memory is a state of fixed size: tokens one after another.

use candle_core::{Result, Tensor};
use candle_transformers::models as m;
use models::{agree, config, Case};
use serde_json::{json, Value};

/// Feeds tokens one at a time; `forward` takes one number in a tensor of rank 1.
fn walk(vb: &Case, mut forward: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    [3, 14, 15, 9]
        .iter()
        .map(|&id| forward(&vb.tokens(&[[id]])?.squeeze(0)?))
        .collect()
}

#[test]
fn mamba() {
    agree(|vb| {
        let config = config(json!({
            "d_model": 32, "n_layer": 2, "vocab_size": 48, "pad_vocab_size_multiple": 8
        }));
        let model = m::mamba::Model::new(&config, vb.clone())?;
        let mut state = m::mamba::State::new(1, &config, vb.dtype(), vb.device())?;
        walk(&vb, |id| model.forward(id, &mut state))
    });
}

/// A prompt in chunks, then steps.
#[test]
fn mamba2() {
    agree(|vb| {
        let config = config(json!({
            "d_model": 32, "n_layer": 2, "vocab_size": 48, "d_state": 16, "headdim": 16, "ngroups": 1
        }));
        let model = m::mamba2::Model::new(&config, vb.clone())?;
        let mut state = m::mamba2::State::new(1, &config, vb.dtype(), vb.device())?;
        let prompt = vb.tokens(&[[5, 35, 8, 9, 7, 9]])?;
        let mut outputs = vec![model.forward_prefill(&prompt, &mut state, 4)?];
        outputs.extend(walk(&vb, |id| model.forward(id, &mut state))?);
        Ok(outputs)
    });
}

fn rwkv() -> Value {
    json!({
        "vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
        "num_attention_heads": 8, "head_size": 8, "intermediate_size": 64, "layer_norm_epsilon": 1e-5, "rescale_every": 6
    })
}

#[test]
fn rwkv_v5() {
    agree(|vb| {
        let config = config(rwkv());
        let model = m::rwkv_v5::Model::new(&config, vb.clone())?;
        let mut state = m::rwkv_v5::State::new(1, &config, vb.device())?;
        walk(&vb, |id| model.forward(&id.unsqueeze(0)?, &mut state))
    });
}

#[test]
fn rwkv_v6() {
    agree(|vb| {
        let config = config(rwkv());
        let model = m::rwkv_v6::Model::new(&config, vb.clone())?;
        let mut state = m::rwkv_v6::State::new(1, &config, vb.device())?;
        walk(&vb, |id| model.forward(&id.unsqueeze(0)?, &mut state))
    });
}

/// Recurrent blocks beside local attention.
#[test]
fn recurrent_gemma() {
    agree(|vb| {
        let config = config(json!({
            "num_hidden_layers": 3, "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "lru_width": 32,
            "attention_window_size": 16, "conv1d_width": 4, "logits_soft_cap": 30.0,
            "hidden_activation": "gelu_pytorch_tanh", "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6,
            "rope_theta": 1e4, "block_types": ["recurrent", "recurrent", "attention"], "attention_bias": false,
            "max_seq_len": 32
        }));
        let mut model = m::recurrent_gemma::Model::new(&config, vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}
