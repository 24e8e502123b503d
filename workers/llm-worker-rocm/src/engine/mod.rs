//! The engine: one thread that runs one model for many requests at once.
//!
//! | Module        | Gives                                                                    |
//! |---------------|--------------------------------------------------------------------------|
//! | [`api`]       | the border: requests, tickets, events, options, figures                  |
//! | [`media`]     | pictures in prompts: rows whose embeddings come from an encoder          |
//! | [`forward`]   | the border to models: a forward pass over new tokens of many sequences   |
//! | [`decoder`]   | the models behind that border                                            |
//! | [`group`]     | one model on several devices                                             |
//! | [`snapshots`] | the border to models whose memory can be saved                           |
//! | [`shard`]     | models whose matrices several GPUs share                                 |
//! | [`score`]     | logits of a text without sampling, for perplexity and tests              |
//!
//! Inside, `scheduler` decides what each step computes, `blocks` counts the blocks of the paged cache and the slots of
//! recurrent state and finds known prefixes, `sampling` chooses tokens, and `speculation` guesses them.

pub mod api;
mod blocks;
pub mod decoder;
mod device;
pub mod forward;
pub mod group;
mod handle;
mod loaded;
pub mod media;
mod places;
mod sampling;
mod saved;
mod scheduler;
pub mod score;
mod sequence;
pub mod shard;
mod sizes;
pub mod snapshots;
mod speculation;
mod start;

pub use api::{EngineOptions, SamplingOptions};
pub(crate) use decoder::MEASURED_EXPERTS;
pub(crate) use device::room_for_cache;
pub use handle::Engine;
pub use loaded::{LoadedModel, Reload};
pub(crate) use sampling::{gumbel, is_not_a_number};
