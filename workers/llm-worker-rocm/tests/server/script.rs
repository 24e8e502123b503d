//! An engine that plays scripts, and a tokenizer of bytes for it.

use crate::common::{bool, f32s, i32s, string, strings, u32, File};
use llm_worker_rocm::engine::api::{
    AdapterUse, DraftCount, Event, EventSender, Failure, FinishReason, GeneratedToken, PromptToken,
    Request, SamplingOptions, Status, Summary, Ticket,
};
use llm_worker_rocm::server::Backend;
use llm_worker_rocm::tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::io::Cursor;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use worker::gguf::Gguf;

/// The token that ends an answer.
pub const END: u32 = 2;
/// `<unk>`, `<s>`, `</s>` and the bytes.
const VOCABULARY: u32 = 3 + 256;
/// Tokens that the context takes.
pub const CONTEXT: usize = 4096;

/// A vocabulary of bytes.
pub fn tokenizer() -> Tokenizer {
    tokenizer_with(&[], |_| {})
}

/// The same with control tokens behind the bytes, and a change of its file.
pub fn tokenizer_with(control: &[&str], change: impl FnOnce(&mut File)) -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_string).to_vec();
    let mut kinds = vec![2, 3, 3];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        kinds.push(6);
    }
    tokens.extend(control.iter().map(|text| text.to_string()));
    kinds.resize(tokens.len(), 3);
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut file = File::default();
    file.set("tokenizer.ggml.model", string("llama"))
        .set("tokenizer.ggml.tokens", strings(&tokens))
        .set("tokenizer.ggml.token_type", i32s(&kinds))
        .set("tokenizer.ggml.scores", f32s(&vec![0.0; tokens.len()]))
        .set("tokenizer.ggml.add_space_prefix", bool(false))
        .set("tokenizer.ggml.bos_token_id", u32(1))
        .set("tokenizer.ggml.eos_token_id", u32(END));
    change(&mut file);
    Tokenizer::from_gguf(&Gguf::read(Cursor::new(file.bytes())).unwrap()).unwrap()
}

/// The byte's token.
pub fn token(byte: u8) -> u32 {
    3 + u32::from(byte)
}

/// What becomes of a request.
pub enum Play {
    /// It is answered.
    Say(&'static str),
    /// It is answered with these tokens.
    SayTokens(&'static [u32]),
    /// It is answered; the engine says that each token took so long, although all of them come at once.
    SaySlowly(&'static str, Duration),
    /// It is answered until it fails.
    SayAndFail(&'static str, Failure),
    /// It is answered without an end.
    SayAndHang(&'static str),
    /// It is not taken.
    Refuse(Failure),
    /// It is answered with what its constraint allows: the end as soon as possible, else the last token, which is never
    /// white space without need.
    FollowConstraint,
    /// It begins with these words, which its constraint has to allow, and goes on as the constraint does.
    SayAndFollow(&'static str),
}

/// What the engine was asked.
pub struct Seen {
    pub prompt: Vec<u32>,
    pub max_tokens: Option<usize>,
    pub sampling: SamplingOptions,
    pub top_logprobs: Option<usize>,
    pub prompt_logprobs: Option<usize>,
    pub ignore_end: bool,
    pub deadline: Option<Instant>,
    pub namespace: u64,
    pub adapters: Arc<[AdapterUse]>,
    pub constrained: bool,
    pub after_sampling: bool,
    pub slot: Option<usize>,
    pub afresh: bool,
    pub keep: Option<usize>,
}

/// The engine.
#[derive(Default)]
pub struct Script {
    plays: Mutex<VecDeque<Play>>,
    pub seen: Mutex<Vec<Seen>>,
    pub status: Mutex<Status>,
    /// Requests without an end.
    hanging: Mutex<Vec<EventSender>>,
}

impl Script {
    pub fn new(plays: impl IntoIterator<Item = Play>) -> Self {
        Self {
            plays: Mutex::new(plays.into_iter().collect()),
            ..Self::default()
        }
    }

    /// Requests without an end whose client is still there.
    pub fn held(&self) -> usize {
        let hanging = self.hanging.lock().unwrap();
        hanging.iter().filter(|sender| !sender.is_closed()).count()
    }

    /// Requests without an end that were ended as answered.
    pub fn answered(&self) -> usize {
        let hanging = self.hanging.lock().unwrap();
        hanging.iter().filter(|sender| sender.is_finished()).count()
    }

    /// Ends those.
    fn end_all(&self, failure: &Failure) {
        for sender in self.hanging.lock().unwrap().drain(..) {
            sender.send(Event::Failed(failure.clone()));
        }
    }
}

/// The probabilities that a script gives to the tokens of a prompt: each is the second most likely one.
fn told(prompt: &[u32], top: usize) -> Vec<PromptToken> {
    let told = prompt[1..].iter().zip(1..).map(|(token, place)| {
        let logprob = -(place as f32);
        let alternatives = [
            (token.wrapping_add(1) % VOCABULARY, logprob / 2.0),
            (*token, logprob),
        ];
        PromptToken {
            token: *token,
            logprob,
            top: alternatives[..top.min(2)].to_vec(),
        }
    });
    told.collect()
}

/// Tokens with the probabilities that a script gives to each.
fn generated(id: u32, top: Option<usize>, at: Instant) -> Event {
    let alternatives = [(id, -0.25), (token(b'~'), -2.0), (END, f32::NEG_INFINITY)];
    let token = GeneratedToken {
        token: id,
        logprob: top.map(|_| -0.25),
        top: alternatives[..top.unwrap_or(0).min(3)].to_vec(),
        share: None,
    };
    Event::Token {
        token,
        at,
        drafts: DraftCount::default(),
    }
}

fn summary(reason: FinishReason, prompt_tokens: usize, generated_tokens: usize) -> Event {
    Event::Finished(Summary {
        reason,
        prompt_tokens,
        cached_tokens: 1,
        generated_tokens,
        drafts: DraftCount::default(),
        shifted: false,
        queued: Duration::from_millis(1),
        prefill: Duration::from_millis(20),
        decode: Duration::from_millis(300),
    })
}

impl Backend for Script {
    fn submit(&self, request: Request) -> Result<Ticket, Failure> {
        let Request {
            prompt,
            max_tokens,
            sampling,
            top_logprobs,
            ignore_end,
            constraint,
            prompt_logprobs,
            max_drafts: _,
            deadline,
            namespace,
            background: _,
            adapters,
            media: _,
            after_sampling,
            slot,
            afresh,
            keep,
            progress,
            log: _,
        } = request;
        let prompt_tokens = prompt.len();
        let told = prompt_logprobs.map(|top| told(&prompt, top));
        let id = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(Seen {
                prompt,
                max_tokens,
                sampling,
                top_logprobs,
                prompt_logprobs,
                ignore_end,
                deadline,
                namespace,
                adapters,
                constrained: constraint.is_some(),
                after_sampling,
                slot,
                afresh,
                keep,
            });
            seen.len() as u64
        };
        let (ticket, sender) = Ticket::new(id);
        let started = |cached_tokens| Event::Started {
            slot: Some(0),
            cached_tokens,
            at: Instant::now(),
        };
        let say_slowly = |text: &str, each: Duration| {
            let limit = max_tokens.unwrap_or(usize::MAX);
            sender.send(started(1));
            for computed in [2, prompt_tokens].into_iter().filter(|_| progress) {
                let at = Instant::now();
                sender.send(Event::Progress { computed, at });
            }
            // In two parts, as of a long prompt.
            for part in told.iter().flat_map(|told| told.chunks(2)) {
                sender.send(Event::Prompt(part.to_vec()));
            }
            let mut at = Instant::now();
            let mut send = |id| {
                at += each;
                sender.send(generated(id, top_logprobs, at));
            };
            text.bytes().take(limit).map(token).for_each(&mut send);
            let count = text.len().min(limit);
            if count == limit {
                summary(FinishReason::Length, prompt_tokens, count)
            } else {
                send(END);
                summary(FinishReason::Stop, prompt_tokens, count + 1)
            }
        };
        let say = |text: &str| say_slowly(text, Duration::ZERO);
        let play = self.plays.lock().unwrap().pop_front();
        match play.expect("more requests than the script has") {
            Play::Say(text) => sender.send(say(text)),
            Play::SayTokens(tokens) => {
                sender.send(started(1));
                for id in tokens.iter().chain([&END]) {
                    sender.send(generated(*id, top_logprobs, Instant::now()));
                }
                sender.send(summary(FinishReason::Stop, prompt_tokens, tokens.len() + 1));
            }
            Play::SaySlowly(text, each) => sender.send(say_slowly(text, each)),
            Play::SayAndFail(text, failure) => {
                say(text);
                sender.send(Event::Failed(failure));
            }
            Play::SayAndHang(text) => {
                say(text);
                self.hanging.lock().unwrap().push(sender);
            }
            Play::Refuse(failure) => return Err(failure),
            play @ (Play::FollowConstraint | Play::SayAndFollow(_)) => {
                let mut words = match play {
                    Play::SayAndFollow(words) => words.bytes(),
                    _ => "".bytes(),
                };
                let mut constraint = constraint.expect("a constraint was expected");
                sender.send(started(0));
                let mut count = 0;
                loop {
                    let mask = match constraint.mask() {
                        Ok(mask) => mask,
                        Err(reason) => {
                            sender.send(Event::Failed(Failure::Invalid(reason)));
                            return Ok(ticket);
                        }
                    };
                    let allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
                    let said = words.next().map(token);
                    let ends = Some(END).filter(|id| said.is_none() && allowed(id));
                    let id = said
                        .or(ends)
                        .or_else(|| (0..VOCABULARY).rev().find(allowed))
                        .unwrap();
                    assert!(allowed(&id), "{id} after {count} tokens");
                    count += 1;
                    if Some(count) == max_tokens {
                        sender.send(generated(id, None, Instant::now()));
                        sender.send(summary(FinishReason::Length, prompt_tokens, count));
                        return Ok(ticket);
                    }
                    assert!(count < 500, "the constraint has no end");
                    sender.send(generated(id, None, Instant::now()));
                    if id == END {
                        break;
                    }
                    if let Err(reason) = constraint.accept(id) {
                        sender.send(Event::Failed(Failure::Invalid(reason)));
                        return Ok(ticket);
                    }
                }
                let end = summary(FinishReason::Stop, prompt_tokens, count);
                sender.send(end);
            }
        }
        Ok(ticket)
    }

    fn status(&self) -> Status {
        self.status.lock().unwrap().clone()
    }

    fn context(&self) -> usize {
        CONTEXT
    }

    fn stop(&self, grace: Duration) {
        let end = Instant::now() + grace;
        while self.held() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end_all(&Failure::Stopping);
    }
}
