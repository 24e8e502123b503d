//! A test for each entry of `fork/candle-transformers/FIXES.md`: the published crate fails it. What changes a picture
//! is in `stable_diffusion.rs`, and what made a model fail altogether is in the file of its kind: Gemma 3
//! (`decoders.rs`), EnCodec, Mimi and Whisper (`audio.rs`), MMDiT (`diffusion.rs`), BERT and T5 (`encoders.rs`), TrOCR
//! (`vision.rs`); sliding windows and rotary tables are in `decoders.rs` and, with flash attention, in `flash_attn.rs`,
//! where Mixtral in f16 is, too. Falcon's logits are compared with those of transformers in
//! `workers/llm-worker-rocm/tests/families`.

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use m::stable_diffusion::resnet::{ResnetBlock2D, ResnetBlock2DConfig};
use m::stable_diffusion::unet_2d_blocks::{
    DownBlock2D, DownBlock2DConfig, UpBlock2D, UpBlock2DConfig,
};
use models::gguf::{Gguf, Sizes};
use models::{config, distance, noise, weights};
use serde_json::json;

fn on_the_cpu() -> VarBuilder<'static> {
    weights(DType::F32, DType::F32, &Device::Cpu)
}

fn features(name: &str, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(noise(name, shape.iter().product()), shape, &Device::Cpu)
}

fn assert_same(got: &Tensor, want: &Tensor) {
    assert_eq!(got.shape(), want.shape());
    let error = distance(got, want);
    assert!(error < 1e-10, "NMSE {error:e}");
}

/// A block of one residual layer is that layer, with the groups asked for.
#[test]
fn unet_blocks_take_their_number_of_groups() -> Result<()> {
    let vb = on_the_cpu();
    let layer = |channels| {
        let config = ResnetBlock2DConfig {
            out_channels: Some(64),
            temb_channels: Some(16),
            groups: 4,
            ..Default::default()
        };
        ResnetBlock2D::new(vb.pp("resnets.0"), channels, config)
    };
    let (image, time) = (
        features("image", &[1, 32, 6, 6])?,
        features("time", &[1, 16])?,
    );

    let config = DownBlock2DConfig {
        resnet_groups: 4,
        add_downsample: false,
        ..Default::default()
    };
    let down = DownBlock2D::new(vb.clone(), 32, 64, Some(16), config)?;
    let (got, _) = down.forward(&image, Some(&time))?;
    assert_same(&got, &layer(32)?.forward(&image, Some(&time))?);

    let config = UpBlock2DConfig {
        resnet_groups: 4,
        add_upsample: false,
        ..Default::default()
    };
    let up = UpBlock2D::new(vb.clone(), 32, 32, 64, Some(16), config)?;
    let got = up.forward(&image, std::slice::from_ref(&image), Some(&time), None)?;
    let both = Tensor::cat(&[&image, &image], 1)?;
    assert_same(&got, &layer(64)?.forward(&both, Some(&time))?);
    Ok(())
}

/// Tokens of a prompt.
fn prompt() -> Result<Tensor> {
    Tensor::new(&[[3u32, 14, 15, 9, 26, 5]], &Device::Cpu)
}

/// Weights for a model that asks by Hugging Face's names, the same as a GGUF file holds under its own.
fn named_as_in_gguf(names: &'static [(&str, &str)]) -> VarBuilder<'static> {
    let rename = |name: &str| {
        let replaced = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
        names.iter().fold(name.to_owned(), replaced)
    };
    on_the_cpu().rename_f(rename)
}

const SIZES: Sizes = Sizes::SMALL;

/// What the configurations of both decoders say of [`SIZES`].
fn sizes() -> serde_json::Value {
    json!({
        "vocab_size": models::VOCABULARY, "hidden_size": SIZES.hidden, "intermediate_size": SIZES.intermediate,
        "num_hidden_layers": SIZES.blocks, "num_attention_heads": SIZES.heads, "num_key_value_heads": SIZES.kv_heads,
        "head_dim": SIZES.head_dim, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4
    })
}

/// Gemma 3 from a file in f32, and from the same weights in full precision.
fn gemmas(window: u32) -> Result<(m::quantized_gemma3::ModelWeights, m::gemma3::Model)> {
    let norms = [
        ("attn_q_norm.weight", 16),
        ("attn_k_norm.weight", 16),
        ("post_attention_norm.weight", 64),
        ("post_ffw_norm.weight", 64),
    ];
    let gguf = Gguf::default()
        .decoder("gemma3", &SIZES)
        .set(
            "gemma3",
            &[("attention.sliding_window", Value::U32(window))],
        )
        .ends(&SIZES, GgmlDType::F32)?
        .blocks(&SIZES, &norms, GgmlDType::F32)?
        // Files hold the scales of norms as they are applied, checkpoints less one.
        .edited(|_, tensor| {
            if tensor.rank() == 1 {
                tensor + 1.
            } else {
                Ok(tensor)
            }
        })?;
    let (content, mut file) = gguf.read()?;
    let quantized = m::quantized_gemma3::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;

    let vb = named_as_in_gguf(&[
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers", "blk"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ]);
    let mut settings = sizes();
    let gemma = json!({
        "attention_bias": false, "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 1e4,
        "query_pre_attn_scalar": 16, "sliding_window": window, "sliding_window_pattern": 6
    });
    models::merge(&mut settings, gemma);
    let full = m::gemma3::Model::new(false, &config(settings), vb)?;
    Ok((quantized, full))
}

#[test]
fn quantized_gemma_gates_with_gelu() -> Result<()> {
    let (mut quantized, mut full) = gemmas(64)?;
    let got = quantized.forward(&prompt()?, 0)?;
    assert_same(&got, &full.forward(&prompt()?, 0)?.squeeze(1)?);
    Ok(())
}

/// Steps on both sides of the window's end.
#[test]
fn quantized_gemma_sees_its_window() -> Result<()> {
    let (mut quantized, mut full) = gemmas(7)?;
    quantized.forward(&prompt()?, 0)?;
    full.forward(&prompt()?, 0)?;
    for (position, token) in [(6, 35u32), (7, 8), (8, 9), (9, 7)] {
        let token = Tensor::new(&[[token]], &Device::Cpu)?;
        let got = quantized.forward(&token, position)?;
        assert_same(&got, &full.forward(&token, position)?.squeeze(1)?);
    }
    Ok(())
}

/// Both with a window that the second piece leaves behind, and with one that holds everything.
#[test]
fn quantized_gemma_takes_a_prompt_in_pieces() -> Result<()> {
    let ids = [3u32, 14, 15, 9, 26, 5, 35, 8];
    for window in [5, 64] {
        let (mut whole, _) = gemmas(window)?;
        let want = whole.forward(&Tensor::new(&[ids], &Device::Cpu)?, 0)?;
        let (mut pieces, _) = gemmas(window)?;
        pieces.forward(&Tensor::new(&ids[..3], &Device::Cpu)?.unsqueeze(0)?, 0)?;
        let got = pieces.forward(&Tensor::new(&ids[3..], &Device::Cpu)?.unsqueeze(0)?, 3)?;
        assert_same(&got, &want);
    }
    Ok(())
}

/// A file with `rope_freqs.weight` says what the model of full precision says with Llama 3.1's scaling.
#[test]
fn quantized_llama_scales_its_rotary_frequencies() -> Result<()> {
    let (factor, low, high, trained_for) = (8., 1., 4., 64.);
    let divisors: Vec<f32> = (0..SIZES.head_dim / 2)
        .map(|i| {
            let wave_length =
                std::f64::consts::TAU * 1e4f64.powf(2. * i as f64 / SIZES.head_dim as f64);
            let smooth = ((trained_for / wave_length - low) / (high - low)).clamp(0., 1.);
            (1. / ((1. - smooth) / factor + smooth)) as f32
        })
        .collect();
    let divisors = Tensor::from_vec(divisors, SIZES.head_dim / 2, &Device::Cpu)?;
    // Files of this architecture have the two halves of a head's rotation interleaved.
    let interleaved = |name: &str, tensor: Tensor| {
        if !name.contains("attn_q") && !name.contains("attn_k") {
            return Ok(tensor);
        }
        let (rows, columns) = tensor.dims2()?;
        tensor
            .reshape((rows / SIZES.head_dim, 2, SIZES.head_dim / 2, columns))?
            .transpose(1, 2)?
            .reshape((rows, columns))
    };
    let gguf = Gguf::default()
        .decoder("llama", &SIZES)
        .ends(&SIZES, GgmlDType::F32)?
        .head(&SIZES, GgmlDType::F32)?
        .blocks(&SIZES, &[], GgmlDType::F32)?
        .edited(interleaved)?
        .tensor("rope_freqs.weight", &divisors, GgmlDType::F32)?;
    let (content, mut file) = gguf.read()?;
    let mut quantized =
        m::quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let got = quantized.forward(&prompt()?, 0)?;

    let vb = named_as_in_gguf(&[
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ]);
    let mut settings = sizes();
    let scaling = json!({"rope_scaling": {
        "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": trained_for as u32, "rope_type": "llama3"
    }});
    models::merge(&mut settings, scaling);
    let config = config::<m::llama::LlamaConfig>(settings).into_config(false);
    let mut cache = m::llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
    let full = m::llama::Llama::load(vb, &config)?;
    assert_same(&got, &full.forward(&prompt()?, 0, &mut cache)?);
    Ok(())
}

/// Where every group may be chosen, the groups make no difference.
#[test]
fn deepseek_chooses_its_groups_of_experts() -> Result<()> {
    let logits = |method: &str, groups: usize| {
        let mut settings = sizes();
        let experts = json!({
            "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
            "topk_method": method, "n_group": groups, "topk_group": groups, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "attention_bias": false
        });
        models::merge(&mut settings, experts);
        let mut model = m::deepseek2::DeepSeekV2::new(&config(settings), on_the_cpu())?;
        model.forward(&prompt()?, 0)
    };
    let greedy = logits("greedy", 1)?;
    for groups in [1, 2, 4] {
        assert_same(&logits("group_limited_greedy", groups)?, &greedy);
    }
    Ok(())
}

/// What came before is not seen by a prompt at position 0, be it of one token.
#[test]
fn a_prompt_at_position_0_begins_anew() -> Result<()> {
    let again = |forward: &mut dyn FnMut(&Tensor, usize) -> Result<Tensor>| -> Result<()> {
        let single = prompt()?.narrow(1, 1, 1)?;
        let want = forward(&single, 0)?;
        let prompt_want = forward(&prompt()?, 0)?;
        assert_same(&forward(&single, 0)?, &want);
        assert_same(&forward(&prompt()?, 0)?, &prompt_want);
        Ok(())
    };
    let mut settings = sizes();
    let own = json!({"partial_rotary_factor": 0.5, "hidden_act": "silu", "layer_norm_eps": 1e-5, "use_cache": true});
    models::merge(&mut settings, own);
    let mut model = m::stable_lm::Model::new(&config(settings), on_the_cpu())?;
    again(&mut |ids, at| model.forward(ids, at))?;

    let config = m::bigcode::Config {
        vocab_size: models::VOCABULARY as usize,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        max_position_embeddings: 32,
        n_inner: Some(64),
        ..m::bigcode::Config::starcoder_1b()
    };
    let mut model = m::bigcode::GPTBigCode::load(on_the_cpu(), config)?;
    again(&mut |ids, at| model.forward(ids, at))?;

    let f32 = GgmlDType::F32;
    let mut gguf = Gguf::default()
        .decoder("lfm2", &SIZES)
        .set(
            "lfm2",
            &[
                ("attention.head_count_kv", Value::U32(0)),
                ("shortconv.l_cache", Value::U32(3)),
            ],
        )
        .ends(&SIZES, f32)?
        .blocks(&SIZES, &[], f32)?;
    for block in 0..SIZES.blocks {
        let name = |part: &str| format!("blk.{block}.shortconv.{part}.weight");
        gguf = gguf
            .made(&name("in_proj"), (3 * SIZES.hidden, SIZES.hidden), f32)?
            .made(&name("out_proj"), (SIZES.hidden, SIZES.hidden), f32)?
            .made(&name("conv"), (SIZES.hidden, 3), f32)?;
    }
    let (content, mut file) = gguf.read()?;
    let mut model = m::quantized_lfm2::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    again(&mut |ids, at| model.forward(ids, at))
}

/// The image encoder of Segment Anything can be trained on the CPU, too: relative positions have gradients.
#[test]
fn segment_anything_has_gradients() -> Result<()> {
    use m::segment_anything::image_encoder::ImageEncoderViT;
    let vars = candle_nn::VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let (size, patch, channels, width) = (16, 4, 3, 16);
    let encoder = ImageEncoderViT::new(
        size,
        patch,
        channels,
        width,
        1,
        2,
        8,
        true,
        true,
        true,
        0,
        &[0],
        vb,
    )?;
    // Without values there are no queries for positions to change.
    for (name, var) in vars.data().lock().unwrap().iter() {
        var.set(&features(name, var.dims())?)?;
    }
    let images = features("images", &[1, channels, size, size])?;
    let weights = features("weights", &[1, 8, size / patch, size / patch])?;
    let features = candle_nn::Module::forward(&encoder, &images)?;
    let store = features.mul(&weights)?.sum_all()?.backward()?;
    let vars = vars.data().lock().unwrap();
    for name in ["rel_pos_h", "rel_pos_w", "qkv.weight"] {
        let gradient = store.get(&vars[&format!("blocks.0.attn.{name}")]);
        let gradient = gradient.unwrap_or_else(|| panic!("{name} has no gradient"));
        assert!(
            gradient.abs()?.max_all()?.to_scalar::<f32>()? > 0.,
            "{name}"
        );
    }
    Ok(())
}
