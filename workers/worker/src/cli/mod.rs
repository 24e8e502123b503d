//! What the workers' command lines share.
//!
//! | Module          | Gives                                                                   |
//! |-----------------|-------------------------------------------------------------------------|
//! | [`env`]         | every option from the environment, too                                  |
//! | [`log`]         | notes, warnings and errors on standard error, as text or JSON           |
//! | [`output`]      | standard output, which carries data and nothing else                    |
//! | [`devices`]     | the command `devices`                                                   |
//! | [`completions`] | the command `completions`                                               |
//! | [`graph`]       | whether steps are recorded                                              |

pub mod completions;
pub mod devices;
pub mod env;
pub mod graph;
pub mod log;
pub mod output;

pub use completions::CompletionsArgs;
pub use devices::DevicesArgs;
pub use graph::GraphArgs;
pub use log::LogArgs;

use crate::kernels::CompileKernelsArgs;
use crate::Result;
use candle_rocm::CodeObject;
use clap::{CommandFactory, FromArgMatches, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// A worker's command line.
pub trait Program: CommandFactory + FromArgMatches {
    /// What the variables of options begin with: with `LLM`, `--max-tokens` is read from `LLM_MAX_TOKENS`.
    const PREFIX: &'static str;

    /// How it logs.
    fn log(&self) -> &LogArgs;

    /// What its models usually use of the kernels, the most needed first; nothing for a program without models.
    fn usual_kernels() -> Vec<CodeObject> {
        Vec::new()
    }

    /// Whether it runs long: its log lines then have time and level.
    fn is_service(&self) -> bool;

    /// Checks the arguments as far as that goes without running the command.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] that says what is wrong with them.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Whatever the command failed with; [`crate::Error::exit_code`] gives the exit code.
    fn run(self) -> Result<()>;
}

/// Reads the command line and the environment, runs the command, and tells why it failed. Mistakes in arguments and
/// requests for help end the process.
pub fn main<P: Program>() -> ExitCode {
    // candle puts a backtrace into the text of its errors where RUST_BACKTRACE asks for those of panics. Users and
    // clients are told causes; whoever wants more sets this one.
    if std::env::var_os("RUST_LIB_BACKTRACE").is_none() {
        std::env::set_var("RUST_LIB_BACKTRACE", "0");
    }
    #[cfg(feature = "kfd")]
    // SAFETY: the functions are those of AMD's names and signatures, and part of the program.
    unsafe {
        candle_rocm::sys::provide(hip_on_kfd_runtime::symbol);
    }
    // Reading arguments is a program of one command's, whatever it becomes.
    crate::memory::end_cleanly(true);
    let matches = env::command::<P>().get_matches();
    let program = P::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let log = program.log().clone();
    if let Err(error) = log.start(program.is_service()) {
        log::tell(&format!("error: {error}"));
        return ExitCode::from(error.exit_code());
    }
    let is_service = program.is_service();
    crate::memory::end_cleanly(!is_service);
    let code = match program.run() {
        Ok(()) => 0,
        Err(error) => {
            if !error.is_told() {
                log.report(&error);
            }
            error.exit_code()
        }
    };
    if is_service {
        // A thread may be loading still: exit handlers would take the GPU's runtime down under it.
        let _ = std::io::stdout().flush();
        signal_hook::low_level::exit(code.into());
    }
    ExitCode::from(code)
}

/// The commands that every worker has.
#[derive(Debug, Subcommand)]
pub enum CommonCommand {
    /// Shows the GPUs that can be used, and what the others lack.
    Devices(DevicesArgs),
    /// Compiles kernels into the cache, so that no start has to wait for them.
    CompileKernels(CompileKernelsArgs),
    /// Prints a script that completes commands in a shell.
    Completions(CompletionsArgs),
}

impl CommonCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] if standard output fails.
    pub fn run<P: Program>(self) -> Result<()> {
        match self {
            Self::Devices(args) => args.run(),
            Self::CompileKernels(args) => args.run(P::usual_kernels),
            Self::Completions(args) => args.run::<P>(),
        }
    }
}
