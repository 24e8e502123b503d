//! Transformers that read language models against diffusers' numbers: `tests/reference/make_language_transformers.py` has
//! made them.

use super::common::difference;
use super::networks::Networks;
use candle_core::Tensor;
use sd_worker_rocm::models::transformer::hidream::{HiDream, HiDreamConfig};
use sd_worker_rocm::models::transformer::lumina2::{Lumina2, Lumina2Config};
use sd_worker_rocm::models::transformer::qwen_image::{QwenImage, QwenImageConfig};
use serde_json::{json, Value};

#[test]
fn qwen_image_alone_and_with_references() {
    let n = Networks::of("language_transformers");
    let (x, text) = (
        n.normal("x", &[2, 4, 14, 10]),
        n.normal("text", &[2, 9, 24]),
    );
    let references = [
        n.normal("r0", &[1, 4, 6, 18]),
        n.normal("r1", &[1, 4, 10, 14]),
    ];
    let run = |name: &str, references: &[Tensor]| {
        let net = n.build(name, |vb, config: &QwenImageConfig| {
            QwenImage::new(vb, config)
        });
        let mut sizes = vec![(14, 10)];
        sizes.extend(references.iter().map(|r| (r.dims()[2], r.dims()[3])));
        let rope = net.rope(9, &sizes, &x).unwrap();
        net.forward(&x, 600.0, &text, references, &rope).unwrap()
    };
    n.same("qwen_image", &run("qwen_image", &[]), 2e-4);
    let edited = run("qwen_image_edit", &references);
    n.same("qwen_image_edit", &edited, 2e-4);
    n.same(
        "qwen_image_still",
        &run("qwen_image_still", &references),
        2e-4,
    );
    let swapped = [references[1].clone(), references[0].clone()];
    let off = difference(&edited, &run("qwen_image_edit", &swapped));
    assert!(off > 1e-2, "the references' order hardly matters ({off})");
}

#[test]
fn lumina_2() {
    let n = Networks::of("language_transformers");
    let net = n.build("lumina2", |vb, config: &Lumina2Config| {
        Lumina2::new(vb, config)
    });
    let x = n.normal("xl", &[2, 4, 8, 12]);
    let text = n.normal("text", &[2, 9, 24]);
    let positions = net.positions(9, 8, 12, &x).unwrap();
    let output = net.forward(&x, 0.4, &text, &positions).unwrap();
    n.same("lumina2", &output, 2e-4);
}

#[test]
fn hidream_of_any_shape_with_experts_and_without() {
    let n = Networks::of("language_transformers");
    let (t5, pooled) = (n.normal("t5", &[2, 7, 24]), n.normal("pooled", &[2, 18]));
    // Layers side by side.
    let states = n.normal("states", &[3, 2, 5, 20]);
    let states = states.permute((1, 2, 0, 3)).unwrap();
    let states = states.contiguous().unwrap().reshape((2, 5, 60)).unwrap();
    for (name, height, width) in [
        ("hidream", 12, 8),
        ("hidream_square", 8, 8),
        ("hidream_one", 8, 8),
    ] {
        let net = n.build(name, |vb, config: &HiDreamConfig| HiDream::new(vb, config));
        let x = n.normal("xh", &[2, 4, height, width]);
        let texts = net.texts(&t5, &states).unwrap();
        let places = net.places(17, height, width, &x).unwrap();
        let output = net.forward(&x, 600.0, &texts, &pooled, &places).unwrap();
        n.same(name, &output, 2e-4);
    }
}

#[test]
fn settings_that_are_not_followed_are_refused() {
    let refused = |error: Result<(), String>, reason: &str| {
        let error = error.unwrap_err();
        assert!(error.contains(reason), "{error}");
    };
    let of = |setting: &str, value: Value| json!({ setting: value });
    for (setting, value, reason) in [
        ("guidance_embeds", json!(true), "guidance_embeds"),
        ("use_layer3d_rope", json!(true), "use_layer3d_rope"),
        (
            "use_additional_t_cond",
            json!(true),
            "use_additional_t_cond",
        ),
        ("patch_size", json!(1), "patch_size"),
        ("out_channels", json!(8), "out_channels"),
        ("axes_dims_rope", json!([16, 56]), "axes_dims_rope"),
        ("num_layers", json!(1 << 20), "num_layers"),
    ] {
        let config: QwenImageConfig = serde_json::from_value(of(setting, value)).unwrap();
        refused(config.check(), reason);
    }
    for (setting, value, reason) in [
        ("patch_size", json!(4), "patch_size"),
        ("out_channels", json!(8), "out_channels"),
        ("num_kv_heads", json!(5), "heads"),
        ("axes_dim_rope", json!([32, 32, 31]), "axes_dim_rope"),
        ("ffn_dim_multiplier", json!(1e30), "feed-forward"),
    ] {
        let config: Lumina2Config = serde_json::from_value(of(setting, value)).unwrap();
        refused(config.check(), reason);
    }
    let n = Networks::of("language_transformers");
    for (setting, value, reason) in [
        ("patch_size", json!(4), "patch_size"),
        ("out_channels", json!(8), "out_channels"),
        ("caption_channels", json!([1]), "caption_channels"),
        ("llama_layers", json!([0]), "llama_layers"),
        ("num_activated_experts", json!(5), "num_activated_experts"),
        ("num_routed_experts", json!(1 << 20), "experts"),
        ("axes_dims_rope", json!([16]), "axes_dims_rope"),
        ("max_resolution", json!([9000, 9000]), "max_resolution"),
    ] {
        let mut json: Value = n.config("hidream");
        json[setting] = value;
        let config: HiDreamConfig = serde_json::from_value(json).unwrap();
        refused(config.check(), reason);
    }
}
