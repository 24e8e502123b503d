//! How a model was trained to see noise: diffusers' `scheduler_config.json`, or the defaults of a family.

use super::{Prediction, Sampler};
use serde::Deserialize;
use worker::{Error, Result};

/// Most training steps that a configuration may ask for; real ones have 1000.
pub const MAX_TRAIN_STEPS: usize = 100_000;

/// A point between image and noise: `x = alpha · image + sigma · noise`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoiseLevel {
    /// What the network is told, 0 to the number of training steps (usually 1000); may lie between whole steps.
    pub timestep: f64,
    /// Share of the image.
    pub alpha: f64,
    /// Share of the noise.
    pub sigma: f64,
}

impl NoiseLevel {
    /// No noise.
    pub const CLEAN: Self = Self {
        timestep: 0.0,
        alpha: 1.0,
        sigma: 0.0,
    };

    /// Noise over image, the `sigma` of k-diffusion; infinite where no image is left.
    pub fn ratio(&self) -> f64 {
        self.sigma / self.alpha
    }
}

/// How the time steps of [`super::Schedule::Discrete`] are spread over the training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// From the last to the first, evenly.
    Linspace,
    /// Multiples of a whole number, shifted by `steps_offset`.
    Leading,
    /// Counted down from the end.
    Trailing,
}

/// How a flow model's noise levels are moved towards noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shift {
    /// `s σ / (1 + (s - 1) σ)`.
    Fixed(f64),
    /// `s = exp(mu)` with mu linear in the number of image tokens.
    Dynamic {
        /// mu at `base_tokens`.
        base: f64,
        /// mu at `max_tokens`.
        max: f64,
        /// Image tokens where mu is `base`.
        base_tokens: f64,
        /// Image tokens where mu is `max`.
        max_tokens: f64,
    },
}

/// The two families of noise.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Process {
    /// `alpha² + sigma² = 1`; the squared alphas of all training steps.
    VariancePreserving { alphas_cumprod: Vec<f64> },
    /// `alpha + sigma = 1`.
    Flow { train_steps: usize, shift: Shift },
}

/// A model's training noise, and what goes with it.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseSchedule {
    pub(super) process: Process,
    pub(super) spacing: Spacing,
    pub(super) steps_offset: usize,
    /// Whether DDIM's last step ends without noise, or at the first training step.
    pub(super) final_alpha_one: bool,
    /// What the network predicts.
    pub prediction: Prediction,
    /// The sampler that the configuration names.
    pub sampler: Option<Sampler>,
}

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
    /// Stable Diffusion 1, 2 and XL: 1000 steps, betas from 0.00085 to 0.012, evenly spaced roots.
    pub fn stable_diffusion(prediction: Prediction) -> Self {
        let betas = scaled_linear(0.00085, 0.012, 1000);
        Self {
            process: Process::VariancePreserving {
                alphas_cumprod: cumulative(&betas),
            },
            spacing: Spacing::Leading,
            steps_offset: 1,
            final_alpha_one: false,
            prediction,
            sampler: None,
        }
    }

    /// A flow model: SD 3 has a fixed shift of 3, FLUX.1 schnell none, FLUX.1 dev [`Shift::Dynamic`].
    pub fn flow(shift: Shift) -> Self {
        Self {
            process: Process::Flow {
                train_steps: 1000,
                shift,
            },
            spacing: Spacing::Trailing,
            steps_offset: 0,
            final_alpha_one: true,
            prediction: Prediction::Flow,
            sampler: Some(Sampler::Euler),
        }
    }

    /// The same with zero signal at the last training step (Lin et al. 2024).
    #[must_use]
    pub fn with_zero_terminal_snr(mut self) -> Self {
        if let Process::VariancePreserving { alphas_cumprod } = &mut self.process {
            rescale_zero_snr(alphas_cumprod);
            self.spacing = Spacing::Trailing;
        }
        self
    }

    /// The same with other time steps for [`super::Schedule::Discrete`].
    #[must_use]
    pub fn with_spacing(mut self, spacing: Spacing) -> Self {
        self.spacing = spacing;
        self
    }

    /// The schedule that a `scheduler_config.json` describes.
    ///
    /// # Errors
    /// [`Error::Usage`] for JSON that is none, values out of range, and kinds of schedules that are not there.
    pub fn from_config(json: &str) -> Result<Self> {
        let config: Config = serde_json::from_str(json)
            .map_err(|e| Error::Usage(format!("scheduler_config.json: {e}")))?;
        config.schedule()
    }

    /// Whether `alpha + sigma = 1`.
    pub fn is_flow(&self) -> bool {
        matches!(self.process, Process::Flow { .. })
    }

    /// Number of training steps, the scale of [`NoiseLevel::timestep`].
    pub fn train_steps(&self) -> usize {
        match &self.process {
            Process::VariancePreserving { alphas_cumprod } => alphas_cumprod.len(),
            Process::Flow { train_steps, .. } => *train_steps,
        }
    }

    /// The share of signal, squared, at each training step; empty for flow models.
    pub fn alphas_cumprod(&self) -> &[f64] {
        match &self.process {
            Process::VariancePreserving { alphas_cumprod } => alphas_cumprod,
            Process::Flow { .. } => &[],
        }
    }

    /// The level at a time step. Between whole steps the logarithm of the ratio is interpolated, as k-diffusion does.
    pub fn level_at(&self, timestep: f64) -> NoiseLevel {
        let last = (self.train_steps() - 1) as f64;
        match &self.process {
            Process::VariancePreserving { alphas_cumprod } => {
                let t = timestep.clamp(0.0, last);
                let low = t.floor() as usize;
                let (alpha, sigma) = if t == t.floor() {
                    let a = alphas_cumprod[low];
                    (a.sqrt(), (1.0 - a).sqrt())
                } else {
                    let f = t - t.floor();
                    let log = (1.0 - f) * log_ratio(alphas_cumprod[low])
                        + f * log_ratio(alphas_cumprod[low + 1]);
                    vp(log.exp())
                };
                NoiseLevel {
                    timestep: t,
                    alpha,
                    sigma,
                }
            }
            Process::Flow { train_steps, .. } => {
                let sigma = (timestep / *train_steps as f64).clamp(0.0, 1.0);
                NoiseLevel {
                    timestep,
                    alpha: 1.0 - sigma,
                    sigma,
                }
            }
        }
    }

    /// The level of this noise-to-image ratio.
    pub fn level_of_ratio(&self, ratio: f64) -> NoiseLevel {
        match &self.process {
            Process::VariancePreserving { alphas_cumprod } => {
                let (alpha, sigma) = vp(ratio);
                NoiseLevel {
                    timestep: timestep_of(alphas_cumprod, ratio.ln()),
                    alpha,
                    sigma,
                }
            }
            Process::Flow { train_steps, .. } => {
                let sigma = if ratio.is_infinite() {
                    1.0
                } else {
                    ratio / (1.0 + ratio)
                };
                NoiseLevel {
                    timestep: sigma * *train_steps as f64,
                    alpha: 1.0 - sigma,
                    sigma,
                }
            }
        }
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

impl Shift {
    /// The factor `s` for an image of so many tokens.
    pub fn factor(&self, image_tokens: usize) -> f64 {
        match *self {
            Self::Fixed(s) => s,
            Self::Dynamic {
                base,
                max,
                base_tokens,
                max_tokens,
            } => {
                let slope = (max - base) / (max_tokens - base_tokens);
                (base + slope * (image_tokens as f64 - base_tokens)).exp()
            }
        }
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

pub(super) fn linspace(start: f64, end: f64, count: usize) -> Vec<f64> {
    let last = count.saturating_sub(1).max(1) as f64;
    (0..count)
        .map(|i| start + (end - start) * i as f64 / last)
        .collect()
}

fn scaled_linear(start: f64, end: f64, count: usize) -> Vec<f64> {
    linspace(start.sqrt(), end.sqrt(), count)
        .into_iter()
        .map(|b| b * b)
        .collect()
}

/// Nichol and Dhariwal 2021.
fn squared_cosine(count: usize) -> Vec<f64> {
    let bar = |t: f64| {
        ((t + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2)
            .cos()
            .powi(2)
    };
    (0..count)
        .map(|i| {
            let (from, to) = (i as f64 / count as f64, (i + 1) as f64 / count as f64);
            (1.0 - bar(to) / bar(from)).min(0.999)
        })
        .collect()
}

fn cumulative(betas: &[f64]) -> Vec<f64> {
    betas
        .iter()
        .scan(1.0, |product, beta| {
            *product *= 1.0 - beta;
            Some(*product)
        })
        .collect()
}

/// Moves and scales the alphas so that the last is zero and the first stays (Lin et al. 2024, algorithm 1).
fn rescale_zero_snr(alphas_cumprod: &mut [f64]) {
    let (Some(first), Some(last)) = (
        alphas_cumprod.first().map(|a| a.sqrt()),
        alphas_cumprod.last().map(|a| a.sqrt()),
    ) else {
        return;
    };
    if first <= last {
        return;
    }
    for a in alphas_cumprod {
        *a = ((a.sqrt() - last) * first / (first - last)).powi(2);
    }
}

/// The smallest alpha that the solvers in log ratio meet; 2^-12, the root of what diffusers cuts at.
pub(super) const MIN_ALPHA: f64 = 1.0 / 4096.0;

fn log_ratio(alpha_cumprod: f64) -> f64 {
    let a = alpha_cumprod.max(MIN_ALPHA * MIN_ALPHA);
    0.5 * ((1.0 - a) / a).ln()
}

/// Alpha and sigma of a variance preserving level.
fn vp(ratio: f64) -> (f64, f64) {
    if ratio.is_infinite() {
        return (0.0, 1.0);
    }
    let alpha = 1.0 / ratio.hypot(1.0);
    (alpha, ratio * alpha)
}

/// The time step where the log ratio is `log`, between whole steps by interpolation.
fn timestep_of(alphas_cumprod: &[f64], log: f64) -> f64 {
    let above = alphas_cumprod.partition_point(|a| log_ratio(*a) <= log);
    if above == 0 {
        return 0.0;
    }
    let low = above - 1;
    if above == alphas_cumprod.len() {
        return low as f64;
    }
    let (from, to) = (
        log_ratio(alphas_cumprod[low]),
        log_ratio(alphas_cumprod[above]),
    );
    low as f64 + ((log - from) / (to - from)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_steps_and_ratios_are_inverse() {
        let schedule = NoiseSchedule::stable_diffusion(Prediction::Epsilon);
        for t in [0.0, 1.0, 17.25, 500.0, 998.9, 999.0] {
            let level = schedule.level_at(t);
            let back = schedule.level_of_ratio(level.ratio());
            assert!((back.timestep - t).abs() < 1e-9, "{t}: {back:?}");
            assert!((level.alpha.powi(2) + level.sigma.powi(2) - 1.0).abs() < 1e-12);
        }
        // Known end points of Stable Diffusion.
        assert!((schedule.level_at(0.0).ratio() - 0.0292).abs() < 1e-4);
        assert!((schedule.level_at(999.0).ratio() - 14.6146).abs() < 1e-3);
    }

    #[test]
    fn zero_terminal_snr_ends_in_pure_noise() {
        let schedule =
            NoiseSchedule::stable_diffusion(Prediction::Velocity).with_zero_terminal_snr();
        let last = schedule.level_at(999.0);
        assert_eq!((last.alpha, last.sigma), (0.0, 1.0));
        assert_eq!(
            schedule.alphas_cumprod()[0],
            NoiseSchedule::stable_diffusion(Prediction::Velocity).alphas_cumprod()[0]
        );
    }

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
