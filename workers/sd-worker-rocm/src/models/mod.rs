//! The networks, built from their own `config.json`, over candle's operations.
//!
//! Tensor names are those of diffusers and transformers; [`crate::weights`] translates other layouts.

pub mod attention;
pub mod change;
pub mod clip;
pub mod clip_vision;
pub mod codec;
pub mod config;
pub mod controlnet;
pub mod dc_vae;
pub mod faces;
pub mod ip_adapter;
pub mod language;
pub mod layers;
pub mod low_rank;
pub mod ltx_vae;
pub mod norm;
mod pieces;
pub mod preprocess;
pub mod processor;
pub mod rotation;
pub mod siglip;
pub mod t2i_adapter;
pub mod t5;
pub mod taesd;
pub mod time;
pub mod transformer;
pub mod unet;
pub mod upscale;
pub mod vae;
mod var_builder;
pub mod wan_vae;
pub mod wrap;

pub use var_builder::VarBuilder;
