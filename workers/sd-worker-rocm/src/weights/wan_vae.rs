//! Autoencoders of Wan, and with them Qwen-Image's, in files of their own under the original's names.

use super::Weights;
use crate::models::wan_vae::WanVaeConfig;

/// Statistics of the published autoencoder of 48 channels, Wan 2.2's smallest model's.
const MEAN_48: [f64; 48] = [
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813,
    0.0891, 0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108,
    -0.2158, 0.2502, -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313,
    -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944,
    0.3573, -0.0548, -0.1681, -0.0667,
];
const STD_48: [f64; 48] = [
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
];

/// The original's parts of a residual layer, and diffusers'.
const RESIDUAL: &[(&str, &str)] = &[
    ("residual.0.", "norm1."),
    ("residual.2.", "conv1."),
    ("residual.3.", "norm2."),
    ("residual.6.", "conv2."),
    ("shortcut.", "conv_shortcut."),
];

/// The original's other parts, and diffusers'.
const PARTS: &[(&str, &str)] = &[
    ("conv1.", "conv_in."),
    ("head.0.", "norm_out."),
    ("head.2.", "conv_out."),
    ("middle.0.", "mid_block.resnets.0."),
    ("middle.1.", "mid_block.attentions.0."),
    ("middle.2.", "mid_block.resnets.1."),
];

/// The configuration, and the tensors under diffusers' names; `None` for other files and for autoencoders whose
/// statistics nobody has published.
pub fn take(file: &Weights) -> Option<(WanVaeConfig, Weights)> {
    if !file.contains("decoder.middle.0.residual.0.gamma") {
        return None;
    }
    let config = config(file)?;
    let weights = file.renamed(|name| modern(name, &config)).expanded();
    Some((config, weights))
}

/// What the tensors tell.
fn config(file: &Weights) -> Option<WanVaeConfig> {
    let dim = |name: &str, i: usize| file.shape(name)?.get(i).copied();
    let base = dim("encoder.conv1.weight", 0)?;
    let is_residual = file.contains("encoder.downsamples.0.downsamples.0.residual.2.weight");
    let mut config = WanVaeConfig {
        base_dim: base,
        z_dim: dim("conv2.weight", 0)?,
        is_residual,
        dim_mult: Vec::new(),
        temperal_downsample: Vec::new(),
        ..WanVaeConfig::default()
    };
    let (mut layers, mut width) = (0, base);
    let mut at = (0, 0);
    // Blocks end in a layer that makes the picture smaller, the last one does not.
    for _ in 0..1 << 8 {
        let layer = match is_residual {
            true => format!("encoder.downsamples.{}.downsamples.{}.", at.0, at.1),
            false => format!("encoder.downsamples.{}.", at.1),
        };
        at.1 += 1;
        if let Some(outputs) = dim(&format!("{layer}residual.6.weight"), 0) {
            width = outputs;
            layers += 1;
            continue;
        }
        config.num_res_blocks = layers.max(1);
        layers = 0;
        config.dim_mult.push(width / base.max(1));
        if !file.contains(&format!("{layer}resample.1.weight")) {
            break;
        }
        let time = file.contains(&format!("{layer}time_conv.weight"));
        config.temperal_downsample.push(time);
        if is_residual {
            at = (at.0 + 1, 0);
        }
    }
    let first = config.dim_mult.first().copied().filter(|m| *m > 0)?;
    config.decoder_base_dim = Some(dim("decoder.head.0.gamma", 0)? / first);
    let pixels = dim("encoder.conv1.weight", 1)? / 3;
    config.patch_size = (pixels > 1).then(|| (pixels as f64).sqrt() as usize);
    if config.z_dim == 48 {
        config.latents_mean = MEAN_48.to_vec();
        config.latents_std = STD_48.to_vec();
    }
    config.check().ok()?;
    Some(config)
}

/// diffusers' name of a tensor; `None` for what is no part of the network.
fn modern(name: &str, config: &WanVaeConfig) -> Option<String> {
    for (old, new) in [("conv1.", "quant_conv."), ("conv2.", "post_quant_conv.")] {
        if let Some(rest) = name.strip_prefix(old) {
            return Some(format!("{new}{rest}"));
        }
    }
    let (side, rest) = name.split_once('.')?;
    let residual = |rest: &str| {
        let found = (RESIDUAL.iter()).find_map(|(old, new)| Some((new, rest.strip_prefix(old)?)));
        found.map_or_else(|| rest.to_string(), |(new, rest)| format!("{new}{rest}"))
    };
    if let Some((new, rest)) =
        (PARTS.iter()).find_map(|(old, new)| Some((new, rest.strip_prefix(old)?)))
    {
        return Some(format!("{side}.{new}{}", residual(rest)));
    }
    let (list, rest) = rest.split_once('.')?;
    let (first, rest) = rest.split_once('.')?;
    let first: usize = first.parse().ok()?;
    // A list of blocks with a list of layers each, or one list of all layers.
    let inner = rest
        .strip_prefix(list)
        .and_then(|rest| rest.strip_prefix('.'));
    let place = match (side, inner) {
        ("encoder", None) => {
            return Some(format!("encoder.down_blocks.{first}.{}", residual(rest)))
        }
        ("decoder", None) => {
            // A residual layer more than when encoding, and the one that makes the picture larger.
            let each = config.num_res_blocks + 2;
            (first / each, first % each, rest)
        }
        (_, Some(inner)) => {
            let (layer, rest) = inner.split_once('.')?;
            (first, layer.parse().ok()?, rest)
        }
        _ => return None,
    };
    let (block, layer, rest) = place;
    let (blocks, count, last) = match (side, config.is_residual) {
        ("encoder", _) => ("down_blocks", config.num_res_blocks, "downsampler"),
        (_, true) => ("up_blocks", config.num_res_blocks + 1, "upsampler"),
        (_, false) => ("up_blocks", config.num_res_blocks + 1, "upsamplers.0"),
    };
    Some(match layer < count {
        true => format!("{side}.{blocks}.{block}.resnets.{layer}.{}", residual(rest)),
        false => format!("{side}.{blocks}.{block}.{last}.{rest}"),
    })
}
