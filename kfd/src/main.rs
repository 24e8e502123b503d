//! The `kfd` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    kfd::main()
}
