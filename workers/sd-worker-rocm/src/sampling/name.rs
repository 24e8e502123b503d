//! Names of samplers and schedules, as web UIs, ComfyUI and diffusers spell them.

use worker::{Error, Result};

/// How a step goes from one noise level to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// First order; on flow models this is flow-match Euler.
    Euler,
    /// Euler with fresh noise in every step.
    EulerAncestral,
    /// Second order, two evaluations a step.
    Heun,
    /// Denoising diffusion implicit models; `eta` adds noise.
    Ddim,
    /// Pseudo linear multistep (PNDM without Runge-Kutta steps), two evaluations in the first step.
    Plms,
    /// DPM-Solver++, second order, multistep.
    DpmPlusPlus2M,
    /// DPM-Solver++ with noise, two evaluations a step.
    DpmPlusPlusSde,
    /// DPM-Solver++ with noise, second order, multistep.
    DpmPlusPlus2MSde,
    /// Unified predictor-corrector (B2, second order).
    UniPc,
    /// Latent consistency models.
    Lcm,
    /// Trajectory consistency distillation.
    Tcd,
}

impl Sampler {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Euler,
        Self::EulerAncestral,
        Self::Heun,
        Self::Ddim,
        Self::Plms,
        Self::DpmPlusPlus2M,
        Self::DpmPlusPlusSde,
        Self::DpmPlusPlus2MSde,
        Self::UniPc,
        Self::Lcm,
        Self::Tcd,
    ];

    /// The name that web UIs show.
    pub fn label(self) -> &'static str {
        self.names()[0]
    }

    /// Other spellings that [`Self::from_name`] takes, ComfyUI's first.
    pub fn aliases(self) -> &'static [&'static str] {
        &self.names()[1..]
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Euler => &["Euler", "euler", "k_euler", "flow_match_euler"],
            Self::EulerAncestral => &["Euler a", "euler_ancestral", "k_euler_a"],
            Self::Heun => &["Heun", "heun", "k_heun"],
            Self::Ddim => &["DDIM", "ddim"],
            Self::Plms => &["PLMS", "plms", "pndm"],
            Self::DpmPlusPlus2M => &["DPM++ 2M", "dpmpp_2m", "k_dpmpp_2m"],
            Self::DpmPlusPlusSde => &["DPM++ SDE", "dpmpp_sde", "k_dpmpp_sde"],
            Self::DpmPlusPlus2MSde => &["DPM++ 2M SDE", "dpmpp_2m_sde", "k_dpmpp_2m_sde"],
            Self::UniPc => &["UniPC", "uni_pc", "uni_pc_bh2"],
            Self::Lcm => &["LCM", "lcm"],
            Self::Tcd => &["TCD", "tcd"],
        }
    }

    /// The sampler of this name; case, spaces, `-` and `_` do not count.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        find(name, "sampler", &Self::ALL, |s| s.names())
    }

    /// A sampler with the schedule that older web UIs put behind its name, such as `DPM++ 2M Karras`.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn with_schedule(name: &str) -> Result<(Self, Option<Schedule>)> {
        if let Some((sampler, schedule)) = name.trim().rsplit_once(' ') {
            if let (Ok(sampler), Ok(schedule)) =
                (Self::from_name(sampler), Schedule::from_name(schedule))
            {
                return Ok((sampler, Some(schedule)));
            }
        }
        Ok((Self::from_name(name)?, None))
    }

    /// The schedule that web UIs choose with "Automatic".
    pub fn default_schedule(self) -> Schedule {
        match self {
            Self::DpmPlusPlus2M | Self::DpmPlusPlusSde => Schedule::Karras,
            Self::DpmPlusPlus2MSde => Schedule::Exponential,
            _ => Schedule::Discrete,
        }
    }

    /// Network evaluations of `steps` steps.
    pub fn evaluations(self, steps: usize) -> usize {
        match self {
            // The last step is an Euler step.
            Self::Heun | Self::DpmPlusPlusSde => (2 * steps).saturating_sub(1),
            Self::Plms if steps > 1 => steps + 1,
            _ => steps,
        }
    }
}

/// Which noise levels are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The model's own time steps, spaced as its `scheduler_config.json` says ("normal").
    Discrete,
    /// Karras et al. 2022, rho 7.
    Karras,
    /// Evenly spaced logarithms.
    Exponential,
    /// Evenly spaced time steps without the last (Stability's `sgm`).
    SgmUniform,
    /// Every n-th time step, counted from the end.
    Simple,
    /// Quantiles of the beta distribution with both parameters 0.6.
    Beta,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Discrete,
        Self::Karras,
        Self::Exponential,
        Self::SgmUniform,
        Self::Simple,
        Self::Beta,
    ];

    /// The name that web UIs show.
    pub fn label(self) -> &'static str {
        self.names()[0]
    }

    /// Other spellings that [`Self::from_name`] takes.
    pub fn aliases(self) -> &'static [&'static str] {
        &self.names()[1..]
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Discrete => &["Normal", "discrete", "uniform", "default"],
            Self::Karras => &["Karras", "karras"],
            Self::Exponential => &["Exponential", "exponential"],
            Self::SgmUniform => &["SGM Uniform", "sgm_uniform"],
            Self::Simple => &["Simple", "simple"],
            Self::Beta => &["Beta", "beta"],
        }
    }

    /// The schedule of this name; case, spaces, `-` and `_` do not count.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        find(name, "schedule", &Self::ALL, |s| s.names())
    }
}

/// The one of `all` that has this name among its `names`, the first of which is the one to show.
fn find<T: Copy>(
    name: &str,
    kind: &str,
    all: &[T],
    names: impl Fn(T) -> &'static [&'static str],
) -> Result<T> {
    let wanted = normalise(name);
    let has_name = |one: &T| names(*one).iter().any(|n| normalise(n) == wanted);
    all.iter().copied().find(has_name).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|one| names(*one)[0]).collect();
        Error::Usage(format!(
            "{name:?} is not a {kind}; use one of {}",
            known.join(", ")
        ))
    })
}

fn normalise(name: &str) -> String {
    name.chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect::<String>()
        .replace("++", "pp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        for (name, sampler) in [
            ("Euler a", Sampler::EulerAncestral),
            ("euler_ancestral", Sampler::EulerAncestral),
            ("DPM++ 2M SDE", Sampler::DpmPlusPlus2MSde),
            ("dpmpp_2m", Sampler::DpmPlusPlus2M),
            ("flow-match-euler", Sampler::Euler),
        ] {
            assert_eq!(Sampler::from_name(name).unwrap(), sampler, "{name}");
        }
        assert_eq!(
            Sampler::with_schedule("DPM++ 2M Karras").unwrap(),
            (Sampler::DpmPlusPlus2M, Some(Schedule::Karras))
        );
        assert_eq!(Schedule::from_name("normal").unwrap(), Schedule::Discrete);
        let error = Sampler::from_name("DPM adaptive").unwrap_err().to_string();
        assert!(error.contains("DPM++ 2M SDE"), "{error}");
    }

    #[test]
    fn every_name_is_found_and_means_one_thing() {
        for sampler in Sampler::ALL {
            for name in sampler.names() {
                assert_eq!(Sampler::from_name(name).unwrap(), sampler);
            }
        }
        for schedule in Schedule::ALL {
            for name in schedule.names() {
                assert_eq!(Schedule::from_name(name).unwrap(), schedule);
            }
        }
    }
}
