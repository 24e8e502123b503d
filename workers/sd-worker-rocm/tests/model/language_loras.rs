//! LoRAs of models whose prompts go through language models, under the names that files give their layers.

use super::common::{go_on, Draw};
use super::lora::whole;
use super::pipelines::Tensors;
use super::small::{apart, Pipelines};
use candle_core::{Device, Tensor};
use image::RgbImage;
use sd_worker_rocm::pipeline::{Lora, PipelineOptions};
use serde_json::json;
use std::path::Path;

/// Products for layers: name, outputs, inputs.
fn file(path: &Path, layers: &[(&str, usize, usize)], names: impl Fn(&str) -> [String; 3]) {
    let mut tensors = Tensors::new();
    for (seed, (layer, outputs, inputs)) in layers.iter().enumerate() {
        let [down, up, alpha] = names(layer);
        let part = |rows, columns, seed| (whole(rows, columns, seed) * 0.03).unwrap();
        tensors.insert(down, part(2, *inputs, seed));
        tensors.insert(up, part(*outputs, 2, seed + 40));
        tensors.insert(alpha, Tensor::new(4f32, &Device::Cpu).unwrap());
    }
    candle_core::safetensors::save(&tensors, path).unwrap();
}

fn drawn(p: &Pipelines, model: &str, lora: Option<&Path>) -> RgbImage {
    let mut pipeline = p.load(&p.folder(model), PipelineOptions::default());
    let mut request = p.request(model);
    request.steps = 1;
    let named = |path: &Path| Lora::new(path.to_str().unwrap(), 1.0);
    request.loras = lora.map(named).into_iter().collect();
    pipeline
        .draw(&request, &mut go_on)
        .unwrap()
        .images
        .remove(0)
}

/// Every spelling is the same change.
fn same(p: &Pipelines, model: &str, layers: &[(&str, usize, usize)], spellings: &[[&str; 4]]) {
    let plain = drawn(p, model, None);
    let mut first: Option<RgbImage> = None;
    for [prefix, dot, down, up] in spellings {
        let path = p.place().join("lora.safetensors");
        file(&path, layers, |layer| {
            let layer = format!("{prefix}{}", layer.replace('.', dot));
            [
                format!("{layer}.{down}.weight"),
                format!("{layer}.{up}.weight"),
                format!("{layer}.alpha"),
            ]
        });
        let picture = drawn(p, model, Some(&path));
        assert!(apart(&picture, &plain) > 3, "{model} {prefix}");
        let first = first.get_or_insert_with(|| picture.clone());
        assert_eq!(apart(&picture, first), 0, "{model} {prefix}");
    }
}

const SPELLINGS: [[&str; 4]; 4] = [
    // Those of Qwen-Image-Lightning have no prefix.
    ["", ".", "lora_down", "lora_up"],
    ["transformer.", ".", "lora_A", "lora_B"],
    ["diffusion_model.", ".", "lora_A", "lora_B"],
    ["lora_unet_", "_", "lora_down", "lora_up"],
];

#[test]
fn qwen_image_and_hidream_by_every_name() {
    let p = Pipelines::of("language_pipelines");
    let layers = [
        ("transformer_blocks.0.attn.to_q", 32, 32),
        ("transformer_blocks.1.attn.to_out.0", 32, 32),
        ("transformer_blocks.1.attn.add_k_proj", 32, 32),
        ("transformer_blocks.0.img_mlp.net.0.proj", 128, 32),
        ("transformer_blocks.1.txt_mod.1", 192, 32),
        ("img_in", 32, 16),
    ];
    same(&p, "qwen_image", &layers, &SPELLINGS);
    let layers = [
        ("double_stream_blocks.0.block.attn1.to_q_t", 32, 32),
        ("double_stream_blocks.1.block.attn1.to_out", 32, 32),
        ("single_stream_blocks.0.block.ff_i.experts.1.w1", 256, 32),
        ("caption_projection.0.linear", 32, 32),
    ];
    same(&p, "hidream", &layers, &SPELLINGS);
}

/// The makers' names of Lumina 2's layers, and diffusers' where they are stacked.
#[test]
fn lumina_2_by_its_makers_names() {
    let mut p = Pipelines::of("language_pipelines");
    // As the published model three heads of queries for one of keys.
    p.alter("lumina2", |about| {
        let config = &mut about["files"]["transformer/config.json"];
        config["num_attention_heads"] = json!(6);
        config["axes_dim_rope"] = json!([4, 2, 2]);
        let file = "transformer/diffusion_pytorch_model.safetensors";
        let shapes = &mut about["weights"][file]["shapes"];
        for (name, shape) in shapes.as_object_mut().unwrap() {
            match name.rsplit('.').nth(1) {
                Some("to_k" | "to_v") => *shape = json!([16, 48]),
                Some("norm_q" | "norm_k") => *shape = json!([8]),
                _ => (),
            }
        }
    });
    let rest = [
        ("layers.0.attention.out", "layers.0.attn.to_out.0", 48, 48),
        (
            "noise_refiner.0.feed_forward.w3",
            "noise_refiner.0.feed_forward.linear_3",
            140,
            48,
        ),
        (
            "layers.1.adaLN_modulation.1",
            "layers.1.norm1.linear",
            192,
            48,
        ),
        (
            "cap_embedder.1",
            "time_caption_embed.caption_embedder.1",
            48,
            24,
        ),
        ("final_layer.linear", "norm_out.linear_2", 16, 48),
    ];
    let plain = drawn(&p, "lumina2", None);
    let write = |name: &str, originals: bool| {
        let path = p.place().join(name);
        let mut tensors = Tensors::new();
        let mut add = |layer: &str, up: Tensor, down: Tensor| {
            tensors.insert(format!("diffusion_model.{layer}.lora_A.weight"), down);
            tensors.insert(format!("diffusion_model.{layer}.lora_B.weight"), up);
        };
        let part = |rows, columns, seed| (whole(rows, columns, seed) * 0.05).unwrap();
        let (up, down) = (part(80, 2, 1), part(2, 48, 2));
        match originals {
            true => add("context_refiner.0.attention.qkv", up, down),
            false => {
                for (name, first, rows) in [("q", 0, 48), ("k", 48, 16), ("v", 64, 16)] {
                    let up = up.narrow(0, first, rows).unwrap().contiguous().unwrap();
                    let layer = format!("context_refiner.0.attn.to_{name}");
                    add(&layer, up, down.clone());
                }
            }
        }
        for (seed, (theirs, ours, outputs, inputs)) in rest.iter().enumerate() {
            let layer = if originals { theirs } else { ours };
            add(
                layer,
                part(*outputs, 2, seed + 9),
                part(2, *inputs, seed + 20),
            );
        }
        candle_core::safetensors::save(&tensors, &path).unwrap();
        path
    };
    let theirs = drawn(&p, "lumina2", Some(&write("theirs.safetensors", true)));
    let ours = drawn(&p, "lumina2", Some(&write("ours.safetensors", false)));
    assert!(apart(&ours, &plain) > 3);
    assert_eq!(apart(&theirs, &ours), 0);
}
