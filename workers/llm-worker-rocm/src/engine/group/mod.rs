//! One model on several devices.

mod plan;

pub use plan::{Rank, SplitPlan, StagePlan};
