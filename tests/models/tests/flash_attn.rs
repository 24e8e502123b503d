//! Flash attention on the device under test (feature `rocm-flash-attn`) against the models' plain attention on the CPU.

use candle_core::{DType, Result, Tensor};
use candle_transformers::models as m;
use models::{agree_in, config, Case};
use serde_json::json;

/// Flash attention computes in half precision; its products are rounded once more than plain attention's.
const F16_LIMIT: f64 = 1e-4;
const BF16_LIMIT: f64 = 3e-3;

/// Whether a model is to use it.
fn flash(vb: &Case) -> bool {
    vb.device().is_rocm()
}

fn settings(vb: &Case) -> serde_json::Value {
    json!({
        "vocab_size": models::VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 32,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "rope_theta": 1e4, "attention_bias": false,
        "tie_word_embeddings": false, "use_flash_attn": flash(vb), "use_cache": true, "sliding_window": null,
        "use_sliding_window": false, "max_window_layers": 2, "partial_rotary_factor": 0.5
    })
}

fn llama(vb: Case) -> Result<Vec<Tensor>> {
    let config: m::llama::LlamaConfig = config(settings(&vb));
    let config = config.into_config(flash(&vb));
    let model = m::llama::Llama::load(vb.clone(), &config)?;
    let mut cache = m::llama::Cache::new(true, vb.dtype(), &config, vb.device())?;
    vb.prompt_and_step(|ids, at| model.forward(ids, at, &mut cache))
}

#[test]
fn llama_f16() {
    agree_in(DType::F16, F16_LIMIT, llama);
}

#[test]
fn llama_bf16() {
    agree_in(DType::BF16, BF16_LIMIT, llama);
}

#[test]
fn mistral_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let mut model = m::mistral::Model::new(&config(settings(&vb)), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

/// With a window of 4, and what the families with windows add.
fn windowed<T: serde::de::DeserializeOwned>(vb: &Case, changes: serde_json::Value) -> T {
    let mut settings = settings(vb);
    models::merge(&mut settings, json!({"sliding_window": 4}));
    models::merge(&mut settings, changes);
    config(settings)
}

fn gemma() -> serde_json::Value {
    json!({
        "hidden_act": null, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "rope_local_base_freq": 1e3, "sliding_window_pattern": 2,
        "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 32
    })
}

#[test]
fn mistral_with_a_window_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let mut model = m::mistral::Model::new(&windowed(&vb, json!({})), vb.clone())?;
        vb.prompt_piece_and_steps(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn mistral_with_a_window_bf16() {
    agree_in(DType::BF16, BF16_LIMIT, |vb| {
        let mut model = m::mistral::Model::new(&windowed(&vb, json!({})), vb.clone())?;
        vb.prompt_piece_and_steps(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn mixtral_with_a_window_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let experts = json!({"num_experts_per_tok": 2, "num_local_experts": 4});
        let mut model = m::mixtral::Model::new(&windowed(&vb, experts), vb.clone())?;
        vb.prompt_piece_and_steps(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn gemma2_with_a_window_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let mut model = m::gemma2::Model::new(flash(&vb), &windowed(&vb, gemma()), vb.clone())?;
        vb.prompt_piece_and_steps(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn gemma3_with_a_window_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let mut model = m::gemma3::Model::new(flash(&vb), &windowed(&vb, gemma()), vb.clone())?;
        vb.prompt_piece_and_steps(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn gemma4_with_a_window_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let config = windowed(&vb, gemma());
        let mut model = m::gemma4::text::TextModel::new(&config, vb.clone())?;
        vb.prompt_piece_and_steps(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn stable_lm_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let mut model = m::stable_lm::Model::new(&config(settings(&vb)), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

/// Uses it without being asked, on every device but the CPU.
#[test]
fn qwen3_bf16() {
    agree_in(DType::BF16, BF16_LIMIT, |vb| {
        let mut model = m::qwen3::ModelForCausalLM::new(&config(settings(&vb)), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn mmdit_f16() {
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let config = m::mmdit::model::Config {
            patch_size: 2,
            in_channels: 4,
            out_channels: 4,
            depth: 2,
            head_size: 32,
            adm_in_channels: 24,
            pos_embed_max_size: 8,
            context_embed_size: 24,
            frequency_embedding_size: 16,
        };
        let model = m::mmdit::model::MMDiT::new(&config, flash(&vb), vb.clone())?;
        let noise = model.forward(
            &vb.input("latents", (1, 4, 8, 8))?,
            &Tensor::new(&[500f32], vb.device())?,
            &vb.input("pooled", (1, 24))?,
            &vb.input("context", (1, 5, 24))?,
            None,
        )?;
        Ok(vec![noise])
    });
}

/// The UNet's attention is computed in f16 whatever the weights are.
#[test]
fn unet_f16() {
    use m::stable_diffusion::unet_2d::{
        BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
    };
    agree_in(DType::F16, F16_LIMIT, |vb| {
        let block = |use_cross_attn| BlockConfig {
            out_channels: 32,
            use_cross_attn,
            attention_head_dim: 4,
        };
        let config = UNet2DConditionModelConfig {
            blocks: vec![block(Some(1)), block(None)],
            layers_per_block: 1,
            norm_num_groups: 8,
            cross_attention_dim: 24,
            ..Default::default()
        };
        let unet = UNet2DConditionModel::new(vb.clone(), 4, 4, flash(&vb), config)?;
        let latents = vb.input("latents", (1, 4, 8, 8))?;
        Ok(vec![unet.forward(
            &latents,
            300.,
            &vb.input("text", (1, 7, 24))?,
        )?])
    });
}
