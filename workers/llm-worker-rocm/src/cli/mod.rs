//! The command line.
//!
//! Every option with a long name is read from the environment, too: `--max-tokens` from `LLM_MAX_TOKENS`, unless it
//! says otherwise. The command line comes first.

mod batch;
mod bench;
mod chat;
mod generate;
mod kv;
mod kv_events;
mod memory;
mod nodes;
mod perplexity;
mod pictures;
mod pull;
mod quantize;
mod rerank;
mod sampling;
mod serve;
mod session;
mod source;
mod speculation;
mod transcribe;
mod tune;

use crate::doctor::DoctorCommand;
use candle_core::rocm_backend::candle_rocm::CodeObject;
use clap::{Parser, Subcommand};
use worker::cli::{CommonCommand, LogArgs, Program};
use worker::Result;

/// Runs large language models on AMD GPUs.
#[derive(Debug, Parser)]
#[command(name = "llm-worker-rocm", version, about)]
#[command(
    after_help = "Every option can be given in the environment: --max-tokens as LLM_MAX_TOKENS.\nExit codes: 0 success, 1 failure while running, 2 bad arguments, prompt or model file, 3 the device was lost while serving, 128 and the signal that ended the server (134: a fault of the GPU)."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generates text from a prompt or a chat message.
    Generate(Box<generate::GenerateArgs>),
    /// A conversation at the terminal.
    Chat(Box<chat::ChatArgs>),
    /// Serves a model over HTTP: OpenAI's API, a chat page, and more.
    Serve(Box<serve::ServeArgs>),
    /// Answers the requests in a file, one a line, in the form of OpenAI's batches.
    Batch(Box<batch::BatchArgs>),
    /// Measures how fast prompts are read and answers written.
    Bench(Box<bench::BenchArgs>),
    /// Measures how well a model predicts a text.
    Perplexity(Box<perplexity::PerplexityArgs>),
    /// Scores documents for a query, the best first.
    Rerank(rerank::RerankArgs),
    /// Writes down what is said in sound files.
    Transcribe(Box<transcribe::TranscribeArgs>),
    /// Writes a model with its weights in another type.
    Quantize(quantize::QuantizeArgs),
    /// Fetches a model from Hugging Face and prints where it lies.
    Pull(pull::PullArgs),
    /// Checks GPU, driver and ROCm, and writes a report that can be sent.
    Doctor(Box<DoctorCommand>),
    /// Measures which way of multiplying quantized matrices is the faster on a GPU, and remembers it.
    Tune(tune::TuneArgs),
    #[command(flatten)]
    Common(CommonCommand),
}

impl Program for Cli {
    const PREFIX: &'static str = "LLM";

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn usual_kernels() -> Vec<CodeObject> {
        crate::kernels::usual()
    }

    fn is_service(&self) -> bool {
        matches!(self.command, Command::Serve(_) | Command::Batch(_))
    }

    fn check(&self) -> Result<()> {
        match &self.command {
            Command::Serve(args) => args.check(),
            _ => Ok(()),
        }
    }

    fn run(self) -> Result<()> {
        self.command.run()
    }
}

impl Command {
    fn run(self) -> Result<()> {
        match self {
            Self::Generate(args) => args.run(),
            Self::Chat(args) => args.run(),
            Self::Serve(args) => args.run(),
            Self::Batch(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Perplexity(args) => args.run(),
            Self::Rerank(args) => args.run(),
            Self::Transcribe(args) => args.run(),
            Self::Quantize(args) => args.run(),
            Self::Pull(args) => args.run(),
            Self::Doctor(args) => args.run(),
            Self::Tune(args) => args.run(),
            Self::Common(command) => command.run::<Cli>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker::cli::env::command;

    #[test]
    fn every_option_has_a_variable() {
        command::<Cli>().debug_assert();
        let generate = command::<Cli>()
            .find_subcommand("generate")
            .cloned()
            .unwrap();
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
