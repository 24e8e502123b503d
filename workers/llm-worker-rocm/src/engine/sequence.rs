//! A request while it runs.

mod memory;

use super::api::{
    namespace, AdapterUse, Constraint, Event, EventSender, Failure, FinishReason, GeneratedToken,
    PromptToken, Request, SamplingOptions, Summary,
};
use super::blocks::{root, BlockPool, Prefix};
use super::forward::SampleParams;
use super::handle::Waiting;
use super::media::{MediaStore, SequenceMedia};
use super::sampling::{AimState, Breakers, Given, SamplingRequest};
use super::speculation::{Ask, Drafts};
use memory::States;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Its tokens, and how far their keys and values are computed.
pub(super) struct Sequence {
    pub id: u64,
    /// Whether the prompts of others are computed first.
    pub background: bool,
    /// The prompt and what was generated, as far as it was not dropped.
    pub tokens: Vec<u32>,
    /// How many of these are the prompt's.
    pub prompt: usize,
    /// Tokens of the prompt and of the answer that were dropped.
    dropped: [usize; 2],
    /// Tokens whose keys and values are in the cache.
    pub computed: usize,
    pub blocks: Vec<u32>,
    /// Its blocks of layers with a window of which it still has those from `windows_start` on, if such layers have
    /// blocks of their own.
    windows: VecDeque<u32>,
    windows_start: usize,
    /// The name of the prefix that the first `remembered` blocks make.
    prefix: Prefix,
    /// The empty prefix of its namespace.
    root: Prefix,
    remembered: usize,
    /// Its recurrent state, if the model has such.
    states: States,
    pub adapters: Arc<[AdapterUse]>,
    sampling: SamplingOptions,
    /// What ends runs of tokens, for its sampling.
    breakers: Arc<Breakers>,
    /// What its sampling has learned of the tokens chosen so far, if it aims at something.
    aim: Option<AimState>,
    top_logprobs: Option<usize>,
    after_sampling: bool,
    /// What is still to be told of its prompt.
    telling: Option<Telling>,
    max_tokens: Option<usize>,
    ignore_end: bool,
    constraint: Option<Box<dyn Constraint>>,
    /// Guesses at what comes next.
    pub drafts: Drafts,
    max_drafts: Option<usize>,
    deadline: Option<Instant>,
    events: EventSender,
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    /// Prompt tokens that were in the cache when it started.
    cached: usize,
    /// Prompt tokens that were told to be computed, if that is to be told.
    told: Option<usize>,
    /// The prompt's pictures, if it has some.
    pub media: Option<SequenceMedia>,
    /// The slot that it asks for.
    pub slot: Option<usize>,
    /// Starts with nothing that is known of its prompt.
    pub(super) afresh: bool,
    /// First tokens that stay when it drops others, if it says.
    keep: Option<usize>,
    /// Whether it has dropped some.
    shifted: bool,
    /// What log lines about it belong to.
    pub log: tracing::Span,
}

/// The probabilities of a prompt's tokens, while they are computed.
struct Telling {
    /// How many of the most likely tokens are told with each.
    top: usize,
    /// Tokens behind which the next one was told.
    done: usize,
}

impl Sequence {
    pub(super) fn new(waiting: Waiting, media: &mut MediaStore) -> Self {
        let request = waiting.request;
        let namespace = namespace(request.namespace, &request.adapters);
        Self {
            id: waiting.id,
            prompt: request.prompt.len(),
            tokens: request.prompt,
            dropped: [0; 2],
            computed: 0,
            blocks: Vec::new(),
            windows: VecDeque::new(),
            windows_start: 0,
            prefix: root(namespace),
            root: root(namespace),
            remembered: 0,
            states: States::default(),
            background: request.background,
            adapters: request.adapters,
            aim: request.sampling.aim.map(AimState::new),
            breakers: waiting.breakers,
            sampling: request.sampling,
            top_logprobs: request.top_logprobs,
            after_sampling: request.after_sampling,
            telling: request.prompt_logprobs.map(|top| Telling { top, done: 0 }),
            max_tokens: request.max_tokens,
            ignore_end: request.ignore_end,
            constraint: request.constraint,
            drafts: Drafts::default(),
            max_drafts: request.max_drafts,
            deadline: request.deadline,
            events: waiting.events,
            arrived: waiting.arrived,
            started: None,
            first_token: None,
            cached: 0,
            told: request.progress.then_some(0),
            media: request.media.map(|of_prompt| media.sequence(of_prompt)),
            slot: request.slot,
            afresh: request.afresh,
            keep: request.keep,
            shifted: false,
            log: request.log,
        }
    }

    /// Tokens that are still to be computed before the next can be chosen.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether the next block of `block_size` tokens that it computes is one that a request begins with, too, and may
    /// share. Requests do not wait for those behind them (`background`).
    pub(super) fn computes_beginning_of(&self, request: &Request, block_size: usize) -> bool {
        let end = (self.computed / block_size + 1) * block_size;
        // The last token of a prompt is always computed.
        self.pending() > 1
            && end <= self.tokens.len()
            && end < request.prompt.len()
            && (request.background || !self.background)
            && !(request.afresh || request.prompt_logprobs.is_some())
            && self.media.is_none()
            && request.media.is_none()
            && self.tokens[..end] == request.prompt[..end]
            && self.root == root(namespace(request.namespace, &request.adapters))
    }

    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt + self.dropped[1]
    }

    /// The empty prefix of its namespace.
    pub(super) fn root(&self) -> Prefix {
        self.root
    }

    /// Whether tokens are to be chosen behind its prompt.
    pub(super) fn answers(&self) -> bool {
        self.max_tokens != Some(0)
    }

    /// Tokens of the prompt among the next `rows` behind which the probability of the next one is to be told.
    pub(super) fn told_by(&self, rows: usize) -> Range<usize> {
        let Some(telling) = &self.telling else {
            return 0..0;
        };
        let end = (self.computed + rows).min(self.prompt - 1);
        self.computed.max(telling.done).min(end)..end
    }

    /// As many of the next `rows` rows as tell at most `most` probabilities.
    pub(super) fn telling_at_most(&self, most: usize, rows: usize) -> usize {
        let told = self.told_by(rows);
        match told.len() > most {
            true => told.start + most - self.computed,
            false => rows,
        }
    }

    /// The tokens whose probabilities the next `rows` rows tell, if the logits of these begin at `row`.
    pub(super) fn given(&self, row: usize, rows: usize) -> impl Iterator<Item = Given> + '_ {
        let top = self.telling.as_ref().map_or(0, |telling| telling.top);
        let places = self.told_by(rows).enumerate();
        places.map(move |(i, place)| Given {
            row: row + i,
            token: self.tokens[place + 1],
            top,
        })
    }

    /// Tells the probabilities of the prompt's next tokens.
    pub(super) fn tell(&mut self, tokens: Vec<PromptToken>) {
        if let Some(telling) = &mut self.telling {
            telling.done += tokens.len();
            if telling.done >= self.prompt - 1 {
                self.telling = None;
            }
        }
        self.send(Event::Prompt(tokens));
    }

    /// Nobody waits for it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Nobody waits for it any more, as its answer is complete.
    pub(super) fn is_answered(&self) -> bool {
        self.events.is_finished()
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Its tokens as prefixes are known by them: those of pictures tell which.
    fn named(&self, range: std::ops::Range<usize>) -> std::borrow::Cow<'_, [u32]> {
        let tokens = &self.tokens[range.clone()];
        match &self.media {
            Some(media) => media.named(range.start, tokens).into(),
            None => tokens.into(),
        }
    }

    /// All of its tokens as prefixes are known by them.
    pub(super) fn all_named(&self) -> Vec<u32> {
        self.named(0..self.tokens.len()).into_owned()
    }

    /// How many of the next `rows` rows can be computed now.
    pub(super) fn ready(&self, rows: usize) -> usize {
        let media = self.media.as_ref();
        media.map_or(rows, |media| media.ready(self.computed, rows))
    }

    /// What the next of `rows` rows is turned by, if that is not its place and all are text.
    pub(super) fn turn_of_text(&self, rows: usize) -> Option<u32> {
        self.media.as_ref()?.turn_of_text(self.computed, rows)
    }

    /// Tells that it left the queue, and for which slot.
    pub(super) fn start(&mut self, slot: Option<usize>) {
        let at = Instant::now();
        self.started = Some(at);
        self.cached = self.computed;
        self.send(Event::Started {
            slot,
            cached_tokens: self.cached,
            at,
        });
        tracing::debug!(
            parent: &self.log,
            sequence = self.id,
            prompt_tokens = self.prompt,
            cached_tokens = self.cached,
            queue_seconds = (at - self.arrived).as_secs_f64(),
            "its turn has come"
        );
    }

    /// Tells how much of the prompt is computed, where that is asked for and more than was told before.
    pub(super) fn tell_progress(&mut self) {
        let computed = self.computed.min(self.prompt);
        let before = self.told.map(|told| told.max(self.cached));
        if before.is_some_and(|before| computed > before) {
            self.told = Some(computed);
            let at = Instant::now();
            self.send(Event::Progress { computed, at });
        }
    }

    /// Whether it has had blocks.
    pub(super) fn has_started(&self) -> bool {
        self.started.is_some()
    }

    pub(super) fn cached(&self) -> usize {
        self.cached
    }

    /// Whether each token decides which ones may come behind it, or how they are chosen.
    pub(super) fn goes_by_token(&self) -> bool {
        self.constraint.is_some() || self.aim.is_some()
    }

    /// Whether something besides the logits decides which tokens may come next.
    pub(super) fn is_constrained(&self) -> bool {
        self.constraint.as_ref().is_some_and(|c| !c.is_free())
    }

    /// The tokens that may come next, if not all may.
    pub(super) fn mask(&mut self) -> Result<Option<Vec<u32>>, Failure> {
        match &mut self.constraint {
            Some(constraint) if !constraint.is_free() => {
                constraint.mask().map(Some).map_err(Failure::Invalid)
            }
            _ => Ok(None),
        }
    }

    /// What the sampler is to do behind so many drafts.
    pub(super) fn sampling_request(
        &self,
        drafts: usize,
        mask: Option<Vec<u32>>,
    ) -> SamplingRequest<'_> {
        SamplingRequest {
            options: &self.sampling,
            breakers: Some(&self.breakers),
            aim: self.aim,
            history: &self.tokens,
            drafts: &self.drafts.tokens()[..drafts],
            generated: self.tokens.len() - self.prompt + drafts,
            position: (self.generated() + drafts) as u32,
            mask,
            top_logprobs: self.top_logprobs,
            after_sampling: self.after_sampling,
        }
    }

    /// How to choose the token behind so many drafts, if it takes nothing but its logits.
    pub(super) fn sample_params(&self, drafts: usize) -> Option<SampleParams<'_>> {
        let options = &self.sampling;
        let plain =
            !self.is_constrained() && self.top_logprobs.is_none() && options.takes_only_logits();
        plain.then(|| SampleParams {
            options,
            position: (self.generated() + drafts) as u32,
        })
    }

    /// Most guesses that are of use: with all of them and one more token the sequence ends at the latest.
    pub(super) fn useful_drafts(&self, context: usize) -> usize {
        let left = self.max_tokens.unwrap_or(usize::MAX) - self.generated();
        left.min(context - self.tokens.len()).saturating_sub(1)
    }

    /// How its next tokens are to be guessed, at most `most` of them.
    pub(super) fn ask(&self, most: usize) -> Ask<'_> {
        Ask {
            id: self.id,
            root: self.root,
            tokens: &self.tokens,
            generated: self.generated(),
            sampling: &self.sampling,
            blocks: &self.blocks,
            computed: self.computed,
            most: most.min(self.max_drafts.unwrap_or(usize::MAX)),
            is_plain: self.media.is_none() && self.adapters.is_empty(),
            is_read: self.pending() == 1,
        }
    }

    /// Takes guesses as drafts, the first `count` of them to be checked: no further than the constraint allows, nor
    /// behind a token that ends the answer.
    pub(super) fn take_drafts(&mut self, guesses: Vec<u32>, count: usize, end: &[u32]) {
        let ends = |token: &u32| !self.ignore_end && end.contains(token);
        let mut count = match guesses.iter().position(ends) {
            Some(last) => count.min(last + 1),
            None => count,
        };
        if let (Some(constraint), true) = (&mut self.constraint, count > 0) {
            count = count.min(constraint.allowed(&guesses[..count]));
        }
        self.drafts.set(guesses);
        self.drafts.cut(count);
    }

    /// Tells constraint and aim of a token that was chosen. Gives whether the answer may go on behind it.
    pub(super) fn follow(&mut self, chosen: &GeneratedToken, end: &[u32]) -> Result<bool, Failure> {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(chosen.token).map_err(Failure::Invalid)?;
        }
        if let (Some(state), Some(aim), Some(share)) =
            (&mut self.aim, self.sampling.aim, chosen.share)
        {
            state.learn(aim, share);
        }
        Ok(self.ignore_end || !end.contains(&chosen.token))
    }

    /// Takes the next token, which [`Sequence::follow`] has let pass. Gives why the sequence ends with it, if it does.
    pub(super) fn push(
        &mut self,
        token: GeneratedToken,
        end: &[u32],
        context: usize,
    ) -> Option<FinishReason> {
        let id = token.token;
        let at = Instant::now();
        self.first_token.get_or_insert(at);
        self.tokens.push(id);
        self.send(Event::Token {
            token,
            at,
            drafts: self.drafts.count,
        });
        if !self.ignore_end && end.contains(&id) {
            Some(FinishReason::Stop)
        } else if Some(self.generated()) == self.max_tokens {
            Some(FinishReason::Length)
        } else if self.tokens.len() >= context {
            Some(FinishReason::Context)
        } else {
            None
        }
    }

    /// Drops half of the tokens behind the first `keep`, or as many as it says itself, the older half; what is left is to
    /// be computed anew. Gives whether there was anything to drop.
    pub(super) fn shift(&mut self, pool: &mut BlockPool, keep: usize) -> bool {
        let keep = self.keep.unwrap_or(keep);
        let count = self.tokens.len().saturating_sub(keep) / 2;
        let of_prompt = self.prompt.clamp(keep, keep + count) - keep;
        // Pictures have places in the prompt.
        if count == 0 || self.media.is_some() {
            return false;
        }
        self.tokens.drain(keep..keep + count);
        self.prompt -= of_prompt;
        self.dropped[0] += of_prompt;
        self.dropped[1] += count - of_prompt;
        self.start_over(pool);
        self.shifted = true;
        self.log_event("its oldest tokens are dropped, the context being full");
        true
    }

    pub(super) fn finish(&self, reason: FinishReason) {
        let first = self.first_token.unwrap_or_else(Instant::now);
        let started = self.started.unwrap_or(first);
        self.send(Event::Finished(Summary {
            reason,
            prompt_tokens: self.prompt + self.dropped[0],
            cached_tokens: self.cached,
            generated_tokens: self.generated(),
            drafts: self.drafts.count,
            shifted: self.shifted,
            queued: started - self.arrived,
            prefill: first - started,
            decode: first.elapsed(),
        }));
        tracing::debug!(
            parent: &self.log,
            sequence = self.id,
            answer_tokens = self.generated(),
            ?reason,
            seconds = self.arrived.elapsed().as_secs_f64(),
            "it is answered"
        );
    }

    pub(super) fn fail(&self, failure: Failure) {
        tracing::debug!(
            parent: &self.log,
            sequence = self.id,
            answer_tokens = self.generated(),
            "it failed: {failure}"
        );
        self.send(Event::Failed(failure));
    }

    /// How long it has run, its time without blocks included.
    pub(super) fn age(&self) -> std::time::Duration {
        self.started.unwrap_or(self.arrived).elapsed()
    }

    /// Logs what becomes of it.
    pub(super) fn log_event(&self, what: &'static str) {
        tracing::debug!(
            parent: &self.log,
            sequence = self.id,
            answer_tokens = self.generated(),
            "{what}"
        );
    }

    fn send(&self, event: Event) {
        self.events.send(event);
    }
}
