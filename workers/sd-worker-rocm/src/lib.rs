//! Image generation on AMD GPUs, and on the CPU where there is none.
//!
//! | Module                 | Gives                                                                                 |
//! |------------------------|---------------------------------------------------------------------------------------|
//! | [`editing`]            | pictures to start from made ready, and the new ones put back                          |
//! | [`request`]            | what a picture is asked for: defaults, limits, one validation                         |
//! | [`pipeline`]           | a model and the way from a request to pictures                                        |
//! | [`info`]               | what is known of a model: its family, what suits it                                   |
//! | [`models`]             | the networks, built from their own configuration                                      |
//! | [`weights`]            | weights on disk, checked and under the names that networks read                       |
//! | [`plan`]               | which devices a model's parts go to                                                   |
//! | [`lora`]               | low-rank adaptations                                                                  |
//! | [`textual_inversion`]  | words that stand for learnt vectors                                                   |
//! | [`rng`]                | the random numbers of a seed, the same on every device                                |
//! | [`sampling`]           | noise schedules and samplers                                                          |
//! | [`prompt`]             | weights, chunks and tokens of prompts                                                 |
//! | [`parameters`]         | the text in pictures that says how they were made                                     |
//! | [`image_io`]           | pictures in and out of files and requests                                             |
//! | [`upscale`]            | pictures made larger                                                                  |
//! | [`video`]              | videos as files                                                                       |
//! | [`preprocess`]         | what ControlNets want to see of a picture                                             |
//! | [`recall`]             | what a picture was made with, read back into a request                                |
//! | [`faces`]              | faces found and restored                                                              |
//! | [`kernels`]            | what models use of the kernels, to be compiled ahead                                  |
//! | [`jobs`]               | a bounded queue before one model                                                      |
//! | [`cli`]                | the command line                                                                      |
//! | [`server`]             | the HTTP server                                                                       |

pub mod cli;
pub mod editing;
pub mod exif;
pub mod faces;
pub mod image_io;
pub mod info;
pub mod jobs;
pub mod kernels;
pub mod lora;
pub mod models;
pub mod parameters;
pub mod pipeline;
pub mod plan;
pub mod png;
pub mod preprocess;
pub mod prompt;
pub mod recall;
pub mod request;
pub mod rng;
pub mod sampling;
pub mod server;
pub mod textual_inversion;
pub mod upscale;
pub mod video;
pub mod weights;
