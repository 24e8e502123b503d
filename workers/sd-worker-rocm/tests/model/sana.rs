//! Sana against diffusers' pictures and numbers: `tests/reference/make_sana.py` has made them.

use super::common::device;
use super::networks::Networks;
use super::small::{apart, Pipelines};
use candle_core::Tensor;
use sd_worker_rocm::models::codec::LatentCodec;
use sd_worker_rocm::models::dc_vae::{DcVae, DcVaeConfig};
use sd_worker_rocm::models::transformer::sana::SanaConfig;
use sd_worker_rocm::pipeline::PipelineOptions;

#[test]
fn pictures() {
    let p = Pipelines::of("sana");
    for case in ["sana", "sana_places"] {
        p.check(case, |_| {});
    }
    // The negative prompt is read without the instruction, and has a say.
    let mut pipeline = p.load(&p.folder("sana_b"), PipelineOptions::default());
    p.differs(&mut pipeline, "sana", |request| {
        request.negative_prompt = "a green field".to_string();
    });
}

/// Perturbed-attention guidance, as diffusers' pipeline for it has it.
#[test]
fn pixels_that_do_not_see_one_another() {
    let p = Pipelines::of("sana");
    let mut pipeline = p.load(&p.folder("sana_b"), PipelineOptions::default());
    for (case, layers) in [
        ("sana_apart", vec![]),
        ("sana_apart", vec!["transformer_blocks.0".to_string()]),
        ("sana_apart_second", vec!["blocks.1".to_string()]),
    ] {
        p.check_with(&mut pipeline, case, |request| {
            request.tuning.guidance.pag_scale = Some(5.0);
            request.tuning.guidance.pag_layers = layers.clone();
        });
        assert!(apart(&p.picture(case), &p.picture("sana")) > 3);
    }
    assert!(apart(&p.picture("sana_apart"), &p.picture("sana_apart_second")) > 3);
}

#[test]
fn autoencoders() {
    let n = Networks::of("sana");
    for name in ["dc_vae", "dc_vae_other"] {
        let vae = n.build(name, |vb, config: &DcVaeConfig| DcVae::new(vb, config));
        let values = super::hashed::uniform("picture", 3 * 16 * 24);
        let picture = Tensor::from_vec(values, (1, 3, 16, 24), &device()).unwrap();
        n.same(
            &format!("{name}.encoded"),
            &vae.encode(&picture).unwrap(),
            2e-4,
        );
        let latents = n.normal("z8", &[1, 8, 4, 6]);
        let decoded = vae.decode(&latents, None).unwrap();
        n.same(&format!("{name}.decoded"), &decoded, 5e-4);
    }
}

#[test]
fn configurations_that_are_not_implemented() {
    for (json, named) in [
        (r#"{"guidance_embeds": true}"#, "Sprint"),
        (r#"{"patch_size": 2}"#, "patch_size"),
        (
            r#"{"norm_elementwise_affine": true}"#,
            "norm_elementwise_affine",
        ),
        (r#"{"cross_attention_dim": 64}"#, "cross_attention_dim"),
        (
            r#"{"cross_attention_head_dim": 64}"#,
            "cross_attention_head_dim",
        ),
        (r#"{"qk_norm": "layer_norm"}"#, "qk_norm"),
        (r#"{"out_channels": 64}"#, "out_channels"),
        (r#"{"mlp_ratio": 1e9}"#, "mlp_ratio"),
        (r#"{"interpolation_scale": 0}"#, "interpolation_scale"),
        (r#"{"num_layers": 0}"#, "num_layers"),
        (r#"{"unheard_of": 1}"#, "unheard_of"),
    ] {
        let config: SanaConfig = serde_json::from_str(json).unwrap();
        let error = config.check().unwrap_err();
        assert!(error.contains(named), "{json}: {error}");
    }
    for (json, named) in [
        (
            r#"{"decoder_norm_types": "batch_norm"}"#,
            "decoder_norm_types",
        ),
        (r#"{"decoder_act_fns": "gelu"}"#, "decoder_act_fns"),
        (r#"{"decoder_conv_act_fn": "gelu"}"#, "decoder_conv_act_fn"),
        (r#"{"encoder_block_types": "Other"}"#, "encoder_block_types"),
        (r#"{"upsample_block_type": "conv"}"#, "upsample_block_type"),
        (
            r#"{"downsample_block_type": "pool"}"#,
            "downsample_block_type",
        ),
        (r#"{"in_channels": 4}"#, "in_channels"),
        (r#"{"latent_channels": 48}"#, "latent_channels"),
        (
            r#"{"attention_head_dim": 48, "decoder_block_types": "EfficientViTBlock"}"#,
            "heads",
        ),
        (
            r#"{"decoder_qkv_multiscales": [[], [], [], [5], [5], [4]]}"#,
            "qkv_multiscales",
        ),
        (
            r#"{"decoder_layers_per_block": [3, 3, 3, 3, 3, 0]}"#,
            "layers_per_block",
        ),
        (
            r#"{"encoder_block_out_channels": [128]}"#,
            "block_out_channels",
        ),
        (r#"{"unheard_of": 1}"#, "unheard_of"),
    ] {
        let config: DcVaeConfig = serde_json::from_str(json).unwrap();
        let error = config.check().unwrap_err();
        assert!(error.contains(named), "{json}: {error}");
    }
}
