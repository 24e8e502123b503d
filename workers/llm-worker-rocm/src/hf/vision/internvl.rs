//! InternVL.

use super::source::{pixels, side, Clip, Shape, Source};
use super::Family;

pub(super) const FAMILY: Family = Family {
    names: &[
        ("cls_token", "v.class_embd"),
        ("position_embeddings", "v.position_embd.weight"),
        ("patch_embeddings.projection", "v.patch_embd"),
        ("layernorm", "v.post_ln"),
        ("layer_norm", "mm.0"),
        ("linear_1", "mm.1"),
        ("linear_2", "mm.3"),
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
        activations: &["gelu"],
    };
    source.write_shape(&shape, clip)?;
    let ratio = source.config["downsample_ratio"].as_f64().unwrap_or(0.5);
    clip.count("projector.scale_factor", (1.0 / ratio).round() as u32);
    clip.count("image_size", source.number(&["image_size"])?);
    Ok(())
}

fn preprocessing(source: &Source, clip: &mut Clip) -> Result<(), String> {
    source.check_filter(3)?;
    let (json, size) = (source.preprocessor, side(&source.vision["image_size"]));
    if json["size"]["height"].as_u64() != size || json["size"]["width"].as_u64() != size {
        return source.refuse("size");
    }
    // Without it the picture is one tile.
    let cut = json["crop_to_patches"] == true;
    let count = |key: &str, usual: u32| match cut {
        true => pixels(&json[key]).unwrap_or(usual),
        false => 1,
    };
    clip.count("preproc_min_tiles", count("min_patches", 1));
    clip.count("preproc_max_tiles", count("max_patches", 12));
    Ok(())
}
