//! Autoencoders of single files.

use crate::info::Family;
use crate::models::vae::VaeConfig;
use crate::weights::Weights;

/// A family's autoencoder, which lies under `first_stage_model` or in a file of its own. It never computes with 8-bit
/// floats.
pub fn vae(original: &Weights, family: Family) -> Option<(VaeConfig, Weights)> {
    let conv_in = original.shape("decoder.conv_in.weight")?;
    let latents = *conv_in.get(1)?;
    let mut channels = Vec::new();
    for i in 0..16 {
        match original.shape(&format!("decoder.up.{i}.block.0.conv2.weight")) {
            Some(shape) => channels.push(*shape.first()?),
            None => break,
        }
    }
    let blocks = channels.len();
    let layers = (0..16)
        .take_while(|j| original.contains(&format!("decoder.up.0.block.{j}.conv1.weight")))
        .count();
    let (scaling_factor, shift_factor) = match family {
        Family::Sd1 | Family::Sd2 => (0.18215, None),
        Family::Sdxl => (0.13025, None),
        Family::Sd3 => (1.5305, Some(0.0609)),
        // Qwen-Image's is of another kind.
        Family::Flux | Family::Chroma | Family::ZImage | Family::Lumina2 | Family::QwenImage => {
            (0.3611, Some(0.1159))
        }
    };
    let config = VaeConfig {
        latent_channels: latents,
        block_out_channels: channels,
        layers_per_block: layers.checked_sub(1)?,
        scaling_factor,
        shift_factor,
        use_quant_conv: original.contains("quant_conv.weight"),
        use_post_quant_conv: original.contains("post_quant_conv.weight"),
        force_upcast: family == Family::Sdxl,
        ..VaeConfig::default()
    };
    Some((
        config,
        original.renamed(|name| vae_name(name, blocks)).expanded(),
    ))
}

fn vae_name(name: &str, blocks: usize) -> Option<String> {
    if name.starts_with("quant_conv.") || name.starts_with("post_quant_conv.") {
        return Some(name.to_string());
    }
    let (side, rest) = name.split_once('.')?;
    if side != "encoder" && side != "decoder" {
        return None;
    }
    let rest = rest.replace("nin_shortcut.", "conv_shortcut.");
    let fixed = [
        ("norm_out.", "conv_norm_out."),
        ("mid.block_1.", "mid_block.resnets.0."),
        ("mid.block_2.", "mid_block.resnets.1."),
        ("mid.attn_1.norm.", "mid_block.attentions.0.group_norm."),
        ("mid.attn_1.q.", "mid_block.attentions.0.to_q."),
        ("mid.attn_1.k.", "mid_block.attentions.0.to_k."),
        ("mid.attn_1.v.", "mid_block.attentions.0.to_v."),
        ("mid.attn_1.proj_out.", "mid_block.attentions.0.to_out.0."),
    ];
    for (old, new) in fixed {
        if let Some(rest) = rest.strip_prefix(old) {
            return Some(format!("{side}.{new}{rest}"));
        }
    }
    if rest.starts_with("conv_in.") || rest.starts_with("conv_out.") {
        return Some(format!("{side}.{rest}"));
    }
    let mut parts = rest.splitn(3, '.');
    let way = parts.next()?;
    let level: usize = parts.next()?.parse().ok()?;
    let rest = parts.next()?;
    let (blocks_name, level) = match way {
        "down" => ("down_blocks", level),
        "up" => ("up_blocks", blocks.checked_sub(1 + level)?),
        _ => return None,
    };
    let rest = rest
        .replace("block.", "resnets.")
        .replace("downsample.conv.", "downsamplers.0.conv.")
        .replace("upsample.conv.", "upsamplers.0.conv.");
    Some(format!("{side}.{blocks_name}.{level}.{rest}"))
}

/// The names that older diffusers wrote for the VAE's attention, made today's.
pub fn modern_vae_names(weights: &Weights) -> Weights {
    weights.renamed(|name| {
        let mut name = name.to_string();
        for (old, new) in [
            (".query.", ".to_q."),
            (".key.", ".to_k."),
            (".value.", ".to_v."),
            (".proj_attn.", ".to_out.0."),
        ] {
            if name.contains("mid_block.attentions") {
                name = name.replace(old, new);
            }
        }
        Some(name)
    })
}
