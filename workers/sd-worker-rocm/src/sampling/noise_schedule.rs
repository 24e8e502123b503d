//! How a model was trained to see noise.

use super::betas::{cumulative, rescale_zero_snr, scaled_linear};
use super::scheduler_config::Own;
use super::{NoiseLevel, Prediction, Sampler, Schedule};
use serde::Deserialize;

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
    /// Of flow models only: as diffusers' multistep solvers have it, evenly from the last noise level of training, in
    /// whole time steps.
    #[serde(skip)]
    Solver,
    /// The same from pure noise, as diffusers' UniPC has it.
    #[serde(skip)]
    FromNoise,
}

/// How a flow model's noise levels are moved towards noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shift {
    /// `s σ / (1 + (s - 1) σ)`.
    Fixed(f64),
    /// `s = exp(mu)`, or mu itself, with mu linear in the number of image tokens.
    Dynamic {
        /// Whether it is mu itself.
        linear: bool,
        /// mu at `base_tokens`.
        base: f64,
        /// mu at `max_tokens`.
        max: f64,
        /// Image tokens where mu is `base`.
        base_tokens: f64,
        /// Image tokens where mu is `max`.
        max_tokens: f64,
    },
    /// The same with mu of image tokens and steps as FLUX.2's makers measured it.
    Empirical {
        /// Whether it is mu itself.
        linear: bool,
    },
}

/// Noise of Karras et al. 2022, whose ratios of noise to image are the time steps' `exp(4 t)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Edm {
    /// Spread of the images.
    pub data: f64,
    pub smallest: f64,
    pub largest: f64,
    /// Exponent of the levels; none where their logarithms are even.
    pub rho: Option<f64>,
}

/// The families of noise.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Process {
    /// `data² alpha² + sigma² = 1`.
    Edm(Edm),
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
    /// The noise levels that the configuration names; they are then those of its scheduler.
    pub named: Option<Schedule>,
    /// The scheduler that the configuration names, where it is not implemented.
    pub unknown: Option<String>,
    /// Whether the levels of `named` end where the spaced time steps do.
    pub(super) spaced_ends: bool,
    /// Where a flow model's last step begins: the steps of its own schedule are stretched to that.
    pub(super) terminal: Option<f64>,
    /// Training steps over which time steps are spaced, where they are fewer than all.
    pub(super) spaced_over: Option<usize>,
    /// The smallest and the largest ratio of noise to image, where the configuration names them.
    pub(super) ends: (Option<f64>, Option<f64>),
    /// How the configuration wants its sampler to be.
    pub(super) own: Option<Own>,
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
            named: None,
            unknown: None,
            spaced_ends: false,
            spaced_over: None,
            ends: (None, None),
            terminal: None,
            own: None,
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
            named: None,
            unknown: None,
            spaced_ends: false,
            spaced_over: None,
            ends: (None, None),
            terminal: None,
            own: None,
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

    /// The same with other time steps for [`super::Schedule::Discrete`], unless a solver has its own.
    #[must_use]
    pub fn with_spacing(mut self, spacing: Spacing) -> Self {
        if !matches!(self.spacing, Spacing::Solver | Spacing::FromNoise) {
            self.spacing = spacing;
        }
        self
    }

    /// The same where a shift that depends on the image's size is [`Shift::Empirical`].
    #[must_use]
    pub fn with_empirical_shift(mut self) -> Self {
        if let Process::Flow { shift, .. } = &mut self.process {
            if let Shift::Dynamic { linear, .. } = *shift {
                *shift = Shift::Empirical { linear };
            }
        }
        self
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
            Process::Edm(_) => EDM_STEPS,
        }
    }

    /// The share of signal, squared, at each training step; empty for flow models.
    pub fn alphas_cumprod(&self) -> &[f64] {
        match &self.process {
            Process::VariancePreserving { alphas_cumprod } => alphas_cumprod,
            Process::Flow { .. } | Process::Edm(_) => &[],
        }
    }

    /// The level at a time step. Between whole steps the logarithm of the ratio is interpolated, as k-diffusion does.
    pub fn level_at(&self, timestep: f64) -> NoiseLevel {
        let last = (self.train_steps() - 1) as f64;
        match &self.process {
            Process::Edm(_) => self.level_of_ratio((4.0 * timestep).exp()),
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
            Process::Edm(edm) => {
                let alpha = 1.0 / ratio.hypot(edm.data);
                NoiseLevel {
                    timestep: 0.25 * ratio.ln(),
                    alpha,
                    sigma: ratio * alpha,
                }
            }
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

impl Shift {
    /// The factor `s` for an image of so many tokens in so many steps.
    pub fn factor(&self, image_tokens: usize, steps: usize) -> f64 {
        let tokens = image_tokens as f64;
        let (linear, mu) = match *self {
            Self::Fixed(s) => return s,
            Self::Dynamic {
                linear,
                base,
                max,
                base_tokens,
                max_tokens,
            } => {
                let slope = (max - base) / (max_tokens - base_tokens);
                (linear, base + slope * (tokens - base_tokens))
            }
            Self::Empirical { linear } => {
                // Two lines, of 10 and of 200 steps; between them and beyond a line through both.
                let (few, many) = (
                    8.738_095_24e-5 * tokens + 1.898_333_33,
                    1.692_7e-4 * tokens + 0.456_666_66,
                );
                let mu = match image_tokens > 4300 {
                    true => many,
                    false => many + (many - few) / 190.0 * (steps as f64 - 200.0),
                };
                (linear, mu)
            }
        };
        match linear {
            // Far outside of what it was made for it stays a shift.
            true => mu.max(1e-3),
            false => mu.exp(),
        }
    }
}

/// Steps of an EDM run at most: its levels are no training steps.
const EDM_STEPS: usize = 1000;
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
}
