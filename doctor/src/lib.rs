//! Checks an AMD GPU, its driver and its ROCm, and writes a report that can be sent.
//!
//! | Module       | Gives                                                                        |
//! |--------------|------------------------------------------------------------------------------|
//! | [`command`]  | the command line, for `rocm-doctor` and for programs that have it as a command |
//! | [`section`]  | what a section is: [`Section`], and the [`Check`] that it reports to          |
//! | [`sections`] | the table of sections                                                         |
//! | [`report`]   | the report: sections, findings, measurements, the verdict                     |
//! | [`privacy`]  | names of people and machines taken out of it                                  |
//! | [`pattern`]  | words in device memory that tell where they belong                            |
//! | [`sensors`]  | temperature, power and clocks, as the kernel's driver tells them              |
//!
//! The program itself never touches the GPU: `run` starts each section in a child process of the same program
//! (`child`), so that a fault that ends a process, as ROCm answers many of them, is a finding and not the end.

mod child;
pub mod command;
mod options;
pub mod pattern;
pub mod privacy;
pub mod report;
mod run;
pub mod section;
pub mod sections;
pub mod sensors;
mod text;
mod tools;

pub use command::DoctorArgs;
pub use options::Options;
pub use section::{Check, Failure, Scope, Section};
