//! Single files of ControlNets of transformers: diffusers' names for the originals', and what tensors tell.

use super::packed::{blocks, dim, flux_sizes};
use super::transformer::{flux, unstack, with_prefix, PICTURE, STACKED};
use super::Weights;
use crate::models::transformer::flux_control::FluxControlConfig;
use crate::models::transformer::sd3_control::Sd3ControlConfig;

/// FLUX.1's tensors under diffusers' names: XLabs' files have the transformer's originals, and names of their own for
/// the rest.
pub fn flux_control(file: &Weights) -> Weights {
    const XLABS: &[(&str, &str)] = &[
        ("controlnet_blocks.", "controlnet_blocks."),
        ("pos_embed_input.", "controlnet_x_embedder."),
    ];
    const HINT: &str = "input_hint_block";
    if !file.contains("img_in.weight") {
        return file.clone();
    }
    let mut weights = flux(file);
    weights.extend(file.renamed(|name| {
        let Some(layer) = name
            .strip_prefix(HINT)
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            return with_prefix(name, XLABS);
        };
        // Activations are counted, too.
        let (number, kind) = layer.split_once('.')?;
        let place = match number.parse::<usize>().ok()? {
            0 => "conv_in".to_string(),
            14 => "conv_out".to_string(),
            number => format!("blocks.{}", number / 2 - 1),
        };
        Some(format!("{HINT}.{place}.{kind}"))
    }));
    weights
}

/// What the tensors of a ControlNet of FLUX.1, under diffusers' names, tell about it, for a transformer whose heads turn by
/// these shares.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn flux_control_config(
    weights: &Weights,
    shares: &[usize],
) -> Result<FluxControlConfig, String> {
    if !weights.contains("controlnet_blocks.0.weight") {
        return Err("this is not a ControlNet of FLUX.1: it has no controlnet_blocks".to_string());
    }
    let first = |name: &str| weights.shape(name)?.first().copied();
    let channels = first("input_hint_block.conv_out.weight");
    let mut flux = flux_sizes(weights)?;
    flux.axes_dims_rope = shares.to_vec();
    flux.patch_size = match channels {
        Some(_) => 2,
        None => 1,
    };
    let config = FluxControlConfig {
        flux,
        num_mode: first("controlnet_mode_embedder.weight"),
        conditioning_embedding_channels: channels,
    };
    config.check().map(|()| config)
}

/// Stable Diffusion 3's tensors under diffusers' names: the files for 3.5 have other names in the blocks.
pub fn sd3_control(file: &Weights) -> Weights {
    const BLOCK: [(&str, &str); 5] = [
        (".attn.qkv.", ".attn.STACKED."),
        (".attn.proj.", ".attn.to_out.0."),
        (".mlp.fc1.", ".ff.net.0.proj."),
        (".mlp.fc2.", ".ff.net.2."),
        (".adaLN_modulation.1.", ".norm1.linear."),
    ];
    let mut weights = file.renamed(|name| {
        let old = BLOCK.iter().find(|(old, _)| name.contains(old));
        Some(match old {
            Some((old, new)) if name.starts_with("transformer_blocks.") => name.replace(old, new),
            _ => name.to_string(),
        })
    });
    unstack(&mut weights, STACKED, PICTURE);
    weights
}

/// What the tensors of a ControlNet of Stable Diffusion 3, under diffusers' names, tell about it, for a transformer whose
/// heads have these shares.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn sd3_control_config(weights: &Weights, shares: &[usize]) -> Result<Sd3ControlConfig, String> {
    if !weights.contains("pos_embed_input.proj.weight") {
        return Err(
            "this is not a ControlNet of Stable Diffusion 3: it has no pos_embed_input".to_string(),
        );
    }
    let dim = |name: &str, at| dim(weights, name, at);
    let (width, seen) = (
        dim("pos_embed_input.proj.weight", 0)?,
        dim("pos_embed_input.proj.weight", 1)?,
    );
    let norm = "transformer_blocks.0.attn.norm_q.weight";
    let normed = weights.contains(norm);
    let head = match normed {
        true => dim(norm, 0)?,
        false => shares.iter().sum(),
    };
    if head == 0 || !width.is_multiple_of(head) {
        return Err(format!("heads of {head} in a width of {width}"));
    }
    let enters = weights.contains("pos_embed.proj.weight");
    let channels = if enters {
        dim("pos_embed.proj.weight", 1)?
    } else {
        seen
    };
    let places = weights.shape("pos_embed.pos_embed");
    let side = places.and_then(|shape| shape.get(1).map(|places| places.isqrt()));
    let reads = weights.contains("context_embedder.weight");
    let layers = blocks(weights, "transformer_blocks", "norm1.linear.weight");
    let has = |i: &usize| weights.contains(&format!("transformer_blocks.{i}.attn2.to_q.weight"));
    let config = Sd3ControlConfig {
        patch_size: dim("pos_embed_input.proj.weight", 2)?,
        in_channels: channels,
        num_layers: layers,
        attention_head_dim: head,
        num_attention_heads: width / head,
        joint_attention_dim: match reads {
            true => Some(dim("context_embedder.weight", 1)?),
            false => None,
        },
        pooled_projection_dim: dim("time_text_embed.text_embedder.linear_1.weight", 1)?,
        pos_embed_max_size: side,
        extra_conditioning_channels: seen.saturating_sub(channels),
        dual_attention_layers: (0..layers).filter(has).collect(),
        qk_norm: normed.then(|| "rms_norm".to_string()),
        pos_embed_type: side.map(|_| "sincos".to_string()),
        use_pos_embed: enters,
        // Those that do not read the text, of 3.5, were trained with the pooled one.
        force_zeros_for_pooled_projection: reads,
        caption_projection_dim: width,
        ..Sd3ControlConfig::default()
    };
    config.check().map(|()| config)
}
