//! How tokens are chosen.

use super::failure::Failure;
use std::collections::HashMap;

/// How to choose the next token. Applied in this order: bias, penalties, constraint, temperature, top-k, typical,
/// top-p, min-p.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// 0 takes the most likely token; higher is more varied.
    pub temperature: f32,
    /// Only the `k` most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together reach this probability.
    pub top_p: Option<f32>,
    /// Only tokens at least this fraction as likely as the most likely one.
    pub min_p: Option<f32>,
    /// Only the tokens whose surprise is nearest to the expected one and that together reach this probability.
    pub typical_p: Option<f32>,
    /// Divides the positive and multiplies the negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens, the prompt's included, the repeat penalty looks at.
    pub repeat_last_n: usize,
    /// Taken from a token's logit for each time that it was generated; 0 is off.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was generated; 0 is off.
    pub presence_penalty: f32,
    /// Added to logits, by token.
    pub logit_bias: HashMap<u32, f32>,
    /// Start of the random sequence: the same seed gives the same answer, alone or in a batch.
    pub seed: u64,
}

impl SamplingOptions {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: HashMap::new(),
            seed: 0,
        }
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`Failure::Invalid`] with the option's name, its value and its range.
    pub fn validate(&self) -> Result<(), Failure> {
        let fraction = |name: &str, value: Option<f32>| match value {
            Some(p) if !(p > 0.0 && p <= 1.0) => Err(Failure::Invalid(format!(
                "{name} {p} is not above 0 and up to 1"
            ))),
            _ => Ok(()),
        };
        let check = |ok: bool, text: String| ok.then_some(()).ok_or(Failure::Invalid(text));
        let temperature = self.temperature;
        check(
            temperature.is_finite() && temperature >= 0.0,
            format!("temperature {temperature} is not a number from 0"),
        )?;
        check(
            self.top_k != Some(0),
            "top-k 0 leaves no token; leave it out for all".to_string(),
        )?;
        fraction("top-p", self.top_p)?;
        fraction("typical-p", self.typical_p)?;
        if let Some(p) = self.min_p {
            check(
                (0.0..=1.0).contains(&p),
                format!("min-p {p} is not from 0 to 1"),
            )?;
        }
        let penalty = self.repeat_penalty;
        check(
            penalty.is_finite() && penalty > 0.0,
            format!("repeat penalty {penalty} is not above 0"),
        )?;
        for (name, value) in [
            ("frequency penalty", self.frequency_penalty),
            ("presence penalty", self.presence_penalty),
        ] {
            check(value.is_finite(), format!("{name} {value} is not a number"))?;
        }
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan()) {
            Some((token, bias)) => Err(Failure::Invalid(format!(
                "logit bias {bias} of token {token} is not a number"
            ))),
            None => Ok(()),
        }
    }
}
