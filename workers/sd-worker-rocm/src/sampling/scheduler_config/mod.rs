//! diffusers' `scheduler_config.json`.

mod classes;

use super::betas::{cumulative, linspace, rescale_zero_snr, scaled_linear, squared_cosine};
use super::noise_schedule::{Process, Shift, Spacing};
use super::{NoiseSchedule, Prediction, Sampler, Schedule};
use classes::Class;
use serde::Deserialize;
use serde_json::{Map, Value};
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
    set_alpha_to_one: Option<bool>,
    rescale_betas_zero_snr: bool,
    algorithm_type: Option<String>,
    shift: f64,
    use_dynamic_shifting: bool,
    base_shift: Option<f64>,
    max_shift: Option<f64>,
    base_image_seq_len: Option<f64>,
    max_image_seq_len: Option<f64>,
    use_karras_sigmas: bool,
    use_exponential_sigmas: bool,
    use_beta_sigmas: bool,
    use_flow_sigmas: bool,
    flow_shift: f64,
    time_shift_type: String,
    shift_terminal: Option<f64>,
    lambda_min_clipped: Option<f64>,
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
            set_alpha_to_one: None,
            rescale_betas_zero_snr: false,
            algorithm_type: None,
            shift: 1.0,
            use_dynamic_shifting: false,
            base_shift: None,
            max_shift: None,
            base_image_seq_len: None,
            max_image_seq_len: None,
            use_karras_sigmas: false,
            use_exponential_sigmas: false,
            use_beta_sigmas: false,
            use_flow_sigmas: false,
            flow_shift: 1.0,
            time_shift_type: "exponential".to_string(),
            shift_terminal: None,
            lambda_min_clipped: None,
        }
    }
}

impl NoiseSchedule {
    /// The schedule that a `scheduler_config.json` describes. A scheduler that is not implemented is kept by name in
    /// [`NoiseSchedule::unknown`].
    ///
    /// # Errors
    /// [`Error::Usage`] for text that is not JSON, values out of range, and options that change the picture and are not
    /// implemented, by name.
    pub fn from_config(json: &str) -> Result<Self> {
        let wrong = |reason: String| Error::Usage(format!("scheduler_config.json: {reason}"));
        let options: Map<String, Value> =
            worker::json::of_python(json.as_bytes()).map_err(|e| wrong(e.to_string()))?;
        // What is null is as good as left out.
        let given = options.iter().filter(|(_, value)| !value.is_null());
        let given = Value::Object(given.map(|(n, v)| (n.clone(), v.clone())).collect());
        let config = Config::deserialize(given).map_err(|e| wrong(e.to_string()))?;
        let class = Class::named(&config._class_name);
        if let Some(class) = class {
            class.check(&options).map_err(wrong)?;
        }
        let unknown = class.is_none() && !config._class_name.is_empty();
        let mut schedule = NoiseSchedule {
            sampler: class.map(|class| config.variant(class.sampler)),
            named: config.named()?,
            unknown: unknown.then(|| config._class_name.clone()),
            spaced_ends: class.is_some_and(|class| class.spaced_ends),
            ..config.schedule(class)?
        };
        if schedule.is_flow() {
            schedule.sampler = schedule.sampler.or((!unknown).then_some(Sampler::Euler));
        }
        Ok(schedule)
    }
}

impl Config {
    /// The sampler, where an option of a class decides.
    fn variant(&self, sampler: Sampler) -> Sampler {
        match (sampler, self.algorithm_type.as_deref()) {
            (Sampler::DpmPlusPlus2M, Some("sde-dpmsolver++")) => Sampler::DpmPlusPlus2MSde,
            _ => sampler,
        }
    }

    /// The noise levels that are asked for.
    fn named(&self) -> Result<Option<Schedule>> {
        let asked: Vec<_> = [
            (self.use_karras_sigmas, Schedule::Karras),
            (self.use_exponential_sigmas, Schedule::Exponential),
            (self.use_beta_sigmas, Schedule::Beta),
        ]
        .into_iter()
        .filter_map(|(asked, schedule)| asked.then_some(schedule))
        .collect();
        match asked.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            _ => Err(Error::Usage(
                "scheduler_config.json: of use_karras_sigmas, use_exponential_sigmas and use_beta_sigmas only one can be true"
                    .to_string(),
            )),
        }
    }

    fn schedule(&self, class: Option<&Class>) -> Result<NoiseSchedule> {
        let out_of_range =
            |what: &str| Error::Usage(format!("scheduler_config.json: {what} is out of range"));
        if !(1..=MAX_TRAIN_STEPS).contains(&self.num_train_timesteps) {
            return Err(out_of_range("num_train_timesteps"));
        }
        let flow_class = self._class_name.starts_with("FlowMatch");
        if flow_class || self.prediction_type == "flow_prediction" {
            return self.flow(flow_class);
        }
        if self.use_flow_sigmas {
            return Err(Error::Usage(format!(
                "scheduler_config.json: use_flow_sigmas goes with prediction_type flow_prediction, not {}",
                self.prediction_type
            )));
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
        let own = class.map_or(Spacing::Leading, |class| class.spacing);
        let betas = match &self.trained_betas {
            Some(betas) if betas.is_empty() || betas.len() > MAX_TRAIN_STEPS => {
                return Err(out_of_range("trained_betas"))
            }
            Some(betas) => betas.clone(),
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
        // The log ratios of image to noise below which training steps are left out.
        let least = alphas_cumprod.iter().map(|a| 0.5 * (a / (1.0 - a)).ln());
        let least = least.fold(f64::INFINITY, f64::min);
        if self.lambda_min_clipped.is_some_and(|clip| clip > least) {
            return Err(Error::Usage(format!(
                "scheduler_config.json: lambda_min_clipped above {least:.2}, which leaves out training steps, is not implemented"
            )));
        }
        Ok(NoiseSchedule {
            process: Process::VariancePreserving { alphas_cumprod },
            spacing: self.timestep_spacing.unwrap_or(own),
            steps_offset: self.steps_offset,
            final_alpha_one: self
                .set_alpha_to_one
                .unwrap_or(class.is_none_or(|class| class.sampler != Sampler::Plms)),
            ..NoiseSchedule::stable_diffusion(prediction)
        })
    }

    /// A flow model, by a scheduler that is made for them or, with `use_flow_sigmas`, by a solver.
    fn flow(&self, flow_class: bool) -> Result<NoiseSchedule> {
        if !flow_class && !self.use_flow_sigmas && !self._class_name.is_empty() {
            return Err(Error::Usage(
                "scheduler_config.json: prediction_type flow_prediction without use_flow_sigmas is not implemented"
                    .to_string(),
            ));
        }
        let shift = if self.use_dynamic_shifting {
            Shift::Dynamic {
                linear: flow_class && self.time_shift_type == "linear",
                base: self.base_shift.unwrap_or(0.5),
                max: self.max_shift.unwrap_or(1.15),
                base_tokens: self.base_image_seq_len.unwrap_or(256.0),
                max_tokens: self.max_image_seq_len.unwrap_or(4096.0),
            }
        } else {
            Shift::Fixed(match self.use_flow_sigmas && !flow_class {
                true => self.flow_shift,
                false => self.shift,
            })
        };
        let sound = match shift {
            Shift::Fixed(s) => s.is_finite() && s > 0.0,
            Shift::Dynamic {
                linear: _,
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
        // Only one class has it; 0 is as good as none.
        let euler = self._class_name == "FlowMatchEulerDiscreteScheduler";
        let terminal = self.shift_terminal.filter(|end| euler && *end != 0.0);
        if terminal.is_some_and(|end| !(0.0..1.0).contains(&end)) {
            return Err(Error::Usage(
                "scheduler_config.json: shift_terminal is out of range".to_string(),
            ));
        }
        Ok(NoiseSchedule {
            terminal,
            process: Process::Flow {
                train_steps: self.num_train_timesteps,
                shift,
            },
            spacing: match self.use_flow_sigmas && !flow_class {
                true => Spacing::Solver,
                false => Spacing::Trailing,
            },
            ..NoiseSchedule::flow(shift)
        })
    }
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
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift_terminal": 1.0}"#,
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "time_shift_type": "cubic"}"#,
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "stochastic_sampling": true}"#,
            r#"{"_class_name": "EulerDiscreteScheduler", "use_karras_sigmas": true, "use_beta_sigmas": true}"#,
            r#"{"_class_name": "EulerDiscreteScheduler", "final_sigmas_type": "sigma_min"}"#,
            r#"{"_class_name": "DDIMScheduler", "clip_sample": true}"#,
            r#"{"_class_name": "DPMSolverMultistepScheduler", "solver_order": 3}"#,
            r#"{"_class_name": "DPMSolverMultistepScheduler", "lambda_min_clipped": -2.0}"#,
            r#"{"_class_name": "UniPCMultistepScheduler", "use_flow_sigmas": true}"#,
            r#"{"_class_name": "PNDMScheduler", "skip_prk_steps": false}"#,
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true, "max_shift": 1e9}"#,
        ] {
            assert!(NoiseSchedule::from_config(json).is_err(), "{json}");
        }
    }

    #[test]
    fn the_scheduler_that_is_named_is_that_scheduler() {
        let of = |json| NoiseSchedule::from_config(json).unwrap();
        let named = of(r#"{"_class_name": "EulerAncestralDiscreteScheduler"}"#);
        assert_eq!(named.sampler, Some(Sampler::EulerAncestral));
        let named =
            of(r#"{"_class_name": "PNDMScheduler", "skip_prk_steps": true, "clip_sample": true}"#);
        assert_eq!(
            named.sampler,
            Some(Sampler::Plms),
            "another class's option is ignored"
        );
        let named = of(r#"{"_class_name": "FlowMatchHeunDiscreteScheduler", "shift": 3.0}"#);
        assert_eq!(named.sampler, Some(Sampler::Heun));
        let named = of(r#"{"_class_name": "DEISMultistepScheduler", "use_karras_sigmas": true}"#);
        assert_eq!(
            (named.sampler, named.unknown.as_deref()),
            (None, Some("DEISMultistepScheduler"))
        );
        assert_eq!(of("{}").unknown, None);
    }

    /// diffusers' `FlowMatchEulerDiscreteScheduler.set_timesteps(sigmas=linspace(1, 1/4, 4), mu)` says so.
    #[test]
    fn shifts_of_either_type_and_stretched_to_an_end() {
        let sigmas = |more: &str, tokens| {
            let json = format!(
                r#"{{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true, "base_shift": 0.5, "max_shift": 0.9,
                    "base_image_seq_len": 256, "max_image_seq_len": 8192{more}}}"#
            );
            let schedule = NoiseSchedule::from_config(&json).unwrap();
            let levels = schedule.levels(Sampler::Euler, Schedule::Discrete, 4, tokens);
            let levels = levels.unwrap();
            levels.iter().map(|level| level.sigma).collect::<Vec<_>>()
        };
        let same = |ours: Vec<f64>, theirs: [f64; 4]| {
            let close = ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close && ours.len() == 5, "{ours:?} {theirs:?}");
        };
        same(sigmas("", 1024), [1.0, 0.8371702, 0.6315122, 0.36357]);
        let linear = r#", "time_shift_type": "linear""#;
        same(sigmas(linear, 1024), [1.0, 0.6177558, 0.3501048, 0.1522334]);
        let terminal = r#", "shift_terminal": 0.02"#;
        same(sigmas(terminal, 1024), [1.0, 0.7492682, 0.4325879, 0.02]);
        let both = format!("{linear}{terminal}");
        same(sigmas(&both, 4096), [1.0, 0.6083421, 0.2875555, 0.02]);
    }

    #[test]
    fn json_as_python_writes_it() {
        let json = r#"{"_class_name": "DPMSolverMultistepScheduler", "lambda_min_clipped": -Infinity,
            "algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": true, "trained_betas": null}"#;
        let schedule = NoiseSchedule::from_config(json).unwrap();
        assert_eq!(schedule.sampler, Some(Sampler::DpmPlusPlus2MSde));
        assert_eq!(schedule.named, Some(Schedule::Karras));
    }
}
