//! From logits to the next token.

use candle_core::Tensor;
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::utils::apply_repeat_penalty;
use worker::{Error, Result};

/// How to choose the next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingOptions {
    /// 0 takes the most likely token; higher is more varied.
    pub temperature: f64,
    /// Only the `k` most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together reach this probability.
    pub top_p: Option<f64>,
    /// Divides the logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalty looks at.
    pub repeat_last_n: usize,
    /// Start of the random sequence: the same seed on the same device gives the same answer.
    pub seed: u64,
}

impl SamplingOptions {
    /// The most likely token at every step.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }

    fn validate(&self) -> Result<()> {
        let check = |ok: bool, text: String| if ok { Ok(()) } else { Err(Error::Usage(text)) };
        check(
            self.temperature.is_finite() && self.temperature >= 0.0,
            format!("temperature {} is not a number from 0", self.temperature),
        )?;
        check(
            self.top_p.is_none_or(|p| p > 0.0 && p <= 1.0),
            format!("top-p {:?} is not above 0 and up to 1", self.top_p),
        )?;
        check(
            self.top_k != Some(0),
            "top-k 0 leaves no token; leave it out for all".to_string(),
        )?;
        check(
            self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0,
            format!("repeat penalty {} is not above 0", self.repeat_penalty),
        )
    }
}

/// Chooses tokens by [`SamplingOptions`].
pub struct Sampler {
    processor: LogitsProcessor,
    options: SamplingOptions,
}

impl Sampler {
    /// A sampler at the start of its random sequence.
    ///
    /// # Errors
    /// [`Error::Usage`] for an option outside of its range.
    pub fn new(options: SamplingOptions) -> Result<Self> {
        options.validate()?;
        let temperature = options.temperature;
        let sampling = match (options.top_k, options.top_p) {
            _ if temperature == 0.0 => Sampling::ArgMax,
            (None, None) => Sampling::All { temperature },
            (Some(k), None) => Sampling::TopK { k, temperature },
            (None, Some(p)) => Sampling::TopP { p, temperature },
            (Some(k), Some(p)) => Sampling::TopKThenTopP { k, p, temperature },
        };
        Ok(Self {
            processor: LogitsProcessor::from_sampling(options.seed, sampling),
            options,
        })
    }

    /// The next token after `history`, given its logits of shape `(vocabulary,)`.
    ///
    /// # Errors
    /// [`Error::Candle`] if the device fails or the logits are no probabilities.
    pub fn sample(&mut self, logits: &Tensor, history: &[u32]) -> Result<u32> {
        let penalty = self.options.repeat_penalty;
        let recent = &history[history.len().saturating_sub(self.options.repeat_last_n)..];
        let penalized = if penalty == 1.0 || recent.is_empty() {
            Ok(logits.clone())
        } else {
            apply_repeat_penalty(logits, penalty, recent)
        };
        penalized
            .and_then(|logits| self.processor.sample(&logits))
            .map_err(Error::candle("sampling the next token"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn logits(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    #[test]
    fn greedy_takes_the_largest_and_the_penalty_changes_which() {
        let logits = logits(&[1.0, 3.0, 2.9]);
        let mut greedy = Sampler::new(SamplingOptions::greedy()).unwrap();
        assert_eq!(greedy.sample(&logits, &[1]).unwrap(), 1);
        let mut penalized = Sampler::new(SamplingOptions {
            repeat_penalty: 1.2,
            ..SamplingOptions::greedy()
        })
        .unwrap();
        assert_eq!(penalized.sample(&logits, &[1]).unwrap(), 2);
    }

    #[test]
    fn a_seed_repeats_its_sequence_and_top_k_bounds_it() {
        let logits = logits(&[1.0, 1.1, 0.9, -8.0, 1.0]);
        let draw = |seed| -> Vec<u32> {
            let mut sampler = Sampler::new(SamplingOptions {
                temperature: 1.0,
                top_k: Some(3),
                seed,
                ..SamplingOptions::greedy()
            })
            .unwrap();
            (0..64)
                .map(|_| sampler.sample(&logits, &[]).unwrap())
                .collect()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(3).iter().all(|t| [0, 1, 4].contains(t)));
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let greedy = SamplingOptions::greedy();
        for bad in [
            SamplingOptions {
                temperature: -1.0,
                ..greedy
            },
            SamplingOptions {
                temperature: f64::NAN,
                ..greedy
            },
            SamplingOptions {
                top_p: Some(0.0),
                ..greedy
            },
            SamplingOptions {
                top_p: Some(1.5),
                ..greedy
            },
            SamplingOptions {
                top_k: Some(0),
                ..greedy
            },
            SamplingOptions {
                repeat_penalty: 0.0,
                ..greedy
            },
        ] {
            assert!(Sampler::new(bad).is_err(), "{bad:?}");
        }
    }
}
