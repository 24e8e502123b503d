//! `fuzz`: tries damaged inputs by seed; `scripts/fuzz` builds and starts it.

use clap::{Parser, Subcommand};
use fuzz::child::{self, Work};
use fuzz::memory::Counting;
use fuzz::parent;
use fuzz::target::TARGETS;
use llm_worker_rocm::grammar::trial;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Damaged and hostile input for everything that the workers read.
#[derive(Parser)]
struct Cli {
    /// What to try; all targets if none is named.
    targets: Vec<String>,

    /// Where inputs come from: the same seed gives the same ones.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The first input's number.
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// Inputs of each target; without it, and without --seconds, those of the short run.
    #[arg(long)]
    count: Option<u64>,

    /// Seconds for each target.
    #[arg(long)]
    seconds: Option<u64>,

    /// Seconds that one input may take; a grammar may take thirty on a busy machine.
    #[arg(long, default_value_t = 45)]
    patience: u64,

    /// Folder for the inputs that were found.
    #[arg(long, default_value = "target/fuzz", value_name = "DIR")]
    save: PathBuf,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the targets.
    List,
    /// Reads one saved input in this process.
    Read {
        /// The target.
        target: String,
        /// The input.
        file: PathBuf,
    },
    /// Tries inputs in this process; started by the others.
    #[command(hide = true)]
    Child {
        target: String,
        #[arg(long)]
        seed: u64,
        #[arg(long)]
        first: u64,
        #[arg(long)]
        count: u64,
        #[arg(long)]
        seconds: Option<u64>,
        #[arg(long)]
        progress: PathBuf,
    },
}

fn main() -> ExitCode {
    // Grammars are tried out in processes of this program, as in those of the worker.
    if let Some(code) = trial::begin() {
        return code;
    }
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing was found.
fn run(cli: Cli) -> Result<bool, String> {
    match cli.command {
        Some(Command::List) => {
            for (name, what, _, count) in TARGETS {
                println!("{name:13} {what}; {count} inputs in the short run");
            }
            Ok(true)
        }
        Some(Command::Read { target, file }) => {
            let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let (verdict, taken) = child::read(&mut *child::target(&target)?, &bytes);
            println!("{verdict:?}, {taken} bytes of memory");
            Ok(verdict.is_ok())
        }
        Some(Command::Child {
            target,
            seed,
            first,
            count,
            seconds,
            progress,
        }) => {
            let work = Work {
                target,
                seed,
                first,
                count,
                time: seconds.map(Duration::from_secs),
            };
            child::run(&work, &progress).map(|()| true)
        }
        None => {
            let named =
                |name: &str| cli.targets.is_empty() || cli.targets.iter().any(|t| t == name);
            if let Some(unknown) = cli
                .targets
                .iter()
                .find(|t| !TARGETS.iter().any(|(n, ..)| n == t))
            {
                child::target(unknown)?;
            }
            let program = std::env::current_exe().map_err(|e| e.to_string())?;
            let mut clean = true;
            for (name, _, _, short) in TARGETS.iter().filter(|(name, ..)| named(name)) {
                let work = Work {
                    target: (*name).to_string(),
                    seed: cli.seed,
                    first: cli.first,
                    count: match (cli.count, cli.seconds) {
                        (Some(count), _) => count,
                        (None, Some(_)) => u64::MAX - 1 - cli.first,
                        (None, None) => *short,
                    },
                    time: cli.seconds.map(Duration::from_secs),
                };
                let outcome = parent::run(&program, &work, Duration::from_secs(cli.patience))?;
                println!(
                    "{name}: {} inputs of seed {} from {}: {} accepted, {} refused, at most {} MiB each; found: {:?}",
                    outcome.tried,
                    work.seed,
                    work.first,
                    outcome.accepted,
                    outcome.refused,
                    outcome.most.div_ceil(1 << 20),
                    outcome.kinds()
                );
                for finding in &outcome.findings {
                    println!("  {} {}: {}", finding.number, finding.kind, finding.what);
                }
                parent::save(&work, &outcome, &cli.save)?;
                clean &= outcome.findings.is_empty();
            }
            Ok(clean)
        }
    }
}
