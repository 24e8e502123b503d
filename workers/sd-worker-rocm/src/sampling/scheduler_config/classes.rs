//! diffusers' schedulers: what each is here, and which values of its options are followed.
//!
//! What an option of another class says is ignored, as diffusers does: files keep options of the schedulers that they
//! were converted from.

use super::super::noise_schedule::Spacing;
use super::super::Sampler;
use serde_json::{Map, Value};

/// A scheduler of diffusers.
pub(super) struct Class {
    /// `_class_name`.
    name: &'static str,
    /// What it is here.
    pub sampler: Sampler,
    /// Spacing of the time steps where the file names none.
    pub spacing: Spacing,
    /// Whether Karras's and other noise levels go from the first to the last of the spaced time steps, as k-diffusion's
    /// solvers have it, rather than over all of training.
    pub spaced_ends: bool,
    /// Options that change the picture with the values, in JSON, that are followed.
    options: &'static [&'static [Followed]],
}

/// An option, and the values of it that are followed.
type Followed = (&'static str, &'static [&'static str]);

const UNCLIPPED: &[Followed] = &[("clip_sample", &["false"]), ("thresholding", &["false"])];
const TO_ZERO: &[Followed] = &[("final_sigmas_type", &["\"zero\""])];
const SECOND_ORDER: &[Followed] = &[
    ("solver_order", &["2"]),
    ("lower_order_final", &["true"]),
    ("thresholding", &["false"]),
];
const DISTILLED: &[Followed] = &[
    ("original_inference_steps", &["50"]),
    ("timestep_scaling", &["10", "10.0"]),
];

/// Every scheduler that is implemented.
const CLASSES: [Class; 12] = [
    Class {
        name: "DDIMScheduler",
        sampler: Sampler::Ddim,
        spacing: Spacing::Leading,
        spaced_ends: false,
        options: &[UNCLIPPED],
    },
    Class {
        name: "PNDMScheduler",
        sampler: Sampler::Plms,
        spacing: Spacing::Leading,
        spaced_ends: false,
        options: &[&[("skip_prk_steps", &["true"])]],
    },
    Class {
        name: "EulerDiscreteScheduler",
        sampler: Sampler::Euler,
        spacing: Spacing::Linspace,
        spaced_ends: true,
        options: &[
            TO_ZERO,
            &[
                ("interpolation_type", &["\"linear\""]),
                ("timestep_type", &["\"discrete\""]),
                ("sigma_min", &[]),
                ("sigma_max", &[]),
            ],
        ],
    },
    Class {
        name: "EulerAncestralDiscreteScheduler",
        sampler: Sampler::EulerAncestral,
        spacing: Spacing::Linspace,
        spaced_ends: true,
        options: &[],
    },
    Class {
        name: "HeunDiscreteScheduler",
        sampler: Sampler::Heun,
        spacing: Spacing::Linspace,
        spaced_ends: true,
        options: &[&[("clip_sample", &["false"])]],
    },
    Class {
        name: "DPMSolverMultistepScheduler",
        sampler: Sampler::DpmPlusPlus2M,
        spacing: Spacing::Linspace,
        spaced_ends: false,
        options: &[
            TO_ZERO,
            &[
                ("solver_order", &["2"]),
                ("thresholding", &["false"]),
                (
                    "algorithm_type",
                    &["\"dpmsolver++\"", "\"sde-dpmsolver++\""],
                ),
                ("solver_type", &["\"midpoint\""]),
                ("use_lu_lambdas", &["false"]),
                ("variance_type", &[]),
                ("use_dynamic_shifting", &["false"]),
            ],
        ],
    },
    Class {
        name: "DPMSolverSDEScheduler",
        sampler: Sampler::DpmPlusPlusSde,
        spacing: Spacing::Linspace,
        spaced_ends: true,
        options: &[&[("noise_sampler_seed", &[])]],
    },
    Class {
        name: "UniPCMultistepScheduler",
        sampler: Sampler::UniPc,
        spacing: Spacing::Linspace,
        spaced_ends: false,
        options: &[
            TO_ZERO,
            SECOND_ORDER,
            &[
                ("predict_x0", &["true"]),
                ("solver_type", &["\"bh2\""]),
                ("disable_corrector", &["[]"]),
                ("solver_p", &[]),
                ("use_dynamic_shifting", &["false"]),
                ("sigma_min", &[]),
                ("sigma_max", &[]),
                ("shift_terminal", &[]),
            ],
        ],
    },
    Class {
        name: "LCMScheduler",
        sampler: Sampler::Lcm,
        spacing: Spacing::Leading,
        spaced_ends: false,
        options: &[UNCLIPPED, DISTILLED],
    },
    Class {
        name: "TCDScheduler",
        sampler: Sampler::Tcd,
        spacing: Spacing::Leading,
        spaced_ends: false,
        options: &[UNCLIPPED, DISTILLED],
    },
    Class {
        name: "FlowMatchEulerDiscreteScheduler",
        sampler: Sampler::Euler,
        spacing: Spacing::Trailing,
        spaced_ends: true,
        options: &[&[
            ("time_shift_type", &["\"exponential\"", "\"linear\""]),
            ("invert_sigmas", &["false"]),
            ("stochastic_sampling", &["false"]),
        ]],
    },
    Class {
        name: "FlowMatchHeunDiscreteScheduler",
        sampler: Sampler::Heun,
        spacing: Spacing::Trailing,
        spaced_ends: true,
        options: &[],
    },
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
        for (name, followed) in self.options.iter().copied().flatten() {
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
