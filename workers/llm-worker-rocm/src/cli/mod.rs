//! The command line.
//!
//! Every option with a long name is read from the environment, too: `--max-tokens` from `LLM_MAX_TOKENS`, unless it says otherwise. The command
//! line comes first.

mod bench;
mod chat;
mod complete;
mod devices;
mod generate;
mod logging;
mod output;
mod perplexity;
mod pull;
mod quantize;
mod sampling;
mod serve;
mod session;
mod source;
mod tune;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use worker::Result;

/// Runs large language models on AMD GPUs.
#[derive(Debug, Parser)]
#[command(name = "llm-worker-rocm", version, about)]
#[command(
    after_help = "Every option can be given in the environment: --max-tokens as LLM_MAX_TOKENS.\nExit codes: 0 success, 1 failure while running, 2 bad arguments, prompt or model file, 3 the device was lost while serving."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    log: logging::LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generates text from a prompt or a chat message.
    Generate(Box<generate::GenerateArgs>),
    /// A conversation at the terminal.
    Chat(Box<chat::ChatArgs>),
    /// Serves a model over HTTP: OpenAI's API, a chat page, and more.
    Serve(Box<serve::ServeArgs>),
    /// Measures how fast prompts are read and answers written.
    Bench(bench::BenchArgs),
    /// Measures how well a model predicts a text.
    Perplexity(perplexity::PerplexityArgs),
    /// Writes a model with its weights in another type.
    Quantize(quantize::QuantizeArgs),
    /// Fetches a model from Hugging Face and prints where it lies.
    Pull(pull::PullArgs),
    /// Measures which way of multiplying quantized matrices is the faster on a GPU, and remembers it.
    Tune(tune::TuneArgs),
    /// Shows the GPUs that can be used, and what the others lack.
    Devices(devices::DevicesArgs),
    /// Prints a script that completes commands in a shell.
    Completions(complete::CompleteArgs),
}

/// The program's arguments, each also from the environment.
fn command() -> clap::Command {
    let mut command = with_environment(Cli::command());
    let names: Vec<String> = command
        .get_subcommands()
        .map(|c| c.get_name().to_string())
        .collect();
    for name in names {
        command = command.mut_subcommand(name, with_environment);
    }
    command
}

fn with_environment(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| {
        let Some(long) = arg.get_long().filter(|_| arg.get_env().is_none()) else {
            return arg;
        };
        let is_flag = match arg.get_action() {
            ArgAction::SetTrue => true,
            ArgAction::Set | ArgAction::Append => false,
            _ => return arg,
        };
        let name = format!("LLM_{}", long.to_uppercase().replace('-', "_"));
        let arg = arg.env(name).hide_env(true);
        match is_flag {
            true => arg.value_parser(FalseyValueParser::new()),
            false => arg,
        }
    })
}

impl Cli {
    /// Reads the command line and the environment; mistakes and requests for help end the process.
    pub fn read() -> Self {
        let matches = command().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Whatever the command failed with; [`worker::Error::exit_code`] gives the exit code.
    pub fn run(self) -> Result<()> {
        let Self { command, log } = self;
        log.start(matches!(command, Command::Serve(_)))
            .and_then(|()| command.run())
            .inspect_err(|error| log.report(error))
    }
}

impl Command {
    fn run(self) -> Result<()> {
        match self {
            Self::Generate(args) => args.run(),
            Self::Chat(args) => args.run(),
            Self::Serve(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Perplexity(args) => args.run(),
            Self::Quantize(args) => args.run(),
            Self::Pull(args) => args.run(),
            Self::Tune(args) => args.run(),
            Self::Devices(args) => args.run(),
            Self::Completions(args) => args.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_a_variable() {
        command().debug_assert();
        let generate = command().find_subcommand("generate").cloned().unwrap();
        let option = |name: &str| {
            generate
                .get_arguments()
                .find(|a| a.get_id() == name)
                .unwrap()
                .clone()
        };
        let variable = |name: &str| {
            option(name)
                .get_env()
                .unwrap()
                .to_str()
                .unwrap()
                .to_string()
        };
        assert_eq!(variable("max_tokens"), "LLM_MAX_TOKENS");
        assert_eq!(variable("greedy"), "LLM_GREEDY");
        assert_eq!(option("prompt").get_env(), None);
    }
}
