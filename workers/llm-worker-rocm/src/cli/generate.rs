//! `llm-worker-rocm generate`.

use super::pictures::{prompt, PictureArgs};
use super::sampling::SamplingArgs;
use super::session::{template, Session, SessionArgs, Step};
use super::source::read_text;
use crate::chat::{message, message_with_parts, RenderOptions};
use crate::completion::{Finish, Output, StopReason, TextOptions, Timings, Usage};
use crate::engine::api::{Constraint, EngineOptions, Request};
use crate::engine::media::Media;
use crate::grammar::Grammars;
use crate::model::ModelFile;
use crate::split::SplitReport;
use crate::tokenizer::TokenizerError;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::cli::output::{print, print_json, print_line};
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Text to continue; several words are joined by spaces, `-` reads standard input.
    #[arg(required_unless_present = "chat", conflicts_with = "chat")]
    prompt: Vec<String>,

    #[command(flatten)]
    session: SessionArgs,

    /// Answer this message through the model's chat template; `-` reads standard input.
    #[arg(long, value_name = "MESSAGE")]
    chat: Option<String>,

    #[command(flatten)]
    pictures: PictureArgs,

    /// System message of the chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// Another chat template: a Jinja file, or the name of a built-in one (chatml, llama2, llama3, mistral, gemma,
    /// phi3, zephyr, vicuna).
    #[arg(long, value_name = "FILE|NAME", requires = "chat")]
    chat_template: Option<String>,

    /// Whether a model that can think aloud first does so: true or false.
    #[arg(long, value_name = "BOOL", requires = "chat")]
    thinking: Option<bool>,

    /// Take PROMPT exactly as it is: no beginning-of-sequence token is added.
    #[arg(long, conflicts_with = "chat")]
    raw: bool,

    /// Most tokens to generate.
    #[arg(long, short = 'n', default_value_t = 256, value_name = "N")]
    max_tokens: usize,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// End the answer before this text; can be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    #[command(flatten)]
    grammar: GrammarArgs,

    /// Print one JSON object at the end instead of streaming text.
    #[arg(long)]
    json: bool,
}

/// What the answer must look like.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct GrammarArgs {
    /// Only JSON that the schema in this file describes.
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,

    /// Only text that the grammar in this file produces: GBNF with the extension .gbnf, else Lark.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,

    /// Only text that this regular expression matches as a whole.
    #[arg(long, value_name = "PATTERN")]
    regex: Option<String>,
}

impl GrammarArgs {
    fn constraint(&self, file: &ModelFile) -> Result<Option<Box<dyn Constraint>>> {
        let grammars = || Grammars::new(file.tokenizer());
        if let Some(path) = &self.json_schema {
            let schema = serde_json::from_str(&read_text(path)?)
                .map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?;
            return grammars()?.json_schema(&schema).map(Some);
        }
        if let Some(path) = &self.grammar {
            let text = read_text(path)?;
            let gbnf = path.extension().is_some_and(|e| e == "gbnf");
            let grammars = grammars()?;
            let constraint = match gbnf {
                true => grammars.gbnf(&text),
                false => grammars.lark(&text),
            };
            return constraint.map(Some);
        }
        match &self.regex {
            Some(pattern) => grammars()?.regex(pattern).map(Some),
            None => Ok(None),
        }
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    text: &'a str,
    tokens: &'a [u32],
    prompt_tokens: &'a [u32],
    finish_reason: &'a str,
    seed: Option<u64>,
    device: DeviceReport<'a>,
    /// How several devices share the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    split: Option<&'a SplitReport>,
    timings: TimingsReport,
}

#[derive(Debug, Serialize)]
struct DeviceReport<'a> {
    name: &'a str,
    description: &'a str,
    /// Why `auto` did not take a GPU.
    fallback: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct TimingsReport {
    load_ms: f64,
    /// Start to first token.
    prompt_ms: f64,
    prompt_tokens_per_second: f64,
    /// First token to last.
    decode_ms: f64,
    tokens_per_second: f64,
}

/// An answer as far as it came.
struct Answer {
    text: String,
    tokens: Vec<u32>,
    /// `None` if the user or the reader had enough.
    reason: Option<StopReason>,
    usage: Usage,
    timings: Timings,
}

impl GenerateArgs {
    pub(super) fn run(self) -> Result<()> {
        if self.session.follow("generate")? {
            return Ok(());
        }
        let sampling = self.sampling.options()?;
        sampling.validate()?;
        let mut file = self.session.open()?;
        let named = [
            ("--image", &self.pictures.image),
            ("--video", &self.pictures.video),
            ("--audio", &self.pictures.audio),
        ];
        if let Some((name, _)) = named.iter().find(|(_, paths)| !paths.is_empty()) {
            if self.chat.is_none() {
                let reason = format!("{name} needs --chat: what it names belongs to a message");
                return Err(Error::Usage(reason));
            }
            file = file
                .with_vision(self.pictures.mmproj.as_deref())?
                .with_picture_options(self.pictures.seeing.options())?;
        }
        let (prompt, media) = self.prompt_tokens(&file)?;
        let context = self
            .session
            .context
            .unwrap_or(usize::MAX)
            .min(file.context_length());
        check_prompt(&prompt, context)?;
        let constraint = self.grammar.constraint(&file)?;
        let seed = (sampling.temperature > 0.0).then_some(sampling.seed);
        // No more of the cache than this request can use.
        let useful = prompt.len().saturating_add(self.max_tokens).min(context);
        let session = self.session.start(
            "generate",
            file,
            EngineOptions {
                context: Some(useful.max(1)),
                max_sequences: 1,
                ..EngineOptions::default()
            },
        )?;
        let request = Request {
            max_tokens: Some(self.max_tokens),
            constraint,
            media,
            ..Request::new(prompt.clone(), sampling)
        };
        let answer = self.answer(&session, request)?;
        // The cache is as long as the request, so that its end may be the request's own limit.
        let answer = Answer {
            reason: match answer.reason {
                Some(StopReason::Context) if useful < context => Some(StopReason::Length),
                reason => reason,
            },
            ..answer
        };
        if self.json {
            print_report(&session, &prompt, &answer, seed)
        } else {
            print_line("")?;
            print_summary(&session, &answer, seed);
            Ok(())
        }
    }

    fn answer(&self, session: &Session, request: Request) -> Result<Answer> {
        let interrupt = Interrupt::install()?;
        let options = TextOptions {
            stop: self.stop.clone(),
            ..TextOptions::default()
        };
        let mut completion = session.submit(request, options)?;
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let finish = loop {
            match session.wait(&mut completion, &interrupt)? {
                Step::Output(Output::Delta(delta)) => {
                    tokens.extend(delta.tokens.iter().map(|token| token.id));
                    text.push_str(&delta.text);
                    if !self.json && !delta.text.is_empty() && !print(&delta.text)? {
                        break None;
                    }
                }
                Step::Output(Output::Finished(finish)) => break Some(finish),
                Step::Output(_) => {}
                Step::Interrupted => break None,
            }
        };
        let (reason, usage, timings) = match finish {
            Some(Finish {
                reason,
                usage,
                timings,
                ..
            }) => (Some(reason), usage, timings),
            None => (None, completion.usage(), completion.timings()),
        };
        Ok(Answer {
            text,
            tokens,
            reason,
            usage,
            timings,
        })
    }

    fn prompt_tokens(&self, file: &ModelFile) -> Result<(Vec<u32>, Option<Arc<Media>>)> {
        let usage = |e: TokenizerError| Error::Usage(e.to_string());
        match &self.chat {
            Some(text) => {
                let mut messages = Vec::new();
                if let Some(system) = &self.system {
                    messages.push(message("system", system));
                }
                let parts = self.pictures.parts()?;
                let text = or_stdin(text)?;
                messages.push(match parts.is_empty() {
                    true => message("user", &text),
                    false => message_with_parts(parts, &text),
                });
                let options = RenderOptions {
                    enable_thinking: self.thinking,
                    ..RenderOptions::default()
                };
                let template = template(self.chat_template.as_deref(), file)?;
                let rendered = template.render(&messages, None, &options)?;
                let processor = file.pictures();
                let (processor, tokenizer) = (processor.as_ref(), file.tokenizer());
                prompt(&messages, &rendered, processor, tokenizer, !self.raw)
            }
            None => {
                let text = or_stdin(&self.prompt.join(" "))?;
                let tokens = file.tokenizer().encode(&text, !self.raw);
                Ok((tokens.map_err(usage)?, None))
            }
        }
    }
}

/// Refuses prompts that cannot be run, before the model is loaded.
fn check_prompt(prompt: &[u32], context: usize) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::Usage("the prompt is empty".to_string()));
    }
    if prompt.len() >= context {
        return Err(Error::Usage(format!(
            "the prompt has {} tokens, the model takes at most {context} with the answer; shorten it",
            prompt.len()
        )));
    }
    Ok(())
}

/// The argument, or standard input for `-`.
fn or_stdin(argument: &str) -> Result<String> {
    if argument == "-" {
        read_text(Path::new(argument))
    } else {
        Ok(argument.to_string())
    }
}

fn reason_name(reason: &Option<StopReason>) -> &'static str {
    match reason {
        Some(StopReason::End | StopReason::StopString(_)) => "stop",
        Some(StopReason::Length) => "length",
        Some(StopReason::Context) => "context",
        None => "interrupted",
    }
}

fn print_report(
    session: &Session,
    prompt: &[u32],
    answer: &Answer,
    seed: Option<u64>,
) -> Result<()> {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let (usage, timings) = (&answer.usage, &answer.timings);
    print_json(&Report {
        text: &answer.text,
        tokens: &answer.tokens,
        prompt_tokens: prompt,
        finish_reason: reason_name(&answer.reason),
        seed,
        device: DeviceReport {
            name: &session.selected.name,
            description: &session.selected.description,
            fallback: session.selected.fallback.as_deref(),
        },
        split: session.split.as_ref(),
        timings: TimingsReport {
            load_ms: milliseconds(session.load),
            prompt_ms: milliseconds(timings.prefill),
            prompt_tokens_per_second: timings.prefill_per_second(usage),
            decode_ms: milliseconds(timings.decode),
            tokens_per_second: timings.decode_per_second(usage),
        },
    })
}

fn print_summary(session: &Session, answer: &Answer, seed: Option<u64>) {
    let (usage, timings) = (&answer.usage, &answer.timings);
    let seed = seed.map(|s| format!(", seed {s}")).unwrap_or_default();
    let end = match reason_name(&answer.reason) {
        "context" => ", context full",
        "interrupted" => ", interrupted",
        _ => "",
    };
    tracing::info!(
        "{}: load {:.2} s, prompt {} tokens at {:.1} tokens/s, generated {} tokens at {:.1} tokens/s{seed}{end}",
        session.selected.description,
        session.load.as_secs_f64(),
        usage.prompt_tokens,
        timings.prefill_per_second(usage),
        usage.completion_tokens,
        timings.decode_per_second(usage),
    );
}
