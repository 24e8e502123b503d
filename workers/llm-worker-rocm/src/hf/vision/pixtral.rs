//! Pixtral's encoder, which Mistral 3 has, too.

use super::source::{Clip, Shape, Source};
use super::Family;
use serde_json::Value as Json;

pub(super) const FAMILY: Family = Family {
    names: &[
        ("patch_conv", "v.patch_embd"),
        ("ln_pre", "v.pre_ln"),
        ("norm", "mm.input_norm"),
        ("patch_merger.merging_layer", "mm.patch_merger"),
        ("linear_1", "mm.1"),
        ("linear_2", "mm.2"),
    ],
    shape,
    preprocessing,
};

fn shape(source: &Source, clip: &mut Clip) -> Result<(), String> {
    let (config, vision) = (source.config, source.vision);
    let shape = Shape {
        width: "hidden_size",
        hidden: None,
        unused: 0,
        epsilon: 1e-5,
        activations: &["gelu", "silu"],
    };
    source.write_shape(&shape, clip)?;
    let merge = config["spatial_merge_size"].as_u64().unwrap_or(1) as u32;
    clip.count("spatial_merge_size", merge);
    let own = |json: &Json, key: &str, expected: f64| match json[key].as_f64() {
        Some(value) if value != expected => Err(format!(
            "config.json: {key} {value} is not implemented here"
        )),
        _ => Ok(()),
    };
    own(vision, "rope_theta", 10_000.0)?;
    own(&vision["rope_parameters"], "rope_theta", 10_000.0)?;
    if merge > 1 {
        // That of the projector's norm.
        own(source.text, "rms_norm_eps", 1e-5)?;
    }
    let layer = config["vision_feature_layer"].as_i64();
    if layer.is_some_and(|layer| layer != -1) {
        return Err("config.json: vision_feature_layer is not -1".to_string());
    }
    Ok(())
}

fn preprocessing(source: &Source, clip: &mut Clip) -> Result<(), String> {
    source.check_filter(3)?;
    let patch = &source.preprocessor["patch_size"];
    let patch = patch.get("height").unwrap_or(patch);
    if !patch.is_null() && *patch != source.vision["patch_size"] {
        return source.refuse("patch_size");
    }
    clip.count("image_size", source.longest_edge()?);
    Ok(())
}
