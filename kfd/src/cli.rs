//! The command line.

use crate::commands::{copy_test, info, kernels, launch, memory_test, overlap_test, soak};
use crate::output::Output;
use crate::session::Choice;
use crate::{Error, Result};
use clap::{Args, Parser, Subcommand};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Scenarios:
  SDMA stress            kfd soak --only sdma        copies and fills of random sizes and places
  compute/copy overlap   kfd overlap-test            and kfd soak --only overlap
  timeline semaphores    kfd soak --only timeline    queues that wait for each other's values
  multi-GPU              kfd copy-test               all pairs of GPUs; kfd soak --only peers

Warning: this program writes packets of its own to a GPU, without ROCm. A wrong one can hang the GPU, and the
desktop on it. It refuses GPUs that it has no table for, and those that drive a display unless --allow-display
is given. No AMD card of its developers has run it: docs/kfd.md says what it ran on.

Exit status: 0 nothing is wrong, 1 something is, 2 bad arguments.";

/// Said before the first packet.
pub const WARNING: &str = "this program writes packets of its own to the GPU; a wrong one can hang it, and the desktop on it. Save your work, or stop here (Ctrl-C). --yes leaves this out";

/// Tests an AMD GPU through the kernel driver alone: memory, copies, overlap, kernels. No ROCm.
#[derive(Debug, Parser)]
#[command(name = "kfd", version, about, after_help = AFTER_HELP, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    common: Common,

    #[command(subcommand)]
    command: Command,
}

/// What all commands have.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Only these GPUs, by their number in `kfd info`, separated by commas.
    #[arg(long, global = true, value_name = "N,…", value_delimiter = ',')]
    pub gpu: Vec<usize>,

    /// An object of JSON a line on standard output instead of text; after a failure the last one says why.
    #[arg(long, global = true)]
    pub json: bool,

    /// GPUs in this process instead of real ones, separated by commas: gfx1100,gfx942. For trying the program.
    #[arg(long, global = true, value_name = "ARCH,…", value_delimiter = ',')]
    pub mock: Vec<String>,

    /// The mock copies a byte wrongly in its Nth copy by SDMA, 0 being the first: what a test says then.
    #[arg(long, global = true, hide = true, value_name = "N", requires = "mock")]
    pub mock_wrong: Option<usize>,

    /// The mock's GPUs drive displays.
    #[arg(long, global = true, hide = true, requires = "mock")]
    pub mock_display: bool,

    /// Also GPUs that drive a display.
    #[arg(long, global = true)]
    pub allow_display: bool,

    /// A code object of this program's kernels, for where there is no clang: `kfd kernels` writes it.
    #[arg(long, global = true, value_name = "FILE")]
    pub kernels: Option<PathBuf>,

    /// Without the warning.
    #[arg(long, global = true)]
    pub yes: bool,

    /// After so many seconds without an answer the GPU hangs.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the driver and its GPUs, and which are refused and why.
    Info,
    /// Writes patterns to device memory and looks whether they are still there.
    MemoryTest(memory_test::Options),
    /// Copies between host and GPUs, within them and between all pairs; checks every word and measures.
    CopyTest(copy_test::Options),
    /// Computes and copies at once: whether both stay right, and how long they take.
    OverlapTest(overlap_test::Options),
    /// Runs a kernel of a code object.
    Launch(launch::Options),
    /// Writes the kernels of this program for a GPU into a file, to be taken to a machine without clang.
    Kernels(kernels::Options),
    /// A mixture of everything for as long as you like, checked.
    Soak(soak::Options),
}

/// Reads the command line and does what it says.
pub fn run() -> Result<()> {
    let Cli { common, command } = Cli::parse();
    let choice = Choice {
        timeout: Duration::from_secs(common.timeout),
        common,
    };
    let outcome = match command {
        Command::Info => info::run(&choice),
        Command::MemoryTest(options) => memory_test::run(&choice, &options),
        Command::CopyTest(options) => copy_test::run(&choice, &options),
        Command::OverlapTest(options) => overlap_test::run(&choice, &options),
        Command::Launch(options) => launch::run(&choice, &options),
        Command::Kernels(options) => kernels::run(&choice, &options),
        Command::Soak(options) => soak::run(&choice, &options),
    };
    // Who reads objects finds the reason among them, too.
    outcome.inspect_err(|error| {
        Output::new(choice.common.json).event(
            "error",
            json!({ "error": error.to_string(), "status": error.status() }),
        );
    })
}

/// A number of bytes with a unit: `4096`, `64K`, `16M`, `2G`.
pub fn bytes(text: &str) -> std::result::Result<u64, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    (number.parse::<u64>().ok())
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "it must be a number of bytes such as 4096, 64K, 16M or 2G".to_string())
}

impl From<std::num::TryFromIntError> for Error {
    fn from(_: std::num::TryFromIntError) -> Self {
        Error::Usage("this machine has no room for so many bytes".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64K"), Ok(65536));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        for wrong in ["", "0", "K", "-1", "1T", "99999999999G", "1.5M"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
