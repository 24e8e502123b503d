//! Finer settings of sampling: one set of fields for requests, the command line and `/v1/jobs`.

use super::guidance_tuning::GuidanceTuning;
use super::limits::InvalidRequest;
use super::seamless::Seamless;
use super::step_cache::StepCache;
use crate::rng::RngKind;
use crate::sampling::{Churn, LevelOptions, Listed};
use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Most levels that a request may list.
const MAX_LISTED: usize = 1000;
/// Exponents of schedules.
const RHO: RangeInclusive<f64> = 0.1..=100.0;
/// Noise over image.
const SIGMA: RangeInclusive<f64> = 1e-4..=1e4;
/// Parameters of the beta distribution.
const BETA: RangeInclusive<f64> = 0.05..=20.0;
/// Growth of the noise over a run.
const CHURN: RangeInclusive<f64> = 0.0..=1000.0;
/// Strength of fresh noise.
const NOISE: RangeInclusive<f64> = 0.0..=2.0;

/// What a picture's text calls [`Tuning::brownian_noise`].
pub(crate) const BROWNIAN_NOISE: &str = "Brownian noise";

/// Finer settings of sampling; what is left out is the sampler's and the schedule's own.
#[derive(Debug, Clone, Default, PartialEq, Args, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Tuning {
    /// Exponent of the Karras (7) or polyexponential (1) schedule.
    #[arg(long, value_name = "X")]
    pub schedule_rho: Option<f64>,

    /// Least noise over image (for flow models sigma) of schedules that are spread between two ends.
    #[arg(long, value_name = "X")]
    pub schedule_min_sigma: Option<f64>,

    /// Most noise over image (for flow models sigma) of such schedules.
    #[arg(long, value_name = "X")]
    pub schedule_max_sigma: Option<f64>,

    /// First parameter of the beta schedule, 0.6 unless given.
    #[arg(long, value_name = "X")]
    pub schedule_alpha: Option<f64>,

    /// Second parameter of the beta schedule, 0.6 unless given.
    #[arg(long, value_name = "X")]
    pub schedule_beta: Option<f64>,

    /// The noise levels themselves instead of a schedule: noise over image (for flow models sigma), falling.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "X,..",
        conflicts_with = "timesteps"
    )]
    pub sigmas: Vec<f64>,

    /// The time steps themselves instead of a schedule, falling.
    #[arg(long, value_delimiter = ',', value_name = "X,..")]
    pub timesteps: Vec<f64>,

    /// Noise added before the steps of Euler, Heun, Heun++ and DPM2, for the whole run; 0 is none.
    #[arg(long, value_name = "X")]
    pub s_churn: Option<f64>,

    /// Least noise over image at which such noise is added.
    #[arg(long, value_name = "X")]
    pub s_tmin: Option<f64>,

    /// Most noise over image at which such noise is added.
    #[arg(long, value_name = "X")]
    pub s_tmax: Option<f64>,

    /// Strength of all fresh noise, also of ancestral and SDE samplers; 1 unless given.
    #[arg(long, value_name = "X")]
    pub s_noise: Option<f64>,

    /// Noise of DPM++ SDE, 2M SDE and 3M SDE from a Brownian motion, so that a seed's picture hardly depends on the number of
    /// steps, as web UIs and ComfyUI have it, or, if false, drawn anew for each step, as diffusers has it. Left out, it is as
    /// with the random numbers: philox true, torch-cpu false.
    #[arg(long, value_name = "true|false")]
    pub brownian_noise: Option<bool>,

    /// Take over work of the steps before: deepcache[:STEPS] for UNets, fbcache[:THRESHOLD] or teacache[:THRESHOLD] for
    /// FLUX.1. Faster, and another picture.
    #[arg(long, value_name = "KIND[:X]")]
    pub step_cache: Option<StepCache>,

    /// Whether pictures can be laid side by side.
    #[command(flatten)]
    #[serde(flatten)]
    pub seamless: Seamless,

    /// Finer settings of guidance.
    #[command(flatten)]
    #[serde(flatten)]
    pub guidance: GuidanceTuning,
}

impl Tuning {
    /// Settings of the schedule; `xl` for Stable Diffusion XL.
    pub fn levels(&self, xl: bool) -> LevelOptions {
        let beta = self.schedule_alpha.or(self.schedule_beta);
        LevelOptions {
            rho: self.schedule_rho,
            smallest: self.schedule_min_sigma,
            largest: self.schedule_max_sigma,
            beta: beta.map(|_| {
                (
                    self.schedule_alpha.unwrap_or(0.6),
                    self.schedule_beta.unwrap_or(0.6),
                )
            }),
            xl,
            listed: self.listed(),
        }
    }

    /// Whether noise of SDE samplers comes of a Brownian motion.
    pub fn goes_along(&self, rng: RngKind) -> bool {
        self.brownian_noise.unwrap_or(rng == RngKind::Philox)
    }

    /// Noise before steps.
    pub fn churn(&self) -> Churn {
        Churn {
            amount: self.s_churn.unwrap_or(Churn::NONE.amount),
            from: self.s_tmin.unwrap_or(Churn::NONE.from),
            to: self.s_tmax.unwrap_or(Churn::NONE.to),
            strength: self.s_noise.unwrap_or(Churn::NONE.strength),
        }
    }

    /// Steps that listed levels make; `None` where none are listed.
    pub fn steps(&self) -> Option<usize> {
        self.listed().map(|listed| listed.steps())
    }

    fn listed(&self) -> Option<Listed> {
        match (self.sigmas.as_slice(), self.timesteps.as_slice()) {
            ([], []) => None,
            ([], timesteps) => Some(Listed::Timesteps(timesteps.to_vec())),
            (sigmas, _) => Some(Listed::Sigmas(sigmas.to_vec())),
        }
    }

    /// Checks the settings, whose names in messages are those of the fields.
    ///
    /// # Errors
    /// Names the first field that makes no sense, with what it must be.
    pub fn check(&self, max_guidance: f64) -> Result<(), InvalidRequest> {
        self.guidance.check(max_guidance)?;
        for (field, value, range) in [
            ("schedule_rho", self.schedule_rho, RHO),
            ("schedule_min_sigma", self.schedule_min_sigma, SIGMA),
            ("schedule_max_sigma", self.schedule_max_sigma, SIGMA),
            ("schedule_alpha", self.schedule_alpha, BETA),
            ("schedule_beta", self.schedule_beta, BETA),
            ("s_churn", self.s_churn, CHURN),
            ("s_tmin", self.s_tmin, 0.0..=f64::INFINITY),
            ("s_tmax", self.s_tmax, 0.0..=f64::INFINITY),
            ("s_noise", self.s_noise, NOISE),
        ] {
            if let Some(value) = value {
                super::limits::within(field, field, value, range)?;
            }
        }
        if let (Some(least), Some(most)) = (self.schedule_min_sigma, self.schedule_max_sigma) {
            if least >= most {
                return Err(InvalidRequest::new(
                    "schedule_min_sigma",
                    "schedule_min_sigma must be below schedule_max_sigma",
                ));
            }
        }
        if !self.sigmas.is_empty() && !self.timesteps.is_empty() {
            return Err(InvalidRequest::new(
                "sigmas",
                "either sigmas or timesteps can be listed",
            ));
        }
        for (field, list) in [("sigmas", &self.sigmas), ("timesteps", &self.timesteps)] {
            super::limits::within(field, field, list.len(), 0..=MAX_LISTED)?;
        }
        if let Some(listed) = self.listed() {
            let field = match listed {
                Listed::Sigmas(_) => "sigmas",
                Listed::Timesteps(_) => "timesteps",
            };
            let wrong = |reason| InvalidRequest::new(field, format!("{field}: {reason}"));
            listed.check().map_err(wrong)?;
        }
        Ok(())
    }

    /// Names and values for a picture's parameters text, those that web UIs have under their names.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let numbers = [
            ("Schedule rho", self.schedule_rho),
            ("Schedule min sigma", self.schedule_min_sigma),
            ("Schedule max sigma", self.schedule_max_sigma),
            ("Beta schedule alpha", self.schedule_alpha),
            ("Beta schedule beta", self.schedule_beta),
            ("Sigma churn", self.s_churn),
            ("Sigma tmin", self.s_tmin),
            ("Sigma tmax", self.s_tmax),
            ("Sigma noise", self.s_noise),
        ];
        let mut settings: Vec<_> = numbers
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?.to_string())))
            .collect();
        if let Some(along) = self.brownian_noise {
            let said = if along { "True" } else { "False" };
            settings.push((BROWNIAN_NOISE, said.to_string()));
        }
        settings.extend(self.guidance.settings());
        settings.extend(self.seamless.settings());
        if let Some(cache) = self.step_cache {
            settings.push(("Step cache", cache.to_string()));
        }
        for (name, list) in [("Sigmas", &self.sigmas), ("Time steps", &self.timesteps)] {
            if !list.is_empty() {
                settings.push((name, joined(list)));
            }
        }
        settings
    }
}

fn joined(numbers: &[f64]) -> String {
    let texts: Vec<_> = numbers.iter().map(f64::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let of = |json: &str| serde_json::from_str::<Tuning>(json).unwrap();
        for (json, field) in [
            (r#"{"schedule_rho": 0}"#, "schedule_rho"),
            (r#"{"schedule_beta": -1}"#, "schedule_beta"),
            (
                r#"{"schedule_min_sigma": 2, "schedule_max_sigma": 1}"#,
                "schedule_min_sigma",
            ),
            (r#"{"s_churn": -1}"#, "s_churn"),
            (r#"{"s_noise": 9}"#, "s_noise"),
            (r#"{"sigmas": [1, 2]}"#, "sigmas"),
            (r#"{"sigmas": [0]}"#, "sigmas"),
            (r#"{"sigmas": [1, -1]}"#, "sigmas"),
            (r#"{"timesteps": [5, 5]}"#, "timesteps"),
            (r#"{"timesteps": [5], "sigmas": [1]}"#, "sigmas"),
        ] {
            assert_eq!(of(json).check(30.0).unwrap_err().field, field, "{json}");
        }
        let tuning = of(r#"{"sigmas": [9.5, 1, 0], "s_noise": 1.1, "schedule_alpha": 0.5}"#);
        tuning.check(30.0).unwrap();
        assert_eq!(tuning.steps(), Some(2));
        assert_eq!(tuning.levels(false).beta, Some((0.5, 0.6)));
        let settings = tuning.settings();
        assert!(settings.contains(&("Sigmas", "9.5, 1, 0".to_string())));
        assert!(settings.contains(&("Sigma noise", "1.1".to_string())));
    }
}
