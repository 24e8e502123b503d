//! `llm-worker-rocm generate`.

use super::source::{read_text, SourceArgs};
use crate::chat::{message, RenderOptions};
use crate::engine::{Engine, EngineOptions, SamplingOptions};
use crate::generate::{check_prompt, generate, FinishReason, Generation, Request};
use crate::model::{LoadOptions, ModelFile};
use clap::Args;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};
use worker::device::{DeviceRequest, Selected};
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Text to continue; several words are joined by spaces, `-` reads standard input.
    #[arg(required_unless_present = "chat", conflicts_with = "chat")]
    prompt: Vec<String>,

    #[command(flatten)]
    source: SourceArgs,

    /// Answer this message through the model's chat template; `-` reads standard input.
    #[arg(long, value_name = "MESSAGE")]
    chat: Option<String>,

    /// System message of the chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// Take PROMPT exactly as it is: no beginning-of-sequence token is added.
    #[arg(long, conflicts_with = "chat")]
    raw: bool,

    /// Where to compute: auto, cpu, rocm or rocm:N. `auto` takes the first GPU, or says that it uses the CPU.
    #[arg(long, short, default_value = "auto", value_parser = str::parse::<DeviceRequest>)]
    device: DeviceRequest,

    /// Most tokens to generate.
    #[arg(long, short = 'n', default_value_t = 256, value_name = "N")]
    max_tokens: usize,

    /// Randomness: 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.7, value_name = "T")]
    temperature: f32,

    /// The most likely token at every step; the same as --temperature 0.
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "seed"])]
    greedy: bool,

    /// Choose among the K most likely tokens only.
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,

    /// Choose among the most likely tokens that together have probability P.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,

    /// Makes the choice repeatable; random if absent, and told at the end.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Makes recent tokens less likely: 1 is off, 1.1 is mild.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    repeat_penalty: f32,

    /// How many recent tokens --repeat-penalty looks at.
    #[arg(long, default_value_t = 64, value_name = "N")]
    repeat_last_n: usize,

    /// Print one JSON object at the end instead of streaming text.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Output<'a> {
    text: &'a str,
    tokens: &'a [u32],
    prompt_tokens: &'a [u32],
    finish_reason: FinishReason,
    seed: Option<u64>,
    device: DeviceOutput<'a>,
    timings: TimingsOutput,
}

#[derive(Debug, Serialize)]
struct DeviceOutput<'a> {
    name: &'a str,
    description: &'a str,
    /// Why `auto` did not take a GPU.
    fallback: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct TimingsOutput {
    load_ms: f64,
    /// Start to first token.
    prompt_ms: f64,
    prompt_tokens_per_second: f64,
    /// First token to last.
    decode_ms: f64,
    tokens_per_second: f64,
}

impl GenerateArgs {
    pub(super) fn run(self) -> Result<()> {
        let sampling = self.sampling();
        sampling.validate()?;
        let path = self.source.resolve()?;
        let file = ModelFile::open(&path)?;
        let prompt = self.prompt_tokens(&file)?;
        check_prompt(&prompt, file.context_length())?;

        let selected = self.device.select()?;
        if let Some(reason) = &selected.fallback {
            eprintln!("using the CPU: {reason}");
        }
        let start = Instant::now();
        let model = file.load(&selected.device, &LoadOptions::default())?;
        let tokenizer = model.tokenizer.clone();
        let options = EngineOptions {
            max_sequences: 1,
            ..EngineOptions::default()
        };
        let engine = Engine::start(model, &options)?;
        let load = start.elapsed();

        let request = Request {
            prompt,
            max_tokens: self.max_tokens,
            sampling,
        };
        let interrupt = Interrupt::install()?;
        let mut write_error = None;
        let generation = generate(&engine, &tokenizer, &request, &interrupt, &mut |piece| {
            if self.json {
                return ControlFlow::Continue(());
            }
            match print(piece) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    write_error = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(error) = write_error {
            stdout_result(Err(error))?;
        }
        let sampling = &request.sampling;
        let seed = (sampling.temperature > 0.0).then_some(sampling.seed);
        if self.json {
            self.print_json(&request, &generation, &selected, load, seed)
        } else {
            print_line("")?;
            print_summary(&generation, &selected, load, seed);
            Ok(())
        }
    }

    fn sampling(&self) -> SamplingOptions {
        SamplingOptions {
            temperature: if self.greedy { 0.0 } else { self.temperature },
            top_k: self.top_k,
            top_p: self.top_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            seed: self.seed.unwrap_or_else(random_seed),
            ..SamplingOptions::greedy()
        }
    }

    fn prompt_tokens(&self, file: &ModelFile) -> Result<Vec<u32>> {
        let text = match &self.chat {
            Some(text) => {
                let mut messages = Vec::new();
                if let Some(system) = &self.system {
                    messages.push(message("system", system));
                }
                messages.push(message("user", &or_stdin(text)?));
                file.chat_template()?
                    .render(&messages, None, &RenderOptions::default())?
            }
            None => or_stdin(&self.prompt.join(" "))?,
        };
        file.tokenizer()
            .encode(&text, !self.raw)
            .map_err(|e| Error::Usage(e.to_string()))
    }

    fn print_json(
        &self,
        request: &Request,
        generation: &Generation,
        selected: &Selected,
        load: Duration,
        seed: Option<u64>,
    ) -> Result<()> {
        let timings = &generation.timings;
        let output = Output {
            text: &generation.text,
            tokens: &generation.tokens,
            prompt_tokens: &request.prompt,
            finish_reason: generation.finish_reason,
            seed,
            device: DeviceOutput {
                name: &selected.name,
                description: &selected.description,
                fallback: selected.fallback.as_deref(),
            },
            timings: TimingsOutput {
                load_ms: milliseconds(load),
                prompt_ms: milliseconds(timings.prompt),
                prompt_tokens_per_second: timings.prompt_per_second(),
                decode_ms: milliseconds(timings.decode),
                tokens_per_second: timings.decode_per_second(),
            },
        };
        let json = serde_json::to_string(&output)
            .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?;
        print_line(&json)
    }
}

/// The argument, or standard input for `-`.
fn or_stdin(argument: &str) -> Result<String> {
    if argument == "-" {
        read_text(Path::new(argument))
    } else {
        Ok(argument.to_string())
    }
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds every hasher from the operating system's random numbers.
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn print_summary(generation: &Generation, selected: &Selected, load: Duration, seed: Option<u64>) {
    let timings = &generation.timings;
    let seed = seed.map(|s| format!(", seed {s}")).unwrap_or_default();
    let end = match generation.finish_reason {
        FinishReason::Stop | FinishReason::Length => "",
        FinishReason::Context => ", context full",
        FinishReason::Interrupted => ", interrupted",
    };
    eprintln!(
        "{}: load {:.2} s, prompt {} tokens at {:.1} tokens/s, generated {} tokens at {:.1} tokens/s{seed}{end}",
        selected.description,
        load.as_secs_f64(),
        timings.prompt_tokens,
        timings.prompt_per_second(),
        timings.generated_tokens,
        timings.decode_per_second(),
    );
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line to standard output.
pub(super) fn print_line(text: &str) -> Result<()> {
    stdout_result(print(&format!("{text}\n")))
}

/// A reader that has seen enough, such as `head`, is no failure.
fn stdout_result(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Runtime(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}
