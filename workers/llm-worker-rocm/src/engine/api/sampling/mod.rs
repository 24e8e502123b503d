//! How tokens are chosen.

mod samplers;

pub use samplers::{Aim, Dry, DynamicTemperature, MirostatVersion, Sampler, SamplerOrder, Xtc};

use super::failure::Failure;
use std::collections::HashMap;

/// How to choose the next token. Bias and constraint come first, then the samplers in their [order](SamplerOrder), then
/// the [aim](Aim). A temperature of 0 takes the most likely token behind bias, constraint and penalties.
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
    /// Makes tokens less likely that would go on with a repetition.
    pub dry: Option<Dry>,
    /// Only tokens whose logit is at most so many standard deviations below the largest ("Top-nσ", Tang et al., 2024).
    pub top_n_sigma: Option<f32>,
    /// Leaves likely tokens out now and then.
    pub xtc: Option<Xtc>,
    /// A temperature by how sure the model is.
    pub dynamic_temperature: Option<DynamicTemperature>,
    /// What is aimed at from token to token.
    pub aim: Option<Aim>,
    /// The order of all of these.
    pub order: SamplerOrder,
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
            dry: None,
            top_n_sigma: None,
            xtc: None,
            dynamic_temperature: None,
            aim: None,
            order: SamplerOrder::default(),
            logit_bias: HashMap::new(),
            seed: 0,
        }
    }

    /// With the samplers in this order, and without those that it lacks.
    pub fn in_order(mut self, order: SamplerOrder) -> Self {
        let plain = Self::greedy();
        let absent = Sampler::ALL
            .into_iter()
            .filter(|s| !order.samplers().contains(s));
        for sampler in absent {
            match sampler {
                Sampler::Penalties => {
                    self.repeat_penalty = plain.repeat_penalty;
                    self.frequency_penalty = plain.frequency_penalty;
                    self.presence_penalty = plain.presence_penalty;
                }
                Sampler::Dry => self.dry = None,
                Sampler::TopNSigma => self.top_n_sigma = None,
                Sampler::Temperature => {
                    self.temperature = 1.0;
                    self.dynamic_temperature = None;
                }
                Sampler::TopK => self.top_k = None,
                Sampler::TypicalP => self.typical_p = None,
                Sampler::TopP => self.top_p = None,
                Sampler::MinP => self.min_p = None,
                Sampler::Xtc => self.xtc = None,
            }
        }
        self.order = order;
        self
    }

    /// Whether there are repeat, frequency or presence penalties.
    pub fn has_penalties(&self) -> bool {
        self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Whether a sampler changes anything.
    pub fn uses(&self, sampler: Sampler) -> bool {
        match sampler {
            Sampler::Penalties => self.has_penalties(),
            Sampler::Dry => self.dry.is_some(),
            Sampler::TopNSigma => self.top_n_sigma.is_some(),
            Sampler::Temperature => self.temperature != 1.0 || self.dynamic_temperature.is_some(),
            Sampler::TopK => self.top_k.is_some(),
            Sampler::TypicalP => self.typical_p.is_some_and(|p| p < 1.0),
            Sampler::TopP => self.top_p.is_some_and(|p| p < 1.0),
            Sampler::MinP => self.min_p.is_some_and(|p| p > 0.0),
            Sampler::Xtc => self.xtc.is_some(),
        }
    }

    /// Whether the samplers that change anything are in the usual order.
    pub fn is_usual_order(&self) -> bool {
        let used = self.order.samplers().iter().filter(|s| self.uses(**s));
        used.is_sorted()
    }

    /// Whether the choice depends on nothing but logits, seed and position, and is made as devices make it.
    pub(in crate::engine) fn takes_only_logits(&self) -> bool {
        self.logit_bias.is_empty()
            && self.dry.is_none()
            && !self.has_penalties()
            && self.aim.is_none()
            && self.is_usual_order()
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
        self.validate_samplers(check)?;
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan()) {
            Some((token, bias)) => Err(Failure::Invalid(format!(
                "logit bias {bias} of token {token} is not a number"
            ))),
            None => Ok(()),
        }
    }

    fn validate_samplers(
        &self,
        check: impl Fn(bool, String) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let Some(n) = self.top_n_sigma {
            let reason = format!("top-n-sigma {n} is not above 0");
            check(n.is_finite() && n > 0.0, reason)?;
        }
        if let Some(Xtc {
            probability,
            threshold,
        }) = self.xtc
        {
            let reason = format!("XTC probability {probability} is not above 0 and up to 1");
            check(probability > 0.0 && probability <= 1.0, reason)?;
            let reason = format!("XTC threshold {threshold} is not from 0 to 1");
            check((0.0..=1.0).contains(&threshold), reason)?;
        }
        if let Some(dry) = &self.dry {
            let reason = format!("DRY multiplier {} is not above 0", dry.multiplier);
            check(dry.multiplier.is_finite() && dry.multiplier > 0.0, reason)?;
            let reason = format!("DRY base {} is not a number from 1", dry.base);
            check(dry.base.is_finite() && dry.base >= 1.0, reason)?;
            let (most, longest) = Dry::MOST_BREAKERS;
            let fit = |text: &String| !text.is_empty() && text.len() <= longest;
            let reason = format!("at most {most} DRY sequence breakers of 1 to {longest} bytes");
            check(
                dry.breakers.len() <= most && dry.breakers.iter().all(fit),
                reason,
            )?;
        }
        if let Some(DynamicTemperature { range, exponent }) = self.dynamic_temperature {
            let reason = format!("dynamic temperature range {range} is not above 0");
            check(range.is_finite() && range > 0.0, reason)?;
            let reason = format!("dynamic temperature exponent {exponent} is not from 0");
            check(exponent.is_finite() && exponent >= 0.0, reason)?;
        }
        match self.aim {
            Some(Aim::Mirostat { tau, eta, .. }) => {
                let reason = format!("mirostat tau {tau} is not a number from 0");
                check(tau.is_finite() && tau >= 0.0, reason)?;
                let reason = format!("mirostat eta {eta} is not a number from 0");
                check(eta.is_finite() && eta >= 0.0, reason)
            }
            Some(Aim::AdaptiveP { target, decay }) => {
                let reason = format!("adaptive-p target {target} is not from 0 to 1");
                check((0.0..=1.0).contains(&target), reason)?;
                let reason = format!("adaptive-p decay {decay} is not from 0 to 0.99");
                check((0.0..=0.99).contains(&decay), reason)
            }
            None => Ok(()),
        }
    }
}
