//! Single-file checkpoints of Stable Diffusion 1, 2 and XL: which model it is, and diffusers' names for its parts.
//!
//! Such a file has no configuration. What the shapes of its tensors tell is taken from them; the rest is what these
//! families have in common (32 groups in norms, 8 heads in version 1 and heads of 64 channels after it).

use super::openclip::text_tower;
use super::Weights;
use crate::info::Family;
use crate::models::clip::{Activation, ClipConfig};
use crate::models::config::PerBlock;
use crate::models::unet::config::UNetConfig;
use crate::models::vae::VaeConfig;
use candle_core::{DType, Device};

const UNET: &str = "model.diffusion_model.";

/// A text tower with its configuration.
#[derive(Debug, Clone)]
pub struct Tower {
    /// Sizes.
    pub config: ClipConfig,
    /// Tensors.
    pub weights: Weights,
    /// Layers left out at the end unless a request says otherwise.
    pub leave_out: usize,
}

/// A checkpoint taken apart.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The denoiser's configuration.
    pub unet_config: UNetConfig,
    /// The denoiser.
    pub unet: Weights,
    /// The autoencoder's configuration.
    pub vae_config: VaeConfig,
    /// The autoencoder; empty if the file has none.
    pub vae: Weights,
    /// The text towers, in order; empty if the file has none.
    pub towers: Vec<Tower>,
    /// Whether the network predicts velocity.
    pub predicts_velocity: bool,
    /// Whether the last training step has no signal at all.
    pub zero_terminal_snr: bool,
}

/// Whether the file is such a checkpoint.
pub fn is_checkpoint(weights: &Weights) -> bool {
    weights.contains(&format!("{UNET}input_blocks.0.0.weight"))
}

/// Takes a checkpoint apart.
///
/// # Errors
/// Says what is missing or of an unknown shape.
pub fn take_apart(weights: &Weights) -> Result<Checkpoint, String> {
    let original = weights.under(UNET);
    let unet_config = unet_config(&original)?;
    let layers = match unet_config.layers_per_block {
        PerBlock::One(layers) => layers,
        PerBlock::Each(_) => 2,
    };
    let blocks = unet_config.block_out_channels.len();
    let unet = original.renamed(|name| unet_name(name, layers, blocks));
    let text = text_width(&original).unwrap_or(0);
    let family = match unet_config.addition_embed_type {
        Some(_) => Family::Sdxl,
        None => Family::Sd1,
    };
    let first_vae = weights.under("first_stage_model.");
    let (vae_config, vae) = vae(&first_vae, family).unwrap_or_default();
    Ok(Checkpoint {
        predicts_velocity: weights.contains("v_pred")
            || weights
                .metadata("modelspec.prediction_type")
                .is_some_and(|kind| kind.starts_with('v'))
            || (text == 1024 && looks_like_velocity(&original)),
        zero_terminal_snr: weights.contains("ztsnr"),
        towers: towers(weights)?,
        unet_config,
        unet,
        vae_config,
        vae,
    })
}

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

fn text_width(unet: &Weights) -> Option<usize> {
    let name = unet
        .names()
        .find(|name| name.ends_with("transformer_blocks.0.attn2.to_k.weight"))?;
    unet.shape(name)?.get(1).copied()
}

/// Stable Diffusion 2's two kinds have the same shapes. In those for 768 pixels, which predict velocity, the biases of the last block's first
/// norm are an order of magnitude larger.
fn looks_like_velocity(unet: &Weights) -> bool {
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

fn unet_config(unet: &Weights) -> Result<UNetConfig, String> {
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
        transformer_layers_per_block: PerBlock::Each(depth.iter().map(|d| (*d).max(1)).collect()),
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

/// A family's autoencoder, which lies under `first_stage_model` or in a file of its own.
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
        Family::Flux | Family::ZImage => (0.3611, Some(0.1159)),
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
    Some((config, original.renamed(|name| vae_name(name, blocks))))
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

fn towers(weights: &Weights) -> Result<Vec<Tower>, String> {
    let mut towers = Vec::new();
    for (prefix, openclip, leave_out) in [
        // Stable Diffusion 1.
        ("cond_stage_model.transformer.", false, 0),
        // Stable Diffusion 2 reads the last but one layer.
        ("cond_stage_model.model.", true, 1),
        // XL, first and second tower; the refiner has only one.
        ("conditioner.embedders.0.transformer.", false, 1),
        ("conditioner.embedders.0.model.", true, 1),
        ("conditioner.embedders.1.model.", true, 1),
    ] {
        let original = weights.under(prefix);
        if original.is_empty() {
            continue;
        }
        let tower = match openclip {
            true => text_tower(&original),
            // Files from before transformers' change of names lack the first part.
            false if original.contains("embeddings.token_embedding.weight") => {
                original.renamed(|name| Some(format!("text_model.{name}")))
            }
            false => original,
        };
        towers.push(Tower {
            config: clip_config(&tower, openclip)
                .ok_or_else(|| format!("the text tower {prefix} is incomplete"))?,
            weights: tower,
            leave_out,
        });
    }
    Ok(towers)
}

/// What the tensors of a text tower tell about it. Whether it is OpenCLIP's they tell by their width only, so that it may be said.
pub fn clip_config(tower: &Weights, openclip: bool) -> Option<ClipConfig> {
    let tokens = tower.shape("text_model.embeddings.token_embedding.weight")?;
    let positions = tower.shape("text_model.embeddings.position_embedding.weight")?;
    let up = tower.shape("text_model.encoder.layers.0.mlp.fc1.weight")?;
    let layers = (0..1024)
        .take_while(|i| tower.contains(&format!("text_model.encoder.layers.{i}.mlp.fc1.weight")))
        .count();
    let size = *tokens.get(1)?;
    let projection = tower.shape("text_projection.weight");
    Some(ClipConfig {
        vocab_size: *tokens.first()?,
        hidden_size: size,
        intermediate_size: *up.first()?,
        num_hidden_layers: layers,
        num_attention_heads: (size / 64).max(1),
        max_position_embeddings: *positions.first()?,
        // The larger towers are OpenCLIP's, whatever names their tensors have.
        hidden_act: match openclip || size > 768 {
            true => Activation::Gelu,
            false => Activation::QuickGelu,
        },
        layer_norm_eps: 1e-5,
        projection_dim: projection.and_then(|shape| shape.first().copied()),
    })
}
