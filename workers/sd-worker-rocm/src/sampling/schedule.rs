//! Which noise levels a run visits.

use super::betas::linspace;
use super::level_options::Listed;
use super::noise_schedule::{Edm, Process, Shift, Spacing, MIN_ALPHA};
use super::scheduler_config::{Last, Own};
use super::shapes::{
    aligned, arc_tangent, beta, exponential, linear_quadratic, power, two_tangents,
};
use super::{LevelOptions, NoiseLevel, NoiseSchedule, Prediction, Sampler, Schedule};
use worker::{Error, Result};

/// Karras et al. 2022.
const KARRAS_RHO: f64 = 7.0;
/// Both parameters of the beta schedule.
const BETA_PARAMETERS: (f64, f64) = (0.6, 0.6);
/// What UniPC leaves of the image in a flow model's first level.
const NEAR_NOISE: f64 = 1e-6;
/// Steps that consistency models were distilled for.
const DISTILLED_STEPS: usize = 50;

impl NoiseSchedule {
    /// The `steps + 1` levels of a run, from noise to image. `image_tokens` counts the patches that a transformer sees;
    /// it matters for shifts that depend on it only.
    ///
    /// # Errors
    /// [`Error::Usage`] for no steps, or more than the model was trained with.
    pub fn levels(
        &self,
        sampler: Sampler,
        schedule: Schedule,
        steps: usize,
        image_tokens: usize,
        options: &LevelOptions,
    ) -> Result<Vec<NoiseLevel>> {
        let steps = options.listed.as_ref().map_or(steps, Listed::steps);
        if steps == 0 || steps > self.train_steps() {
            return Err(Error::Usage(format!(
                "{steps} steps; this model takes 1 to {}",
                self.train_steps()
            )));
        }
        let mut levels = match (&options.listed, &self.process) {
            (Some(listed), _) => self.listed(listed)?,
            (None, Process::VariancePreserving { .. }) => {
                self.vp_levels(sampler, schedule, steps, options)
            }
            (None, Process::Flow { shift, .. }) => {
                let factor = shift.factor(image_tokens, steps);
                self.flow_levels(schedule, steps, factor, options)?
            }
            (None, Process::Edm(edm)) => self.edm_levels(edm, schedule, steps, options)?,
        };
        if let Some(own) = self.own_of(sampler).filter(|_| options.listed.is_none()) {
            if self.named == Some(schedule) && schedule != Schedule::Discrete {
                own.whole_timesteps(&mut levels);
            }
        }
        if self.divides_by_alpha(sampler) {
            levels.iter_mut().for_each(|level| self.keep_signal(level));
        }
        let last = self.final_level(sampler, schedule, levels.last().copied());
        levels.push(last);
        Ok(levels)
    }

    /// The options of the configuration, if this is the sampler that it names.
    pub(super) fn own_of(&self, sampler: Sampler) -> Option<&Own> {
        self.own.as_ref().filter(|_| self.sampler == Some(sampler))
    }

    fn edm_levels(
        &self,
        edm: &Edm,
        schedule: Schedule,
        steps: usize,
        options: &LevelOptions,
    ) -> Result<Vec<NoiseLevel>> {
        let ratios = match (schedule, edm.rho) {
            (Schedule::Discrete, Some(rho)) => power(edm.smallest, edm.largest, steps, rho),
            (Schedule::Discrete, None) => exponential(edm.smallest, edm.largest, steps, 1.0),
            _ => spread(schedule, (edm.smallest, edm.largest), steps, options).ok_or_else(|| {
                Error::Usage(format!(
                    "the schedule {} is one of time steps, which this model (EDM) has none of; use karras, exponential, beta or the model's own",
                    schedule.label()
                ))
            })?,
        };
        Ok(ratios
            .into_iter()
            .map(|ratio| self.level_of_ratio(ratio))
            .collect())
    }

    fn vp_levels(
        &self,
        sampler: Sampler,
        schedule: Schedule,
        steps: usize,
        options: &LevelOptions,
    ) -> Vec<NoiseLevel> {
        let train = self.train_steps();
        let last = (train - 1) as f64;
        let ratio = |t| {
            let mut level = self.level_at(t);
            self.keep_signal(&mut level);
            level.ratio()
        };
        let (smallest, largest) = match self.ends_as_spaced(schedule) {
            true => {
                let spaced = self.spaced(sampler, steps);
                let end = |t: Option<&f64>| ratio(t.copied().unwrap_or(0.0));
                (end(spaced.last()), end(spaced.first()))
            }
            false => (ratio(0.0), ratio(last)),
        };
        let (smallest, largest) = match self.named == Some(schedule) {
            true => (
                self.ends.0.unwrap_or(smallest),
                self.ends.1.unwrap_or(largest),
            ),
            false => (smallest, largest),
        };
        if let Some(ratios) = spread(schedule, (smallest, largest), steps, options) {
            let levels = ratios.into_iter().map(|r| self.level_of_ratio(r));
            return levels.collect();
        }
        let timesteps = match (schedule, sampler) {
            (Schedule::Discrete, Sampler::Lcm | Sampler::Tcd) => distilled(train, steps),
            (Schedule::SgmUniform, _) => {
                let mut timesteps = linspace(last, 0.0, steps + 1);
                timesteps.truncate(steps);
                timesteps
            }
            (Schedule::Simple, _) => (0..steps)
                .map(|i| (train - 1 - i * train / steps) as f64)
                .collect(),
            (Schedule::Normal, _) => linspace(last, 0.0, steps),
            (Schedule::Turbo, _) => (1..=steps)
                .rev()
                .map(|i| (i as f64 * train as f64 / steps as f64 - 1.0).round_ties_even())
                .collect(),
            (Schedule::DdimUniform, _) => (0..steps)
                .rev()
                .map(|i| (1 + i * train / steps).min(train - 1) as f64)
                .collect(),
            _ => self.spaced(sampler, steps),
        };
        timesteps.into_iter().map(|t| self.level_at(t)).collect()
    }

    /// Whether this schedule is the configuration's own, of a solver that spaces the time steps first.
    fn ends_as_spaced(&self, schedule: Schedule) -> bool {
        self.spaced_ends && self.named == Some(schedule)
    }

    /// The time steps that `scheduler_config.json` asks for.
    fn spaced(&self, sampler: Sampler, steps: usize) -> Vec<f64> {
        let train = self.spaced_over.unwrap_or(self.train_steps());
        // diffusers' multistep solvers plan one step more and leave out the last.
        let planned = match sampler {
            Sampler::DpmPlusPlus2M
            | Sampler::DpmPlusPlus2MSde
            | Sampler::DpmPlusPlus2S
            | Sampler::Deis
            | Sampler::SaSolver
            | Sampler::UniPc => steps + 1,
            _ => steps,
        };
        // These solvers and DDIM have no levels between whole steps.
        let whole = planned > steps || matches!(sampler, Sampler::Ddim | Sampler::Plms);
        match self.spacing {
            Spacing::Linspace => linspace((train - 1) as f64, 0.0, planned)
                .into_iter()
                .take(steps)
                .map(|t| if whole { t.round_ties_even() } else { t })
                .collect(),
            Spacing::Leading => (0..planned)
                .rev()
                .take(steps)
                .map(|i| (i * (train / planned).max(1) + self.steps_offset) as f64)
                .collect(),
            Spacing::Trailing | Spacing::Solver | Spacing::FromNoise => {
                // Steps of the size that all of training gives.
                let size = self.train_steps() as f64 / steps as f64;
                (0..steps)
                    .map(|i| ((train as f64 - i as f64 * size).round_ties_even() - 1.0).max(0.0))
                    .collect()
            }
        }
    }

    fn flow_levels(
        &self,
        schedule: Schedule,
        steps: usize,
        factor: f64,
        options: &LevelOptions,
    ) -> Result<Vec<NoiseLevel>> {
        let train = self.train_steps() as f64;
        let shifted = |sigma: f64| factor * sigma / (1.0 + (factor - 1.0) * sigma);
        let spaced: Vec<f64> = match self.spacing {
            // diffusers' own steps end at the smallest level of training, which has a fixed shift in it already.
            Spacing::Linspace => {
                let end = match &self.process {
                    Process::Flow {
                        shift: Shift::Fixed(_),
                        ..
                    } => shifted(1.0 / train),
                    _ => 1.0 / train,
                };
                linspace(1.0, end, steps).into_iter().map(shifted).collect()
            }
            Spacing::Solver => linspace(1.0 - 1.0 / train, 0.0, steps + 1)
                .into_iter()
                .take(steps)
                .map(shifted)
                .collect(),
            Spacing::FromNoise => linspace(1.0, 1.0 / train, steps + 1)
                .into_iter()
                .take(steps)
                .map(|sigma| shifted(sigma).min(1.0 - NEAR_NOISE))
                .collect(),
            _ => (0..steps)
                .map(|i| shifted(1.0 - i as f64 / steps as f64))
                .collect(),
        };
        let spaced = match self.terminal {
            Some(terminal) => stretched(spaced, terminal),
            None => spaced,
        };
        let (smallest, largest) = match (self.ends_as_spaced(schedule), spaced.as_slice()) {
            (true, [largest, .., smallest]) => (*smallest, *largest),
            _ => (shifted(1.0 / train), 1.0),
        };
        let sigmas: Vec<f64> = match schedule {
            Schedule::Discrete => spaced,
            Schedule::SgmUniform | Schedule::Simple | Schedule::Turbo => (0..steps)
                .map(|i| shifted(1.0 - i as f64 / steps as f64))
                .collect(),
            Schedule::DdimUniform => (0..steps)
                .rev()
                .map(|i| {
                    shifted((1.0 + (i * self.train_steps() / steps) as f64).min(train) / train)
                })
                .collect(),
            Schedule::Normal => linspace(1.0, 1.0 / train, steps)
                .into_iter()
                .map(shifted)
                .collect(),
            _ => spread(schedule, (smallest, largest), steps, options)
                .filter(|_| schedule != Schedule::AlignYourSteps)
                .ok_or_else(|| {
                    Error::Usage(format!(
                        "the schedule {} is not defined for flow models",
                        schedule.label()
                    ))
                })?,
        };
        Ok(sigmas
            .into_iter()
            .map(|sigma| {
                let level = self.level_at(sigma * train);
                match self.spacing {
                    Spacing::Solver | Spacing::FromNoise => NoiseLevel {
                        timestep: level.timestep.floor(),
                        ..level
                    },
                    _ => level,
                }
            })
            .collect())
    }

    /// Where a run ends: without noise, except where the method as published stops at the first training step, or the
    /// configuration says another end.
    fn final_level(
        &self,
        sampler: Sampler,
        schedule: Schedule,
        before: Option<NoiseLevel>,
    ) -> NoiseLevel {
        let before = before.unwrap_or(NoiseLevel::CLEAN);
        let named = self.named.is_some_and(|named| named == schedule);
        match self.own_of(sampler).map(|own| own.last) {
            Some(Last::Least) => return self.least_noise(),
            Some(Last::LeastOrSame) if named || self.is_flow() => return before,
            Some(Last::LeastOrSame) => return self.least_noise(),
            Some(Last::Clean) | None => {}
        }
        let stops_short = match sampler {
            Sampler::Ddim | Sampler::Plms => !self.final_alpha_one,
            Sampler::Tcd => true,
            _ => false,
        };
        if stops_short && !self.is_flow() && before.timestep > 0.0 {
            self.level_at(0.0)
        } else {
            NoiseLevel::CLEAN
        }
    }

    /// Whether a method fails without a trace of the image in the noisiest level. Euler's does not, but diffusers' is
    /// in `x / alpha`.
    fn divides_by_alpha(&self, sampler: Sampler) -> bool {
        self.prediction == Prediction::Epsilon
            || match self.is_flow() {
                true => sampler.is_in_log_ratio(),
                false => !matches!(sampler, Sampler::Ddim | Sampler::Lcm | Sampler::Tcd),
            }
    }

    /// The least noise that the model was trained with.
    pub(super) fn least_noise(&self) -> NoiseLevel {
        match &self.process {
            Process::Flow { .. } => self.level_at(1.0),
            Process::VariancePreserving { .. } => self.level_at(0.0),
            Process::Edm(edm) => self.level_of_ratio(edm.smallest),
        }
    }

    /// The spread of the latents that a run starts from at a level, over that of the level itself: diffusers' EDM
    /// schedulers start as if the data's spread were 1.
    pub(super) fn start_scale(&self, level: &NoiseLevel) -> f64 {
        match &self.process {
            Process::Edm(_) => level.alpha * level.ratio().hypot(1.0),
            _ => 1.0,
        }
    }

    /// Levels between two ratios as Karras has them, from the larger to the smaller.
    pub(super) fn karras_levels(
        &self,
        smallest: f64,
        largest: f64,
        steps: usize,
    ) -> Vec<NoiseLevel> {
        power(smallest, largest, steps, KARRAS_RHO)
            .into_iter()
            .map(|ratio| self.level_of_ratio(ratio))
            .collect()
    }

    /// Leaves a trace of the image in a level.
    fn keep_signal(&self, level: &mut NoiseLevel) {
        if level.alpha < MIN_ALPHA && self.spacing != Spacing::FromNoise {
            level.alpha = MIN_ALPHA;
            level.sigma = if self.is_flow() {
                1.0 - MIN_ALPHA
            } else {
                (1.0 - MIN_ALPHA * MIN_ALPHA).sqrt()
            };
        }
    }
}

/// The levels of schedules that are spread between two ends, or over shares of the larger; none of others.
fn spread(
    schedule: Schedule,
    (smallest, largest): (f64, f64),
    steps: usize,
    options: &LevelOptions,
) -> Option<Vec<f64>> {
    let smallest = options.smallest.unwrap_or(smallest);
    let largest = options.largest.unwrap_or(largest);
    let of_largest = |shares: Vec<f64>| shares.into_iter().map(|s| s * largest).collect();
    Some(match schedule {
        Schedule::Karras => power(smallest, largest, steps, options.rho.unwrap_or(KARRAS_RHO)),
        Schedule::Exponential => exponential(smallest, largest, steps, 1.0),
        Schedule::Polyexponential => {
            exponential(smallest, largest, steps, options.rho.unwrap_or(1.0))
        }
        Schedule::Beta => {
            let parameters = options.beta.unwrap_or(BETA_PARAMETERS);
            beta(smallest, largest, steps, parameters)
        }
        Schedule::KlOptimal => arc_tangent(smallest, largest, steps),
        Schedule::LinearQuadratic => of_largest(linear_quadratic(steps)),
        Schedule::BongTangent => of_largest(two_tangents(steps)),
        Schedule::AlignYourSteps => aligned(steps, options.xl),
        _ => return None,
    })
}

/// The levels of an image-to-image run: the last `strength` of them, at least one step. A part of a step counts as one
/// for flow models and as none for others, as in diffusers' pipelines of each.
pub fn from_strength(levels: &[NoiseLevel], strength: f64, flow: bool) -> &[NoiseLevel] {
    let steps = levels.len() - 1;
    let share = steps as f64 * strength;
    let left_out = match flow {
        true => (steps as f64 - share) as usize,
        false => steps - (share as usize).min(steps),
    };
    &levels[left_out.min(steps - 1)..]
}

/// Time steps of consistency models: evenly taken from the steps of their distillation.
fn distilled(train: usize, steps: usize) -> Vec<f64> {
    let taught = DISTILLED_STEPS.max(steps).min(train);
    let stride = train / taught;
    (0..steps)
        .map(|i| ((taught - i * taught / steps) * stride - 1) as f64)
        .collect()
}

/// Noise levels stretched away from 1, so that the last is `terminal`.
fn stretched(sigmas: Vec<f64>, terminal: f64) -> Vec<f64> {
    match sigmas.last().map(|last| (1.0 - last) / (1.0 - terminal)) {
        Some(factor) if factor > 0.0 => {
            let stretch = |sigma: f64| 1.0 - (1.0 - sigma) / factor;
            sigmas.into_iter().map(stretch).collect()
        }
        // A single step begins with noise alone.
        _ => sigmas,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_falls_in_every_schedule() {
        let models = [
            NoiseSchedule::stable_diffusion(Prediction::Epsilon),
            NoiseSchedule::stable_diffusion(Prediction::Velocity).with_zero_terminal_snr(),
            NoiseSchedule::flow(Shift::Fixed(3.0)),
        ];
        for model in &models {
            for sampler in Sampler::ALL {
                for schedule in Schedule::ALL {
                    for steps in [1, 2, 7, 20, 60] {
                        let levels =
                            model.levels(sampler, schedule, steps, 256, &LevelOptions::default());
                        if model.is_flow() && schedule == Schedule::AlignYourSteps {
                            assert!(levels.is_err());
                            continue;
                        }
                        let levels = levels.unwrap();
                        assert_eq!(levels.len(), steps + 1);
                        for pair in levels.windows(2) {
                            assert!(
                                pair[0].ratio() > pair[1].ratio()
                                    && pair[0].timestep >= pair[1].timestep,
                                "{sampler:?} {schedule:?} {steps}: {pair:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn strength_keeps_the_end_of_a_run() {
        let model = NoiseSchedule::stable_diffusion(Prediction::Epsilon);
        let levels = model
            .levels(
                Sampler::Euler,
                Schedule::Discrete,
                10,
                0,
                &LevelOptions::default(),
            )
            .unwrap();
        let kept = |strength, flow| from_strength(&levels, strength, flow).len() - 1;
        for flow in [false, true] {
            assert_eq!(from_strength(&levels, 1.0, flow), &levels[..]);
            assert_eq!(from_strength(&levels, 0.0, flow), &levels[9..]);
            for (strength, steps) in [(0.1, 1), (0.3, 3), (0.5, 5), (0.7, 7), (0.9, 9)] {
                assert_eq!(kept(strength, flow), steps, "{strength} {flow}");
            }
        }
        assert_eq!((kept(0.75, false), kept(0.75, true)), (7, 8));
    }

    #[test]
    fn more_steps_than_training_is_an_error() {
        let model = NoiseSchedule::stable_diffusion(Prediction::Epsilon);
        for steps in [0, 1001] {
            assert!(model
                .levels(
                    Sampler::Euler,
                    Schedule::Discrete,
                    steps,
                    0,
                    &LevelOptions::default()
                )
                .is_err());
        }
    }
}
