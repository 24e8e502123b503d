//! `llm-worker-rocm chat`: a conversation at the terminal.

mod command;
mod conversation;
mod input;

use super::pictures::{played, prompt as tokens_of, shown, watched, PictureArgs};
use super::sampling::SamplingArgs;
use super::session::{template, Session, SessionArgs, Step};
use crate::chat::{ChatTemplate, RenderOptions};
use crate::completion::{Finish, Output, StopReason, TextOptions};
use crate::engine::api::{EngineOptions, Request};
use crate::tools::{Delta, OutputFormat, OutputParser, ParserOptions};
use clap::Args;
use command::{Command, Setting};
use conversation::Conversation;
use input::{Input, Line};
use serde_json::Value as Json;
use std::io::IsTerminal;
use worker::cli::output::{print, print_line, print_own};
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Grey, for what is not the answer itself.
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    session: SessionArgs,

    /// System message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Another chat template: a Jinja file, or the name of a built-in one (chatml, llama2, llama3, mistral, gemma,
    /// phi3, zephyr, vicuna).
    #[arg(long, value_name = "FILE|NAME")]
    chat_template: Option<String>,

    #[command(flatten)]
    pictures: PictureArgs,

    /// Whether a model that can think aloud first does so: true or false.
    #[arg(long, value_name = "BOOL")]
    thinking: Option<bool>,

    /// Most tokens of an answer; as many as the context takes if absent.
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,

    #[command(flatten)]
    sampling: SamplingArgs,
}

impl ChatArgs {
    pub(super) fn run(self) -> Result<()> {
        if self.session.follow("chat")? {
            return Ok(());
        }
        let file = self.session.open()?;
        let file = file
            .with_vision(self.pictures.mmproj.as_deref())?
            .with_picture_options(self.pictures.seeing.options())?;
        let parts = self.pictures.parts()?;
        let template = template(self.chat_template.as_deref(), &file)?;
        let session = self.session.start(
            "chat",
            file,
            EngineOptions {
                max_sequences: 1,
                ..EngineOptions::default()
            },
        )?;
        let mut chat = Chat {
            format: OutputFormat::of(&template),
            conversation: Conversation::new(self.system.clone()),
            interrupt: Interrupt::install()?,
            dim: std::io::stdout().is_terminal(),
            last: None,
            parts,
            args: self,
            template,
            session,
        };
        chat.run()
    }
}

/// A conversation that goes on.
struct Chat {
    args: ChatArgs,
    template: ChatTemplate,
    format: OutputFormat,
    session: Session,
    conversation: Conversation,
    interrupt: Interrupt,
    /// Whether reasoning is set apart by colour.
    dim: bool,
    last: Option<Finish>,
    /// Pictures, videos and sounds that go with the next message.
    parts: Vec<Json>,
}

impl Chat {
    fn run(&mut self) -> Result<()> {
        let mut input = Input::new()?;
        if input.is_interactive() {
            tracing::info!(
                "{}, context of {} tokens. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.",
                self.session.selected.description,
                self.session.engine.context()
            );
        }
        loop {
            let text = match input.read()? {
                Line::Text(text) => text,
                Line::Cleared => continue,
                Line::End => return Ok(()),
            };
            self.interrupt.lower();
            let result = match Command::parse(&text) {
                None if text.trim().is_empty() => Ok(true),
                None => {
                    match std::mem::take(&mut self.parts) {
                        none if none.is_empty() => self.conversation.say("user", &text),
                        parts => self.conversation.show(parts, &text),
                    }
                    self.answer().map(|()| true)
                }
                Some(command) => command.and_then(|command| self.obey(command)),
            };
            match result {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // What the user typed can be corrected; a broken device cannot.
                Err(error @ (Error::Usage(_) | Error::Io { .. })) => tracing::warn!("{error}"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Does what a command says; `false` ends the conversation.
    fn obey(&mut self, command: Command) -> Result<bool> {
        match command {
            Command::Help => print_line(command::HELP)?,
            Command::Quit => return Ok(false),
            Command::Clear => self.conversation.clear(),
            Command::System(text) => self.conversation.set_system(text),
            Command::Image(path) => self.parts.push(shown(&path)?),
            Command::Audio(path) => self.parts.push(played(&path)?),
            Command::Video(path) => self.parts.push(watched(&path)?),
            Command::Save(path) => self.conversation.save(&path)?,
            Command::Load(path) => self.conversation = Conversation::load(&path)?,
            Command::Regenerate => {
                if !self.conversation.take_answer() {
                    return Err(Error::Usage("there is no answer to regenerate".to_string()));
                }
                self.answer()?;
            }
            Command::Stats => print_line(&self.stats())?,
            Command::Set(setting) => self.set(setting),
            Command::Settings => print_line(&self.settings())?,
        }
        Ok(true)
    }

    fn set(&mut self, setting: Setting) {
        let sampling = &mut self.args.sampling;
        match setting {
            Setting::Temperature(value) => {
                sampling.temperature = value;
                sampling.greedy = false;
            }
            Setting::TopK(value) => sampling.top_k = value,
            Setting::TopP(value) => sampling.top_p = value,
            Setting::MinP(value) => sampling.min_p = value,
            Setting::RepeatPenalty(value) => sampling.repeat_penalty = value,
            Setting::Seed(value) => sampling.seed = value,
            Setting::MaxTokens(value) => self.args.max_tokens = value,
            Setting::Thinking(value) => self.args.thinking = value,
        }
    }

    fn settings(&self) -> String {
        let sampling = &self.args.sampling;
        let or_off = |value: Option<String>| value.unwrap_or_else(|| "off".to_string());
        format!(
            "temperature {}\ntop-k {}\ntop-p {}\nmin-p {}\nrepeat-penalty {}\nseed {}\nmax-tokens {}\nthinking {}",
            if sampling.greedy { 0.0 } else { sampling.temperature },
            or_off(sampling.top_k.map(|v| v.to_string())),
            or_off(sampling.top_p.map(|v| v.to_string())),
            or_off(sampling.min_p.map(|v| v.to_string())),
            sampling.repeat_penalty,
            or_off(sampling.seed.map(|v| v.to_string())),
            or_off(self.args.max_tokens.map(|v| v.to_string())),
            self.args.thinking.map_or("as the template says".to_string(), |v| v.to_string()),
        )
    }

    fn stats(&self) -> String {
        let status = self.session.engine.status();
        let last = match &self.last {
            None => "no answer yet".to_string(),
            Some(Finish { usage, timings, .. }) => format!(
                "last answer: prompt {} tokens ({} known) at {:.1} tokens/s, {} tokens at {:.1} tokens/s",
                usage.prompt_tokens,
                usage.cached_tokens,
                timings.prefill_per_second(usage),
                usage.completion_tokens,
                timings.decode_per_second(usage)
            ),
        };
        format!(
            "{last}\nconversation: {} messages; cache: {} of {} blocks in use or kept; generated in all: {} tokens",
            self.conversation.messages().len(),
            status.kv_blocks_used + status.kv_blocks_cached,
            status.kv_blocks_total,
            status.generated_tokens
        )
    }

    /// Streams an answer to what was said, and keeps it.
    fn answer(&mut self) -> Result<()> {
        let answered = self.stream_answer();
        if matches!(answered, Err(Error::Usage(_))) {
            // The message that cannot be answered would spoil all that follow.
            self.conversation.take_back();
        }
        answered
    }

    fn stream_answer(&mut self) -> Result<()> {
        let options = RenderOptions {
            enable_thinking: self.args.thinking,
            ..RenderOptions::default()
        };
        let prompt = self
            .template
            .render(self.conversation.messages(), None, &options)?;
        let processor = self.session.pictures.as_deref();
        let tokenizer = &self.session.tokenizer;
        let messages = self.conversation.messages();
        let (tokens, media) = tokens_of(messages, &prompt, processor, tokenizer, true)?;
        let mut parser = OutputParser::new(
            self.format,
            ParserOptions {
                reasoning: true,
                in_reasoning: self.format.opens_reasoning(&prompt.text),
                ..ParserOptions::default()
            },
        )?;
        let request = Request {
            max_tokens: self.args.max_tokens,
            media,
            ..Request::new(tokens, self.args.sampling.options()?)
        };
        let text = TextOptions {
            visible_tokens: self
                .format
                .visible_tokens()
                .into_iter()
                .map(Into::into)
                .collect(),
            ..TextOptions::default()
        };
        let mut completion = self.session.submit(request, text)?;
        let mut answer = Answer {
            dim: self.dim,
            thinking: false,
            content: String::new(),
        };
        let end = loop {
            match self.session.wait(&mut completion, &self.interrupt)? {
                Step::Output(Output::Delta(delta)) => answer.show(parser.push(&delta.text))?,
                Step::Output(Output::Finished(finish)) => break Some(finish),
                Step::Output(_) => {}
                Step::Interrupted => break None,
            }
        };
        drop(completion);
        let complete = end
            .as_ref()
            .is_some_and(|finish| finish.reason == StopReason::End);
        answer.show(parser.finish(complete))?;
        answer.end()?;
        match &end {
            None => tracing::info!("stopped"),
            Some(finish) => match finish.reason {
                StopReason::Length => tracing::info!(
                    "the answer is cut at {} tokens",
                    finish.usage.completion_tokens
                ),
                StopReason::Context => tracing::warn!("the context is full; /clear starts again"),
                StopReason::End | StopReason::StopString(_) => {}
            },
        }
        self.last = end.or(self.last.take());
        self.conversation.say("assistant", &answer.content);
        Ok(())
    }
}

/// An answer on the screen.
struct Answer {
    dim: bool,
    thinking: bool,
    content: String,
}

impl Answer {
    fn show(&mut self, deltas: Vec<Delta>) -> Result<()> {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    self.turn(true)?;
                    print(&text)?;
                }
                Delta::Content(text) => {
                    self.turn(false)?;
                    print(&text)?;
                    self.content.push_str(&text);
                }
                // No tools were offered.
                Delta::ToolCall { .. } => {}
            }
        }
        Ok(())
    }

    fn turn(&mut self, thinking: bool) -> Result<()> {
        if self.thinking == thinking {
            return Ok(());
        }
        self.thinking = thinking;
        let mark = match (thinking, self.dim) {
            (true, true) => DIM.to_string(),
            (true, false) => "[thinking]\n".to_string(),
            (false, true) => format!("{PLAIN}\n\n"),
            (false, false) => "\n[answer]\n".to_string(),
        };
        print_own(&mark).map(drop)
    }

    fn end(&mut self) -> Result<()> {
        let plain = if self.thinking && self.dim { PLAIN } else { "" };
        print_own(&format!("{plain}\n")).map(drop)
    }
}
