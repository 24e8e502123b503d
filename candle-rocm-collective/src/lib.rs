//! Collectives for candle tensors: several devices that compute together.
//!
//! The members of a group are its ranks, each with a device of its own and, as a rule, a thread of its own. All make
//! the same calls on their [`Communicator`] in the same order, with tensors of the same shapes and dtypes.
//!
//! ```
//! use candle::{Device, Tensor};
//! use candle_rocm_collective::{host, Reduce};
//!
//! # fn main() -> candle::Result<()> {
//! let ranks = host::group(&[Device::Cpu, Device::Cpu])?;
//! std::thread::scope(|scope| {
//!     let threads = ranks.into_iter().map(|rank| {
//!         scope.spawn(move || {
//!             let own = Tensor::new(&[1f32, rank.rank() as f32], rank.device())?;
//!             rank.all_reduce(&own, Reduce::Sum)?.to_vec1::<f32>()
//!         })
//!     });
//!     for thread in threads.collect::<Vec<_>>() {
//!         assert_eq!(thread.join().unwrap()?, [2.0, 1.0]);
//!     }
//!     candle::Result::Ok(())
//! })
//! # }
//! ```
//!
//! | To do | Look at |
//! |---|---|
//! | GPUs of one process, by what works and is the fastest | [`group`], [`choice`] |
//! | ranks on the CPU, GPUs that do not reach each other | [`host`] |
//! | GPUs that reach each other's memory | [`peers`] |
//! | AMD's library, in one process or several | [`rccl`] |
//! | several processes and hosts: how they meet, and tensors over TCP | [`rendezvous`], [`tcp`], [`Lifeline`] |
//! | collectives, messages, parts of groups | [`Communicator`] |
//! | data-parallel training | [`training`] |
//!
//! A rank that fails, hangs or makes another call than the others ends the group with an [`Error`] that names it, on
//! all ranks. A backend of one's own is a [`Backend`].

mod backend;
mod bytes;
pub mod choice;
mod communicator;
mod error;
pub mod host;
mod lifeline;
pub mod peers;
mod pending;
pub mod rccl;
mod reduce;
mod relay;
pub mod rendezvous;
pub mod tcp;
pub mod training;

pub use backend::Backend;
pub use choice::{group, Choice, Options, Report};
pub use communicator::Communicator;
pub use error::Error;
pub use lifeline::Lifeline;
pub use pending::Pending;
pub use reduce::Reduce;
