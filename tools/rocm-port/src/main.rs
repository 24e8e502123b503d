//! The program: `rocm-port scan | port | check | repair`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
