//! Decoders of text: a prompt and one cached step.

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::{models as m, quantized_var_builder};
use models::gguf::Gguf;
use models::{agree, agree_in, config, distance, merge, weights, Case};
use serde::de::DeserializeOwned;
use serde_json::{json, Value};

/// What decoders call their settings in `config.json`, at the size of these tests; `changes` has a family's own.
fn small<T: DeserializeOwned>(changes: Value) -> T {
    let mut settings = json!({
        "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "rope_theta": 1e4,
        "attention_bias": false, "tie_word_embeddings": false, "use_flash_attn": false, "use_cache": true,
        "sliding_window": 4, "use_sliding_window": false, "max_window_layers": 2
    });
    merge(&mut settings, changes);
    config(settings)
}

fn llama_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let config = small::<m::llama::LlamaConfig>(json!({})).into_config(false);
    let model = m::llama::Llama::load(vb.clone(), &config)?;
    let mut cache = m::llama::Cache::new(true, vb.dtype(), &config, vb.device())?;
    vb.prompt_and_step(|ids, at| model.forward(ids, at, &mut cache))
}

#[test]
fn llama() {
    agree(llama_outputs);
}

#[test]
fn llama_f16() {
    agree_in(DType::F16, 1e-4, llama_outputs);
}

#[test]
fn llama_bf16() {
    agree_in(DType::BF16, 3e-3, llama_outputs);
}

#[test]
fn llama_3_1() {
    agree(|vb| {
        let config = small::<m::llama::LlamaConfig>(json!({"rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16, "rope_type": "llama3"
        }}))
        .into_config(false);
        let model = m::llama::Llama::load(vb.clone(), &config)?;
        let mut cache = m::llama::Cache::new(true, vb.dtype(), &config, vb.device())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at, &mut cache))
    });
}

#[test]
fn mistral() {
    agree(|vb| {
        let mut model = m::mistral::Model::new(&small(json!({})), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn mixtral() {
    agree(|vb| {
        let experts = json!({"num_experts_per_tok": 2, "num_local_experts": 4});
        let mut model = m::mixtral::Model::new(&small(experts), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn qwen2() {
    agree(|vb| {
        let mut model = m::qwen2::ModelForCausalLM::new(&small(json!({})), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

/// Experts of the Qwen families.
fn experts() -> Value {
    json!({
        "decoder_sparse_step": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
        "num_experts_per_tok": 2, "num_experts": 4, "norm_topk_prob": true
    })
}

#[test]
fn qwen2_moe() {
    agree(|vb| {
        let mut model = m::qwen2_moe::Model::new(&small(experts()), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

fn qwen3_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let mut model = m::qwen3::ModelForCausalLM::new(&small(json!({})), vb.clone())?;
    vb.prompt_and_step(|ids, at| model.forward(ids, at))
}

#[test]
fn qwen3() {
    agree(qwen3_outputs);
}

#[test]
fn qwen3_bf16() {
    agree_in(DType::BF16, 3e-3, qwen3_outputs);
}

#[test]
fn qwen3_moe() {
    agree(|vb| {
        let mut model = m::qwen3_moe::ModelForCausalLM::new(&small(experts()), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn phi() {
    agree(|vb| {
        let changes =
            json!({"partial_rotary_factor": 0.5, "qk_layernorm": false, "hidden_act": "gelu_new"});
        let mut model = m::phi::Model::new(&small(changes), vb.clone())?;
        vb.prompt_and_step(|ids, _| model.forward(ids))
    });
}

#[test]
fn phi3() {
    agree(|vb| {
        let mut model = m::phi3::Model::new(&small(json!({})), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

/// What the Gemma families add.
fn gelu() -> Value {
    json!({
        "hidden_act": null, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0
    })
}

#[test]
fn gemma() {
    agree(|vb| {
        let mut model = m::gemma::Model::new(false, &small(gelu()), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn gemma2() {
    agree(|vb| {
        let mut model = m::gemma2::Model::new(false, &small(gelu()), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

fn gemma3_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let mut settings = gelu();
    merge(
        &mut settings,
        json!({"rope_local_base_freq": 1e3, "sliding_window_pattern": 2}),
    );
    let mut model = m::gemma3::Model::new(false, &small(settings), vb.clone())?;
    vb.prompt_and_step(|ids, at| model.forward(ids, at))
}

#[test]
fn gemma3() {
    agree(gemma3_outputs);
}

#[test]
fn gemma3_bf16() {
    agree_in(DType::BF16, 3e-3, gemma3_outputs);
}

#[test]
fn falcon() {
    agree(|vb| {
        let config = m::falcon::Config {
            vocab_size: 48,
            hidden_size: 32,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            ..Default::default()
        };
        let mut model = m::falcon::Falcon::load(vb.clone(), config)?;
        vb.prompt_and_step(|ids, _| model.forward(ids))
    });
}

#[test]
fn bigcode() {
    agree(|vb| {
        let config = m::bigcode::Config {
            vocab_size: 48,
            hidden_size: 32,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            max_position_embeddings: 32,
            n_inner: Some(64),
            ..m::bigcode::Config::starcoder_1b()
        };
        let mut model = m::bigcode::GPTBigCode::load(vb.clone(), config)?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn starcoder2() {
    agree(|vb| {
        let changes =
            json!({"norm_epsilon": 1e-5, "use_bias": true, "hidden_act": "gelu_pytorch_tanh"});
        let mut model = m::starcoder2::Model::new(&small(changes), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn stable_lm() {
    agree(|vb| {
        let changes = json!({"partial_rotary_factor": 0.5, "use_qkv_bias": true});
        let mut model = m::stable_lm::Model::new(&small(changes), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn olmo() {
    agree(|vb| {
        let mut model = m::olmo::Model::new(&small(json!({})), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn olmo2() {
    agree(|vb| {
        let mut model = m::olmo2::Model::new(&small(json!({})), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn granite() {
    agree(|vb| {
        let config = small::<m::granite::GraniteConfig>(json!({})).into_config(false);
        let model = m::granite::Granite::load(vb.clone(), &config)?;
        let mut cache = m::granite::Cache::new(true, vb.dtype(), &config, vb.device())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at, &mut cache))
    });
}

#[test]
fn granite_moe_hybrid() {
    agree(|vb| {
        let changes =
            json!({"layer_types": ["attention", "attention"], "shared_intermediate_size": 48});
        let config =
            small::<m::granitemoehybrid::GraniteMoeHybridConfig>(changes).into_config(false);
        let model = m::granitemoehybrid::GraniteMoeHybrid::load(vb.clone(), &config)?;
        let mut cache = m::granitemoehybrid::GraniteMoeHybridCache::new(
            true,
            vb.dtype(),
            &config,
            vb.device(),
        )?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at, &mut cache))
    });
}

#[test]
fn glm4() {
    agree(|vb| {
        let config = config(json!({
            "num_layers": 2, "padded_vocab_size": 48, "hidden_size": 32, "ffn_hidden_size": 64, "kv_channels": 8,
            "num_attention_heads": 4, "seq_length": 32, "layernorm_epsilon": 1e-5, "rmsnorm": true,
            "apply_residual_connection_post_layernorm": false, "post_layer_norm": true, "add_bias_linear": false,
            "add_qkv_bias": true, "bias_dropout_fusion": true, "multi_query_attention": true,
            "multi_query_group_num": 2, "apply_query_key_layer_scaling": true, "attention_softmax_in_fp32": true,
            "fp32_residual_connection": false
        }));
        let mut model = m::glm4::Model::new(&config, vb.clone())?;
        vb.prompt_and_step(|ids, _| model.forward(ids))
    });
}

#[test]
fn glm4_new() {
    agree(|vb| {
        let changes = json!({"partial_rotary_factor": 0.5, "attention_bias": true});
        let mut model = m::glm4_new::ModelForCausalLM::new(&small(changes), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

/// Latent attention, with the rotary scaling and the routing of the full model.
fn deepseek2_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let changes = json!({
        "moe_intermediate_size": 16, "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8,
        "rope_scaling": {
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707
        }
    });
    let mut model = m::deepseek2::DeepSeekV2::new(&small(changes), vb.clone())?;
    vb.prompt_and_step(|ids, at| model.forward(ids, at))
}

#[test]
fn deepseek2() {
    agree(deepseek2_outputs);
}

#[test]
fn deepseek2_f16() {
    agree_in(DType::F16, 1e-4, deepseek2_outputs);
}

#[test]
fn helium() {
    agree(|vb| {
        let changes = json!({"bos_token_id": 1, "eos_token_id": 2, "mlp_bias": false});
        let mut model = m::helium::Model::new(&small(changes), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

#[test]
fn smollm3() {
    agree(|vb| {
        let changes = json!({"no_rope_layers": [1, 0]});
        let mut model = m::smol::smollm3::ModelForCausalLM::new(&small(changes), vb.clone())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at))
    });
}

/// Short convolutions beside attention.
#[test]
fn lfm2() {
    agree(|vb| {
        let changes = json!({"layer_types": ["conv", "full_attention"], "block_multiple_of": 32});
        let config = small::<m::lfm2::Lfm2Config>(changes).into_config(false);
        let model = m::lfm2::Model::new(&config, vb.clone())?;
        let mut cache = m::lfm2::Cache::new(true, vb.dtype(), &config, vb.device())?;
        vb.prompt_and_step(|ids, at| model.forward(ids, at, &mut cache))
    });
}

#[test]
fn mixformer() {
    agree(|vb| {
        let config = config(json!({
            "vocab_size": 48, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_inner": 64, "n_head": 4, "rotary_dim": 4,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false,
            "pad_vocab_size_multiple": 16
        }));
        let mut model = m::mixformer::MixFormerSequentialForCausalLM::new_v2(&config, vb.clone())?;
        vb.prompt_and_step(|ids, _| model.forward(ids))
    });
}

/// Takes tokens at a position.
type Decoder = Box<dyn FnMut(&Tensor, usize) -> Result<Tensor>>;

/// What has a sliding window: a name, settings, and the model.
type Windowed = (
    &'static str,
    fn() -> Value,
    fn(Value, VarBuilder) -> Result<Decoder>,
);

/// What [`small`] describes, under the names that `quantized_mistral` asks for.
fn mistral_file() -> Result<Gguf> {
    const F32: GgmlDType = GgmlDType::F32;
    let mut file = Gguf::default()
        .made("model.embed_tokens.weight", (48, 32), F32)?
        .made("model.norm.weight", 32, F32)?
        .made("lm_head.weight", (48, 32), F32)?;
    let parts: [(&str, &[usize]); 9] = [
        ("input_layernorm", &[32]),
        ("post_attention_layernorm", &[32]),
        ("self_attn.q_proj", &[32, 32]),
        ("self_attn.k_proj", &[16, 32]),
        ("self_attn.v_proj", &[16, 32]),
        ("self_attn.o_proj", &[32, 32]),
        ("mlp.gate_proj", &[64, 32]),
        ("mlp.up_proj", &[64, 32]),
        ("mlp.down_proj", &[32, 64]),
    ];
    for (layer, (part, shape)) in (0..2).flat_map(|layer| parts.map(|part| (layer, part))) {
        let name = format!("model.layers.{layer}.{part}.weight");
        file = file.made(&name, shape.to_vec(), F32)?;
    }
    Ok(file)
}

fn windowed() -> [Windowed; 10] {
    let plain = || json!({"norm_epsilon": 1e-5, "use_bias": true});
    let experts = || {
        let mut settings = experts();
        let qwen =
            json!({"num_local_experts": 4, "use_sliding_window": true, "max_window_layers": 0});
        merge(&mut settings, qwen);
        settings
    };
    let gemma = || {
        let mut settings = gelu();
        let windows = json!({
            "rope_local_base_freq": 1e3, "sliding_window_pattern": 2, "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 16
        });
        merge(&mut settings, windows);
        settings
    };
    [
        ("mistral", plain, |settings, vb| {
            let mut model = m::mistral::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("quantized_mistral", plain, |settings, _| {
            let file = mistral_file()?.read()?.1.into_inner();
            let vb = quantized_var_builder::VarBuilder::from_gguf_buffer(&file, &Device::Cpu)?;
            let mut model = m::quantized_mistral::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("mixtral", experts, |settings, vb| {
            let mut model = m::mixtral::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("qwen2", experts, |settings, vb| {
            let mut model = m::qwen2::ModelForCausalLM::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("qwen2_moe", experts, |settings, vb| {
            let mut model = m::qwen2_moe::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("phi3", plain, |settings, vb| {
            let mut model = m::phi3::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("starcoder2", plain, |settings, vb| {
            let mut model = m::starcoder2::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("gemma2", gemma, |settings, vb| {
            let mut model = m::gemma2::Model::new(false, &small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("gemma3", gemma, |settings, vb| {
            let mut model = m::gemma3::Model::new(false, &small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("gemma4", gemma, |settings, vb| {
            let mut model = m::gemma4::text::TextModel::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
    ]
}

/// Logits of the last token.
fn last(logits: Tensor) -> Result<Tensor> {
    let all = logits.flatten_all()?;
    all.narrow(0, all.elem_count() - 48, 48)
}

/// With a window of 4, the last of 6 tokens sees the third and not the second. One layer, so that nothing comes through
/// another token.
#[test]
fn windows_are_as_wide_as_they_say() -> Result<()> {
    for (name, settings, model) in windowed() {
        let mut settings = settings();
        merge(&mut settings, json!({"num_hidden_layers": 1}));
        let vb = weights(DType::F32, DType::F32, &Device::Cpu);
        let said = |ids: [u32; 6]| {
            let ids = Tensor::new(&[ids], &Device::Cpu)?;
            last(model(settings.clone(), vb.clone())?(&ids, 0)?)
        };
        let want = said([3, 14, 15, 9, 26, 5])?;
        let (beyond, within) = (said([7, 21, 15, 9, 26, 5])?, said([3, 14, 16, 9, 26, 5])?);
        assert!(distance(&beyond, &want) < 1e-10, "{name} sees too much");
        assert!(distance(&within, &want) > 1e-6, "{name} sees too little");
    }
    Ok(())
}

/// However a text is divided, its tokens see the same. Pieces begin and end on both sides of a window's end, shorter
/// and longer than it.
#[test]
fn windows_hold_for_steps_and_pieces() -> Result<()> {
    let ids = [3u32, 14, 15, 9, 26, 5, 35, 8, 9, 7, 32, 38];
    let vb = weights(DType::F32, DType::F32, &Device::Cpu);
    for (name, settings, model) in windowed() {
        let new = || model(settings(), vb.clone());
        let mut whole = Vec::new();
        for end in 1..=ids.len() {
            let ids = Tensor::new(&ids[..end], &Device::Cpu)?.unsqueeze(0)?;
            whole.push(last(new()?(&ids, 0)?)?);
        }
        for ends in [
            &[6, 9, 10, 11, 12][..],
            &[2, 5, 6, 9, 12],
            &[3, 9, 11],
            &[1, 2, 3, 4, 5, 6, 8],
        ] {
            let mut decoder = new()?;
            let mut at = 0;
            for &end in ends {
                let piece = Tensor::new(&ids[at..end], &Device::Cpu)?.unsqueeze(0)?;
                let got = last(decoder(&piece, at)?)?;
                let error = distance(&got, &whole[end - 1]);
                assert!(
                    error < 1e-9,
                    "{name}, {at}..{end} of {ends:?}: NMSE {error:e}"
                );
                at = end;
            }
        }
    }
    Ok(())
}

/// What has rotary tables and no window.
fn rotated() -> [Windowed; 5] {
    let plain =
        || json!({"attention_bias": true, "use_qkv_bias": true, "partial_rotary_factor": 0.5});
    [
        ("gemma", gelu, |settings, vb| {
            let mut model = m::gemma::Model::new(false, &small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("stable_lm", plain, |settings, vb| {
            let mut model = m::stable_lm::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("olmo", plain, |settings, vb| {
            let mut model = m::olmo::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("olmo2", plain, |settings, vb| {
            let mut model = m::olmo2::Model::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
        ("glm4_new", plain, |settings, vb| {
            let mut model = m::glm4_new::ModelForCausalLM::new(&small(settings), vb)?;
            Ok(Box::new(move |ids, at| model.forward(ids, at)))
        }),
    ]
}

/// What a token says depends on how far the others are from it, not on where all of them are: in bf16, too, where
/// positions from 257 on would share a number with their neighbours.
#[test]
fn positions_are_told_apart_in_bf16() -> Result<()> {
    let vb = |dtype| weights(DType::BF16, dtype, &Device::Cpu);
    for (name, settings, model) in windowed().into_iter().chain(rotated()) {
        if name == "quantized_mistral" {
            // Its weights are not those of the others.
            continue;
        }
        let mut settings = settings();
        merge(
            &mut settings,
            json!({"max_position_embeddings": 2048, "sliding_window": 64}),
        );
        let said = |dtype, start: usize| {
            let mut decoder = model(settings.clone(), vb(dtype))?;
            let mut logits = None;
            for (i, id) in [3u32, 14, 15, 9, 26, 5, 35, 8].into_iter().enumerate() {
                logits = Some(decoder(&Tensor::new(&[[id]], &Device::Cpu)?, start + i)?);
            }
            last(logits.expect("there are tokens"))?.to_dtype(DType::F32)
        };
        let want = said(DType::F32, 0)?;
        let error = distance(&said(DType::BF16, 1500)?, &want);
        println!("{name}: NMSE {error:.1e}");
        assert!(error < 6e-3, "{name}: NMSE {error:e}");
    }
    Ok(())
}

/// A table itself: position 1001 of a head of 8.
#[test]
fn phi3_rotates_by_its_position() -> Result<()> {
    let rotated = |dtype| -> Result<Vec<f64>> {
        let settings = json!({"max_position_embeddings": 2048});
        let tables = m::phi3::RotaryEmbedding::new(dtype, &small(settings), &Device::Cpu)?;
        let ones = Tensor::ones((1, 1, 1, 8), dtype, &Device::Cpu)?;
        let (q, _) = tables.apply_rotary_emb_qkv(&ones, &ones, 1001)?;
        q.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
    };
    let (got, want) = (rotated(DType::BF16)?, rotated(DType::F64)?);
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() < 0.02, "{got} instead of {want}");
    }
    let angles = [1001., 100.1, 10.01, 1.001f64];
    for (i, angle) in angles.into_iter().enumerate() {
        assert!((want[i] - (angle.cos() - angle.sin())).abs() < 1e-3);
    }
    Ok(())
}

/// Short contexts are turned by 1 / (factor theta^(i / dim)), and all of it is scaled.
#[test]
fn phi3_divides_by_the_factors_of_longrope() -> Result<()> {
    let settings = json!({
        "max_position_embeddings": 64, "original_max_position_embeddings": 16,
        "rope_scaling": {
            "type": "longrope", "short_factor": [1.0, 2.0, 4.0, 8.0], "long_factor": [2.0, 4.0, 8.0, 16.0]
        }
    });
    let tables = m::phi3::RotaryEmbedding::new(DType::F32, &small(settings), &Device::Cpu)?;
    let ones = Tensor::ones((1, 1, 1, 8), DType::F32, &Device::Cpu)?;
    let scale = (1. + 4f64.ln() / 16f64.ln()).sqrt();
    for (position, factors) in [(5usize, [1., 2., 4., 8.]), (20, [2., 4., 8., 16f64])] {
        let (q, _) = tables.apply_rotary_emb_qkv(&ones, &ones, position)?;
        let q = q.flatten_all()?.to_vec1::<f32>()?;
        for (i, factor) in factors.into_iter().enumerate() {
            let angle = position as f64 / (factor * 10f64.powi(i as i32));
            let want = scale * (angle.cos() - angle.sin());
            assert!(
                (f64::from(q[i]) - want).abs() < 1e-4,
                "{position} {i}: {} {want}",
                q[i]
            );
        }
    }
    Ok(())
}

/// Qwen 2 has windows in the layers that its configuration says.
#[test]
fn qwen2_has_windows_from_a_layer_on() -> Result<()> {
    let vb = weights(DType::F32, DType::F32, &Device::Cpu);
    let ids = Tensor::new(&[[3u32, 14, 15, 9, 26, 5]], &Device::Cpu)?;
    let said = |is_used: bool, first: usize, window: usize| {
        let settings = json!({"use_sliding_window": is_used, "max_window_layers": first, "sliding_window": window});
        last(m::qwen2::ModelForCausalLM::new(&small(settings), vb.clone())?.forward(&ids, 0)?)
    };
    let everything = said(true, 0, 16)?;
    assert!(distance(&said(false, 0, 2)?, &everything) < 1e-10);
    assert!(distance(&said(true, 2, 2)?, &everything) < 1e-10);
    let (both, second) = (said(true, 0, 2)?, said(true, 1, 2)?);
    assert!(distance(&both, &everything) > 1e-6 && distance(&second, &everything) > 1e-6);
    assert!(distance(&both, &second) > 1e-6);
    Ok(())
}
