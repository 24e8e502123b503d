//! Sequences with recurrent state and with windows, against a model whose state is a hash of all tokens: an answer that
//! went on from another state, or from other blocks, is another answer.

use super::prompts::told;
use super::speculation::look_up;
use super::*;
use llm_worker_rocm::engine::api::{DraftSource, SpeculationOptions};
use llm_worker_rocm::engine::forward::StepState;

const VOCABULARY: usize = 33;

/// A state behind the tokens so far.
fn next_state(state: u64, token: u32) -> u64 {
    let mixed = (state ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

fn state_of(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(1, |state, token| next_state(state, *token))
}

/// The token that has the largest logit behind a state; never [`POISON`].
fn token_behind(state: u64) -> u32 {
    3 + (next_state(state, 0) >> 32) as u32 % 28
}

fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut state = state_of(prompt);
    let next = |_| {
        let token = token_behind(state);
        state = next_state(state, token);
        token
    };
    (0..count).map(next).collect()
}

/// A model whose next token depends on a recurrent state, on all tokens in its blocks, and on those in the blocks of its
/// window.
struct Remembering {
    slots: Vec<u64>,
    blocks: Vec<Vec<u32>>,
    window_blocks: Vec<Vec<u32>>,
    /// Keys before its own that a token sees in these.
    left: Option<usize>,
    block_size: usize,
    steps: Arc<AtomicUsize>,
    /// Each so many steps of several sequences fail, 0 for none.
    fails_each: usize,
}

impl Remembering {
    /// Slots are the business of one sequence each.
    fn check(step: &Step) {
        let mut written = std::collections::HashSet::new();
        let states: Vec<&StepState> = step
            .sequences
            .iter()
            .map(|s| s.state.as_ref().unwrap())
            .collect();
        for state in &states {
            assert!(state.after.iter().all(|slot| written.insert(*slot)));
        }
        for (i, state) in states.iter().enumerate() {
            for (j, other) in states.iter().enumerate() {
                let read = state.from.is_some_and(|from| other.after.contains(&from));
                assert!(i == j || !read, "{state:?} reads what {other:?} writes");
            }
        }
    }
}

impl Forward for Remembering {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }

    fn context_length(&self) -> usize {
        512
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn kv_dtype(&self) -> KvDType {
        KvDType::F32
    }

    fn kv_token_bytes(&self, _: KvTypes) -> usize {
        4
    }

    fn window(&self) -> Option<usize> {
        self.left
    }

    fn kv_window_bytes(&self, _: KvTypes) -> usize {
        2 * usize::from(self.left.is_some())
    }

    fn state_bytes(&self) -> usize {
        8
    }

    fn can_take_back(&self) -> bool {
        true
    }

    fn reserve(&mut self, cache: &CacheOptions) -> candle_core::Result<()> {
        self.slots = vec![0; cache.states];
        self.blocks = vec![vec![0; cache.block_size]; cache.blocks];
        self.window_blocks = vec![vec![0; cache.block_size]; cache.window_blocks];
        self.block_size = cache.block_size;
        Ok(())
    }

    fn forward(&mut self, step: &Step) -> candle_core::Result<Tensor> {
        Self::check(step);
        let count = self.steps.fetch_add(1, Ordering::SeqCst) + 1;
        let several = step.sequences.len() > 1;
        let fails = several && self.fails_each > 0 && count.is_multiple_of(self.fails_each);
        if fails || step.tokens.contains(&POISON) {
            // Halfway: states have changed already.
            for state in step.sequences.iter().filter_map(|s| s.state.as_ref()) {
                state
                    .after
                    .iter()
                    .for_each(|slot| self.slots[*slot as usize] = 7);
            }
            candle_core::bail!("a step fails")
        }
        let mut tokens = step.tokens.iter();
        let mut logits = Vec::new();
        for sequence in &step.sequences {
            let start = sequence.keys - sequence.rows;
            let StepState { from, after } = sequence.state.clone().unwrap();
            assert_eq!(from.is_some(), start > 0);
            let mut state = from.map_or(1, |slot| self.slots[slot as usize]);
            let size = self.block_size;
            let place = |blocks: &[u32], position: usize| {
                let block = blocks[position / size] as usize;
                (block, position % size)
            };
            let mut read: Vec<u32> = Vec::new();
            for position in 0..sequence.keys {
                let (block, within) = place(&sequence.blocks, position);
                if position >= start {
                    let token = *tokens.next().unwrap();
                    self.blocks[block][within] = token;
                    if self.left.is_some() {
                        let (block, within) = place(&sequence.window_blocks, position);
                        self.window_blocks[block][within] = token;
                    }
                    state = next_state(state, token);
                    if let Some(i) = (position + after.len()).checked_sub(sequence.keys) {
                        self.slots[after[i] as usize] = state;
                    }
                }
                read.push(self.blocks[block][within]);
                if position >= start {
                    // If blocks and state have seen different tokens, another one.
                    let first = self
                        .left
                        .map_or(position, |left| position.saturating_sub(left));
                    let seen = (first..=position).all(|at| {
                        self.left.is_none() || {
                            let (block, within) = place(&sequence.window_blocks, at);
                            self.window_blocks[block][within] == read[at]
                        }
                    });
                    let wrong = u32::from(state_of(&read) != state || !seen);
                    let token = (token_behind(state) + wrong) as usize;
                    let mut row = vec![0f32; VOCABULARY];
                    row[token] = 1.0;
                    logits.push(row);
                }
            }
        }
        let rows = step.outputs.iter().map(|row| &logits[*row as usize]);
        let rows: Vec<f32> = rows.flatten().copied().collect();
        Tensor::from_vec(rows, (step.outputs.len(), VOCABULARY), &Device::Cpu)
    }
}

fn remembering(
    options: &EngineOptions,
    left: Option<usize>,
    fails_each: usize,
) -> (Engine, Arc<AtomicUsize>) {
    let (model, steps) = remembering_model(left, fails_each);
    (Engine::start(model, options).unwrap(), steps)
}

fn remembering_model(left: Option<usize>, fails_each: usize) -> (LoadedModel, Arc<AtomicUsize>) {
    let steps = Arc::new(AtomicUsize::new(0));
    let forward = Box::new(Remembering {
        slots: Vec::new(),
        blocks: Vec::new(),
        window_blocks: Vec::new(),
        left,
        block_size: 1,
        steps: steps.clone(),
        fails_each,
    });
    let model = LoadedModel {
        forward,
        ..model(|_| {})
    };
    (model, steps)
}

fn options() -> EngineOptions {
    EngineOptions {
        kv_blocks: Some(320),
        block_size: 4,
        state_distance: 16,
        ..EngineOptions::default()
    }
}

fn none_held(status: &Status) -> bool {
    nothing_held(status) && status.states_used == 0 && status.kv_window_blocks_used == 0
}

#[test]
fn requests_go_on_from_checkpoints() {
    let (engine, steps) = remembering(&options(), None, 0);
    let ask = |prompt: &[u32]| {
        let mut ticket = engine
            .submit(request(prompt.to_vec(), SamplingOptions::greedy(), 10))
            .unwrap();
        let (found, summary) = outcome(&mut ticket);
        let found: Vec<u32> = found.iter().map(|t| t.token).collect();
        assert_eq!(found, expected(prompt, 10));
        (found, summary.unwrap().cached_tokens)
    };
    let long = prompt(3, 50);
    let (answer, cached) = ask(&long);
    assert_eq!(cached, 0);
    // Up to 16, 32, 48, the end, and the answer.
    assert_eq!(steps.load(Ordering::SeqCst), 4 + 9);
    // 16, 32, 48, and the answer's last block.
    assert_eq!(eventually(&engine, none_held).states_cached, 4);
    assert_eq!(ask(&long).1, 48);
    let mut other = long.clone();
    other[40] = 30;
    assert_eq!(ask(&other).1, 32);
    // A chat that goes on: the last block of 59 tokens ends at 56.
    let mut chat = long.clone();
    chat.extend(answer);
    chat.extend([9, 4, 8]);
    assert_eq!(ask(&chat).1, 56);
    let mut other = long;
    other[0] = 30;
    assert_eq!(ask(&other).1, 0);
    eventually(&engine, none_held);
}

#[test]
fn a_prompts_probabilities_are_those_behind_each_state() {
    let options = EngineOptions {
        max_step_tokens: 32,
        ..options()
    };
    let (engine, _) = remembering(&options, Some(10), 5);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(i, 50)).collect();
    let ask = |prompt: &Vec<u32>| {
        let told = Request {
            prompt_logprobs: Some(1),
            ..request(prompt.clone(), SamplingOptions::greedy(), 3)
        };
        engine.submit(told).unwrap()
    };
    // The second time all of them are known, and some steps fail.
    for _ in 0..2 {
        let mut tickets: Vec<Ticket> = prompts.iter().map(ask).collect();
        for (prompt, ticket) in prompts.iter().zip(&mut tickets) {
            let (told, found) = told(ticket);
            assert_eq!(found, expected(prompt, 3));
            assert_eq!(told.len(), prompt.len() - 1);
            for (place, told) in told.iter().enumerate() {
                assert_eq!(told.token, prompt[place + 1]);
                assert_eq!(told.top[0].0, token_behind(state_of(&prompt[..=place])));
            }
        }
        eventually(&engine, none_held);
    }
}

#[test]
fn slots_are_as_many_as_are_asked_for_and_sequences_no_more() {
    let (engine, _) = remembering(
        &EngineOptions {
            states: Some(3),
            ..options()
        },
        None,
        0,
    );
    let mut tickets: Vec<Ticket> = (0..8)
        .map(|i| {
            let asked = request(prompt(i, 30), SamplingOptions::greedy(), 20);
            engine.submit(asked).unwrap()
        })
        .collect();
    for (i, ticket) in tickets.iter_mut().enumerate() {
        assert_eq!(tokens(ticket), expected(&prompt(i as u32, 30), 20));
    }
    let status = eventually(&engine, none_held);
    assert_eq!(status.states_total, 3);
    assert!(status.states_cached > 0);
}

/// What the model says behind a prompt whose context is shifted at its end.
fn expected_with_shifts(prompt: &[u32], count: usize, context: usize, keep: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let next = |_| {
        let token = token_behind(state_of(&tokens));
        tokens.push(token);
        if tokens.len() == context {
            tokens.drain(keep..keep + (context - keep) / 2);
        }
        token
    };
    (0..count).map(next).collect()
}

#[test]
fn a_context_that_is_shifted_keeps_its_beginning_and_its_newer_half() {
    for (keep, left, guesses) in [(0, None, false), (5, Some(10), true), (40, Some(10), false)] {
        let (engine, _) = remembering(
            &EngineOptions {
                context: Some(64),
                context_shift: Some(keep),
                max_step_tokens: 24,
                speculation: match guesses {
                    true => look_up(),
                    false => Default::default(),
                },
                ..options()
            },
            left,
            0,
        );
        let mut tickets: Vec<Ticket> = (0..6)
            .map(|i| {
                let prompt = prompt(i, 10 + 9 * i);
                engine
                    .submit(request(prompt, SamplingOptions::greedy(), 150))
                    .unwrap()
            })
            .collect();
        for (i, ticket) in (0..).zip(&mut tickets) {
            let prompt = prompt(i, 10 + 9 * i);
            let expected = expected_with_shifts(&prompt, 150, 64, keep);
            let (found, end) = outcome(ticket);
            assert_eq!(found.iter().map(|t| t.token).collect::<Vec<_>>(), expected);
            let summary = end.unwrap();
            assert_eq!(summary.reason, FinishReason::Length);
            assert_eq!(
                (summary.prompt_tokens, summary.generated_tokens),
                (prompt.len(), 150)
            );
        }
        let status = eventually(&engine, none_held);
        assert!(status.context_shifts >= 6 * 2, "{status:?}");
    }
    let useless = EngineOptions {
        context: Some(64),
        context_shift: Some(63),
        ..options()
    };
    assert!(Engine::start(model(|_| {}), &useless).is_err());
}

/// Clients with common prefixes that come, stay or leave early, or are at fault, while blocks and slots are few, steps
/// fail now and then, and tokens are guessed, mostly wrongly.
#[test]
fn answers_are_those_of_a_lone_run_whatever_happens_to_others() {
    for (states, left, kv_blocks, prefix_cache, fails_each, guesses) in [
        (None, None, 320, true, 0, false),
        (Some(8), Some(10), 60, true, 7, false),
        (Some(11), None, 40, true, 0, true),
        (Some(200), Some(1), 320, true, 0, true),
        (Some(20), Some(20), 50, true, 5, false),
        (None, Some(13), 50, false, 6, true),
    ] {
        let (engine, _) = remembering(
            &EngineOptions {
                states,
                kv_blocks: Some(kv_blocks),
                prefix_cache,
                max_sequences: 8,
                max_step_tokens: 24,
                speculation: match guesses {
                    true => look_up(),
                    false => Default::default(),
                },
                ..options()
            },
            left,
            fails_each,
        );
        let client = |id: u32| {
            let engine = engine.clone();
            std::thread::spawn(move || {
                let mut state = id.wrapping_mul(2_654_435_761);
                let mut random = |below: u32| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) % below
                };
                for _ in 0..8 {
                    let mut asked = prompt(random(3), 1 + random(80));
                    if random(3) == 0 {
                        let end = asked.len() - 1;
                        asked[end] = 3 + random(28);
                    }
                    let poisoned = random(8) == 0;
                    if poisoned {
                        let at = random(asked.len() as u32) as usize;
                        asked[at] = POISON;
                    }
                    let count = 1 + random(40) as usize;
                    let full = expected(&asked, count);
                    let mut ticket = engine
                        .submit(request(asked, SamplingOptions::greedy(), count))
                        .unwrap();
                    if random(4) == 0 {
                        for _ in 0..random(20) {
                            if ticket.events.blocking_recv().is_none() {
                                break;
                            }
                        }
                        continue;
                    }
                    let (found, end) = outcome(&mut ticket);
                    let found: Vec<u32> = found.iter().map(|t| t.token).collect();
                    match end {
                        Ok(_) => assert_eq!((found, poisoned), (full, false)),
                        Err(failure) => assert!(poisoned && found.is_empty(), "{failure}"),
                    }
                }
            })
        };
        let clients: Vec<_> = (0..12).map(client).collect();
        clients
            .into_iter()
            .for_each(|client| client.join().unwrap());
        let status = eventually(&engine, none_held);
        assert_eq!(status.states_cached > 0, prefix_cache, "{status:?}");
        assert_eq!(status.preemptions > 0, kv_blocks < 100, "{status:?}");
        assert_eq!(status.drafts.accepted > 0, guesses, "{status:?}");
        assert_eq!(status.kv_window_blocks_total > 0, left.is_some());
    }
}

/// A draft model that is the model itself: its guesses are all right as long as its own states, which wrong guesses of
/// others' steps never reach, are those of its tokens.
#[test]
fn a_draft_model_takes_its_states_back() {
    let engine = |change: fn(&mut EngineOptions)| {
        let mut options = EngineOptions {
            speculation: SpeculationOptions {
                source: DraftSource::Model,
                max: 4,
                least_probability: 0.0,
                ..look_up()
            },
            max_sequences: 6,
            max_step_tokens: 24,
            ..options()
        };
        change(&mut options);
        let (model, steps) = remembering_model(None, 0);
        let (draft, _) = remembering_model(None, 0);
        let model = model.with_draft(draft).unwrap();
        (Engine::start(model, &options).unwrap(), steps)
    };
    let (alone, steps) = engine(|_| {});
    let ask = |prompt: Vec<u32>, count: usize| {
        let asked = request(prompt.clone(), SamplingOptions::greedy(), count);
        let (found, summary) = outcome(&mut alone.submit(asked).unwrap());
        let found: Vec<u32> = found.iter().map(|t| t.token).collect();
        assert_eq!(found, expected(&prompt, count));
        summary.unwrap().drafts
    };
    for (seed, len) in [(1, 50), (2, 9), (1, 50), (3, 1)] {
        let before = steps.load(Ordering::SeqCst);
        let drafts = ask(prompt(seed, len), 41);
        assert_eq!(drafts.drafted, drafts.accepted, "{seed} {len}");
        // Nearly five tokens a step behind the prompt's own.
        assert!(drafts.accepted >= 28, "{seed} {len}: {drafts:?}");
        let steps = steps.load(Ordering::SeqCst) - before;
        assert!(steps <= 12 + 2 + len as usize / 16, "{steps} for {len}");
    }
    eventually(&alone, none_held);
    // Guesses that are taken back: by a temperature of which the large model knows and the constraint does not.
    let changes: [fn(&mut EngineOptions); 3] = [
        |_| {},
        |options| options.kv_blocks = Some(40),
        |options| options.states = Some(8),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let (engine, _) = engine(change);
        let prompts: Vec<Vec<u32>> = (0..12).map(|i| prompt(i % 5, 10 + 7 * i)).collect();
        let mut tickets: Vec<Ticket> = prompts
            .iter()
            .map(|prompt| {
                let mut asked = request(prompt.clone(), SamplingOptions::greedy(), 30);
                // What the draft model does not know of makes its guesses wrong now and then.
                asked.sampling.logit_bias = (3..33).step_by(5).map(|t| (t, 2.0)).collect();
                engine.submit(asked).unwrap()
            })
            .collect();
        let answers: Vec<Vec<u32>> = tickets.iter_mut().map(tokens).collect();
        let status = eventually(&engine, none_held);
        assert!(status.drafts.accepted < status.drafts.drafted);
        assert_eq!(i == 1, status.preemptions > 0, "{status:?}");
        let (plain, _) = remembering(&options(), None, 0);
        for (prompt, answer) in prompts.iter().zip(answers) {
            let mut asked = request(prompt.clone(), SamplingOptions::greedy(), 30);
            asked.sampling.logit_bias = (3..33).step_by(5).map(|t| (t, 2.0)).collect();
            assert_eq!(tokens(&mut plain.submit(asked).unwrap()), answer);
        }
    }
}
