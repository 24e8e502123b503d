//! Gemma 3's encoder.

use super::source::{pixels, side, Clip, Shape, Source};
use super::Family;
use worker::gguf::Value;

pub(super) const FAMILY: Family = Family {
    names: &[
        ("patch_embedding", "v.patch_embd"),
        ("position_embedding.weight", "v.position_embd.weight"),
        ("post_layernorm", "v.post_ln"),
        ("mm_input_projection_weight", "mm.input_projection.weight"),
        ("mm_soft_emb_norm.weight", "mm.soft_emb_norm.weight"),
    ],
    shape,
    preprocessing,
};

fn shape(source: &Source, clip: &mut Clip) -> Result<(), String> {
    let shape = Shape {
        width: "hidden_size",
        hidden: None,
        unused: 0,
        epsilon: source.vision["layer_norm_eps"].as_f64().unwrap_or(1e-6),
        activations: &["gelu_pytorch_tanh"],
    };
    source.write_shape(&shape, clip)?;
    let tokens = source.config["mm_tokens_per_image"].as_u64().unwrap_or(256);
    let size = source.number(&["image_size"])?;
    let grid = size / source.number(&["patch_size"])?.max(1);
    let merge = grid / (tokens.isqrt() as u32).max(1);
    clip.count("projector.scale_factor", merge);
    clip.count("image_size", size);
    Ok(())
}

fn preprocessing(source: &Source, clip: &mut Clip) -> Result<(), String> {
    source.check_filter(2)?;
    let (json, size) = (source.preprocessor, side(&source.vision["image_size"]));
    if json["size"]["height"].as_u64() != size || json["size"]["width"].as_u64() != size {
        return source.refuse("size");
    }
    if json["do_pan_and_scan"] == true {
        let count = |key: &str, usual: u32| pixels(&json[key]).unwrap_or(usual);
        let smallest = count("pan_and_scan_min_crop_size", 256);
        clip.count("pan_and_scan.min_crop_size", smallest);
        let most = count("pan_and_scan_max_num_crops", 4);
        clip.count("pan_and_scan.max_crops", most);
        let ratio = json["pan_and_scan_min_ratio_to_activate"].as_f64();
        let ratio = Value::F32(ratio.unwrap_or(1.2) as f32);
        clip.set("pan_and_scan.min_ratio", ratio);
    }
    Ok(())
}
