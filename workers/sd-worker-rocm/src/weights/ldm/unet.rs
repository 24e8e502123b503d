//! Denoisers and ControlNets of single files.

use crate::models::config::PerBlock;
use crate::models::unet::config::UNetConfig;
use crate::weights::Weights;
use candle_core::{DType, Device};

/// A ControlNet's own file: the original's names, or diffusers' without a configuration.
pub fn controlnet(weights: &Weights, config: &UNetConfig) -> Option<Weights> {
    if weights.contains("controlnet_cond_embedding.conv_in.weight") {
        return Some(weights.clone());
    }
    let weights = match weights.contains("control_model.input_hint_block.0.weight") {
        true => weights.under("control_model."),
        false => weights.clone(),
    };
    if !weights.contains("input_hint_block.0.weight") {
        return None;
    }
    let layers = match config.layers_per_block {
        PerBlock::One(layers) => layers,
        PerBlock::Each(_) => return None,
    };
    let blocks = config.block_out_channels.len();
    Some(weights.renamed(|name| {
        if let Some(rest) = name.strip_prefix("input_hint_block.") {
            // Convolutions alternate with SiLU, which has no weights.
            let (number, kind) = rest.split_once('.')?;
            let part = match number.parse::<usize>().ok()? / 2 {
                0 => "conv_in".to_string(),
                7 => "conv_out".to_string(),
                block => format!("blocks.{}", block - 1),
            };
            return Some(format!("controlnet_cond_embedding.{part}.{kind}"));
        }
        if let Some(rest) = name.strip_prefix("zero_convs.") {
            return Some(format!(
                "controlnet_down_blocks.{}",
                rest.replace(".0.", ".")
            ));
        }
        match name.strip_prefix("middle_block_out.0.") {
            Some(kind) => Some(format!("controlnet_mid_block.{kind}")),
            None => unet_name(name, layers, blocks),
        }
    }))
}

/// Width of the text that the denoiser attends to.
pub(super) fn text_width(unet: &Weights) -> Option<usize> {
    let name = unet
        .names()
        .find(|name| name.ends_with("transformer_blocks.0.attn2.to_k.weight"))?;
    unet.shape(name)?.get(1).copied()
}

/// Stable Diffusion 2's two kinds have the same shapes. In those for 768 pixels, which predict velocity, the biases of
/// the last block's first norm are an order of magnitude larger.
pub(super) fn looks_like_velocity(unet: &Weights) -> bool {
    let name = "output_blocks.11.1.transformer_blocks.0.norm1.bias";
    let Ok(bias) = unet.load(name, DType::F32, &Device::Cpu) else {
        return false;
    };
    let Ok(values) = bias.flatten_all().and_then(|bias| bias.to_vec1::<f32>()) else {
        return false;
    };
    let count = values.len().max(1) as f32;
    let mean = values.iter().sum::<f32>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count;
    variance.sqrt() > 0.09
}

/// What the shapes of its tensors tell of a denoiser.
pub(super) fn unet_config(unet: &Weights) -> Result<UNetConfig, String> {
    let dims = |name: &str| {
        unet.shape(name)
            .filter(|shape| shape.len() > 1)
            .ok_or_else(|| format!("the denoiser has no usable tensor {name}"))
    };
    let conv_in = dims("input_blocks.0.0.weight")?;
    let conv_out = dims("out.2.weight")?;
    // Blocks end where there is an `op`, which halves the picture.
    let mut channels = vec![];
    let mut depth = vec![];
    let mut attends = vec![];
    let mut layers_here = 0;
    let mut layers = vec![];
    for i in 1..256 {
        let block = format!("input_blocks.{i}");
        if let Some(shape) = unet.shape(&format!("{block}.0.in_layers.2.weight")) {
            if layers_here == 0 {
                channels.push(shape.first().copied().unwrap_or(0));
                let transformers = (0..256)
                    .take_while(|j| {
                        unet.contains(&format!("{block}.1.transformer_blocks.{j}.norm1.weight"))
                    })
                    .count();
                attends.push(transformers > 0);
                depth.push(transformers);
            }
            layers_here += 1;
        } else {
            layers.push(layers_here);
            layers_here = 0;
            if !unet.contains(&format!("{block}.0.op.weight")) {
                break;
            }
        }
    }
    if channels.is_empty() || layers.iter().any(|n| *n != layers[0]) {
        return Err("the denoiser's blocks are not those of Stable Diffusion".to_string());
    }
    let text = text_width(unet).ok_or("the denoiser has no attention to a text")?;
    let mid = (0..256)
        .take_while(|j| {
            unet.contains(&format!(
                "middle_block.1.transformer_blocks.{j}.norm1.weight"
            ))
        })
        .count();
    if let Some(last) = depth.last_mut() {
        *last = mid;
    }
    let kinds = |with: &str, without: &str| -> Vec<String> {
        attends
            .iter()
            .map(|attends| if *attends { with } else { without }.to_string())
            .collect()
    };
    // Version 1 has 8 heads everywhere and a text of 768 channels; later ones have heads of 64 channels.
    let heads = match text {
        1024 | 1280 | 2048 => PerBlock::Each(channels.iter().map(|c| (c / 64).max(1)).collect()),
        _ => PerBlock::One(8),
    };
    let mut up = kinds("CrossAttnUpBlock2D", "UpBlock2D");
    up.reverse();
    let addition = unet.shape("label_emb.0.0.weight");
    Ok(UNetConfig {
        in_channels: conv_in[1],
        out_channels: conv_out[0],
        down_block_types: kinds("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types: up,
        layers_per_block: PerBlock::One(layers[0]),
        transformer_layers_per_block: PerBlock::Each(
            depth.iter().map(|d| PerBlock::One((*d).max(1))).collect(),
        ),
        attention_head_dim: heads,
        cross_attention_dim: PerBlock::One(text),
        block_out_channels: channels,
        addition_embed_type: addition.as_ref().map(|_| "text_time".to_string()),
        addition_time_embed_dim: addition.as_ref().map(|_| 256),
        projection_class_embeddings_input_dim: addition
            .as_ref()
            .and_then(|shape| shape.get(1).copied()),
        time_cond_proj_dim: unet
            .shape("time_embed.cond_proj.weight")
            .and_then(|shape| shape.get(1).copied()),
        ..UNetConfig::default()
    })
}

/// diffusers' name for a tensor of the denoiser, with `layers` residual layers a block and so many blocks.
pub fn unet_name(name: &str, layers: usize, blocks: usize) -> Option<String> {
    let fixed = [
        ("time_embed.0.", "time_embedding.linear_1."),
        ("time_embed.2.", "time_embedding.linear_2."),
        ("time_embed.cond_proj.", "time_embedding.cond_proj."),
        ("label_emb.0.0.", "add_embedding.linear_1."),
        ("label_emb.0.2.", "add_embedding.linear_2."),
        ("input_blocks.0.0.", "conv_in."),
        ("out.0.", "conv_norm_out."),
        ("out.2.", "conv_out."),
        ("middle_block.1.", "mid_block.attentions.0."),
    ];
    for (old, new) in fixed {
        if let Some(rest) = name.strip_prefix(old) {
            return Some(format!("{new}{rest}"));
        }
    }
    let resnet = |rest: &str| {
        rest.replace("in_layers.0.", "norm1.")
            .replace("in_layers.2.", "conv1.")
            .replace("emb_layers.1.", "time_emb_proj.")
            .replace("out_layers.0.", "norm2.")
            .replace("out_layers.3.", "conv2.")
            .replace("skip_connection.", "conv_shortcut.")
    };
    if let Some(rest) = name.strip_prefix("middle_block.0.") {
        return Some(format!("mid_block.resnets.0.{}", resnet(rest)));
    }
    if let Some(rest) = name.strip_prefix("middle_block.2.") {
        return Some(format!("mid_block.resnets.1.{}", resnet(rest)));
    }
    let numbered = |prefix: &str| -> Option<(usize, usize, String)> {
        let mut parts = name.strip_prefix(prefix)?.splitn(3, '.');
        let block = parts.next()?.parse().ok()?;
        let layer = parts.next()?.parse().ok()?;
        Some((block, layer, parts.next()?.to_string()))
    };
    if let Some((i, part, rest)) = numbered("input_blocks.") {
        let i = i.checked_sub(1)?;
        let (block, layer) = (i / (layers + 1), i % (layers + 1));
        return Some(match (layer < layers, part) {
            (true, 0) => format!("down_blocks.{block}.resnets.{layer}.{}", resnet(&rest)),
            (true, _) => format!("down_blocks.{block}.attentions.{layer}.{rest}"),
            (false, _) => {
                let rest = rest.strip_prefix("op.")?;
                format!("down_blocks.{block}.downsamplers.0.conv.{rest}")
            }
        });
    }
    let (i, part, rest) = numbered("output_blocks.")?;
    let (block, layer) = (i / (layers + 1), i % (layers + 1));
    if block >= blocks {
        return None;
    }
    Some(match part {
        0 => format!("up_blocks.{block}.resnets.{layer}.{}", resnet(&rest)),
        _ if rest.starts_with("conv.") => format!("up_blocks.{block}.upsamplers.0.{rest}"),
        _ => format!("up_blocks.{block}.attentions.{layer}.{rest}"),
    })
}
