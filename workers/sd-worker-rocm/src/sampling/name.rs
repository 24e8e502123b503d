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
    /// Linear multistep, fourth order.
    Lms,
    /// DPM-Solver-2 in Karras's form, two evaluations a step.
    Dpm2,
    /// The same with fresh noise in every step.
    Dpm2Ancestral,
    /// DPM-Solver++ of one step with fresh noise, two evaluations a step.
    DpmPlusPlus2SAncestral,
    /// DPM-Solver++ of one step, which takes two of the schedule's.
    DpmPlusPlus2S,
    /// DPM-Solver++ with noise, second order by Heun's weights.
    DpmPlusPlus2MSdeHeun,
    /// DPM-Solver++ with noise, third order, multistep.
    DpmPlusPlus3MSde,
    /// DPM-Solver of few evaluations: as many as there are steps.
    DpmFast,
    /// DPM-Solver with steps as long as its error allows; the number of steps does not matter.
    DpmAdaptive,
    /// Diffusion exponential integrator, third order.
    Deis,
    /// Improved pseudo numerical method, fourth order.
    Ipndm,
    /// The same for steps of any size.
    IpndmV,
    /// Heun's steps, of which some go again from more noise.
    Restart,
    /// Heun with a third evaluation, a step ahead.
    HeunPlusPlus,
    /// Residual multistep, second order.
    ResMultistep,
    /// The same with fresh noise in every step.
    ResMultistepAncestral,
    /// Extended reverse-time SDE, third order.
    ErSde,
    /// Euler with its direction extrapolated.
    GradientEstimation,
    /// Euler with CFG++, whose guidance goes from 0 to 2 or so.
    EulerCfgPlusPlus,
    /// Euler with CFG++ and fresh noise.
    EulerAncestralCfgPlusPlus,
    /// DPM-Solver++ 2M with CFG++.
    DpmPlusPlus2MCfgPlusPlus,
    /// DPM-Solver++ 2S with CFG++ and fresh noise.
    DpmPlusPlus2SAncestralCfgPlusPlus,
    /// Residual multistep with CFG++.
    ResMultistepCfgPlusPlus,
    /// Residual multistep with CFG++ and fresh noise.
    ResMultistepAncestralCfgPlusPlus,
    /// Gradient estimation with CFG++.
    GradientEstimationCfgPlusPlus,
    /// Stochastic Adams, predictor and corrector, second order.
    SaSolver,
}

impl Sampler {
    /// All of them.
    pub const ALL: [Self; 37] = [
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
        Self::Lms,
        Self::Dpm2,
        Self::Dpm2Ancestral,
        Self::DpmPlusPlus2SAncestral,
        Self::DpmPlusPlus2S,
        Self::DpmPlusPlus2MSdeHeun,
        Self::DpmPlusPlus3MSde,
        Self::DpmFast,
        Self::DpmAdaptive,
        Self::Deis,
        Self::Ipndm,
        Self::IpndmV,
        Self::Restart,
        Self::HeunPlusPlus,
        Self::ResMultistep,
        Self::ResMultistepAncestral,
        Self::ErSde,
        Self::GradientEstimation,
        Self::EulerCfgPlusPlus,
        Self::EulerAncestralCfgPlusPlus,
        Self::DpmPlusPlus2MCfgPlusPlus,
        Self::DpmPlusPlus2SAncestralCfgPlusPlus,
        Self::ResMultistepCfgPlusPlus,
        Self::ResMultistepAncestralCfgPlusPlus,
        Self::GradientEstimationCfgPlusPlus,
        Self::SaSolver,
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
            Self::DpmPlusPlusSde => &["DPM++ SDE", "dpmpp_sde", "k_dpmpp_sde", "dpmpp_sde_gpu"],
            Self::DpmPlusPlus2MSde => &[
                "DPM++ 2M SDE",
                "dpmpp_2m_sde",
                "k_dpmpp_2m_sde",
                "dpmpp_2m_sde_gpu",
            ],
            Self::UniPc => &["UniPC", "uni_pc", "uni_pc_bh2"],
            Self::Lcm => &["LCM", "lcm"],
            Self::Tcd => &["TCD", "tcd"],
            Self::Lms => &["LMS", "lms", "k_lms"],
            Self::Dpm2 => &["DPM2", "dpm_2", "k_dpm_2"],
            Self::Dpm2Ancestral => &["DPM2 a", "dpm_2_ancestral", "k_dpm_2_a"],
            Self::DpmPlusPlus2SAncestral => &["DPM++ 2S a", "dpmpp_2s_ancestral", "k_dpmpp_2s_a"],
            Self::DpmPlusPlus2S => &["DPM++ 2S", "dpmpp_2s", "k_dpmpp_2s"],
            Self::DpmPlusPlus2MSdeHeun => &[
                "DPM++ 2M SDE Heun",
                "dpmpp_2m_sde_heun",
                "k_dpmpp_2m_sde_heun",
                "dpmpp_2m_sde_heun_gpu",
            ],
            Self::DpmPlusPlus3MSde => &[
                "DPM++ 3M SDE",
                "dpmpp_3m_sde",
                "k_dpmpp_3m_sde",
                "dpmpp_3m_sde_gpu",
            ],
            Self::DpmFast => &["DPM fast", "dpm_fast", "k_dpm_fast"],
            Self::DpmAdaptive => &["DPM adaptive", "dpm_adaptive", "k_dpm_ad"],
            Self::Deis => &["DEIS", "deis"],
            Self::Ipndm => &["IPNDM", "ipndm"],
            Self::IpndmV => &["IPNDM_V", "ipndm_v"],
            Self::Restart => &["Restart", "restart"],
            Self::HeunPlusPlus => &["HeunPP2", "heunpp2", "heun++"],
            Self::ResMultistep => &["Res Multistep", "res_multistep"],
            Self::ResMultistepAncestral => &["Res Multistep a", "res_multistep_ancestral"],
            Self::ErSde => &["ER SDE", "er_sde"],
            Self::GradientEstimation => &["Gradient Estimation", "gradient_estimation"],
            Self::EulerCfgPlusPlus => &["Euler CFG++", "euler_cfg_pp"],
            Self::EulerAncestralCfgPlusPlus => &["Euler a CFG++", "euler_ancestral_cfg_pp"],
            Self::DpmPlusPlus2MCfgPlusPlus => &["DPM++ 2M CFG++", "dpmpp_2m_cfg_pp"],
            Self::DpmPlusPlus2SAncestralCfgPlusPlus => {
                &["DPM++ 2S a CFG++", "dpmpp_2s_ancestral_cfg_pp"]
            }
            Self::ResMultistepCfgPlusPlus => &["Res Multistep CFG++", "res_multistep_cfg_pp"],
            Self::ResMultistepAncestralCfgPlusPlus => {
                &["Res Multistep a CFG++", "res_multistep_ancestral_cfg_pp"]
            }
            Self::GradientEstimationCfgPlusPlus => {
                &["Gradient Estimation CFG++", "gradient_estimation_cfg_pp"]
            }
            Self::SaSolver => &["SA-Solver", "sa_solver"],
        }
    }

    /// Whether its noise may come of a Brownian motion, as k-diffusion's does.
    pub fn goes_along(self) -> bool {
        matches!(
            self,
            Self::DpmPlusPlusSde
                | Self::DpmPlusPlus2MSde
                | Self::DpmPlusPlus2MSdeHeun
                | Self::DpmPlusPlus3MSde
        )
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
            Self::DpmPlusPlus2M
            | Self::DpmPlusPlusSde
            | Self::DpmPlusPlus2S
            | Self::Dpm2
            | Self::Dpm2Ancestral
            | Self::DpmPlusPlus2SAncestral
            | Self::Restart => Schedule::Karras,
            Self::DpmPlusPlus2MSde | Self::DpmPlusPlus2MSdeHeun | Self::DpmPlusPlus3MSde => {
                Schedule::Exponential
            }
            _ => Schedule::Discrete,
        }
    }

    /// The share of fresh noise where a request names none.
    pub fn default_eta(self) -> f64 {
        match self {
            Self::Tcd => 0.3,
            Self::Ddim | Self::DpmFast | Self::DpmAdaptive | Self::EulerCfgPlusPlus => 0.0,
            _ => 1.0,
        }
    }

    /// Whether the method asks what the negative prompt alone tells, so that guidance of 1 and less makes a difference.
    pub fn needs_negative(self) -> bool {
        matches!(
            self,
            Self::EulerCfgPlusPlus
                | Self::EulerAncestralCfgPlusPlus
                | Self::DpmPlusPlus2MCfgPlusPlus
                | Self::DpmPlusPlus2SAncestralCfgPlusPlus
                | Self::ResMultistepCfgPlusPlus
                | Self::ResMultistepAncestralCfgPlusPlus
                | Self::GradientEstimationCfgPlusPlus
        )
    }
}

/// Which noise levels are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The model's own time steps, spaced as its `scheduler_config.json` says.
    Discrete,
    /// Evenly spaced time steps from the first to the last.
    Normal,
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
    /// Logarithms that fall by a power, evenly unless a request says otherwise.
    Polyexponential,
    /// Evenly spaced time steps from the first but one on.
    DdimUniform,
    /// Evenly spaced time steps from the last on, as models distilled to few steps have them.
    Turbo,
    /// "Align your steps": published levels for Stable Diffusion 1 and XL.
    AlignYourSteps,
    /// Evenly spaced arc tangents.
    KlOptimal,
    /// Small steps, then growing ones.
    LinearQuadratic,
    /// Two arcs of tangents.
    BongTangent,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Discrete,
        Self::Normal,
        Self::Karras,
        Self::Exponential,
        Self::SgmUniform,
        Self::Simple,
        Self::Beta,
        Self::Polyexponential,
        Self::DdimUniform,
        Self::Turbo,
        Self::AlignYourSteps,
        Self::KlOptimal,
        Self::LinearQuadratic,
        Self::BongTangent,
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
            Self::Discrete => &["Discrete", "discrete", "default"],
            Self::Normal => &["Normal", "normal"],
            Self::Karras => &["Karras", "karras"],
            Self::Exponential => &["Exponential", "exponential"],
            Self::SgmUniform => &["SGM Uniform", "sgm_uniform"],
            Self::Simple => &["Simple", "simple"],
            Self::Beta => &["Beta", "beta"],
            Self::Polyexponential => &["Polyexponential", "polyexponential"],
            Self::DdimUniform => &["DDIM", "ddim_uniform", "ddim"],
            Self::Turbo => &["Turbo", "turbo", "sd_turbo"],
            Self::AlignYourSteps => &["Align Your Steps", "align_your_steps", "ays"],
            Self::KlOptimal => &["KL Optimal", "kl_optimal"],
            Self::LinearQuadratic => &["Linear Quadratic", "linear_quadratic"],
            Self::BongTangent => &["Bong Tangent", "bong_tangent"],
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
        assert_eq!(Schedule::from_name("normal").unwrap(), Schedule::Normal);
        let error = Sampler::from_name("DPM perfect").unwrap_err().to_string();
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
