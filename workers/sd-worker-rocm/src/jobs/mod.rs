//! Jobs: a bounded queue before one model, and what became of each request.
//!
//! | Module    | Gives                                                          |
//! |-----------|----------------------------------------------------------------|
//! | [`queue`] | submit, watch, cancel; results kept for a while                |
//! | [`state`] | what is known of a job at a moment                             |
//! | `shelf`   | the jobs that are known                                        |
//! | `work`    | the thread that owns the model                                 |
//!
//! One thread owns the model and works the queue in order. Handlers watch snapshots: a slow reader sees fewer of them,
//! never old ones.

mod generate;
pub mod queue;
mod shelf;
pub mod state;
mod work;

pub use generate::Generate;
pub use queue::{JobQueue, Refusal};
pub use shelf::{Counters, QueueOptions};
pub use state::{Failure, Job, Outcome, Picture, State};
