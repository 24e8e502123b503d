//! Collectives for candle tensors: several devices that compute together.
//!
//! The members of a group are its ranks, each with a device of its own and, as a rule, a thread of its own. All make the
//! same calls on their [`Communicator`] in the same order, with tensors of the same shapes and dtypes.
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

mod backend;
mod bytes;
pub mod choice;
mod communicator;
mod error;
pub mod host;
mod lifeline;
pub mod peers;
mod reduce;
pub mod rendezvous;
pub mod tcp;

pub use backend::Backend;
pub use choice::{group, Choice, Options, Report};
pub use communicator::Communicator;
pub use error::Error;
pub use lifeline::Lifeline;
pub use reduce::Reduce;
