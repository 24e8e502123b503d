//! Networks of video models against diffusers' numbers: `tests/reference/make_video_networks.py` has made them.

use super::common::difference;
use super::hashed::{network, nothing_absent, uniform};
use super::networks::Networks;
use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::t5::Config as T5Config;
use sd_worker_rocm::models::clip_vision::{ClipVision, ClipVisionConfig};
use sd_worker_rocm::models::codec::{CodecConfig, Decoding, LatentCodec};
use sd_worker_rocm::models::t5::T5Encoder;
use sd_worker_rocm::models::transformer::wan::{Wan, WanConfig};
use sd_worker_rocm::models::wan_vae::{WanVae, WanVaeConfig};
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::weights::{wan_vae, Weights};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The frames of `(1, channels, frames, height, width)` latents: `(1, 3, frames, height, width)`, cut to -1..1 as
/// diffusers does.
fn decode(codec: &dyn LatentCodec, latents: &Tensor, tile: Option<usize>) -> Result<Tensor> {
    let mut frames = Vec::new();
    let mut how = Decoding {
        tile,
        timestep: 0.0,
        noise: 0.0,
        draw: &mut |_| candle_core::bail!("noise"),
    };
    codec.decode_video(&latents.squeeze(0)?, &mut how, &mut |chunk| {
        frames.push(chunk);
        Ok(ControlFlow::Continue(()))
    })?;
    let video = Tensor::cat(&frames, 0)?.transpose(0, 1)?.contiguous()?;
    video.clamp(-1.0, 1.0)?.unsqueeze(0)
}

fn video(n: &Networks, frames: usize, height: usize, width: usize) -> Tensor {
    let values = uniform("video", 3 * frames * height * width);
    Tensor::from_vec(values, (1, 3, frames, height, width), &n.device).unwrap()
}

#[test]
fn autoencoders_of_videos() {
    let n = Networks::of("video");
    for (name, factor) in [("wan_vae", 4), ("wan22_vae", 16)] {
        let vae = n.build(name, |vb, config: &WanVaeConfig| WanVae::new(vb, config));
        let encoded = vae.encode(&video(&n, 9, 2 * factor, 3 * factor)).unwrap();
        n.same(&format!("{name}.encoded"), &encoded, 2e-4);
        let latents = n.normal("zv", &[1, 4, 3, 2, 2]);
        let decoded = decode(&vae, &latents, None).unwrap();
        assert_eq!(decoded.dims(), [1, 3, 9, 2 * factor, 2 * factor]);
        n.same(&format!("{name}.decoded"), &decoded, 2e-4);
    }
}

#[test]
fn tiles_of_videos_have_no_seams() {
    let n = Networks::of("video");
    let vae = n.build("wan_vae", |vb, config: &WanVaeConfig| {
        WanVae::new(vb, config)
    });
    let latents = n.normal("zw", &[1, 4, 2, 3, 36]);
    for tile in [None, Some(6)] {
        let whole = decode(&vae, &latents, tile).unwrap();
        let seen = |size: usize, first: usize, step: usize| {
            let places: Vec<u32> = (first..size).step_by(step).map(|i| i as u32).collect();
            let count = places.len();
            Tensor::from_vec(places, count, &n.device).unwrap()
        };
        let some = whole.index_select(&seen(5, 2, 3), 2).unwrap();
        let some = some.index_select(&seen(12, 5, 6), 3).unwrap();
        let some = some.index_select(&seen(144, 0, 5), 4).unwrap();
        n.same("wan_vae.wide", &some, 2e-4);
    }
}

/// Qwen-Image's, in which a picture is a video of one frame.
#[test]
fn pictures_through_an_autoencoder_of_videos() {
    let n = Networks::of("video");
    let vae = n.build("qwen_vae", |vb, config: &WanVaeConfig| {
        WanVae::new(vb, config)
    });
    let picture = video(&n, 1, 4, 6).squeeze(2).unwrap();
    let encoded = vae.encode(&picture).unwrap().unsqueeze(2).unwrap();
    n.same("qwen_vae.encoded", &encoded, 2e-4);
    let latents = n.normal("zv", &[1, 4, 24, 20]);
    for tile in [None, Some(5)] {
        let decoded = vae.decode(&latents, tile).unwrap();
        let decoded = decoded.clamp(-1.0, 1.0).unwrap().unsqueeze(2).unwrap();
        n.same("qwen_vae.decoded", &decoded, 2e-4);
    }
    let wan = n.build("wan_vae", |vb, config: &WanVaeConfig| {
        WanVae::new(vb, config)
    });
    let error = wan.encode(&video(&n, 3, 4, 8)).unwrap_err();
    assert!(error.to_string().contains("3 frames"), "{error}");
}

#[test]
fn autoencoders_that_are_not_implemented_are_named() {
    let refused = |json: serde_json::Value| CodecConfig::of_class(json).unwrap_err();
    for (json, named) in [
        (
            r#"{"_class_name": "AsymmetricAutoencoderKL"}"#,
            "AsymmetricAutoencoderKL",
        ),
        (
            r#"{"_class_name": "AutoencoderKLWan", "attn_scales": [1.0]}"#,
            "attn_scales",
        ),
        (
            r#"{"_class_name": "AutoencoderKLWan", "out_channels": 4}"#,
            "out_channels",
        ),
        (
            r#"{"_class_name": "AutoencoderKLWan", "scale_factor_spatial": 16}"#,
            "scale_factor_spatial",
        ),
        (
            r#"{"_class_name": "AutoencoderKLWan", "latents_std": [1.0]}"#,
            "latents_std",
        ),
        (
            r#"{"_class_name": "AutoencoderKLWan", "dim_mult": []}"#,
            "blocks",
        ),
        (
            r#"{"_class_name": "AutoencoderKLWan", "dim_mult": [1, 1000]}"#,
            "dim_mult",
        ),
    ] {
        let error = refused(serde_json::from_str(json).unwrap());
        assert!(error.contains(named), "{json}: {error}");
    }
}

#[test]
fn transformers_of_wan() {
    let n = Networks::of("video");
    let (x, text) = (
        n.normal("xv", &[2, 4, 3, 4, 6]),
        n.normal("textv", &[2, 9, 24]),
    );
    let net = n.build("wan", |vb, config: &WanConfig| Wan::new(vb, config));
    let context = net.context(&text, None, [3, 4, 6]).unwrap();
    n.same(
        "wan",
        &net.forward(&x, 601.0, false, &context).unwrap(),
        2e-4,
    );
    let first = net.forward(&x, 601.0, true, &context).unwrap();
    n.same("wan.first", &first, 2e-4);
    let x = n.normal("xv12", &[2, 12, 3, 4, 6]);
    let zeros = Tensor::zeros((2, 503, 24), text.dtype(), text.device()).unwrap();
    let text = Tensor::cat(&[&text, &zeros], 1).unwrap();
    for (name, views) in [("wan_picture", 1), ("wan_pictures", 2)] {
        let net = n.build(name, |vb, config: &WanConfig| Wan::new(vb, config));
        let views = n.normal("views", &[2, 5, 20]).narrow(0, 0, views).unwrap();
        let context = net.context(&text, Some(&views), [3, 4, 6]).unwrap();
        n.same(
            name,
            &net.forward(&x, 601.0, false, &context).unwrap(),
            2e-4,
        );
        assert!(net.context(&text, None, [3, 4, 6]).is_err());
    }
}

#[test]
fn transformers_of_wan_that_are_not_implemented() {
    for (json, named) in [
        (r#"{"patch_size": [1, 1, 1]}"#, "patch_size"),
        (r#"{"qk_norm": null}"#, "qk_norm"),
        (r#"{"image_dim": 1280}"#, "added_kv_proj_dim"),
        (r#"{"num_layers": 0}"#, "num_layers"),
    ] {
        let config: WanConfig = serde_json::from_str(json).unwrap();
        let error = config.check().unwrap_err();
        assert!(error.contains(named), "{json}: {error}");
    }
}

#[test]
fn umt5_and_clips_view_of_pictures() {
    let n = Networks::of("video");
    let net = n.build("umt5", |vb, config: &T5Config| T5Encoder::new(vb, config));
    // What diffusers masks is left out.
    let ids: Vec<u32> = (1..28).collect();
    let ids = Tensor::from_vec(ids, (1, 27), &n.device).unwrap();
    n.same("umt5", &net.forward(&ids).unwrap(), 1e-4);
    let net = n.build("clip_vision", |vb, config: &ClipVisionConfig| {
        ClipVision::new(vb, config)
    });
    let pictures = n.normal("pictures", &[2, 3, 20, 20]);
    n.same("clip_vision.rows", &net.rows(&pictures, 1).unwrap(), 1e-4);
    let embeddings = net.embeddings(&pictures).unwrap();
    n.same("clip_vision.embeddings", &embeddings, 1e-4);
}

/// The original's name of an autoencoder's tensor; `layers` are the residual ones of a block when encoding.
fn original(name: &str, residual: bool, layers: usize) -> String {
    let replaced = |name: &str, table: &[(&str, &str)]| {
        let mut name = name.to_string();
        for (ours, theirs) in table {
            name = name.replace(ours, theirs);
        }
        name
    };
    let name = replaced(
        name,
        &[
            ("norm1.", "residual.0."),
            ("conv1.", "residual.2."),
            ("norm2.", "residual.3."),
            ("conv2.", "residual.6."),
            ("conv_shortcut.", "shortcut."),
            ("mid_block.resnets.0.", "middle.0."),
            ("mid_block.attentions.0.", "middle.1."),
            ("mid_block.resnets.1.", "middle.2."),
            ("conv_in.", "conv1."),
            ("norm_out.", "head.0."),
            ("conv_out.", "head.2."),
            ("post_quant_conv.", "conv2."),
            ("quant_conv.", "conv1."),
        ],
    );
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        ["encoder", "down_blocks", layer, rest @ ..] if !residual => {
            format!("encoder.downsamples.{layer}.{}", rest.join("."))
        }
        [side, blocks, block, kind, rest @ ..] if blocks.ends_with("_blocks") => {
            let count = layers + usize::from(*side == "decoder");
            let list = if *side == "decoder" {
                "upsamples"
            } else {
                "downsamples"
            };
            let block: usize = block.parse().unwrap();
            let (layer, rest) = match (*kind, rest) {
                ("resnets", [layer, rest @ ..]) => (layer.parse().unwrap(), rest),
                ("upsamplers", [_, rest @ ..]) => (count, rest),
                (_, rest) => (count, rest),
            };
            let rest = rest.join(".");
            match residual {
                true => format!("{side}.{list}.{block}.{list}.{layer}.{rest}"),
                false => format!("{side}.{list}.{}.{rest}", block * (count + 1) + layer),
            }
        }
        _ => name.clone(),
    }
}

#[test]
fn autoencoders_in_files_of_their_own() {
    let device = Device::Cpu;
    let place = tempfile::tempdir().unwrap();
    for (channels, residual) in [(16, false), (48, true)] {
        let config = serde_json::json!({
            "base_dim": 6, "decoder_base_dim": 8, "z_dim": channels, "dim_mult": [1, 2, 2], "temperal_downsample": [false, true], "num_res_blocks": 1,
            "is_residual": residual, "patch_size": residual.then_some(2), "latents_mean": vec![0.0; channels], "latents_std": vec![1.0; channels],
        });
        let config: WanVaeConfig = serde_json::from_value(config).unwrap();
        let (vae, tensors) = network("vae", nothing_absent, &device, |vb| {
            WanVae::new(vb, &config)
        });
        let theirs: HashMap<String, Tensor> = tensors
            .into_iter()
            .map(|(name, tensor)| (original(&name, residual, 1), tensor))
            .collect();
        assert!(theirs.contains_key("decoder.middle.0.residual.0.gamma"));
        let path = place.path().join(format!("{channels}.safetensors"));
        candle_core::safetensors::save(&theirs, &path).unwrap();
        let (found, weights) = wan_vae::take(&Weights::open(&path).unwrap()).unwrap();
        let published = match residual {
            true => (-0.2289, 0.4765),
            false => (-0.7571, 2.8184),
        };
        assert_eq!((found.latents_mean[0], found.latents_std[0]), published);
        let tensors = weights.load_all(DType::F32, &device).unwrap();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &device);
        let mut same = found;
        same.latents_mean.clone_from(&config.latents_mean);
        same.latents_std.clone_from(&config.latents_std);
        let again = WanVae::new(vb, &same).unwrap();
        let video = Tensor::from_vec(uniform("video", 3 * 5 * 8 * 16), (1, 3, 5, 8, 16), &device);
        let video = video.unwrap();
        let (one, other) = (vae.encode(&video).unwrap(), again.encode(&video).unwrap());
        assert_eq!(difference(&one, &other), 0.0);
        let frames = |vae: &WanVae| decode(vae, &one, None).unwrap();
        assert_eq!(difference(&frames(&vae), &frames(&again)), 0.0);
    }
}
