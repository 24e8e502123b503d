//! diffusers' schedulers: what each is here, and which values of its options are followed.
//!
//! What an option of another class says is ignored, as diffusers does: files keep options of the schedulers that they
//! were converted from.

use super::super::noise_schedule::Spacing;
use super::super::Sampler;
use serde_json::{Map, Value};

/// Which options a class has, besides those of most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing special.
    Plain,
    /// The image may be kept in bounds.
    Clipped,
    /// The same with fresh noise.
    Ddpm,
    /// The last noise level may be named.
    Euler,
    /// Time steps of Karras's levels are whole.
    Dpm2,
    /// DPM-Solver, multistep.
    Dpm,
    /// DPM-Solver, of one step.
    Singlestep,
    /// DEIS.
    Deis,
    /// UniPC.
    UniPc,
    /// SA-Solver.
    SaSolver,
    /// Flow steps, which may be stochastic.
    Flow,
    /// Flow steps that are.
    FlowLcm,
    /// Noise of Karras et al. 2022, Euler.
    Edm,
    /// The same, DPM-Solver.
    EdmDpm,
}

/// A scheduler of diffusers.
pub(super) struct Class {
    /// `_class_name`.
    pub name: &'static str,
    /// What it is here.
    pub sampler: Sampler,
    /// Which options are read.
    pub kind: Kind,
    /// Spacing of the time steps where the file names none.
    pub spacing: Spacing,
    /// Whether Karras's and other noise levels go from the first to the last of the spaced time steps, as k-diffusion's
    /// solvers have it, rather than over all of training.
    pub spaced_ends: bool,
    /// Options that change the picture and are followed with the values, in JSON, that stand here only.
    options: &'static [Followed],
}

/// An option, and the values of it that are followed.
type Followed = (&'static str, &'static [&'static str]);

const DISTILLED: &[Followed] = &[
    ("original_inference_steps", &["50"]),
    ("timestep_scaling", &["10", "10.0"]),
];

const SHIFTS: &[&str] = &["\"exponential\"", "\"linear\""];

const fn class(
    name: &'static str,
    sampler: Sampler,
    kind: Kind,
    spacing: Spacing,
    spaced_ends: bool,
    options: &'static [Followed],
) -> Class {
    Class {
        name,
        sampler,
        kind,
        spacing,
        spaced_ends,
        options,
    }
}

use Sampler::{
    Ddim, Deis, Dpm2, Dpm2Ancestral, DpmPlusPlus2M, DpmPlusPlus2S, DpmPlusPlusSde, Euler,
    EulerAncestral, Heun, Lcm, Lms, Plms, SaSolver, Tcd, UniPc,
};
use Spacing::{Leading, Linspace, Trailing};

/// Every scheduler that is implemented.
#[rustfmt::skip]
const CLASSES: [Class; 22] = [
    class("DDIMScheduler", Ddim, Kind::Clipped, Leading, false, &[]),
    class("DDPMScheduler", Ddim, Kind::Ddpm, Leading, false,
        &[("variance_type", &["\"fixed_small\"", "\"fixed_small_log\""])]),
    class("PNDMScheduler", Plms, Kind::Plain, Leading, false, &[("skip_prk_steps", &["true"])]),
    class("EulerDiscreteScheduler", Euler, Kind::Euler, Linspace, true,
        &[("interpolation_type", &["\"linear\""]), ("timestep_type", &["\"discrete\""])]),
    class("EulerAncestralDiscreteScheduler", EulerAncestral, Kind::Plain, Linspace, true, &[]),
    class("HeunDiscreteScheduler", Heun, Kind::Clipped, Linspace, true, &[]),
    class("LMSDiscreteScheduler", Lms, Kind::Plain, Linspace, true, &[]),
    class("KDPM2DiscreteScheduler", Dpm2, Kind::Dpm2, Linspace, true, &[]),
    class("KDPM2AncestralDiscreteScheduler", Dpm2Ancestral, Kind::Dpm2, Linspace, true, &[]),
    class("DPMSolverMultistepScheduler", DpmPlusPlus2M, Kind::Dpm, Linspace, false, &[("variance_type", &[])]),
    class("DPMSolverSinglestepScheduler", DpmPlusPlus2S, Kind::Singlestep, Linspace, false, &[("variance_type", &[])]),
    class("DPMSolverSDEScheduler", DpmPlusPlusSde, Kind::Plain, Linspace, true, &[("noise_sampler_seed", &[])]),
    class("DEISMultistepScheduler", Deis, Kind::Deis, Linspace, false, &[]),
    class("UniPCMultistepScheduler", UniPc, Kind::UniPc, Linspace, false, &[("solver_p", &[])]),
    class("SASolverScheduler", SaSolver, Kind::SaSolver, Linspace, false, &[("tau_func", &[]), ("variance_type", &[])]),
    class("LCMScheduler", Lcm, Kind::Clipped, Leading, false, DISTILLED),
    class("TCDScheduler", Tcd, Kind::Plain, Leading, false, DISTILLED),
    class("FlowMatchEulerDiscreteScheduler", Euler, Kind::Flow, Trailing, true, &[("invert_sigmas", &["false"]), ("time_shift_type", SHIFTS)]),
    class("FlowMatchHeunDiscreteScheduler", Heun, Kind::Plain, Trailing, true, &[]),
    class("FlowMatchLCMScheduler", Lcm, Kind::FlowLcm, Trailing, true,
        &[("invert_sigmas", &["false"]), ("scale_factors", &[]), ("time_shift_type", SHIFTS)]),
    class("EDMEulerScheduler", Euler, Kind::Edm, Linspace, true, &[]),
    class("EDMDPMSolverMultistepScheduler", DpmPlusPlus2M, Kind::EdmDpm, Linspace, true, &[]),
];

impl Class {
    /// The scheduler of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        CLASSES.iter().find(|class| class.name == name)
    }

    /// Whether this scheduler's options are followed.
    ///
    /// # Errors
    /// Names the first option whose value is not, with those that are.
    pub(super) fn check(&self, options: &Map<String, Value>) -> Result<(), String> {
        for (name, followed) in self.options {
            let value = options.get(*name).unwrap_or(&Value::Null);
            let same = |text: &&str| serde_json::from_str::<Value>(text).is_ok_and(|v| v == *value);
            if !value.is_null() && !followed.iter().any(same) {
                let only = match followed {
                    [] => "only without it".to_string(),
                    values => format!("only with {}", values.join(" or ")),
                };
                return Err(format!(
                    "{} with {name} {value} is not implemented, {only}",
                    self.name
                ));
            }
        }
        Ok(())
    }
}
