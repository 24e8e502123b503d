//! Qwen's encoders.

use super::source::{list, pixels, side, Clip, Shape, Source};
use super::Family;
use crate::vision::Kind;
use worker::gguf::{Array, Value};

pub(super) const FAMILY: Family = Family {
    names: &[
        ("patch_embed.proj", "v.patch_embd"),
        ("pos_embed.weight", "v.position_embd.weight"),
        ("merger.ln_q", "v.post_ln"),
        ("merger.norm", "v.post_ln"),
        ("merger.mlp.0", "mm.0"),
        ("merger.linear_fc1", "mm.0"),
        ("merger.mlp.2", "mm.2"),
        ("merger.linear_fc2", "mm.2"),
    ],
    shape,
    preprocessing,
};

fn shape(source: &Source, clip: &mut Clip) -> Result<(), String> {
    let vision = source.vision;
    let is_second = source.kind == Kind::Qwen2Vl;
    let width = if is_second {
        "embed_dim"
    } else {
        "hidden_size"
    };
    let hidden = match is_second {
        true => {
            let ratio = vision["mlp_ratio"].as_f64().unwrap_or(4.0);
            Some((f64::from(source.number(&[width])?) * ratio) as u32)
        }
        false => None,
    };
    let activation = match source.kind {
        Kind::Qwen2Vl => "quick_gelu",
        Kind::Qwen25Vl => "silu",
        _ => "gelu_pytorch_tanh",
    };
    let shape = Shape {
        width,
        hidden,
        unused: 0,
        // Their code's own.
        epsilon: 1e-6,
        activations: &[activation],
    };
    source.write_shape(&shape, clip)?;
    if let Some(size) = side(&vision["image_size"]) {
        clip.count("image_size", size as u32);
    }
    clip.count("spatial_merge_size", merge(source));
    if side(&vision["temporal_patch_size"]).is_some_and(|n| n != 2) {
        return Err("config.json: vision_config.temporal_patch_size is not 2".to_string());
    }
    let blocks = u64::from(source.number(&["num_hidden_layers", "depth"])?);
    match source.kind {
        Kind::Qwen25Vl => windows(source, blocks, clip),
        Kind::Qwen3Vl => {
            let deep = list(&vision["deepstack_visual_indexes"]);
            let flags = (0..blocks).map(|block| deep.contains(&block)).collect();
            clip.set("is_deepstack_layers", Value::Array(Array::Bool(flags)));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Patches of a side that become one row.
fn merge(source: &Source) -> u32 {
    source.number(&["spatial_merge_size"]).unwrap_or(2)
}

/// Which blocks see windows only.
fn windows(source: &Source, blocks: u64, clip: &mut Clip) -> Result<(), String> {
    let full = list(&source.vision["fullatt_block_indexes"]);
    let period = full.first().map_or(0, |first| first + 1);
    let places: Vec<u64> = (1..)
        .map(|n| n * period)
        .take_while(|_| period > 0)
        .map(|n| n - 1)
        .take_while(|n| *n < blocks)
        .collect();
    if places != full || period == 0 {
        return Err(format!(
            "config.json: vision_config.fullatt_block_indexes {full:?} are not every so many blocks"
        ));
    }
    clip.count("n_wa_pattern", period as u32);
    clip.count("window_size", source.number(&["window_size"])?);
    Ok(())
}

fn preprocessing(source: &Source, clip: &mut Clip) -> Result<(), String> {
    source.check_filter(3)?;
    source.same("merge_size", merge(source).into())?;
    source.same("temporal_patch_size", 2)?;
    let patch = source.vision["patch_size"].as_u64().unwrap_or(14);
    source.same("patch_size", patch)?;
    // The older names come first.
    let json = source.preprocessor;
    let size = &json["size"];
    let fewest = pixels(&json["min_pixels"]).or_else(|| pixels(&size["shortest_edge"]));
    let most = pixels(&json["max_pixels"]).or_else(|| pixels(&size["longest_edge"]));
    clip.count("image_min_pixels", fewest.unwrap_or(56 * 56));
    clip.count("image_max_pixels", most.unwrap_or(28 * 28 * 1280));
    let size = &source.video["size"];
    for (key, edge) in [
        ("video_min_pixels", "shortest_edge"),
        ("video_max_pixels", "longest_edge"),
    ] {
        if let Some(count) = pixels(&size[edge]) {
            clip.count(key, count);
        }
    }
    if let Some(number) = source.vision["tokens_per_second"].as_f64() {
        clip.set("tokens_per_second", Value::F32(number as f32));
    }
    Ok(())
}
