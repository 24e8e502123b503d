//! Settings of a schedule, and levels that a request lists itself.

use super::noise_schedule::{NoiseSchedule, Process};
use super::NoiseLevel;
use worker::{Error, Result};

/// Settings of a schedule; what is left out is the schedule's own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LevelOptions {
    /// Exponent of Karras's (7) and the polyexponential (1) schedule.
    pub rho: Option<f64>,
    /// Least noise of schedules that are spread between two levels: noise over image, for flow models sigma.
    pub smallest: Option<f64>,
    /// Most noise of the same.
    pub largest: Option<f64>,
    /// Parameters of the beta schedule, 0.6 and 0.6.
    pub beta: Option<(f64, f64)>,
    /// Whether the model is Stable Diffusion XL, for which "align your steps" has numbers of its own.
    pub xl: bool,
    /// The levels themselves, instead of a schedule's.
    pub listed: Option<Listed>,
}

/// Levels that a request lists, from noise to image. The last may be without noise, which is added where it is not.
#[derive(Debug, Clone, PartialEq)]
pub enum Listed {
    /// Noise over image; sigma of flow models.
    Sigmas(Vec<f64>),
    /// Time steps.
    Timesteps(Vec<f64>),
}

impl Listed {
    fn numbers(&self) -> &[f64] {
        match self {
            Self::Sigmas(numbers) | Self::Timesteps(numbers) => numbers,
        }
    }

    /// The numbers of the steps' beginnings: a last 0 of sigmas is no step.
    fn starts(&self) -> &[f64] {
        match self {
            Self::Sigmas(numbers) => numbers.strip_suffix(&[0.0]).unwrap_or(numbers),
            Self::Timesteps(numbers) => numbers,
        }
    }

    /// Steps that they make.
    pub fn steps(&self) -> usize {
        self.starts().len()
    }

    /// Whether they fall from noise to image.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check(&self) -> std::result::Result<(), String> {
        let numbers = self.numbers();
        let least = match self {
            Self::Sigmas(_) => f64::MIN_POSITIVE,
            Self::Timesteps(_) => 0.0,
        };
        let falling = numbers.windows(2).all(|pair| pair[0] > pair[1]);
        let sound = self.starts().iter().all(|x| *x >= least && *x <= MOST);
        match falling && sound && self.steps() > 0 {
            true => Ok(()),
            false => Err("levels fall from noise to image: numbers above 0, each smaller than the one before".to_string()),
        }
    }
}

/// Largest sigma or time step.
const MOST: f64 = 1e6;

impl NoiseSchedule {
    /// The levels of a list, without the end.
    pub(super) fn listed(&self, listed: &Listed) -> Result<Vec<NoiseLevel>> {
        let usage = |reason: String| Error::Usage(reason);
        listed.check().map_err(usage)?;
        let flow = self.is_flow();
        let (most, what) = match (listed, &self.process) {
            (Listed::Sigmas(_), Process::Flow { .. }) => (1.0, "sigma"),
            (Listed::Sigmas(_), _) => (MOST, "sigma"),
            (Listed::Timesteps(_), Process::VariancePreserving { .. }) => {
                ((self.train_steps() - 1) as f64, "time step")
            }
            (Listed::Timesteps(_), _) => (self.train_steps() as f64, "time step"),
        };
        let starts = listed.starts();
        if let Some(above) = starts.iter().find(|x| **x > most) {
            return Err(usage(format!(
                "the {what} {above} is above {most}, the model's largest"
            )));
        }
        let level = |x: &f64| match (listed, flow) {
            (Listed::Timesteps(_), _) => self.level_at(*x),
            (Listed::Sigmas(_), true) => self.level_at(x * self.train_steps() as f64),
            (Listed::Sigmas(_), false) => self.level_of_ratio(*x),
        };
        Ok(starts.iter().map(level).collect())
    }
}
