//! Convolutions in MIOpen: what is asked of it, what it computes, and what happens when it cannot.

mod bench;
mod choice;
#[path = "../common/mod.rs"]
mod common;
mod execution;
