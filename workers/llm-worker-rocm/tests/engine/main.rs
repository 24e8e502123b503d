//! The engine on a tiny model: batches, prefixes, blocks that run out, cancelled requests and failures.
//!
//! `CANDLE_ROCM_TEST_DEVICE` names the device (`cpu` if unset). Equality of batches is asserted bit for bit on the CPU.

#[path = "../../../worker/tests/common/mod.rs"]
mod common;
mod faults;
mod graph_faults;
mod graphs;
mod lazy;
mod prompts;
mod quantized_cache;
mod slots;
mod speculation;
#[path = "../stages/mod.rs"]
mod split;
mod stages;
mod states;

use candle_core::{Device, Tensor};
use common::{tiny_llama, u32, File, Tensor as FileTensor};
use llm_worker_rocm::engine::api::{
    Aim, Constraint, Dry, EngineOptions, Event, Failure, FinishReason, GeneratedToken, KvDType,
    KvTypes, Request, SamplingOptions, Status, Summary, Ticket,
};
use llm_worker_rocm::engine::forward::{CacheOptions, Forward, Step, StepSequence};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::engine::Engine;
use llm_worker_rocm::model::{LoadOptions, LoadedModel, ModelFile};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::device::DeviceRequest;

const TOKENS: [u32; 9] = [6, 3, 9, 7, 26, 5, 3, 11, 30];
/// A token that [`Faulty`] models stumble over.
const POISON: u32 = 31;

fn device() -> Device {
    let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let selected = device.parse::<DeviceRequest>().unwrap().select().unwrap();
    assert!(selected.name.starts_with(&device), "{}", selected.name);
    selected.device
}

/// A model on the test's device, or on several.
fn load_file(file: ModelFile, options: &LoadOptions) -> worker::Result<LoadedModel> {
    let device = device();
    let options = split::divided(&file, &device, options);
    file.load(&device, &options)
}

fn model(change: impl FnOnce(&mut File)) -> LoadedModel {
    // Why something was done in another way than asked for is said in the log.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = tiny_llama();
    deepen(&mut file, split::wanted());
    change(&mut file);
    file.write(&path);
    let opened = ModelFile::open(&path).unwrap();
    load_file(opened, &LoadOptions::default()).unwrap()
}

/// Gives a model so many blocks, all like its only one.
fn deepen(file: &mut File, blocks: usize) {
    let first: Vec<FileTensor> = std::mem::take(&mut file.tensors);
    for tensor in first {
        if let Some(part) = tensor.name.strip_prefix("blk.0.") {
            file.tensors.extend((1..blocks).map(|block| FileTensor {
                name: format!("blk.{block}.{part}"),
                dims: tensor.dims.clone(),
                data: tensor.data.clone(),
                ..tensor
            }));
        }
        file.tensors.push(tensor);
    }
    file.set("llama.block_count", u32(blocks as u32));
}

fn long(file: &mut File) {
    file.set("llama.context_length", u32(2048));
}

fn options() -> EngineOptions {
    EngineOptions {
        kv_blocks: Some(64),
        block_size: 4,
        ..EngineOptions::default()
    }
}

fn start(options: EngineOptions) -> Engine {
    Engine::start(model(|_| {}), &options).unwrap()
}

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len)
        .map(|i| 3 + (i * 7 + seed * 13 + i * i * seed) % 28)
        .collect()
}

fn warm(seed: u64) -> SamplingOptions {
    SamplingOptions {
        temperature: 1.5,
        top_p: Some(0.95),
        seed,
        ..SamplingOptions::greedy()
    }
}

fn request(prompt: Vec<u32>, sampling: SamplingOptions, max_tokens: usize) -> Request {
    Request {
        max_tokens: Some(max_tokens),
        ignore_end: true,
        ..Request::new(prompt, sampling)
    }
}

/// What comes of a request.
fn outcome(ticket: &mut Ticket) -> (Vec<GeneratedToken>, Result<Summary, Failure>) {
    let mut tokens = Vec::new();
    loop {
        match ticket.events.blocking_recv().expect("an event of the end") {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_) => {}
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished(summary) => return (tokens, Ok(summary)),
            Event::Failed(failure) => return (tokens, Err(failure)),
        }
    }
}

fn tokens(ticket: &mut Ticket) -> Vec<u32> {
    let (tokens, end) = outcome(ticket);
    end.unwrap();
    tokens.iter().map(|t| t.token).collect()
}

/// Waits until the figures are as they should be.
fn eventually(engine: &Engine, what: impl Fn(&Status) -> bool) -> Status {
    let start = Instant::now();
    loop {
        let status = engine.status();
        if what(&status) {
            return status;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn nothing_held(status: &Status) -> bool {
    status.running == 0 && status.waiting == 0 && status.kv_blocks_used == 0
}

fn rows(logits: &Tensor) -> Vec<Vec<f32>> {
    logits.to_vec2().unwrap()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    let scale = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(scale > 1e-3, "nothing to compare");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= tolerance * scale, "{a} and {b}");
    }
}

/// The same rows, bit for bit on the CPU, in whatever steps they come and whatever else comes with them.
#[test]
fn steps_and_company_change_no_row() {
    let mut forward = model(|_| {}).forward;
    for dtype in [KvDType::F32, KvDType::F16, KvDType::Bf16] {
        let cache = CacheOptions {
            blocks: 16,
            block_size: 4,
            dtype: dtype.into(),
            context: 64,
            states: 0,
            window_blocks: 0,
        };
        forward.reserve(&cache).unwrap();
        let mut run = |parts: &[(&[u32], &[u32], usize)]| -> Vec<Vec<f32>> {
            let mut step = Step::default();
            for (id, (tokens, blocks, before)) in parts.iter().enumerate() {
                step.tokens.extend_from_slice(tokens);
                step.sequences.push(StepSequence {
                    id: id as u64,
                    blocks: blocks.to_vec(),
                    keys: before + tokens.len(),
                    rows: tokens.len(),
                    ..StepSequence::default()
                });
            }
            step.outputs = (0..step.tokens.len() as u32).collect();
            rows(&forward.forward(&step).unwrap())
        };
        let whole = run(&[(&TOKENS, &[0, 1, 2], 0)]);
        let other = prompt(5, 11);
        for cut in 1..TOKENS.len() {
            let mut cuts = run(&[(&TOKENS[..cut], &[9, 4, 7], 0), (&other, &[3, 2, 5], 0)]);
            cuts.truncate(cut);
            cuts.extend(
                run(&[(&other[..1], &[12], 0), (&TOKENS[cut..], &[9, 4, 7], cut)]).split_off(1),
            );
            for (found, expected) in cuts.iter().zip(&whole) {
                if device().is_cpu() {
                    assert_eq!(found, expected, "{dtype} cut at {cut}");
                } else {
                    // Many queries are rounded to a 16-bit cache's type for matrix instructions, few are not.
                    let tolerance = match dtype {
                        KvDType::F16 => 1e-3,
                        KvDType::Bf16 => 8e-3,
                        _ => 1e-5,
                    };
                    assert_close(found, expected, tolerance);
                }
            }
        }
    }
}

#[test]
fn a_text_longer_than_the_first_tables_and_cache() {
    let mut scorer = Scorer::new(model(long));
    let tokens: Vec<u32> = (0..700).map(|i| 3 + i * 7 % 29).collect();
    let short = rows(&scorer.all_logits(&tokens[..100]).unwrap());
    let whole = rows(&scorer.all_logits(&tokens).unwrap());
    assert_close(&whole[99], &short[99], 1e-5);
    assert_eq!(whole.len(), 700);
}

#[test]
fn rotary_factors_divide_the_frequencies() {
    let factors = |values: [f32; 4]| {
        move |f: &mut File| {
            let factors = FileTensor::f32("rope_freqs.weight", &[4], |i| values[i as usize]);
            f.tensors.push(factors);
        }
    };
    let last = |model: LoadedModel| -> Vec<f32> {
        let logits = Scorer::new(model).all_logits(&TOKENS).unwrap();
        rows(&logits).pop().unwrap()
    };
    let plain = last(model(|_| {}));
    assert_eq!(last(model(factors([1.0; 4]))), plain);
    // The frequencies are base^(-2 pair / 8); dividing them by that power of the base once more squares the base.
    let step = |pair: i32| 10_000f32.powf(2.0 * pair as f32 / 8.0);
    let scaled = last(model(factors([step(0), step(1), step(2), step(3)])));
    let squared = last(model(|f| {
        f.set("llama.rope.freq_base", common::f32(1e8));
    }));
    assert_close(&scaled, &squared, 1e-5);
    let difference = plain
        .iter()
        .zip(&scaled)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(difference > 1e-3, "the factors changed nothing");
}

/// Requests of many lengths: greedy ones and drawn ones.
#[test]
fn an_equal_beginning_is_computed_once() {
    let beginning = prompt(1, 32);
    let ends = (0..4).map(|i| prompt(5 + i, 6));
    let prompts: Vec<Vec<u32>> = ends.map(|end| [beginning.clone(), end].concat()).collect();
    let answers = |prefix_cache: bool| {
        let engine = start(EngineOptions {
            prefix_cache,
            // The beginning takes four steps.
            max_step_tokens: 8,
            ..options()
        });
        let ask = |prompt: &Vec<u32>| request(prompt.clone(), SamplingOptions::greedy(), 5);
        let mut tickets: Vec<Ticket> = (prompts
            .iter()
            .map(|prompt| engine.submit(ask(prompt)).unwrap()))
        .collect();
        let answers: Vec<Vec<u32>> = tickets.iter_mut().map(tokens).collect();
        (answers, eventually(&engine, nothing_held).prefix_hit_tokens)
    };
    let (alone, none) = answers(false);
    let (shared, known) = answers(true);
    assert_eq!(shared, alone);
    assert_eq!((none, known), (0, 3 * 32));
}

fn requests() -> Vec<(Vec<u32>, SamplingOptions)> {
    (0..12)
        .map(|i| {
            let sampling = match i % 2 {
                0 => SamplingOptions::greedy(),
                _ => warm(u64::from(i)),
            };
            (prompt(i, 1 + i * 5), sampling)
        })
        .collect()
}

fn answers(engine: &Engine, together: bool) -> Vec<Vec<u32>> {
    let submit = |(prompt, sampling): (Vec<u32>, SamplingOptions)| {
        engine.submit(request(prompt, sampling, 20)).unwrap()
    };
    if together {
        let mut tickets: Vec<Ticket> = requests().into_iter().map(submit).collect();
        tickets.iter_mut().map(tokens).collect()
    } else {
        requests()
            .into_iter()
            .map(|request| tokens(&mut submit(request)))
            .collect()
    }
}

#[test]
fn together_as_alone_with_prefixes_and_without_with_many_blocks_and_few() {
    let alone = answers(
        &start(EngineOptions {
            prefix_cache: false,
            ..options()
        }),
        false,
    );
    assert!(alone.iter().all(|tokens| tokens.len() == 20));
    let distinct: std::collections::HashSet<&Vec<u32>> = alone.iter().collect();
    assert!(distinct.len() > 6, "the requests are too much alike");
    for (prefix_cache, kv_blocks, max_step_tokens, preempts) in [
        (false, 320, 512, false),
        (true, 320, 16, false),
        (true, 40, 16, true),
        (false, 24, 5, true),
    ] {
        let engine = start(EngineOptions {
            prefix_cache,
            kv_blocks: Some(kv_blocks),
            max_step_tokens,
            ..options()
        });
        assert_eq!(answers(&engine, true), alone, "{kv_blocks} blocks");
        let status = eventually(&engine, nothing_held);
        assert_eq!(status.preemptions > 0, preempts, "{status:?}");
        assert_eq!(status.requests_finished, 12);
        assert_eq!(status.generated_tokens, 240);
        // Once more, now that the cache knows the prompts, if there was room for all.
        assert_eq!(answers(&engine, true), alone, "{kv_blocks} blocks again");
        let again = eventually(&engine, nothing_held);
        if prefix_cache && !preempts {
            assert!(again.prefix_hit_tokens > status.prefix_hit_tokens);
        } else if !prefix_cache {
            assert_eq!((again.prefix_hit_tokens, again.kv_blocks_cached), (0, 0));
        }
    }
}

#[test]
fn a_known_beginning_is_not_computed_again() {
    let engine = start(options());
    let long = prompt(3, 50);
    let ask = |prompt: Vec<u32>| {
        let mut ticket = engine
            .submit(request(prompt, SamplingOptions::greedy(), 4))
            .unwrap();
        let (tokens, summary) = outcome(&mut ticket);
        (tokens, summary.unwrap())
    };
    let (first, summary) = ask(long.clone());
    assert_eq!((summary.prompt_tokens, summary.cached_tokens), (50, 0));
    assert_eq!(
        (summary.generated_tokens, summary.reason),
        (4, FinishReason::Length)
    );
    let computed = engine.status().prompt_tokens;
    let (second, summary) = ask(long.clone());
    assert_eq!(summary.cached_tokens, 48);
    assert_eq!(first, second);
    assert_eq!(engine.status().prompt_tokens, computed + 2);
    // A chat that goes on: the answer is known, too.
    let mut chat = long.clone();
    chat.extend(first.iter().map(|t| t.token));
    chat.push(9);
    assert_eq!(ask(chat).1.cached_tokens, 52);
    // Another end, and another start.
    let mut other = long.clone();
    other[30] = 30;
    assert_eq!(ask(other).1.cached_tokens, 28);
    let mut other = long;
    other[0] = 30;
    assert_eq!(ask(other).1.cached_tokens, 0);
}

#[test]
fn probabilities_are_reported_as_asked() {
    let engine = start(options());
    let mut asked = request(TOKENS.to_vec(), SamplingOptions::greedy(), 3);
    asked.top_logprobs = Some(40);
    let (chosen, _) = outcome(&mut engine.submit(asked).unwrap());
    for token in &chosen {
        // All of the vocabulary: 33 tokens.
        assert_eq!(token.top.len(), 33);
        assert_eq!(token.top[0], (token.token, token.logprob.unwrap()));
        let sum: f32 = token.top.iter().map(|t| t.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        assert!(token.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    }
    let logits = Scorer::new(model(|_| {})).all_logits(&TOKENS).unwrap();
    let logits = rows(&logits).pop().unwrap();
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f32 = logits.iter().map(|l| (l - largest).exp()).sum();
    assert!((chosen[0].logprob.unwrap() + sum.ln()).abs() < 1e-4);
    let mut none = request(TOKENS.to_vec(), SamplingOptions::greedy(), 1);
    none.top_logprobs = Some(0);
    let (chosen, _) = outcome(&mut engine.submit(none).unwrap());
    assert!(chosen[0].logprob.is_some() && chosen[0].top.is_empty());
}

/// Allows one token after another.
struct Only {
    tokens: Vec<u32>,
    at: usize,
}

impl Constraint for Only {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        let token = *self.tokens.get(self.at).ok_or("the grammar has ended")?;
        let mut mask = vec![0; 2];
        mask[token as usize / 32] = 1 << (token % 32);
        Ok(mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert_eq!(token, self.tokens[self.at]);
        self.at += 1;
        Ok(())
    }
}

/// Allows everything and takes nothing, as a grammar that grows too large while it is followed.
struct Grown;

impl Constraint for Grown {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        Ok(vec![u32::MAX, 1])
    }

    fn accept(&mut self, _: u32) -> Result<(), String> {
        Err("the grammar has grown too large".to_string())
    }
}

#[test]
fn what_one_client_has_sent_is_no_prefix_of_anothers() {
    let engine = start(options());
    let cached = |namespace: u64, tokens: Vec<u32>| {
        let mut asked = request(tokens, SamplingOptions::greedy(), 1);
        asked.namespace = namespace;
        let (_, summary) = outcome(&mut engine.submit(asked).unwrap());
        summary.unwrap().cached_tokens
    };
    assert_eq!(cached(1, prompt(1, 50)), 0);
    assert_eq!(cached(2, prompt(1, 50)), 0);
    assert_eq!(cached(1, prompt(1, 50)), 48);
    assert_eq!(cached(2, prompt(1, 50)), 48);
}

#[test]
fn a_constraint_decides_and_its_failure_is_its_requests_alone() {
    let engine = start(options());
    let ask = |tokens: Vec<u32>| {
        let mut asked = request(TOKENS.to_vec(), warm(1), 4);
        asked.constraint = Some(Box::new(Only { tokens, at: 0 }));
        engine.submit(asked).unwrap()
    };
    let mut free = engine.submit(request(prompt(1, 9), warm(2), 30)).unwrap();
    let mut short = ask(vec![32, 9]);
    assert_eq!(tokens(&mut ask(vec![9, 32, 31, 8])), [9, 32, 31, 8]);
    let (before, end) = outcome(&mut short);
    assert_eq!(before.len(), 2);
    assert_eq!(
        end.unwrap_err(),
        Failure::Invalid("the grammar has ended".to_string())
    );
    let mut grown = request(TOKENS.to_vec(), warm(1), 4);
    grown.constraint = Some(Box::new(Grown));
    let (_, end) = outcome(&mut engine.submit(grown).unwrap());
    let reason = "the grammar has grown too large".to_string();
    assert_eq!(end.unwrap_err(), Failure::Invalid(reason));
    assert_eq!(tokens(&mut free).len(), 30);
    eventually(&engine, nothing_held);
}

#[test]
fn what_ends_an_answer() {
    let end = |file: &mut File| {
        // A token that greedy answers soon contain.
        file.set("tokenizer.ggml.eos_token_id", u32(6));
    };
    let engine = start(options());
    let free = tokens(
        &mut engine
            .submit(request(TOKENS.to_vec(), warm(4), 60))
            .unwrap(),
    );
    let model = model(end);
    let first = free.iter().position(|t| model.end_tokens.contains(t));
    let first = first.expect("it is likely enough");
    let engine = Engine::start(model, &options()).unwrap();
    let mut asked = request(TOKENS.to_vec(), warm(4), 60);
    asked.ignore_end = false;
    let (answer, summary) = outcome(&mut engine.submit(asked).unwrap());
    assert_eq!(summary.unwrap().reason, FinishReason::Stop);
    assert_eq!(answer.len(), first + 1);
    // As many as the context takes.
    let mut asked = request(TOKENS.to_vec(), warm(4), 0);
    asked.max_tokens = None;
    let (answer, summary) = outcome(&mut engine.submit(asked).unwrap());
    assert_eq!(summary.unwrap().reason, FinishReason::Context);
    assert_eq!(answer.len(), 128 - TOKENS.len());
}

#[test]
fn senseless_requests_are_refused_at_once() {
    let engine = start(EngineOptions {
        kv_blocks: Some(8),
        ..options()
    });
    assert_eq!(engine.context(), 32);
    let refusal = |request: Request| engine.submit(request).err().unwrap();
    let greedy = SamplingOptions::greedy;
    let invalid = |request| {
        let failure = refusal(request);
        assert!(matches!(failure, Failure::Invalid(_)), "{failure}");
    };
    invalid(request(vec![], greedy(), 1));
    invalid(request(vec![33], greedy(), 1));
    for bad in [
        SamplingOptions {
            temperature: -1.0,
            ..greedy()
        },
        SamplingOptions {
            temperature: f32::NAN,
            ..greedy()
        },
        SamplingOptions {
            top_p: Some(0.0),
            ..greedy()
        },
        SamplingOptions {
            top_k: Some(0),
            ..greedy()
        },
        SamplingOptions {
            typical_p: Some(1.5),
            ..greedy()
        },
        SamplingOptions {
            top_n_sigma: Some(0.0),
            ..greedy()
        },
        SamplingOptions {
            dry: Some(Dry {
                breakers: vec![String::new()].into(),
                ..Dry::new(1.0)
            }),
            ..greedy()
        },
        SamplingOptions {
            aim: Some(Aim::AdaptiveP {
                target: 0.5,
                decay: 1.0,
            }),
            ..greedy()
        },
        SamplingOptions {
            min_p: Some(-0.1),
            ..greedy()
        },
        SamplingOptions {
            repeat_penalty: 0.0,
            ..greedy()
        },
        SamplingOptions {
            frequency_penalty: f32::INFINITY,
            ..greedy()
        },
        SamplingOptions {
            logit_bias: [(99, 1.0)].into(),
            ..greedy()
        },
    ] {
        invalid(request(vec![3], bad, 1));
    }
    assert_eq!(
        refusal(request(prompt(1, 32), greedy(), 1)),
        Failure::TooLong {
            prompt: 32,
            context: 32
        }
    );
    assert!(Engine::start(
        model(|_| {}),
        &EngineOptions {
            context: Some(129),
            ..options()
        }
    )
    .is_err());
}
