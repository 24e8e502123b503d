//! How a command chooses tokens.

use crate::engine::api::SamplingOptions;
use crate::samplers::SamplerSettings;
use clap::Args;
use worker::{Error, Result};

/// The arguments that choose the next token.
#[derive(Debug, Clone, Args)]
pub struct SamplingArgs {
    /// Randomness: 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.7, value_name = "T")]
    pub temperature: f32,

    /// The most likely token at every step; the same as --temperature 0.
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "typical_p", "seed"])]
    pub greedy: bool,

    /// Choose among the K most likely tokens only.
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,

    /// Choose among the most likely tokens that together have probability P.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,

    /// Choose among the tokens that are at least P times as likely as the most likely one.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,

    /// Choose among the tokens of typical surprise that together have probability P.
    #[arg(long, value_name = "P")]
    pub typical_p: Option<f32>,

    /// Makes the choice repeatable; random if absent, and told at the end.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Makes recent tokens less likely: 1 is off, 1.1 is mild.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub repeat_penalty: f32,

    /// How many recent tokens, the prompt's included, the repeat penalty looks at.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub repeat_last_n: usize,

    /// Makes tokens less likely the more often they were generated.
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub frequency_penalty: f32,

    /// Makes tokens less likely that were generated at all.
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub presence_penalty: f32,

    #[command(flatten)]
    pub samplers: SamplerSettings,
}

impl SamplingArgs {
    /// What the engine takes; a missing seed is random.
    ///
    /// # Errors
    /// [`Error::Usage`] for settings that there are not.
    pub(super) fn options(&self) -> Result<SamplingOptions> {
        let options = SamplingOptions {
            temperature: if self.greedy { 0.0 } else { self.temperature },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self
                .seed
                .unwrap_or_else(|| worker::ids::seed(worker::ids::JAVASCRIPT_BITS)),
            ..SamplingOptions::greedy()
        };
        self.samplers.applied(options).map_err(Error::Usage)
    }
}
