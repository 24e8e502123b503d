//! Settings of further samplers, as command lines and requests give them: llama.cpp's names and numbers.

use crate::engine::api::{
    Aim, Dry, DynamicTemperature, MirostatVersion, SamplerOrder, SamplingOptions, Xtc,
};
use clap::Args;

/// What is given, each by itself; what is not is as in the defaults.
#[derive(Debug, Clone, Default, Args)]
pub struct SamplerSettings {
    /// Choose among tokens whose logit is at most N standard deviations below the largest; 0 or less is off.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top_n_sigma: Option<f32>,

    /// How often the most likely tokens are left out, all but the last that reaches --xtc-threshold; 0 is off.
    #[arg(long, value_name = "P")]
    pub xtc_probability: Option<f32>,

    /// The probability that --xtc-probability takes for likely [default: 0.1].
    #[arg(long, value_name = "P")]
    pub xtc_threshold: Option<f32>,

    /// Makes tokens less likely that would go on with a repetition (DRY); 0 is off, 0.8 is usual.
    #[arg(long, value_name = "X")]
    pub dry_multiplier: Option<f32>,

    /// By how much each further token of a repetition counts more [default: 1.75].
    #[arg(long, value_name = "X")]
    pub dry_base: Option<f32>,

    /// Repetitions up to this length are not punished [default: 2].
    #[arg(long, value_name = "N")]
    pub dry_allowed_length: Option<usize>,

    /// How many recent tokens, the prompt's included, DRY looks at; -1 is all, 0 is off [default: -1].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<i64>,

    /// A text that no repetition goes across; can be given several times, "none" for none [default: line feeds, colons,
    /// quotes and asterisks].
    #[arg(long = "dry-sequence-breaker", value_name = "TEXT")]
    pub dry_sequence_breakers: Option<Vec<String>>,

    /// The temperature goes up and down by so much, as the model is less or more sure; 0 is off.
    #[arg(long, value_name = "T")]
    pub dynatemp_range: Option<f32>,

    /// What the share of the largest entropy is raised to for that [default: 1].
    #[arg(long, value_name = "X")]
    pub dynatemp_exponent: Option<f32>,

    /// Mirostat's version, 1 or 2, in place of all samplers but penalties and temperature; 0 is off.
    #[arg(long, value_name = "0|1|2")]
    pub mirostat: Option<u32>,

    /// The surprise in bits that Mirostat aims at [default: 5].
    #[arg(long, value_name = "BITS")]
    pub mirostat_tau: Option<f32>,

    /// How fast Mirostat learns [default: 0.1].
    #[arg(long, value_name = "X")]
    pub mirostat_eta: Option<f32>,

    /// The probability of tokens that is aimed at (adaptive-p); below 0 is off.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub adaptive_target: Option<f32>,

    /// How much earlier tokens count for that, up to 0.99 [default: 0.9].
    #[arg(long, value_name = "P")]
    pub adaptive_decay: Option<f32>,

    /// The order of samplers, by names with semicolons between them; those that are missing are off [default:
    /// penalties;dry;top_n_sigma;temperature;top_k;typ_p;top_p;min_p;xtc].
    #[arg(long = "samplers", value_name = "NAMES")]
    pub order: Option<SamplerOrder>,
}

impl SamplerSettings {
    /// `defaults` with what is given.
    ///
    /// # Errors
    /// A text that names a version of Mirostat that there is not.
    pub fn applied(&self, defaults: SamplingOptions) -> Result<SamplingOptions, String> {
        let mut options = defaults;
        if let Some(n) = self.top_n_sigma {
            options.top_n_sigma = (n > 0.0).then_some(n);
        }
        if self.xtc_probability.is_some() || self.xtc_threshold.is_some() {
            let xtc = options.xtc.unwrap_or(Xtc {
                probability: 0.0,
                threshold: 0.1,
            });
            options.xtc = Some(Xtc {
                probability: self.xtc_probability.unwrap_or(xtc.probability),
                threshold: self.xtc_threshold.unwrap_or(xtc.threshold),
            })
            .filter(|xtc| xtc.probability != 0.0);
        }
        options.dry = self.dry(options.dry);
        if self.dynatemp_range.is_some() || self.dynatemp_exponent.is_some() {
            let dynamic = options.dynamic_temperature.unwrap_or(DynamicTemperature {
                range: 0.0,
                exponent: 1.0,
            });
            options.dynamic_temperature = Some(DynamicTemperature {
                range: self.dynatemp_range.unwrap_or(dynamic.range),
                exponent: self.dynatemp_exponent.unwrap_or(dynamic.exponent),
            })
            .filter(|dynamic| dynamic.range != 0.0);
        }
        options.aim = self.aim(options.aim)?;
        Ok(match &self.order {
            Some(order) => options.in_order(order.clone()),
            None => options,
        })
    }

    fn dry(&self, default: Option<Dry>) -> Option<Dry> {
        let mut dry = default.unwrap_or_else(|| Dry::new(0.0));
        if let Some(multiplier) = self.dry_multiplier {
            dry.multiplier = multiplier;
        }
        if let Some(base) = self.dry_base {
            dry.base = base;
        }
        if let Some(length) = self.dry_allowed_length {
            dry.allowed_length = length;
        }
        if let Some(n) = self.dry_penalty_last_n {
            dry.last_n = usize::try_from(n).unwrap_or(usize::MAX);
        }
        if let Some(texts) = &self.dry_sequence_breakers {
            dry.breakers = match &texts[..] {
                [none] if none == "none" => [].into(),
                texts => texts.into(),
            };
        }
        // A base below 1 is llama.cpp's other way to say that it is off.
        let is_off = dry.multiplier == 0.0 || dry.last_n == 0 || dry.base < 1.0;
        (!is_off).then_some(dry)
    }

    fn aim(&self, default: Option<Aim>) -> Result<Option<Aim>, String> {
        let adaptive = match self.adaptive_target {
            Some(target) if target >= 0.0 => Some(Aim::AdaptiveP {
                target,
                decay: self.adaptive_decay.unwrap_or(0.9),
            }),
            Some(_) => None,
            None => default,
        };
        let version = match self.mirostat {
            Some(0) => return Ok(adaptive.filter(|aim| matches!(aim, Aim::AdaptiveP { .. }))),
            Some(1) => MirostatVersion::V1,
            Some(2) => MirostatVersion::V2,
            Some(other) => return Err(format!("mirostat {other} is not 0, 1 or 2")),
            None => match adaptive {
                Some(Aim::Mirostat { version, .. }) => version,
                other => return Ok(other),
            },
        };
        let (tau, eta) = match default {
            Some(Aim::Mirostat { tau, eta, .. }) => (tau, eta),
            _ => (5.0, 0.1),
        };
        Ok(Some(Aim::Mirostat {
            version,
            tau: self.mirostat_tau.unwrap_or(tau),
            eta: self.mirostat_eta.unwrap_or(eta),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(settings: SamplerSettings) -> SamplingOptions {
        settings.applied(SamplingOptions::greedy()).unwrap()
    }

    #[test]
    fn nothing_given_changes_nothing() {
        let plain = SamplingOptions::greedy();
        assert_eq!(applied(SamplerSettings::default()), plain);
        let off = SamplerSettings {
            top_n_sigma: Some(-1.0),
            xtc_probability: Some(0.0),
            xtc_threshold: Some(0.2),
            dry_multiplier: Some(0.0),
            dry_base: Some(3.0),
            dynatemp_range: Some(0.0),
            mirostat: Some(0),
            mirostat_tau: Some(3.0),
            adaptive_target: Some(-1.0),
            ..SamplerSettings::default()
        };
        assert_eq!(applied(off), plain);
    }

    #[test]
    fn each_setting_stands_for_itself() {
        let given = applied(SamplerSettings {
            top_n_sigma: Some(1.5),
            xtc_probability: Some(0.5),
            dry_multiplier: Some(0.8),
            dry_penalty_last_n: Some(-1),
            dry_sequence_breakers: Some(vec!["none".to_string()]),
            dynatemp_range: Some(0.3),
            mirostat: Some(2),
            mirostat_eta: Some(0.2),
            ..SamplerSettings::default()
        });
        given.validate().unwrap();
        assert_eq!(given.top_n_sigma, Some(1.5));
        let dry = given.dry.clone().unwrap();
        assert_eq!(
            (dry.multiplier, dry.base, dry.allowed_length),
            (0.8, 1.75, 2)
        );
        assert_eq!((dry.last_n, dry.breakers.len()), (usize::MAX, 0));
        let aim = Aim::Mirostat {
            version: MirostatVersion::V2,
            tau: 5.0,
            eta: 0.2,
        };
        assert_eq!(given.aim, Some(aim));
        // Behind defaults, a request changes what it names.
        let next = SamplerSettings {
            xtc_threshold: Some(0.3),
            adaptive_target: Some(0.4),
            dry_base: Some(0.5),
            mirostat: Some(0),
            order: Some("top_p;xtc".parse().unwrap()),
            ..SamplerSettings::default()
        };
        let next = next.applied(given).unwrap();
        let xtc = Xtc {
            probability: 0.5,
            threshold: 0.3,
        };
        assert_eq!(
            (next.xtc, next.dry, next.top_n_sigma),
            (Some(xtc), None, None)
        );
        let aim = Aim::AdaptiveP {
            target: 0.4,
            decay: 0.9,
        };
        assert_eq!((next.aim, next.dynamic_temperature), (Some(aim), None));
        let third = SamplerSettings {
            mirostat: Some(3),
            ..SamplerSettings::default()
        };
        assert!(third.applied(SamplingOptions::greedy()).is_err());
    }
}
