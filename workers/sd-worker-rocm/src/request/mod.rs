//! What a picture is asked for.
//!
//! | Module     | Gives                                                                                    |
//! |------------|------------------------------------------------------------------------------------------|
//! | [`fields`] | what a client said, and the only defaults for what it left open                          |
//! | [`highres`]| a second pass over a larger picture                                                      |
//! | [`limits`] | what is too much, and the one check of a request                                         |
//! | [`seamless`] | textures: pictures whose edges meet                                                   |
//! | [`seed`]   | random seeds                                                                             |
//! | [`tuning`] | finer settings of sampling, [`guidance_tuning`] of guidance, [`step_cache`] of saved work |
//! | [`wording`]| styles, drawn prompts, regions                                                           |
//!
//! Command line and HTTP interfaces fill [`RequestFields`]; [`RequestFields::build`] makes an [`ImageRequest`] of them,
//! and [`ImageRequest::valid`] a [`ValidRequest`], which is all that a pipeline takes.

pub mod fields;
pub mod guidance_tuning;
pub mod highres;
mod ip_adapter;
pub mod limits;
pub mod seamless;
pub mod seed;
pub mod step_cache;
pub mod tuning;
mod types;
pub mod wording;

pub use fields::{InitFields, InterfaceDefaults, RequestFields, VideoFields};
pub use guidance_tuning::{GuidanceTuning, Perturbation};
pub use highres::{Highres, HighresFields};
pub use ip_adapter::{BlockStrengths, IpAdapter, Way};
pub use limits::{InvalidRequest, Limits, ValidRequest};
pub use seamless::Seamless;
pub use step_cache::StepCache;
pub use tuning::Tuning;
pub use types::{Control, ControlMode, Hidden, ImageRequest, Init, MicroConditions, VideoRequest};
pub use wording::{Drawn, Library, NoiseChange, PicturePrompt, RegionPrompt, Wording};
