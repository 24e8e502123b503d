//! Which solver a sampler's name stands for.

use super::solver::dpm::{Dpm, DpmKind, SecondOrder, Singlestep};
use super::solver::history::{self, Weighing};
use super::solver::plms::Plms;
use super::solver::sa::{Sa, SaKind};
use super::solver::unipc::{UniPc, UniPcKind};
use super::solver::{consistency, euler, stages, whole, Solver};
use super::NoiseSchedule;
use super::Sampler;

/// Scale of the time steps that latent consistency models were distilled with.
const LCM_TIMESTEP_SCALE: f64 = 10.0;

impl Sampler {
    /// Whether the method's formulas have the logarithm of noise over image in them for flow models, too.
    pub(super) fn is_in_log_ratio(self) -> bool {
        matches!(
            self,
            Self::Plms
                | Self::DpmPlusPlus2M
                | Self::DpmPlusPlusSde
                | Self::DpmPlusPlus2MSde
                | Self::DpmPlusPlus2S
                | Self::DpmPlusPlus2MSdeHeun
                | Self::DpmPlusPlus3MSde
                | Self::DpmPlusPlus2MCfgPlusPlus
                | Self::UniPc
                | Self::SaSolver
                | Self::Deis
                | Self::ErSde
                | Self::Restart
                | Self::EulerCfgPlusPlus
                | Self::EulerAncestralCfgPlusPlus
        )
    }

    /// The method, for the last `steps` of a run of `planned`.
    pub(super) fn solver(
        self,
        schedule: &NoiseSchedule,
        planned: usize,
        steps: usize,
    ) -> Box<dyn Solver> {
        let dpm = |order, sde, second| Box::new(Dpm::new(DpmKind::plus_plus(order, sde, second)));
        let residual = |ancestral, plus_plus| {
            Box::new(history::Residual {
                ancestral,
                plus_plus,
                before: None,
            })
        };
        let estimation = |plus_plus| {
            Box::new(history::GradientEstimation {
                plus_plus,
                before: None,
            })
        };
        let linear = |weighing| Box::new(history::Linear::new(weighing));
        match self {
            Self::Euler => Box::new(euler::Euler),
            Self::EulerAncestral => Box::new(euler::Ancestral {
                in_ratio: false,
                told_noise: false,
            }),
            Self::Ddim => Box::new(euler::Ancestral {
                in_ratio: true,
                told_noise: true,
            }),
            Self::Heun => Box::new(stages::Heun),
            Self::HeunPlusPlus => Box::new(stages::HeunPlusPlus::default()),
            Self::Plms => Box::new(Plms::new(schedule.prediction)),
            Self::DpmPlusPlus2M => dpm(2, false, SecondOrder::Midpoint),
            Self::DpmPlusPlusSde => Box::new(stages::DpmSde),
            Self::DpmPlusPlus2MSde => dpm(2, true, SecondOrder::Midpoint),
            Self::DpmPlusPlus2MSdeHeun => dpm(2, true, SecondOrder::Heun),
            Self::DpmPlusPlus3MSde => dpm(3, true, SecondOrder::Heun),
            Self::DpmPlusPlus2S => Box::new(Singlestep::new(
                DpmKind::plus_plus(2, false, SecondOrder::Midpoint),
                planned,
                planned - steps,
                true,
            )),
            Self::UniPc => Box::new(UniPc::new(UniPcKind::USUAL)),
            Self::SaSolver => Box::new(Sa::new(SaKind::USUAL)),
            Self::Lcm => Box::new(consistency::Lcm {
                timestep_scale: (!schedule.is_flow()).then_some(LCM_TIMESTEP_SCALE),
            }),
            Self::Tcd => Box::new(consistency::Tcd),
            Self::Lms => linear(Weighing::Polynomial),
            Self::Ipndm => linear(Weighing::Fixed),
            Self::IpndmV => linear(Weighing::Variable),
            Self::Dpm2 => Box::new(stages::Dpm2 { ancestral: false }),
            Self::Dpm2Ancestral => Box::new(stages::Dpm2 { ancestral: true }),
            Self::DpmPlusPlus2SAncestral => Box::new(stages::Dpm2s { plus_plus: false }),
            Self::DpmPlusPlus2SAncestralCfgPlusPlus => Box::new(stages::Dpm2s { plus_plus: true }),
            Self::DpmFast => Box::new(whole::Fast {
                orders: whole::fast_orders(steps),
            }),
            Self::DpmAdaptive => Box::new(whole::Adaptive::new()),
            Self::Deis => Box::new(Dpm::new(DpmKind::deis(3, true))),
            Self::Restart => Box::new(stages::Restart::default()),
            Self::ResMultistep => residual(false, false),
            Self::ResMultistepAncestral => residual(true, false),
            Self::ResMultistepCfgPlusPlus => residual(false, true),
            Self::ResMultistepAncestralCfgPlusPlus => residual(true, true),
            Self::ErSde => Box::new(history::ErSde::default()),
            Self::GradientEstimation => estimation(false),
            Self::GradientEstimationCfgPlusPlus => estimation(true),
            Self::EulerCfgPlusPlus | Self::EulerAncestralCfgPlusPlus => {
                Box::new(euler::EulerPlusPlus)
            }
            Self::DpmPlusPlus2MCfgPlusPlus => Box::new(history::DpmPlusPlus2MPlusPlus::default()),
        }
    }
}
