//! Single-file checkpoints of Stable Diffusion 1, 2 and XL: which model it is, and diffusers' names for its parts.
//!
//! Such a file has no configuration. What the shapes of its tensors tell is taken from them; the rest is what these
//! families have in common (32 groups in norms, 8 heads in version 1 and heads of 64 channels after it).
//!
//! | Module    | Gives                                                                                |
//! |-----------|--------------------------------------------------------------------------------------|
//! | `adapter` | T2I-Adapters, and what is in front of ControlNets                                    |
//! | `text`    | text towers                                                                          |
//! | `unet`    | denoisers and ControlNets                                                            |
//! | `vae`     | autoencoders                                                                         |

mod adapter;
mod text;
mod unet;
mod vae;

pub use adapter::{hint_widths, t2i_adapter};
pub use text::{clip_config, Tower};
pub use unet::{controlnet, unet_name};
pub use vae::{codec, modern_vae_names, vae};

use super::Weights;
use crate::info::Family;
use crate::models::config::PerBlock;
use crate::models::unet::config::UNetConfig;
use crate::models::vae::VaeConfig;
use text::towers;
use unet::{looks_like_velocity, text_width, unet_config};

const UNET: &str = "model.diffusion_model.";

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
