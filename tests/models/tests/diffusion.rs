//! Models that draw.

use candle_core::{DType, Module, Result, Tensor};
use candle_transformers::models as m;
use models::{agree, agree_in, config, Case, ABSENT};
use serde_json::json;

use m::flux::WithForward;

/// The variant of Stable Diffusion 3.5 medium, with a second attention.
#[test]
fn mmdit_x() {
    agree(mmdit);
}

/// Stable Diffusion 3's: its files have no second attention, which is how candle tells.
#[test]
fn mmdit_3() {
    agree(|vb| mmdit(vb.renamed(|name| name.replace("attn2", ABSENT))));
}

#[test]
fn mmdit_x_f16() {
    agree_in(DType::F16, 1e-4, mmdit);
}

fn mmdit(vb: Case) -> Result<Vec<Tensor>> {
    let config = m::mmdit::model::Config {
        patch_size: 2,
        in_channels: 4,
        out_channels: 4,
        depth: 2,
        head_size: 16,
        adm_in_channels: 24,
        pos_embed_max_size: 8,
        context_embed_size: 24,
        frequency_embedding_size: 16,
    };
    let model = m::mmdit::model::MMDiT::new(&config, false, vb.clone())?;
    let noise = model.forward(
        &vb.input("latents", (1, 4, 8, 8))?,
        &Tensor::new(&[500f32], vb.device())?,
        &vb.input("pooled", (1, 24))?,
        &vb.input("context", (1, 5, 24))?,
        None,
    )?;
    Ok(vec![noise])
}

fn flux_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let config = m::flux::model::Config {
        in_channels: 16,
        vec_in_dim: 24,
        context_in_dim: 24,
        hidden_size: 32,
        mlp_ratio: 2.,
        num_heads: 2,
        depth: 1,
        depth_single_blocks: 2,
        axes_dim: vec![4, 6, 6],
        theta: 10_000,
        qkv_bias: true,
        guidance_embed: true,
    };
    let model = m::flux::model::Flux::new(&config, vb.clone())?;
    let state = m::flux::sampling::State::new(
        &vb.input("text", (1, 6, 24))?,
        &vb.input("pooled", (1, 24))?,
        &vb.input("latents", (1, 4, 8, 8))?,
    )?;
    let scalar = |x: f32| Tensor::new(&[x], vb.device());
    let velocity = model.forward(
        &state.img,
        &state.img_ids,
        &state.txt,
        &state.txt_ids,
        &scalar(0.7)?,
        &state.vec,
        Some(&scalar(3.5)?),
    )?;
    Ok(vec![velocity])
}

#[test]
fn flux() {
    agree(flux_outputs);
}

#[test]
fn flux_bf16() {
    agree_in(DType::BF16, 3e-3, flux_outputs);
}

#[test]
fn flux_autoencoder() {
    agree(|vb| {
        let config = m::flux::autoencoder::Config {
            resolution: 16,
            in_channels: 3,
            ch: 32,
            out_ch: 3,
            ch_mult: vec![1, 2],
            num_res_blocks: 1,
            z_channels: 4,
            scale_factor: 0.3611,
            shift_factor: 0.1159,
        };
        let encoder = m::flux::autoencoder::Encoder::new(&config, vb.pp("encoder"))?;
        let decoder = m::flux::autoencoder::Decoder::new(&config, vb.pp("decoder"))?;
        let latents = encoder.forward(&vb.input("image", (1, 3, 16, 16))?)?;
        let image = decoder.forward(&vb.input("latents", (1, 4, 8, 8))?)?;
        Ok(vec![latents, image])
    });
}

#[test]
fn z_image() {
    agree(|vb| {
        let config = config(json!({
            "in_channels": 4, "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2,
            "cap_feat_dim": 24, "axes_dims": [4, 6, 6], "axes_lens": [32, 16, 16]
        }));
        let model = m::z_image::transformer::ZImageTransformer2DModel::new(&config, vb.clone())?;
        let velocity = model.forward(
            &vb.input("latents", (1, 4, 1, 8, 8))?,
            &Tensor::new(&[0.3f32], vb.device())?.to_dtype(vb.dtype())?,
            &vb.input("caption", (1, 6, 24))?,
            &Tensor::new(&[[1u8, 1, 1, 1, 1, 0]], vb.device())?,
        )?;
        Ok(vec![velocity])
    });
}

#[test]
fn z_image_vae() {
    agree(|vb| {
        let config = config(json!({
            "latent_channels": 4, "block_out_channels": [16, 32], "layers_per_block": 1, "norm_num_groups": 8
        }));
        let encoder = m::z_image::vae::Encoder::new(&config, vb.pp("encoder"))?;
        let model = m::z_image::vae::AutoEncoderKL::new(&config, vb.clone())?;
        Ok(vec![
            encoder.forward(&vb.input("image", (1, 3, 16, 16))?)?,
            model.decode(&vb.input("latents", (1, 4, 8, 8))?)?,
        ])
    });
}

#[test]
fn z_image_text_encoder() {
    agree(|vb| {
        let config = config(json!({
            "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32
        }));
        let model = m::z_image::text_encoder::ZImageTextEncoder::new(&config, vb.clone())?;
        Ok(vec![model.forward(&vb.tokens(&[[3, 14, 15, 9]])?)?])
    });
}

/// The prior, which is attention over feature maps. It ends with a division by small differences.
#[test]
fn wuerstchen_prior() {
    agree_in(DType::F32, 1e-7, |vb| {
        let model = m::wuerstchen::prior::WPrior::new(4, 32, 24, 16, 2, 2, false, vb.clone())?;
        let features = model.forward(
            &vb.input("latents", (1, 4, 6, 6))?,
            &Tensor::new(&[0.02f32], vb.device())?.to_dtype(vb.dtype())?,
            &vb.input("text", (1, 5, 24))?,
        )?;
        Ok(vec![features])
    });
}
