//! Autoencoders of LTX-Video under the original's names, in files of models and of their own.

use super::Weights;
use crate::models::ltx_vae::config::Smaller;
use crate::models::ltx_vae::LtxVaeConfig;

/// The original's parts of names, and diffusers'.
const PARTS: [(&str, &str); 6] = [
    ("conv_shortcut.", "conv_shortcut.conv."),
    ("res_blocks.", "resnets."),
    ("norm3.norm.", "norm3."),
    ("last_time_embedder.", "time_embedder."),
    ("last_scale_shift_table", "scale_shift_table"),
    ("conv_shortcut.conv.conv.", "conv_shortcut.conv."),
];

/// The three kinds that there have been. Each names a list of layers for all blocks; these are what it stands for.
struct Kind {
    down: &'static [&'static str],
    up: &'static [&'static str],
    config: fn() -> LtxVaeConfig,
}

const FIRST: Kind = Kind {
    down: &[
        "down_blocks.0",
        "down_blocks.0.downsamplers.0",
        "down_blocks.0.conv_out",
        "down_blocks.1",
        "down_blocks.1.downsamplers.0",
        "down_blocks.1.conv_out",
        "down_blocks.2",
        "down_blocks.2.downsamplers.0",
        "down_blocks.3",
        "mid_block",
    ],
    up: &[
        "mid_block",
        "up_blocks.0",
        "up_blocks.1.upsamplers.0",
        "up_blocks.1",
        "up_blocks.2.conv_in",
        "up_blocks.2.upsamplers.0",
        "up_blocks.2",
        "up_blocks.3.conv_in",
        "up_blocks.3.upsamplers.0",
        "up_blocks.3",
    ],
    config: LtxVaeConfig::default,
};

/// The decoder since 0.9.1.
const UP: &[&str] = &[
    "mid_block",
    "up_blocks.0.upsamplers.0",
    "up_blocks.0",
    "up_blocks.1.upsamplers.0",
    "up_blocks.1",
    "up_blocks.2.upsamplers.0",
    "up_blocks.2",
    "up_blocks.3.upsamplers.0",
    "up_blocks.3",
];

const MIDDLE: Kind = Kind {
    up: UP,
    config: || LtxVaeConfig {
        decoder_block_out_channels: vec![256, 512, 1024],
        decoder_layers_per_block: vec![5, 6, 7, 8],
        decoder_spatio_temporal_scaling: vec![true; 3],
        decoder_inject_noise: vec![true, true, true, false],
        upsample_residual: vec![true; 3],
        upsample_factor: vec![2; 3],
        timestep_conditioning: true,
        ..LtxVaeConfig::default()
    },
    ..FIRST
};

const NEWER: Kind = Kind {
    down: &[
        "down_blocks.0",
        "down_blocks.0.downsamplers.0",
        "down_blocks.1",
        "down_blocks.1.downsamplers.0",
        "down_blocks.2",
        "down_blocks.2.downsamplers.0",
        "down_blocks.3",
        "down_blocks.3.downsamplers.0",
        "mid_block",
    ],
    up: UP,
    config: || LtxVaeConfig {
        block_out_channels: vec![128, 256, 512, 1024, 2048],
        down_block_types: vec!["LTXVideo095DownBlock3D".to_string(); 4],
        layers_per_block: vec![4, 6, 6, 2, 2],
        spatio_temporal_scaling: vec![true; 4],
        downsample_type: vec![
            Smaller::Spatial,
            Smaller::Temporal,
            Smaller::Spatiotemporal,
            Smaller::Spatiotemporal,
        ],
        decoder_block_out_channels: vec![256, 512, 1024],
        decoder_layers_per_block: vec![5, 5, 5, 5],
        decoder_spatio_temporal_scaling: vec![true; 3],
        decoder_inject_noise: vec![false; 4],
        upsample_residual: vec![true; 3],
        upsample_factor: vec![2; 3],
        timestep_conditioning: true,
        ..LtxVaeConfig::default()
    },
};

/// The configuration, and the tensors under diffusers' names; `None` for other files.
pub fn take(file: &Weights) -> Option<(LtxVaeConfig, Weights)> {
    let marked = |name: &str| file.contains(name);
    if !marked("per_channel_statistics.mean-of-means") {
        return None;
    }
    let timed = marked("decoder.last_time_embedder.timestep_embedder.linear_1.weight");
    let newer = marked("encoder.down_blocks.1.conv.conv.weight")
        && !marked("encoder.down_blocks.2.conv1.conv.weight");
    let kind = match (newer, timed) {
        (true, _) => &NEWER,
        (false, true) => &MIDDLE,
        (false, false) => &FIRST,
    };
    let config = config(file, kind)?;
    let weights = file.renamed(|name| modern(name, kind)).expanded();
    Some((config, weights))
}

/// What the tensors tell: widths and numbers of layers; the rest is the kind's.
fn config(file: &Weights, kind: &Kind) -> Option<LtxVaeConfig> {
    let outputs = |name: &str| file.shape(&format!("{name}.conv.weight"))?.first().copied();
    let layers = |side: &str, names: &[&str], of: &str| {
        let at = names.iter().position(|name| *name == of)?;
        let count = (0..64).take_while(|i| {
            file.contains(&format!("{side}.{at}.res_blocks.{i}.conv1.conv.weight"))
        });
        Some(count.count())
    };
    let mut config = (kind.config)();
    config.latent_channels = file.shape("decoder.conv_in.conv.weight")?.get(1).copied()?;
    let pixels = file.shape("decoder.conv_out.conv.weight")?.first()? / 3;
    config.patch_size = pixels.isqrt();
    if file.contains("encoder.conv_in.conv.weight") {
        let blocks = config.down_block_types.len();
        config.block_out_channels[0] = outputs("encoder.conv_in")?;
        for i in 0..=blocks {
            let name = match i < blocks {
                true => format!("down_blocks.{i}"),
                false => "mid_block".to_string(),
            };
            config.layers_per_block[i] = layers("encoder.down_blocks", kind.down, &name)?;
            // The width of a block is that of what follows; newer ones have one more.
            let at = kind.down.iter().position(|of| **of == name)?;
            let width = outputs(&format!("encoder.down_blocks.{at}.res_blocks.0.conv1"));
            if let (Some(slot), Some(width)) = (config.block_out_channels.get_mut(i), width) {
                *slot = width;
            }
        }
    }
    let blocks = config.decoder_block_out_channels.len();
    for i in 0..=blocks {
        // The settings have the last block first.
        let name = match i < blocks {
            true => format!("up_blocks.{}", blocks - 1 - i),
            false => "mid_block".to_string(),
        };
        config.decoder_layers_per_block[i] = layers("decoder.up_blocks", kind.up, &name)?;
        let at = kind.up.iter().position(|of| **of == name)?;
        let layer = format!("decoder.up_blocks.{at}.res_blocks.0");
        config.decoder_inject_noise[i] = file.contains(&format!("{layer}.per_channel_scale1"));
        if let (true, Some(width)) = (i < blocks, outputs(&format!("{layer}.conv1"))) {
            config.decoder_block_out_channels[i] = width * config.upsample_factor[i];
        }
    }
    config.check().ok()?;
    Some(config)
}

/// diffusers' name of a tensor; `None` for what is no part of the network.
fn modern(name: &str, kind: &Kind) -> Option<String> {
    match name.strip_prefix("per_channel_statistics.") {
        Some("mean-of-means") => return Some("latents_mean".to_string()),
        Some("std-of-means") => return Some("latents_std".to_string()),
        Some(_) => return None,
        None => {}
    }
    let mut name = name.to_string();
    for (list, blocks) in [("down_blocks", kind.down), ("up_blocks", kind.up)] {
        let place = name
            .split_once(&format!(".{list}."))
            .and_then(|(side, rest)| {
                let (number, rest) = rest.split_once('.')?;
                let block = blocks.get(number.parse::<usize>().ok()?)?;
                Some(format!("{side}.{block}.{rest}"))
            });
        name = place.unwrap_or(name);
    }
    for (old, new) in PARTS {
        name = name.replace(old, new);
    }
    Some(name)
}
