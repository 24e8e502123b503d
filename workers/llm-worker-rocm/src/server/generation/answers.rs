//! All answers to a request: their parts as they come, or each of them whole.

use super::course::Generation;
use super::form::Form;
use super::prepare::{Common, Held, Prompt};
use super::sampling::SamplingFields;
use crate::completion::{Finish, Output, PromptProgress, StopReason, TextToken, Took, Usage};
use crate::engine::api::{Failure, PromptToken};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::{blocking, from_failure, QUEUE_FULL};
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::time::Instant;
use worker::http::sse::{Frame, Frames};
use worker::http::{ApiError, Caller};
use worker::serve::inside::is_background;

/// Most probabilities of prompts' tokens in one answer: each takes some 50 bytes of it.
const MAX_TOLD: usize = 1 << 21;

/// Takes an answer's text apart while it arrives.
pub trait Parse: Clone + Send + 'static {
    /// A part of an answer.
    type Part: Send;
    /// All parts of an answer.
    type Whole: Default + Extend<Self::Part> + Send;

    /// What comes before the answer.
    fn start(&mut self) -> Vec<Self::Part> {
        Vec::new()
    }

    /// Takes more text and gives what is certain now.
    fn push(&mut self, text: String) -> Vec<Self::Part>;

    /// Ends the answer and gives the rest. `complete` says that the model ended it, and not a limit.
    fn finish(&mut self, complete: bool) -> Vec<Self::Part> {
        let _ = complete;
        Vec::new()
    }

    /// Whether the answer calls tools.
    fn has_calls(&self) -> bool {
        false
    }
}

/// How an API tells one answer as the frames of a stream.
pub trait Writer<P: Parse>: Send {
    /// The frames before the answer.
    fn start(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    /// The frames once it leaves the queue for a slot.
    fn started(&mut self, slot: Option<usize>) -> Vec<Frame> {
        let _ = slot;
        Vec::new()
    }

    /// The frames for how much of the prompt is computed; only where the request asks to be told.
    fn progress(&mut self, progress: &PromptProgress) -> Vec<Frame> {
        let _ = progress;
        Vec::new()
    }

    /// What the answer took so far, for the frames that follow; only where the request asks to be told.
    fn took(&mut self, took: &Took) {
        let _ = took;
    }

    /// The frames for the next tokens of the prompt behind its first, with their probabilities.
    fn prompt(&mut self, tokens: Vec<PromptToken>) -> Vec<Frame> {
        let _ = tokens;
        Vec::new()
    }

    /// The frames for a part of it. `tokens` are those that were chosen for it and not told before.
    fn part(&mut self, part: P::Part, tokens: &[TextToken]) -> Vec<Frame>;

    /// The frames for its end. `tokens` are those that belong to no part.
    fn end(&mut self, end: &End, tokens: &[TextToken]) -> Vec<Frame>;
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why, and what it took.
    pub finish: Finish,
    /// Whether it calls tools.
    pub has_calls: bool,
}

/// A whole answer.
pub struct Answer<P: Parse> {
    /// The prompt's tokens behind its first with their probabilities, if they were asked for.
    pub prompt: Vec<PromptToken>,
    /// Its parts.
    pub whole: P::Whole,
    /// Its tokens.
    pub tokens: Vec<TextToken>,
    /// How it ended.
    pub end: End,
}

/// All answers to a request in the making. Dropping them cancels them.
pub struct Answers<P> {
    /// Seed of the first answer; each has the one after that of the answer before it.
    pub seed: u64,
    /// Answers to the first prompt, then to the second one, and so on.
    choices: Vec<Choice<P>>,
    per_prompt: usize,
    told: Told,
}

/// What a stream tells besides the answer.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// How much of the prompt is computed.
    progress: bool,
    /// What the answer took up to each part of it.
    took: bool,
}

/// One answer in the making.
pub struct Choice<P> {
    generation: Generation,
    parser: P,
}

/// What came of an answer: its slot, or parts, the tokens behind them, and perhaps its end.
struct Step<T> {
    started: Option<Option<usize>>,
    prompt: Vec<PromptToken>,
    parts: Vec<T>,
    tokens: Vec<TextToken>,
    progress: Option<PromptProgress>,
    end: Option<End>,
}

impl<P: Parse> Answers<P> {
    /// Submits what the fields ask for: as many answers to each prompt as they say. Waits where grammars are compiled,
    /// each of them once.
    ///
    /// # Errors
    /// 400 that names the field at fault; 504 if the request's time is over before that; the engine's refusal.
    pub async fn submit(
        app: &Arc<App>,
        model: &Arc<TextModel>,
        fields: SamplingFields,
        prompts: Vec<(Prompt, P)>,
        caller: Caller,
    ) -> Result<Self, ApiError> {
        let timeout = fields.timeout(&app.options);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let compiling = compile_all(app, model, &prompts);
        let held = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), compiling)
                .await
                .unwrap_or_else(|_| Err(from_failure(&Failure::Timeout(0))))?,
            None => compiling.await?,
        };
        let (app, model) = (app.clone(), model.clone());
        let background = is_background();
        blocking(move || {
            let common = Common {
                app: &app,
                tokenizer: &model.tokenizer,
                fields: &fields,
                caller,
                background,
                seed: fields.first_seed(app.options.seed),
                deadline,
            };
            let per_prompt = fields.choices()?;
            check_told(prompts.iter().map(|(prompt, _)| prompt), per_prompt)?;
            let mut choices = Vec::new();
            for ((prompt, parser), held) in prompts.iter().zip(&held) {
                for answer in 0..per_prompt {
                    let mut generation = loop {
                        let prepared = common.prepare(prompt, held.as_ref(), choices.len())?;
                        match Generation::submit(&app, &model, prepared) {
                            // Jobs that nobody takes do not keep others out.
                            Err(e) if e.code == QUEUE_FULL && app.jobs.give_up_oldest() => {}
                            submitted => break submitted?,
                        }
                    };
                    if answer > 0 {
                        generation.share_prompt();
                    }
                    choices.push(Choice {
                        generation,
                        parser: parser.clone(),
                    });
                }
            }
            Ok(Self {
                seed: common.seed,
                choices,
                per_prompt,
                told: Told {
                    progress: fields.tells_progress(),
                    took: fields.timings_per_token.unwrap_or(false),
                },
            })
        })
        .await
    }

    /// Of the answers to each prompt, once they are complete, the `n` whose tokens are the most likely on average, and
    /// what all took together. Their tokens have to come with probabilities.
    ///
    /// # Errors
    /// What the first of them failed with.
    pub async fn collect_best(self, n: usize) -> Result<(Vec<Answer<P>>, Usage), ApiError> {
        let per_prompt = self.per_prompt;
        let (answers, usage) = self.collect().await?;
        let mut best = Vec::with_capacity(answers.len());
        let mut answers = answers.into_iter().peekable();
        while answers.peek().is_some() {
            let mut own: Vec<Answer<P>> = answers.by_ref().take(per_prompt).collect();
            // The earlier one of two that are equal.
            own.sort_by(|a, b| mean_logprob(&b.tokens).total_cmp(&mean_logprob(&a.tokens)));
            best.extend(own.into_iter().take(n));
        }
        Ok((best, usage))
    }

    /// All answers once they are complete, and what they took together.
    ///
    /// # Errors
    /// What the first of them failed with.
    pub async fn collect(self) -> Result<(Vec<Answer<P>>, Usage), ApiError> {
        let answers = try_join_all(self.choices.into_iter().map(Choice::collect)).await?;
        let usages: Vec<Usage> = answers.iter().map(|a| a.end.finish.usage).collect();
        let usage = total(&usages, self.per_prompt);
        Ok((answers, usage))
    }

    /// The only answer, once it is complete, for APIs that give one.
    ///
    /// # Errors
    /// What it failed with.
    pub async fn collect_one(self) -> Result<Answer<P>, ApiError> {
        let (answers, _) = self.collect().await?;
        let answer = answers.into_iter().next();
        answer.ok_or_else(|| ApiError::internal("there is no answer"))
    }

    /// Sends all answers as they come, each through the writer that `writer` makes for its index. Gives the tokens of
    /// all of them, and what the first took.
    ///
    /// # Errors
    /// What the first of them failed with.
    pub async fn stream<W: Writer<P>>(
        self,
        frames: &Frames,
        writer: impl Fn(usize) -> W,
    ) -> Result<(Usage, Option<Took>), ApiError> {
        let choices = self.choices.into_iter().enumerate();
        let told = self.told;
        let streams = choices.map(|(index, choice)| choice.stream(writer(index), frames, told));
        let took = try_join_all(streams).await?;
        let usages: Vec<Usage> = took.iter().map(|took| took.usage).collect();
        Ok((total(&usages, self.per_prompt), took.first().copied()))
    }
}

/// Refuses prompts of whose tokens more probabilities are wanted than an answer has room for.
fn check_told<'a>(
    prompts: impl Iterator<Item = &'a Prompt>,
    per_prompt: usize,
) -> Result<(), ApiError> {
    let told = prompts.map(|prompt| match prompt.prompt_logprobs {
        Some(top) => prompt.tokens.len().saturating_mul(1 + top),
        None => 0,
    });
    let told = told.fold(0, usize::saturating_add);
    match told.saturating_mul(per_prompt) {
        0..=MAX_TOLD => Ok(()),
        told => Err(ApiError::field(
            "prompt",
            format!(
                "{told} probabilities of the prompts' tokens; at most {MAX_TOLD} are told at once, so send fewer prompts"
            ),
        )),
    }
}

/// What holds the answers to each prompt to a form, compiled; the forms of one request are mostly one and the same.
async fn compile_all<P>(
    app: &App,
    model: &TextModel,
    prompts: &[(Prompt, P)],
) -> Result<Vec<Option<Held>>, ApiError> {
    let mut compiled = Vec::with_capacity(prompts.len());
    let mut last: Option<(&Form, Held)> = None;
    for (prompt, _) in prompts {
        let held = match (&prompt.form, &prompt.calls, &last) {
            (Some(form), _, Some((known, held))) if *known == form => Some(held.clone()),
            (Some(form), ..) => {
                let new = form.compile(app, model).await?;
                last = Some((form, new.clone()));
                Some(new)
            }
            (None, Some(calls), _) => calls
                .compile(app, model)
                .await?
                .map(|calls| Held::Calls(Box::new(calls))),
            (None, None, _) => None,
        };
        compiled.push(held);
    }
    Ok(compiled)
}

impl<P: Parse> Choice<P> {
    async fn next(&mut self) -> Result<Step<P::Part>, ApiError> {
        let mut step = Step {
            started: None,
            progress: None,
            prompt: Vec::new(),
            parts: Vec::new(),
            tokens: Vec::new(),
            end: None,
        };
        match self.generation.next().await {
            Some(Output::Started(slot)) => {
                step.started = Some(slot);
                step.progress = Some(self.generation.progress());
            }
            Some(Output::Progress(progress)) => step.progress = Some(progress),
            Some(Output::Prompt(prompt)) => step.prompt = prompt,
            Some(Output::Delta(delta)) => {
                step.parts = self.parser.push(delta.text);
                step.tokens = delta.tokens;
            }
            Some(Output::Finished(finish)) => {
                step.parts = self.parser.finish(finish.reason == StopReason::End);
                step.end = Some(End {
                    finish,
                    has_calls: self.parser.has_calls(),
                });
            }
            Some(Output::Failed(failure)) => return Err(from_failure(&failure)),
            None => return Err(ApiError::internal("the answer went on after its end")),
        }
        Ok(step)
    }

    async fn collect(mut self) -> Result<Answer<P>, ApiError> {
        let mut whole = P::Whole::default();
        let (mut prompt, mut tokens) = (Vec::new(), Vec::new());
        whole.extend(self.parser.start());
        loop {
            let step = self.next().await?;
            prompt.extend(step.prompt);
            whole.extend(step.parts);
            tokens.extend(step.tokens);
            if let Some(end) = step.end {
                return Ok(Answer {
                    prompt,
                    whole,
                    tokens,
                    end,
                });
            }
        }
    }

    async fn stream<W: Writer<P>>(
        mut self,
        mut writer: W,
        frames: &Frames,
        told: Told,
    ) -> Result<Took, ApiError> {
        send(frames, writer.start()).await;
        for part in self.parser.start() {
            send(frames, writer.part(part, &[])).await;
        }
        // Tokens whose text is understood later, as of a call's name.
        let mut tokens = Vec::new();
        loop {
            let step = self.next().await?;
            if !step.prompt.is_empty() {
                send(frames, writer.prompt(step.prompt)).await;
            }
            tokens.extend(step.tokens);
            if let Some(slot) = step.started {
                send(frames, writer.started(slot)).await;
            }
            if let Some(progress) = step.progress.filter(|_| told.progress) {
                send(frames, writer.progress(&progress)).await;
            }
            if told.took {
                writer.took(&self.generation.took());
            }
            for part in step.parts {
                let own = std::mem::take(&mut tokens);
                send(frames, writer.part(part, &own)).await;
            }
            if let Some(end) = step.end {
                send(frames, writer.end(&end, &tokens)).await;
                return Ok(end.finish.took());
            }
        }
    }
}

async fn send(frames: &Frames, events: Vec<Frame>) {
    for event in events {
        frames.send(event).await;
    }
}

/// The mean logarithm of tokens' probabilities; as low as can be without any.
fn mean_logprob(tokens: &[TextToken]) -> f64 {
    let logprobs = tokens.iter().filter_map(|token| token.logprob);
    let (count, sum) = logprobs.fold((0usize, 0.0), |(count, sum), logprob| {
        (count + 1, sum + f64::from(logprob))
    });
    match count {
        0 => f64::NEG_INFINITY,
        count => sum / count as f64,
    }
}

/// Tokens of all answers: a prompt counts once for all answers to it, and as cached where it was for the first of them.
fn total(usages: &[Usage], per_prompt: usize) -> Usage {
    let mut total = Usage::default();
    for (index, usage) in usages.iter().enumerate() {
        if index % per_prompt == 0 {
            total.prompt_tokens += usage.prompt_tokens;
            total.cached_tokens += usage.cached_tokens;
        }
        total.completion_tokens += usage.completion_tokens;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_once_for_all_answers_to_it() {
        let usage = |prompt_tokens, cached_tokens, completion_tokens| Usage {
            prompt_tokens,
            cached_tokens,
            completion_tokens,
        };
        let usages = [
            usage(5, 0, 1),
            usage(5, 4, 2),
            usage(7, 3, 4),
            usage(7, 6, 8),
        ];
        assert_eq!(total(&usages, 2), usage(12, 3, 15));
        assert_eq!(total(&usages, 1), usage(24, 13, 15));
    }
}
