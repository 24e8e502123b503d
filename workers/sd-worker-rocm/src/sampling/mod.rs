//! From noise to an image's latents: noise schedules, step schedules, samplers.
//!
//! | Module             | Gives                                                                      |
//! |--------------------|----------------------------------------------------------------------------|
//! | [`noise_schedule`] | how a model was trained to see noise                                       |
//! | [`scheduler_config`] | the same as `scheduler_config.json` has it                               |
//! | [`schedule`]       | which noise levels a run of N steps visits                                 |
//! | [`prediction`]     | what the network predicts (noise, velocity, flow), turned into an image    |
//! | [`run`]            | one run of a sampler, step by step                                         |
//! | [`solver`]         | the samplers                                                               |
//! | [`guidance`]       | classifier-free guidance and its rescaling                                 |
//!
//! Every state is `x = alpha · image + sigma · noise`. Variance preserving models (Stable Diffusion) have `alpha² +
//! sigma² = 1`, flow models (SD 3, FLUX, Z-Image) `alpha + sigma = 1`. All samplers are written in these two host
//! numbers, so one formula serves both, the network's input is the state itself, and no step waits for the device.

mod betas;
pub mod guidance;
mod level_options;
mod method;
mod name;
mod noise_level;
pub mod noise_schedule;
pub mod prediction;
mod quantile;
pub mod run;
pub mod schedule;
pub mod scheduler_config;
mod shapes;
pub mod solver;

pub use guidance::Guidance;
pub use level_options::{LevelOptions, Listed};
pub use name::{Sampler, Schedule};
pub use noise_level::NoiseLevel;
pub use noise_schedule::NoiseSchedule;
pub use prediction::Prediction;
pub use run::{SamplerOptions, SamplerRun, Stepped};
pub use solver::{Churn, Seen};
