//! Tests of a GPU through the kernel driver alone, as a program: `kfd info | memory-test | copy-test | overlap-test |
//! launch | soak`.
//!
//! | Module | Holds |
//! |---|---|
//! | `cli` | the command line |
//! | `session` | the driver, the GPUs and how they are reached |
//! | `lane` | one copy queue with memory of the host: data to a GPU and back |
//! | `kernels` | the kernels of memory-pattern on a GPU |
//! | `stand_in` | the same kernels for GPUs of the mock |
//! | `commands` | one file a command |
//! | `output` | lines, JSON, progress |
//! | `random` | numbers that a seed repeats |

mod cli;
mod commands;
mod error;
mod interrupt;
mod kernels;
mod lane;
mod output;
mod random;
mod session;
#[cfg(target_os = "linux")]
mod stand_in;

use error::{Error, Result};
use std::process::ExitCode;

/// Runs the program: 0 if nothing is wrong, 1 if something is, 2 for bad arguments.
pub fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.status())
        }
    }
}
