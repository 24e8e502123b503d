//! Jobs: a bounded queue before one model, or before the same one on several devices, and what became of each request.
//!
//! | Module    | Gives                                                          |
//! |-----------|----------------------------------------------------------------|
//! | [`queue`] | submit, watch, cancel; results kept for a while                |
//! | [`state`] | what is known of a job at a moment                             |
//! | [`crew`]  | the models, each on devices of its own                         |
//! | `shelf`   | the jobs that are known                                        |
//! | `work`    | the threads that own the models                                |
//!
//! A thread owns each model, and all work the queue in order. A job of several pictures is cut into parts, one for each
//! model; where a device is lost, its part is another's. Handlers watch snapshots: a slow reader sees fewer of them,
//! never old ones.

pub mod crew;
mod generate;
pub mod queue;
mod shelf;
pub mod state;
mod work;

pub use crew::{DeviceState, Replica};
pub use generate::Generate;
pub use queue::{JobQueue, Refusal};
pub use shelf::{Counters, QueueOptions};
pub use state::{Failure, Job, Outcome, Picture, State};
