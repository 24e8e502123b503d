//! T2I-Adapters and what is in front of ControlNets, of single files.

use crate::models::t2i_adapter::{AdapterConfig, Kind};
use crate::weights::Weights;

/// A T2I-Adapter's own file, under the original's names or diffusers', with what its tensors' shapes tell.
pub fn t2i_adapter(weights: &Weights) -> Option<(AdapterConfig, Weights)> {
    let named = weights.contains("adapter.body.0.resnets.0.block1.weight");
    let weights = match named {
        true => weights.clone(),
        false if weights.contains("body.0.body.0.block1.weight") => original_light(weights),
        false if weights.contains("body.0.block1.weight") => original_full(weights)?,
        false => return None,
    };
    let shape = |name: String| weights.shape(&name);
    let blocks = (0..64)
        .take_while(|i| weights.contains(&format!("adapter.body.{i}.resnets.0.block1.weight")))
        .count();
    let layers = (0..64)
        .take_while(|j| weights.contains(&format!("adapter.body.0.resnets.{j}.block1.weight")))
        .count();
    let light = weights.contains("adapter.body.0.out_conv.weight");
    let first = match light {
        true => "adapter.body.0.in_conv.weight",
        false => "adapter.conv_in.weight",
    };
    // Squares of 16 pixels are Stable Diffusion XL's.
    let (in_channels, downscale_factor) = match weights.shape(first)?.get(1)? {
        64 => (1, 8),
        192 => (3, 8),
        256 => (1, 16),
        768 => (3, 16),
        _ => return None,
    };
    let outputs = |i: usize| {
        let name = match light {
            true => format!("adapter.body.{i}.out_conv.weight"),
            false => format!("adapter.body.{i}.resnets.0.block1.weight"),
        };
        shape(name)?.first().copied()
    };
    // The last of the light ones repeats the channels of the one before.
    let count = if light {
        blocks.checked_sub(1)?
    } else {
        blocks
    };
    let config = AdapterConfig {
        in_channels,
        channels: (0..count).map(outputs).collect::<Option<_>>()?,
        num_res_blocks: layers,
        downscale_factor,
        adapter_type: match (light, downscale_factor) {
            (true, _) => Kind::LightAdapter,
            (false, 16) => Kind::FullAdapterXl,
            (false, _) => Kind::FullAdapter,
        },
        ..AdapterConfig::default()
    };
    Some((config, weights))
}

/// Blocks of the original's light adapters are named almost as diffusers'.
fn original_light(weights: &Weights) -> Weights {
    weights.renamed(|name| {
        let (block, rest) = name.strip_prefix("body.")?.split_once('.')?;
        let rest = match rest.strip_prefix("body.") {
            Some(layer) => format!("resnets.{layer}"),
            None => rest.to_string(),
        };
        Some(format!("adapter.body.{block}.{rest}"))
    })
}

/// The original's full adapters count residual layers through; a block begins where channels change or, unseen, the
/// picture is halved.
fn original_full(weights: &Weights) -> Option<Weights> {
    const BLOCKS: usize = 4;
    let layers = (0..256)
        .take_while(|i| weights.contains(&format!("body.{i}.block1.weight")))
        .count();
    if layers == 0 || !layers.is_multiple_of(BLOCKS) {
        return None;
    }
    let each = layers / BLOCKS;
    Some(weights.renamed(|name| {
        let Some(rest) = name.strip_prefix("body.") else {
            return Some(format!("adapter.{name}"));
        };
        let (layer, rest) = rest.split_once('.')?;
        let layer: usize = layer.parse().ok()?;
        let block = format!("adapter.body.{}", layer / each);
        Some(match rest.starts_with("in_conv.") {
            true => format!("{block}.{rest}"),
            false => format!("{block}.resnets.{}.{rest}", layer % each),
        })
    }))
}

/// The channels in front of a ControlNet under diffusers' names, from the picture inwards.
pub fn hint_widths(weights: &Weights) -> Vec<usize> {
    let first = |name: String| weights.shape(&name)?.first().copied();
    let hint = "controlnet_cond_embedding";
    let further = (0..16).map_while(|i| first(format!("{hint}.blocks.{}.weight", 2 * i + 1)));
    first(format!("{hint}.conv_in.weight"))
        .into_iter()
        .chain(further)
        .collect()
}
