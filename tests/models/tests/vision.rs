//! Models that see. Where candle fixes a family's size, its smallest published member sees a small image.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{Func, ModuleT, VarBuilder};
use candle_transformers::models as m;
use models::{agree, agree_in, config, Case, ABSENT};
use serde_json::{json, Value};

/// One image of `side` by `side` pixels.
fn image(side: usize, vb: &Case) -> Result<Tensor> {
    vb.input("image", (1, 3, side, side))
}

/// A convolutional network on one image; `variance` is for [`Case::expecting`].
fn network(side: usize, variance: f64, new: impl Fn(VarBuilder<'static>) -> Result<Func<'static>>) {
    agree(|vb| {
        let model = new(vb.expecting(variance).clone())?;
        Ok(vec![model.forward_t(&image(side, &vb)?, false)?])
    });
}

/// A tower of SigLIP's kind for images of 16 by 16.
fn tower() -> Value {
    json!({
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_channels": 3,
        "image_size": 16, "patch_size": 4, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6
    })
}

#[test]
fn clip() {
    use m::clip::{text_model, vision_model};
    agree(|vb| {
        let config = m::clip::ClipConfig {
            text_config: text_model::ClipTextConfig {
                vocab_size: 48,
                embed_dim: 32,
                intermediate_size: 64,
                max_position_embeddings: 8,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                projection_dim: 24,
                ..text_model::ClipTextConfig::vit_base_patch32()
            },
            vision_config: vision_model::ClipVisionConfig {
                embed_dim: 32,
                intermediate_size: 64,
                num_hidden_layers: 2,
                num_attention_heads: 4,
                projection_dim: 24,
                image_size: 16,
                patch_size: 4,
                ..vision_model::ClipVisionConfig::vit_base_patch32()
            },
            logit_scale_init_value: 2.6592,
            image_size: 16,
        };
        let model = m::clip::ClipModel::new(vb.clone(), &config)?;
        let text = model.get_text_features(&vb.tokens(&[[3, 14, 15, 47]])?)?;
        let seen = model.get_image_features(&image(16, &vb)?)?;
        Ok(vec![text, seen])
    });
}

fn siglip_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let text = json!({
        "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 8
    });
    let config = config(json!({"text_config": text, "vision_config": tower()}));
    let model = m::siglip::Model::new(&config, vb.clone())?;
    let ids = vb.tokens(&[[3, 14, 15, 9, 26, 5, 35, 8]])?;
    Ok(vec![
        model.get_text_features(&ids)?,
        model.get_image_features(&image(16, &vb)?)?,
    ])
}

#[test]
fn siglip() {
    agree(siglip_outputs);
}

#[test]
fn siglip_bf16() {
    agree_in(DType::BF16, 3e-3, siglip_outputs);
}

#[test]
fn chinese_clip() {
    use m::chinese_clip::{text_model, vision_model, ChineseClipConfig, ChineseClipModel};
    agree(|vb| {
        let text_config = text_model::ChineseClipTextConfig {
            vocab_size: 48,
            hidden_size: 32,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 64,
            max_position_embeddings: 16,
            ..Default::default()
        };
        let vision_config = vision_model::ChineseClipVisionConfig {
            hidden_size: 32,
            intermediate_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            image_size: 16,
            patch_size: 4,
            ..Default::default()
        };
        let config = ChineseClipConfig {
            text_config,
            vision_config,
            projection_dim: 24,
            logit_scale_init_value: 2.6592,
            image_size: 16,
        };
        // No published file has a pooler.
        let weights = vb.renamed(|name| name.replace("pooler", ABSENT));
        let model = ChineseClipModel::new(weights.clone(), &config)?;
        Ok(vec![
            model.get_text_features(&vb.tokens(&[[3, 14, 15, 9]])?, None, None)?,
            model.get_image_features(&image(16, &vb)?)?,
        ])
    });
}

fn vit_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let mut settings = tower();
    settings["qkv_bias"] = json!(true);
    let model = m::vit::Model::new(&config(settings), 10, vb.clone())?;
    Ok(vec![model.forward(&image(16, &vb)?)?])
}

#[test]
fn vit() {
    agree(vit_outputs);
}

#[test]
fn vit_f16() {
    agree_in(DType::F16, 1e-4, vit_outputs);
}

/// The positions are made for images of 518 by 518 and resampled.
#[test]
fn dinov2() {
    agree(|vb| {
        let model = m::dinov2::DinoVisionTransformer::new(vb.clone(), 2, 32, 4)?;
        Ok(vec![model.forward(&image(56, &vb)?)?])
    });
}

#[test]
fn resnet18() {
    network(32, 1., |vb| m::resnet::resnet18(10, vb));
}

#[test]
fn convnext() {
    network(32, 1., |vb| {
        m::convnext::convnext(&m::convnext::Config::atto(), 10, vb)
    });
}

#[test]
fn efficientnet() {
    agree(|vb| {
        let config = m::efficientnet::MBConvConfig::b0();
        let model = m::efficientnet::EfficientNet::new(vb.expecting(0.1).clone(), config, 10)?;
        Ok(vec![model.forward(&image(32, &vb)?)?])
    });
}

#[test]
fn efficientvit() {
    let config = m::efficientvit::Config::m0;
    network(224, 2., |vb| {
        m::efficientvit::efficientvit(&config(), 10, vb)
    });
}

#[test]
fn fastvit() {
    let config = m::fastvit::Config {
        exp_ratio: 2,
        in_channels: 8,
        blocks: [1, 1, 1, 1],
        attn: true,
        lkc_use_act: true,
    };
    // Parts that no published file has, and that candle would put in place.
    let absent = |name: &str| {
        ["conv_scale", "stages.0.downsample"]
            .iter()
            .any(|part| name.contains(part))
    };
    let given = move |name: &str| {
        if absent(name) {
            ABSENT.into()
        } else {
            name.to_owned()
        }
    };
    network(64, 0.7, |vb| {
        m::fastvit::fastvit(&config, 10, vb.rename_f(given))
    });
}

#[test]
fn mobilenetv4() {
    network(64, 0.5, |vb| {
        m::mobilenetv4::mobilenetv4(&m::mobilenetv4::Config::small(), 10, vb)
    });
}

#[test]
fn mobileone() {
    network(32, 0.5, |vb| {
        m::mobileone::mobileone(&m::mobileone::Config::s0(), 10, vb)
    });
}

#[test]
fn repvgg() {
    network(32, 2., |vb| {
        m::repvgg::repvgg(&m::repvgg::Config::a0(), 10, vb)
    });
}

#[test]
fn segformer() {
    agree(|vb| {
        let config = config(json!({
            "num_channels": 3, "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2],
            "hidden_act": "gelu", "layer_norm_eps": 1e-6, "decoder_hidden_size": 32
        }));
        let model = m::segformer::SemanticSegmentationModel::new(&config, 5, vb.clone())?;
        Ok(vec![model.forward(&image(32, &vb)?)?])
    });
}

/// `Sam` itself is made for images of 1024 by 1024; here are its three parts, joined in the same way.
#[test]
fn segment_anything() {
    use m::segment_anything::{image_encoder, mask_decoder, prompt_encoder};
    agree(|vb| {
        let seen = image_encoder::ImageEncoderViT::new(
            64,
            8,
            3,
            32,
            2,
            4,
            32,
            true,
            true,
            true,
            3,
            &[1],
            vb.pp("image_encoder"),
        )?
        .forward(&image(64, &vb)?)?;
        let prompts =
            prompt_encoder::PromptEncoder::new(32, (8, 8), (64, 64), 16, vb.pp("prompt_encoder"))?;
        let points = Tensor::new(&[[[12f32, 40.], [50., 9.]]], vb.device())?;
        let labels = Tensor::new(&[[1f32, 0.]], vb.device())?;
        let (sparse, dense) = prompts.forward(Some((&points, &labels)), None, None)?;
        let decoder = mask_decoder::MaskDecoder::new(32, 3, 3, 32, vb.pp("mask_decoder"))?;
        let (masks, quality) =
            decoder.forward(&seen, &prompts.get_dense_pe()?, &sparse, &dense, true)?;
        Ok(vec![seen, masks, quality])
    });
}

#[test]
fn blip() {
    agree(|vb| {
        let mut vision = tower();
        vision["projection_dim"] = json!(24);
        let config = config(json!({
            "vision_config": vision, "projection_dim": 24, "image_text_hidden_size": 16,
            "text_config": {
                "vocab_size": 48, "hidden_size": 32, "encoder_hidden_size": 32, "intermediate_size": 64, "projection_dim": 24,
                "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16, "hidden_act": "gelu",
                "layer_norm_eps": 1e-12, "is_decoder": true
            }
        }));
        let mut model = m::blip::BlipForConditionalGeneration::new(&config, vb.clone())?;
        let seen = model.vision_model().forward(&image(16, &vb)?)?;
        vb.prompt_and_step(|ids, _| model.text_decoder().forward(ids, &seen))
    });
}

#[test]
fn trocr() {
    agree(|vb| {
        let mut vision = tower();
        vision["qkv_bias"] = json!(false);
        let decoder: m::trocr::TrOCRConfig = config(json!({
            "vocab_size": 48, "d_model": 32, "cross_attention_hidden_size": 32, "decoder_layers": 2,
            "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "activation_function": "gelu",
            "max_position_embeddings": 16, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
            "decoder_start_token_id": 2, "init_std": 0.02, "decoder_layerdrop": 0.0, "use_cache": true,
            "scale_embedding": true, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2
        }));
        let mut model = m::trocr::TrOCRModel::new(&config(vision), &decoder, vb.clone())?;
        let seen = model.encoder().forward(&image(16, &vb)?)?;
        let first = model.decode(&vb.tokens(&[[2, 17, 5]])?, &seen, 0)?;
        let second = model.decode(&vb.tokens(&[[9]])?, &seen, 3)?;
        Ok(vec![seen, first, second])
    });
}

/// Rotary positions in two dimensions.
#[test]
fn pixtral_vision() {
    agree(|vb| {
        let config = config(json!({
            "hidden_size": 32, "num_channels": 3, "image_size": 16, "patch_size": 4, "rope_theta": 1e4,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "silu"
        }));
        let model = m::pixtral::vision_model::Model::new(&config, vb.clone())?;
        Ok(vec![model.forward(&image(16, &vb)?)?])
    });
}

#[test]
fn paligemma() {
    agree(|vb| {
        let config = config(json!({
            "vision_config": tower(), "projection_dim": 32,
            "text_config": {
                "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-6,
                "rope_theta": 1e4, "attention_bias": false, "hidden_act": "gelu_pytorch_tanh",
                "max_position_embeddings": 32
            }
        }));
        let mut model = m::paligemma::Model::new(&config, vb.clone())?;
        let first = model.setup(&image(16, &vb)?, &vb.tokens(&[[3, 14, 15]])?)?;
        Ok(vec![first, model.forward(&vb.tokens(&[[9]])?)?])
    });
}
