//! Image generation on AMD GPUs, and on the CPU where there is none.
//!
//! | Module                 | Gives                                                                                 |
//! |------------------------|---------------------------------------------------------------------------------------|
//! | [`pipeline`]           | a model and the way from a request to pictures                                        |
//! | [`models`]             | the networks, built from their own configuration                                      |
//! | [`weights`]            | weights on disk, checked and under the names that networks read                       |
//! | [`lora`]               | low-rank adaptations                                                                  |
//! | [`textual_inversion`]  | words that stand for learnt vectors                                                   |
//! | [`rng`]                | the random numbers of a seed, the same on every device                                |
//! | [`sampling`]           | noise schedules and samplers                                                          |
//! | [`prompt`]             | weights, chunks and tokens of prompts                                                 |

pub mod lora;
pub mod models;
pub mod pipeline;
pub mod prompt;
pub mod rng;
pub mod sampling;
pub mod textual_inversion;
pub mod weights;
