//! SmolVLM and Idefics3.

use super::source::{pixels, Clip, Shape, Source};
use super::Family;

pub(super) const FAMILY: Family = Family {
    names: &[
        ("patch_embedding", "v.patch_embd"),
        ("position_embedding.weight", "v.position_embd.weight"),
        ("post_layernorm", "v.post_ln"),
        ("modality_projection.proj.weight", "mm.model.fc.weight"),
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
    let merge = source.config["scale_factor"].as_u64().unwrap_or(2);
    clip.count("projector.scale_factor", merge as u32);
    clip.count("image_size", source.number(&["image_size"])?);
    Ok(())
}

fn preprocessing(source: &Source, clip: &mut Clip) -> Result<(), String> {
    source.check_filter(1)?;
    let json = source.preprocessor;
    if json["max_image_size"]["longest_edge"] != source.vision["image_size"] {
        return source.refuse("max_image_size");
    }
    if json["do_image_splitting"] == false {
        return source.refuse("do_image_splitting");
    }
    clip.count("preproc_image_size", source.longest_edge()?);
    let size = &json["video_sampling"]["video_size"];
    if let Some(longest) = pixels(&size["longest_edge"]) {
        clip.count("video_size", longest);
    }
    Ok(())
}
