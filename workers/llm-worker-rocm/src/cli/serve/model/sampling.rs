//! Sampling of requests that do not say otherwise.

use crate::engine::SamplingOptions;
use crate::samplers::SamplerSettings;
use clap::Args;
use worker::{Error, Result};

/// Sampling of requests that do not say otherwise.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling of requests that do not say otherwise")]
pub(super) struct SamplingDefaults {
    /// Randomness: 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    temperature: f32,

    /// Choose among the K most likely tokens only; 0 is off.
    #[arg(long, default_value_t = 40, value_name = "K")]
    top_k: usize,

    /// Choose among the most likely tokens that together have probability P; 1 is off.
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    top_p: f32,

    /// Choose among tokens at least this fraction as likely as the most likely one; 0 is off.
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    min_p: f32,

    /// Makes recent tokens less likely: 1 is off, 1.1 is mild.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    repeat_penalty: f32,

    /// The seed, for answers that are the same each time; random for each request if absent.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    #[command(flatten)]
    samplers: SamplerSettings,
}

impl SamplingDefaults {
    pub fn options(&self) -> Result<SamplingOptions> {
        let options = SamplingOptions {
            temperature: self.temperature,
            top_k: Some(self.top_k).filter(|&k| k > 0),
            top_p: Some(self.top_p).filter(|&p| p != 1.0),
            min_p: Some(self.min_p).filter(|&p| p != 0.0),
            repeat_penalty: self.repeat_penalty,
            ..SamplingOptions::greedy()
        };
        self.samplers.applied(options).map_err(Error::Usage)
    }
}
