//! Gemma 4's encoder.

use super::source::{pixels, Clip, Shape, Source};
use super::Family;
use worker::gguf::Value;

pub(super) const FAMILY: Family = Family {
    names: &[
        ("patch_embedder.input_proj", "v.patch_embd"),
        (
            "patch_embedder.position_embedding_table",
            "v.position_embd.weight",
        ),
        ("std_bias", "v.std_bias"),
        ("std_scale", "v.std_scale"),
        ("embed_vision.embedding_projection", "mm.input_projection"),
    ],
    shape,
    preprocessing,
};

/// Patches of a side that become one row, if nothing is said.
const POOLED: u64 = 3;

fn shape(source: &Source, clip: &mut Clip) -> Result<(), String> {
    let vision = source.vision;
    let shape = Shape {
        width: "hidden_size",
        hidden: None,
        unused: 0,
        epsilon: vision["rms_norm_eps"].as_f64().unwrap_or(1e-6),
        activations: &["gelu_pytorch_tanh"],
    };
    source.write_shape(&shape, clip)?;
    let heads = source.number(&["num_attention_heads"])?;
    let of_heads = source.number(&["hidden_size"])? / heads.max(1);
    for (key, expected) in [("head_dim", of_heads), ("num_key_value_heads", heads)] {
        if vision[key]
            .as_u64()
            .is_some_and(|n| n != u64::from(expected))
        {
            return Err(format!(
                "config.json: vision_config.{key} {} is not implemented here",
                vision[key]
            ));
        }
    }
    let base = vision["rope_parameters"]["rope_theta"].as_f64();
    if base.is_some_and(|base| base != 100.0) || vision["attention_bias"] == true {
        return Err(
            "config.json: vision_config has another rope_theta than 100, or an attention_bias"
                .to_string(),
        );
    }
    let pooled = vision["pooling_kernel_size"].as_u64().unwrap_or(POOLED);
    clip.count("projector.scale_factor", pooled as u32);
    // Files of llama.cpp leave it to the width.
    let sees = source.text["use_bidirectional_attention"] == "vision";
    clip.set("rows_see_all", Value::Bool(sees));
    Ok(())
}

fn preprocessing(source: &Source, clip: &mut Clip) -> Result<(), String> {
    source.check_filter(3)?;
    let vision = source.vision;
    let patch = vision["patch_size"].as_u64().unwrap_or(16);
    let pooled = vision["pooling_kernel_size"].as_u64().unwrap_or(POOLED);
    source.same("patch_size", patch)?;
    source.same("pooling_kernel_size", pooled)?;
    let rows = pixels(&source.preprocessor["max_soft_tokens"]).unwrap_or(280);
    let most = u64::from(rows) * (patch * pooled).pow(2);
    let most = u32::try_from(most).map_err(|_| "max_soft_tokens is too large".to_string())?;
    clip.count("image_min_pixels", 1);
    clip.count("image_max_pixels", most);
    Ok(())
}
