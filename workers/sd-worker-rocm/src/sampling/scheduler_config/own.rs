//! How a configuration wants its sampler to be.

use super::super::noise_level::NoiseLevel;
use super::super::solver::consistency::Lcm;
use super::super::solver::dpm::{Dpm, DpmKind, Singlestep};
use super::super::solver::euler::Ancestral;
use super::super::solver::restrain::Restrain;
use super::super::solver::sa::{Sa, SaKind};
use super::super::solver::unipc::{UniPc, UniPcKind};
use super::super::solver::Solver;

/// The solver, where its options make it another than its name does.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) enum Method {
    /// The sampler as it is.
    AsNamed,
    /// A multistep solver in log ratio.
    Dpm(DpmKind),
    /// The same of one step.
    Singlestep(DpmKind),
    /// UniPC.
    UniPc(UniPcKind),
    /// SA-Solver.
    Sa(SaKind),
    /// DDIM's steps whose noise is that of the image in bounds (DDPM).
    Ddpm,
    /// The image itself with fresh noise (stochastic flow steps).
    Fresh,
}

/// Where a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Last {
    /// Where the sampler does, usually without noise.
    Clean,
    /// With the least noise of training.
    Least,
    /// The same, but at the last level once more where the levels are not the spaced time steps.
    LeastOrSame,
}

/// What becomes of time steps between whole ones, in levels that are not the spaced time steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Rounding {
    /// Nothing.
    Kept,
    /// The nearest.
    Nearest,
    /// The one below.
    Below,
}

/// Logarithms in 32 bits leave diffusers' time steps this much short of whole ones, and the next below is taken.
const NOT_WHOLE: f64 = 1e-3;

/// The options of a scheduler that are followed.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Own {
    pub method: Method,
    pub restrain: Option<Restrain>,
    pub last: Last,
    pub rounding: Rounding,
    pub eta: Option<f64>,
}

impl Own {
    /// Rounds the time steps of levels.
    pub fn whole_timesteps(&self, levels: &mut [NoiseLevel]) {
        for level in levels {
            level.timestep = match self.rounding {
                Rounding::Kept => level.timestep,
                Rounding::Nearest => level.timestep.round_ties_even(),
                Rounding::Below => (level.timestep - NOT_WHOLE).max(0.0).floor(),
            };
        }
    }

    /// The solver of a run of `steps`, of which the first `skipped` are left out, if it is not the sampler's own.
    pub fn solver(&self, steps: usize, skipped: usize) -> Option<Box<dyn Solver>> {
        match &self.method {
            Method::AsNamed => None,
            Method::Dpm(kind) => Some(Box::new(Dpm::new(*kind))),
            Method::Singlestep(kind) => Some(Box::new(Singlestep::new(
                *kind,
                steps,
                skipped,
                self.last == Last::Clean,
            ))),
            Method::UniPc(kind) => Some(Box::new(UniPc::new(kind.clone()))),
            Method::Sa(kind) => Some(Box::new(Sa::new(*kind))),
            Method::Ddpm => Some(Box::new(Ancestral {
                in_ratio: true,
                told_noise: false,
            })),
            Method::Fresh => Some(Box::new(Lcm {
                timestep_scale: None,
            })),
        }
    }
}
