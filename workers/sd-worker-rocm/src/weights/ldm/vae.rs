//! Autoencoders of single files.

use crate::info::Family;
use crate::models::codec::CodecConfig;
use crate::models::vae::patched::PatchedVaeConfig;
use crate::models::vae::VaeConfig;
use crate::weights::{ltx_vae, wan_vae, Weights};

/// The autoencoder of a single file or of a file of its own, of whatever kind it is.
pub fn codec(file: &Weights, family: Family) -> Option<(CodecConfig, Weights)> {
    if let Some((config, weights)) = wan_vae::take(file) {
        return Some((CodecConfig::Wan(config), weights));
    }
    if let Some((config, weights)) = ltx_vae::take(file) {
        return Some((CodecConfig::Ltx(config), weights));
    }
    if !file.contains("bn.running_mean") {
        return vae(file, family).map(|(config, weights)| (config.into(), weights));
    }
    // FLUX.2's, whose statistics both kinds of files name alike.
    let ours = file.contains("decoder.up_blocks.0.resnets.0.conv1.weight");
    let (vae, weights) = match ours {
        true => (of_diffusers(file)?, file.clone().expanded()),
        false => {
            // The original has these inside of its two halves.
            let moved = file.renamed(|name| {
                let inside = [
                    ("encoder.quant_conv.", "quant_conv."),
                    ("decoder.post_quant_conv.", "post_quant_conv."),
                ];
                let moved = inside
                    .iter()
                    .find_map(|(old, new)| Some(format!("{new}{}", name.strip_prefix(old)?)));
                Some(moved.unwrap_or_else(|| name.to_string()))
            });
            let (config, mut weights) = vae(&moved, family)?;
            weights.extend(file.renamed(|name| name.starts_with("bn.").then(|| name.to_string())));
            (config, weights)
        }
    };
    let config = PatchedVaeConfig::of(vae);
    Some((CodecConfig::Patched(config), weights))
}

/// The settings of an autoencoder under diffusers' names, as far as tensors tell them.
fn of_diffusers(file: &Weights) -> Option<VaeConfig> {
    let widths = |side: &str| -> Vec<usize> {
        (0..16)
            .map_while(|i| file.shape(&format!("{side}.{i}.resnets.0.conv2.weight")))
            .filter_map(|shape| shape.first().copied())
            .collect()
    };
    let (encoder, mut decoder) = (widths("encoder.down_blocks"), widths("decoder.up_blocks"));
    decoder.reverse();
    let layers = (0..16)
        .take_while(|j| file.contains(&format!("decoder.up_blocks.0.resnets.{j}.conv1.weight")))
        .count();
    Some(VaeConfig {
        latent_channels: *file.shape("decoder.conv_in.weight")?.get(1)?,
        block_out_channels: if encoder.is_empty() {
            decoder.clone()
        } else {
            encoder
        },
        decoder_block_out_channels: Some(decoder),
        layers_per_block: layers.checked_sub(1)?,
        use_quant_conv: file.contains("quant_conv.weight"),
        use_post_quant_conv: file.contains("post_quant_conv.weight"),
        ..VaeConfig::default()
    })
}

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
        // Its latents are brought to their spread otherwise.
        Family::Flux2 => (1.0, None),
        Family::Sd3 => (1.5305, Some(0.0609)),
        // Theirs are of another kind.
        Family::Wan | Family::QwenImage | Family::Ltx | Family::Sana => return None,
        // FLUX.1's, which others have taken over.
        _ => (0.3611, Some(0.1159)),
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
