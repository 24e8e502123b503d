//! diffusers' `scheduler_config.json`.

mod classes;
mod options;
mod own;

use super::betas::{cumulative, linspace, rescale_zero_snr, scaled_linear, squared_cosine};
use super::noise_schedule::{Edm, Process, Shift, Spacing};
use super::{NoiseSchedule, Prediction, Sampler, Schedule};
use classes::{Class, Kind};
use options::Options;
pub(super) use own::{Last, Own};
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
    shift: f64,
    use_dynamic_shifting: bool,
    base_shift: Option<f64>,
    max_shift: Option<f64>,
    base_image_seq_len: Option<f64>,
    max_image_seq_len: Option<f64>,
    use_karras_sigmas: bool,
    use_exponential_sigmas: bool,
    use_beta_sigmas: bool,
    use_lu_lambdas: bool,
    use_flow_sigmas: bool,
    flow_shift: f64,
    time_shift_type: String,
    shift_terminal: Option<f64>,
    lambda_min_clipped: Option<f64>,
    sigma_min: Option<f64>,
    sigma_max: Option<f64>,
    sigma_data: f64,
    sigma_schedule: String,
    rho: f64,
    #[serde(flatten)]
    options: Options,
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
            shift: 1.0,
            use_dynamic_shifting: false,
            base_shift: None,
            max_shift: None,
            base_image_seq_len: None,
            max_image_seq_len: None,
            use_karras_sigmas: false,
            use_exponential_sigmas: false,
            use_beta_sigmas: false,
            use_lu_lambdas: false,
            use_flow_sigmas: false,
            flow_shift: 1.0,
            time_shift_type: "exponential".to_string(),
            shift_terminal: None,
            lambda_min_clipped: None,
            sigma_min: None,
            sigma_max: None,
            sigma_data: 0.5,
            sigma_schedule: "karras".to_string(),
            rho: 7.0,
            options: Options::default(),
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
        let schedule = config.schedule(class)?;
        let own = class.map(|class| config.own(class, schedule.is_flow()));
        let mut schedule = NoiseSchedule {
            sampler: class.map(|class| config.options.variant(class)),
            named: config.named(class)?,
            unknown: unknown.then(|| config._class_name.clone()),
            spaced_ends: class.is_some_and(|class| class.spaced_ends),
            ends: (config.sigma_min, config.sigma_max),
            own: own.transpose().map_err(wrong)?,
            ..schedule
        };
        if schedule.is_flow() {
            schedule.sampler = schedule.sampler.or((!unknown).then_some(Sampler::Euler));
        }
        Ok(schedule)
    }
}

impl Config {
    /// How the sampler is to be.
    fn own(&self, class: &Class, flow: bool) -> std::result::Result<Own, String> {
        let named = self.use_karras_sigmas
            || self.use_exponential_sigmas
            || self.use_beta_sigmas
            || self.use_lu_lambdas;
        let solver = matches!(
            class.kind,
            Kind::Dpm | Kind::Singlestep | Kind::Deis | Kind::UniPc | Kind::SaSolver
        );
        if flow && solver && named {
            return Err(format!(
                "{} with other noise levels than those of use_flow_sigmas is not implemented",
                class.name
            ));
        }
        let rounded = self.use_karras_sigmas || self.use_lu_lambdas;
        let cosine = class.kind == Kind::Dpm && self.beta_schedule == "squaredcos_cap_v2";
        let rounding = match (class.kind, rounded) {
            (Kind::Dpm2, true) => own::Rounding::Nearest,
            _ if !solver => own::Rounding::Kept,
            (_, true) if !cosine => own::Rounding::Nearest,
            _ => own::Rounding::Below,
        };
        self.options.own(class, rounding, named)
    }

    /// The noise levels that are asked for.
    fn named(&self, class: Option<&Class>) -> Result<Option<Schedule>> {
        let lu = self.use_lu_lambdas && class.is_some_and(|class| class.kind == Kind::Dpm);
        let asked: Vec<_> = [
            (self.use_karras_sigmas, Schedule::Karras),
            // With the published exponent, 1, the steps are even in the logarithm.
            (lu && !self.use_karras_sigmas, Schedule::Exponential),
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
        if class.is_some_and(|class| matches!(class.kind, Kind::Edm | Kind::EdmDpm)) {
            return self.edm();
        }
        let flow_class = self._class_name.starts_with("FlowMatch");
        if flow_class || self.prediction_type == "flow_prediction" {
            return self.flow(flow_class, class);
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
        let spacing = self.timestep_spacing.unwrap_or(own);
        // Training steps with less than this logarithm of image over noise are left out.
        let clip = class
            .filter(|class| matches!(class.kind, Kind::Dpm | Kind::Singlestep))
            .and(self.lambda_min_clipped)
            .unwrap_or(f64::NEG_INFINITY);
        let lambdas = alphas_cumprod.iter().map(|a| 0.5 * (a / (1.0 - a)).ln());
        let kept = alphas_cumprod.len() - lambdas.filter(|lambda| *lambda < clip).count();
        let clipped = kept < alphas_cumprod.len();
        if kept == 0 || clipped && spacing == Spacing::Trailing {
            return Err(Error::Usage(
                "scheduler_config.json: lambda_min_clipped leaves no training steps, or goes with timestep_spacing trailing, which is not implemented"
                    .to_string(),
            ));
        }
        Ok(NoiseSchedule {
            process: Process::VariancePreserving { alphas_cumprod },
            spacing,
            spaced_over: clipped.then_some(kept),
            steps_offset: self.steps_offset,
            final_alpha_one: match class {
                Some(class) if class.kind == Kind::Ddpm => true,
                _ => self
                    .set_alpha_to_one
                    .unwrap_or(class.is_none_or(|class| class.sampler != Sampler::Plms)),
            },
            ..NoiseSchedule::stable_diffusion(prediction)
        })
    }

    /// A flow model, by a scheduler that is made for them or, with `use_flow_sigmas`, by a solver.
    fn flow(&self, flow_class: bool, class: Option<&Class>) -> Result<NoiseSchedule> {
        if !flow_class && !self.use_flow_sigmas && !self._class_name.is_empty() {
            return Err(Error::Usage(
                "scheduler_config.json: prediction_type flow_prediction without use_flow_sigmas is not implemented"
                    .to_string(),
            ));
        }
        let out_of_range =
            |what: &str| Error::Usage(format!("scheduler_config.json: {what} is out of range"));
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
            Shift::Empirical { .. } => true,
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
            return Err(out_of_range("the shift"));
        }
        let stretched = class
            .is_some_and(|class| matches!(class.kind, Kind::Flow | Kind::FlowLcm | Kind::UniPc));
        // 0 is as good as none.
        let terminal = self.shift_terminal.filter(|end| stretched && *end != 0.0);
        if terminal.is_some_and(|end| !(0.0..1.0).contains(&end)) {
            return Err(out_of_range("shift_terminal"));
        }
        Ok(NoiseSchedule {
            terminal,
            process: Process::Flow {
                train_steps: self.num_train_timesteps,
                shift,
            },
            spacing: match self.use_flow_sigmas && !flow_class {
                true if class.is_some_and(|class| class.kind == Kind::UniPc) => Spacing::FromNoise,
                true => Spacing::Solver,
                false => Spacing::Trailing,
            },
            ..NoiseSchedule::flow(shift)
        })
    }

    /// A model of Karras et al. 2022.
    fn edm(&self) -> Result<NoiseSchedule> {
        let out_of_range =
            |what: &str| Error::Usage(format!("scheduler_config.json: {what} is out of range"));
        let usual = |value: Option<f64>, usual: f64| value.unwrap_or(usual);
        let (smallest, largest) = (usual(self.sigma_min, 0.002), usual(self.sigma_max, 80.0));
        if !(smallest >= 1e-6 && smallest < largest && largest <= 1e6) {
            return Err(out_of_range("sigma_min or sigma_max"));
        }
        if !(1e-3..=1e3).contains(&self.sigma_data) {
            return Err(out_of_range("sigma_data"));
        }
        if !(0.1..=100.0).contains(&self.rho) {
            return Err(out_of_range("rho"));
        }
        let rho = match self.sigma_schedule.as_str() {
            "karras" => Some(self.rho),
            "exponential" => None,
            other => {
                return Err(Error::Usage(format!(
                    "scheduler_config.json: sigma_schedule {other:?} is not supported; there are karras and exponential"
                )))
            }
        };
        let prediction = match self.prediction_type.as_str() {
            "epsilon" => Prediction::EdmNoise,
            "v_prediction" => Prediction::EdmVelocity,
            other => {
                return Err(Error::Usage(format!(
                    "scheduler_config.json: prediction_type {other:?} is not supported by {}; there are epsilon and v_prediction",
                    self._class_name
                )))
            }
        };
        Ok(NoiseSchedule {
            process: Process::Edm(Edm {
                data: self.sigma_data,
                smallest,
                largest,
                rho,
            }),
            final_alpha_one: true,
            ..NoiseSchedule::stable_diffusion(prediction)
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
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "invert_sigmas": true}"#,
            r#"{"_class_name": "EulerDiscreteScheduler", "use_karras_sigmas": true, "use_beta_sigmas": true}"#,
            r#"{"_class_name": "EulerDiscreteScheduler", "final_sigmas_type": "half"}"#,
            r#"{"_class_name": "EulerDiscreteScheduler", "timestep_type": "continuous"}"#,
            r#"{"_class_name": "DDIMScheduler", "clip_sample": true, "clip_sample_range": 0}"#,
            r#"{"_class_name": "DDIMScheduler", "thresholding": true, "dynamic_thresholding_ratio": 2}"#,
            r#"{"_class_name": "DPMSolverMultistepScheduler", "solver_order": 4}"#,
            r#"{"_class_name": "DPMSolverMultistepScheduler", "solver_order": 0}"#,
            r#"{"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "dpmsolver"}"#,
            r#"{"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "sde-dpmsolver", "solver_order": 3, "final_sigmas_type": "sigma_min"}"#,
            r#"{"_class_name": "DPMSolverMultistepScheduler", "lambda_min_clipped": 99.0}"#,
            r#"{"_class_name": "UniPCMultistepScheduler", "use_flow_sigmas": true}"#,
            r#"{"_class_name": "UniPCMultistepScheduler", "predict_x0": false}"#,
            r#"{"_class_name": "UniPCMultistepScheduler", "lower_order_final": false}"#,
            r#"{"_class_name": "UniPCMultistepScheduler", "disable_corrector": [-1]}"#,
            r#"{"_class_name": "EDMEulerScheduler", "sigma_min": 90}"#,
            r#"{"_class_name": "EDMEulerScheduler", "sigma_data": 0}"#,
            r#"{"_class_name": "EDMDPMSolverMultistepScheduler", "prediction_type": "sample"}"#,
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
        let named = of(
            r#"{"_class_name": "CosineDPMSolverMultistepScheduler", "use_karras_sigmas": true}"#,
        );
        assert_eq!(
            (named.sampler, named.unknown.as_deref()),
            (None, Some("CosineDPMSolverMultistepScheduler"))
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
            let levels = schedule.levels(
                Sampler::Euler,
                Schedule::Discrete,
                4,
                tokens,
                &super::super::LevelOptions::default(),
            );
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
