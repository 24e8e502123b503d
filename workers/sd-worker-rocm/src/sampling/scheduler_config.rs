//! diffusers' `scheduler_config.json`.

use super::betas::{cumulative, linspace, rescale_zero_snr, scaled_linear, squared_cosine};
use super::noise_schedule::{Process, Shift, Spacing};
use super::{NoiseSchedule, Prediction, Sampler};
use serde::Deserialize;
use worker::{Error, Result};

/// Most training steps that a configuration may ask for; real ones have 1000.
pub const MAX_TRAIN_STEPS: usize = 100_000;

/// `scheduler_config.json`, as far as it says how the model was trained.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Config {
    _class_name: String,
    num_train_timesteps: usize,
    beta_start: f64,
    beta_end: f64,
    beta_schedule: String,
    trained_betas: Option<Vec<f64>>,
    prediction_type: String,
    timestep_spacing: Option<Spacing>,
    steps_offset: usize,
    set_alpha_to_one: bool,
    rescale_betas_zero_snr: bool,
    algorithm_type: Option<String>,
    shift: f64,
    use_dynamic_shifting: bool,
    base_shift: Option<f64>,
    max_shift: Option<f64>,
    base_image_seq_len: Option<f64>,
    max_image_seq_len: Option<f64>,
    time_shift_type: Option<String>,
    shift_terminal: Option<f64>,
    invert_sigmas: bool,
}

impl Default for Config {
    /// diffusers' own values, but for the betas, which are Stable Diffusion's.
    fn default() -> Self {
        Self {
            _class_name: String::new(),
            num_train_timesteps: 1000,
            beta_start: 0.00085,
            beta_end: 0.012,
            beta_schedule: "scaled_linear".to_string(),
            trained_betas: None,
            prediction_type: "epsilon".to_string(),
            timestep_spacing: None,
            steps_offset: 0,
            set_alpha_to_one: true,
            rescale_betas_zero_snr: false,
            algorithm_type: None,
            shift: 1.0,
            use_dynamic_shifting: false,
            base_shift: None,
            max_shift: None,
            base_image_seq_len: None,
            max_image_seq_len: None,
            time_shift_type: None,
            shift_terminal: None,
            invert_sigmas: false,
        }
    }
}

impl NoiseSchedule {
    /// The schedule that a `scheduler_config.json` describes.
    ///
    /// # Errors
    /// [`Error::Usage`] for text that is not JSON, values out of range, and kinds of schedules that are not
    /// implemented.
    pub fn from_config(json: &str) -> Result<Self> {
        let config: Config = serde_json::from_str(json)
            .map_err(|e| Error::Usage(format!("scheduler_config.json: {e}")))?;
        config.schedule()
    }
}

impl Config {
    fn schedule(self) -> Result<NoiseSchedule> {
        let out_of_range =
            |what: &str| Error::Usage(format!("scheduler_config.json: {what} is out of range"));
        if !(1..=MAX_TRAIN_STEPS).contains(&self.num_train_timesteps) {
            return Err(out_of_range("num_train_timesteps"));
        }
        if self._class_name.starts_with("FlowMatch") || self.prediction_type == "flow_prediction" {
            return self.flow();
        }
        let prediction = match self.prediction_type.as_str() {
            "epsilon" => Prediction::Epsilon,
            "v_prediction" => Prediction::Velocity,
            "sample" => Prediction::Sample,
            other => {
                return Err(Error::Usage(format!(
                    "scheduler_config.json: prediction_type {other:?} is not supported; there are epsilon, v_prediction, sample and flow_prediction"
                )))
            }
        };
        let spacing = self.spacing();
        let betas = match self.trained_betas {
            Some(betas) if betas.is_empty() || betas.len() > MAX_TRAIN_STEPS => {
                return Err(out_of_range("trained_betas"))
            }
            Some(betas) => betas,
            None => match self.beta_schedule.as_str() {
                "linear" => linspace(self.beta_start, self.beta_end, self.num_train_timesteps),
                "scaled_linear" => {
                    scaled_linear(self.beta_start, self.beta_end, self.num_train_timesteps)
                }
                "squaredcos_cap_v2" => squared_cosine(self.num_train_timesteps),
                other => {
                    return Err(Error::Usage(format!(
                    "scheduler_config.json: beta_schedule {other:?} is not supported; there are linear, scaled_linear and squaredcos_cap_v2"
                )))
                }
            },
        };
        if !betas.iter().all(|b| *b > 0.0 && *b < 1.0) {
            return Err(out_of_range("a beta"));
        }
        let mut alphas_cumprod = cumulative(&betas);
        if self.rescale_betas_zero_snr {
            rescale_zero_snr(&mut alphas_cumprod);
        }
        Ok(NoiseSchedule {
            process: Process::VariancePreserving { alphas_cumprod },
            spacing,
            steps_offset: self.steps_offset,
            final_alpha_one: self.set_alpha_to_one,
            prediction,
            sampler: sampler_of(&self._class_name, self.algorithm_type.as_deref()),
        })
    }

    /// What is configured, or else the class's own.
    fn spacing(&self) -> Spacing {
        const LINSPACE: [&str; 4] = ["Euler", "Heun", "DPMSolver", "UniPC"];
        let own = LINSPACE.iter().any(|c| self._class_name.starts_with(c));
        self.timestep_spacing.unwrap_or(match own {
            true => Spacing::Linspace,
            false => Spacing::Leading,
        })
    }

    fn flow(self) -> Result<NoiseSchedule> {
        let kind = self.time_shift_type.as_deref().unwrap_or("exponential");
        let missing = match kind {
            "exponential" if self.shift_terminal.is_some() => Some("shift_terminal"),
            "exponential" if self.invert_sigmas => Some("invert_sigmas"),
            "exponential" => None,
            _ => Some("time_shift_type other than exponential"),
        };
        if let Some(missing) = missing {
            return Err(Error::Usage(format!(
                "scheduler_config.json: {missing} is not supported"
            )));
        }
        let shift = if self.use_dynamic_shifting {
            Shift::Dynamic {
                base: self.base_shift.unwrap_or(0.5),
                max: self.max_shift.unwrap_or(1.15),
                base_tokens: self.base_image_seq_len.unwrap_or(256.0),
                max_tokens: self.max_image_seq_len.unwrap_or(4096.0),
            }
        } else {
            Shift::Fixed(self.shift)
        };
        let sound = match shift {
            Shift::Fixed(s) => s.is_finite() && s > 0.0,
            Shift::Dynamic {
                base,
                max,
                base_tokens,
                max_tokens,
            } => {
                base.abs() < 20.0
                    && max.abs() < 20.0
                    && base_tokens.is_finite()
                    && max_tokens.is_finite()
                    && base_tokens != max_tokens
            }
        };
        if !sound {
            return Err(Error::Usage(
                "scheduler_config.json: the shift is out of range".to_string(),
            ));
        }
        let mut schedule = NoiseSchedule::flow(shift);
        schedule.process = Process::Flow {
            train_steps: self.num_train_timesteps,
            shift,
        };
        Ok(schedule)
    }
}

fn sampler_of(class: &str, algorithm: Option<&str>) -> Option<Sampler> {
    Some(match class {
        "DDIMScheduler" => Sampler::Ddim,
        "EulerDiscreteScheduler" => Sampler::Euler,
        "EulerAncestralDiscreteScheduler" => Sampler::EulerAncestral,
        "HeunDiscreteScheduler" => Sampler::Heun,
        "DPMSolverMultistepScheduler" => match algorithm {
            Some("sde-dpmsolver++") => Sampler::DpmPlusPlus2MSde,
            _ => Sampler::DpmPlusPlus2M,
        },
        "DPMSolverSDEScheduler" => Sampler::DpmPlusPlusSde,
        "UniPCMultistepScheduler" => Sampler::UniPc,
        "LCMScheduler" => Sampler::Lcm,
        "TCDScheduler" => Sampler::Tcd,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_configurations_are_refused() {
        for json in [
            "",
            r#"{"num_train_timesteps": 0}"#,
            r#"{"num_train_timesteps": 4000000000}"#,
            r#"{"num_train_timesteps": -1}"#,
            r#"{"beta_start": 2.0}"#,
            r#"{"beta_end": 1e400}"#,
            r#"{"trained_betas": []}"#,
            r#"{"trained_betas": [0.1, 1.5]}"#,
            r#"{"beta_schedule": "exponential"}"#,
            r#"{"prediction_type": "colour"}"#,
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 0}"#,
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift_terminal": 0.02}"#,
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "time_shift_type": "linear"}"#,
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true, "max_shift": 1e9}"#,
        ] {
            assert!(NoiseSchedule::from_config(json).is_err(), "{json}");
        }
    }

    #[test]
    fn the_sampler_is_named_by_the_configuration() {
        let of = |json| NoiseSchedule::from_config(json).unwrap().sampler;
        assert_eq!(
            of(r#"{"_class_name": "EulerAncestralDiscreteScheduler"}"#),
            Some(Sampler::EulerAncestral)
        );
        assert_eq!(of(r#"{"_class_name": "PNDMScheduler"}"#), None);
    }
}
