//! LLaVA 1.5 and 1.6 with CLIP's encoder.

use super::source::{list, side, Clip, Shape, Source};
use super::Family;
use worker::gguf::{Array, Value};

pub(super) const FAMILY: Family = Family {
    names: &[
        ("class_embedding", "v.class_embd"),
        ("patch_embedding", "v.patch_embd"),
        ("position_embedding.weight", "v.position_embd.weight"),
        ("pre_layrnorm", "v.pre_ln"),
        // Features are taken before it.
        ("post_layernorm", ""),
        ("linear_1", "mm.0"),
        ("linear_2", "mm.2"),
        ("image_newline", "v.image_newline"),
    ],
    shape,
    preprocessing,
};

fn shape(source: &Source, clip: &mut Clip) -> Result<(), String> {
    let config = source.config;
    let shape = Shape {
        width: "hidden_size",
        hidden: None,
        // Features are taken before the last one.
        unused: 1,
        epsilon: source.vision["layer_norm_eps"].as_f64().unwrap_or(1e-5),
        activations: &["quick_gelu"],
    };
    source.write_shape(&shape, clip)?;
    let blocks = source.number(&["num_hidden_layers"])?.saturating_sub(1);
    let layer = Array::I32(vec![blocks as i32]);
    clip.set("feature_layer", Value::Array(layer));
    let layer = config["vision_feature_layer"].as_i64();
    if layer.is_some_and(|layer| layer != -2) {
        return Err("config.json: vision_feature_layer is not -2".to_string());
    }
    let select = config["vision_feature_select_strategy"].as_str();
    if select.is_some_and(|select| select != "default") {
        return Err("config.json: vision_feature_select_strategy is not \"default\"".to_string());
    }
    clip.count("image_size", source.number(&["image_size"])?);
    if is_next(source) {
        let name = "spatial_unpad".to_string();
        clip.set("mm_patch_merge_type", Value::String(name));
        // Heights come first here, widths there.
        let sizes = config["image_grid_pinpoints"].as_array();
        let sizes = sizes.into_iter().flatten().map(list);
        let sizes = sizes.flat_map(|size| size.into_iter().rev().map(|n| n as i32));
        let sizes = Array::I32(sizes.collect());
        clip.set("image_grid_pinpoints", Value::Array(sizes));
    }
    Ok(())
}

/// Whether it is LLaVA 1.6, which cuts pictures into tiles.
fn is_next(source: &Source) -> bool {
    source.config["model_type"] == "llava_next"
}

fn preprocessing(source: &Source, _: &mut Clip) -> Result<(), String> {
    source.check_filter(3)?;
    let json = source.preprocessor;
    let expected = side(&source.vision["image_size"]);
    let shortest = json["size"].get("shortest_edge").unwrap_or(&json["size"]);
    let crop = json["crop_size"]
        .get("height")
        .unwrap_or(&json["crop_size"]);
    if shortest.as_u64() != expected {
        return source.refuse("size");
    }
    if crop.as_u64() != expected || json["do_center_crop"] == false {
        return source.refuse("crop_size");
    }
    match is_next(source) {
        // Tiles that are added to make all pictures' as many count for nothing.
        true if json["image_grid_pinpoints"].is_null() => {}
        true if json["image_grid_pinpoints"] != source.config["image_grid_pinpoints"] => {
            return source.refuse("image_grid_pinpoints");
        }
        false if json["do_pad"] == true => return source.refuse("do_pad"),
        _ => {}
    }
    Ok(())
}
