//! Families that run through candle-transformers, behind the engine: answers, turns, cancellation, refusals.

use super::device;
use super::transformers::{tokens, Case};
use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use llm_worker_rocm::engine::api::{
    EngineOptions, Event, KvDType, Request, SamplingOptions, Ticket,
};
use llm_worker_rocm::engine::forward::{Forward, Step, StepSequence, StepState};
use llm_worker_rocm::engine::Engine;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use serde_json::{json, Value as Json};
use std::time::{Duration, Instant};

const FAMILIES: [&str; 5] = ["falcon", "stablelm", "olmo", "bigcode", "helium"];
const ANSWER: usize = 6;

fn engine(case: &Case) -> Engine {
    // Prompts come in several pieces.
    let options = EngineOptions {
        max_step_tokens: 7,
        ..EngineOptions::default()
    };
    Engine::start(case.load(&LoadOptions::default()), &options).unwrap()
}

fn prompt(seed: usize) -> Vec<u32> {
    tokens().into_iter().cycle().skip(seed).take(17).collect()
}

fn submit(engine: &Engine, prompt: Vec<u32>, max_tokens: usize) -> Ticket {
    let request = Request {
        max_tokens: Some(max_tokens),
        ignore_end: true,
        ..Request::new(prompt, SamplingOptions::greedy())
    };
    engine.submit(request).unwrap()
}

fn answer(mut ticket: Ticket) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        match ticket.events.blocking_recv().expect("an event of the end") {
            Event::Started { cached_tokens, .. } => assert_eq!(cached_tokens, 0),
            Event::Token { token, .. } => tokens.push(token.token),
            Event::Finished(_) => return tokens,
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

/// The answer of a model's own code: the prompt at once, then token by token.
fn direct(
    case: &Case,
    make: impl FnOnce(Json, VarBuilder) -> Box<dyn FnMut(&Tensor, usize) -> Tensor>,
) -> Vec<u32> {
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let file = folder.path().join("model.safetensors");
    // SAFETY: nobody changes the file.
    let weights = unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &device()) };
    let mut forward = make(case.json["config"].clone(), weights.unwrap());
    let mut all = prompt(0);
    let mut done = 0;
    for _ in 0..ANSWER {
        let ids = Tensor::new(&all[done..], &device()).unwrap();
        let logits = forward(&ids.unsqueeze(0).unwrap(), done);
        done = all.len();
        let logits = logits.flatten_all().unwrap();
        all.push(logits.argmax(0).unwrap().to_scalar::<u32>().unwrap());
    }
    all.split_off(all.len() - ANSWER)
}

#[test]
fn answers_are_those_of_the_model_code() {
    let case = Case::read("deepseek2");
    let expected = direct(&case, |config, weights| {
        let config = serde_json::from_value(config).unwrap();
        let mut model = m::deepseek2::DeepSeekV2::new(&config, weights).unwrap();
        Box::new(move |ids, position| model.forward(ids, position).unwrap())
    });
    assert_eq!(answer(submit(&engine(&case), prompt(0), ANSWER)), expected);
    let case = Case::read("helium");
    let expected = direct(&case, |config, weights| {
        let config = serde_json::from_value(config).unwrap();
        let mut model = m::helium::Model::new(&config, weights).unwrap();
        Box::new(move |ids, position| model.forward(ids, position).unwrap())
    });
    assert_eq!(answer(submit(&engine(&case), prompt(0), ANSWER)), expected);
}

#[test]
fn requests_take_turns_and_are_answered_as_alone() {
    for family in FAMILIES {
        let case = Case::read(family);
        let alone: Vec<Vec<u32>> = [0, 5]
            .map(|seed| answer(submit(&engine(&case), prompt(seed), ANSWER)))
            .into();
        // A single token, of which the state before must not be seen either.
        let single = answer(submit(&engine(&case), vec![9], ANSWER));
        let engine = engine(&case);
        let cancelled = submit(&engine, prompt(9), 100);
        let tickets = [0, 5].map(|seed| submit(&engine, prompt(seed), ANSWER));
        let last = submit(&engine, vec![9], ANSWER);
        drop(cancelled);
        assert_eq!(tickets.map(answer).to_vec(), alone, "{family}");
        assert_eq!(answer(last), single, "{family}");
        let start = Instant::now();
        loop {
            let status = engine.status();
            if status.running == 0 && status.kv_blocks_used == 0 {
                assert_eq!(status.requests_cancelled, 1, "{family}");
                assert_eq!(status.requests_finished, 3, "{family}");
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{status:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Weights in bf16, in which a GPU computes: the prompt at once, and a token more.
#[test]
fn halves_compute_about_the_same() {
    for family in FAMILIES {
        let case = Case::read(family);
        let folder = tempfile::tempdir().unwrap();
        case.write_bf16(folder.path());
        let file = ModelFile::open(folder.path()).unwrap();
        let mut halves = file
            .load(&device(), &LoadOptions::default())
            .unwrap()
            .forward;
        let mut floats = case.load(&LoadOptions::default()).forward;
        let step = |forward: &mut Box<dyn Forward>, start: usize, end: usize| -> Vec<f32> {
            let step = Step {
                tokens: tokens()[start..end].to_vec(),
                sequences: vec![StepSequence {
                    id: 1,
                    blocks: vec![0, 1],
                    keys: end,
                    rows: end - start,
                    state: Some(StepState::of_only(start)),
                    ..StepSequence::default()
                }],
                outputs: vec![(end - start) as u32 - 1],
            };
            let logits = forward.forward(&step).unwrap();
            logits.flatten_all().unwrap().to_vec1().unwrap()
        };
        for (start, end) in [(0, 9), (9, 10)] {
            let want = step(&mut floats, start, end);
            let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
            let got = step(&mut halves, start, end);
            let error = got
                .iter()
                .zip(&want)
                .fold(0f32, |a, (x, y)| a.max((x - y).abs()));
            println!("{family} in bf16: {:.1e}", error / largest);
            assert!(error <= 0.1 * largest, "{family}: {error} of {largest}");
        }
    }
}

#[test]
fn a_running_request_ends_with_its_ticket_and_its_deadline() {
    let case = Case::read("helium");
    let engine = engine(&case);
    let mut running = submit(&engine, prompt(1), 100);
    while !matches!(running.events.blocking_recv(), Some(Event::Token { .. })) {}
    assert_eq!(engine.status().running, 1);
    drop(running);
    let late = Request {
        deadline: Some(Instant::now()),
        ..Request::new(prompt(2), SamplingOptions::greedy())
    };
    let mut late = engine.submit(late).unwrap();
    assert!(matches!(
        late.events.blocking_recv(),
        Some(Event::Failed(_))
    ));
    let after = answer(submit(&engine, prompt(0), ANSWER));
    let fresh = self::engine(&case);
    assert_eq!(after, answer(submit(&fresh, prompt(0), ANSWER)));
    // The context ends an answer.
    let options = EngineOptions {
        context: Some(20),
        ..EngineOptions::default()
    };
    let model = case.load(&LoadOptions {
        context: Some(20),
        ..LoadOptions::default()
    });
    let engine = Engine::start(model, &options).unwrap();
    assert_eq!(answer(submit(&engine, prompt(0), 100)).len(), 3);
}

#[test]
fn what_these_families_do_not_have_is_refused_by_name() {
    let refusal = |name: &str, change: &dyn Fn(&mut Json)| {
        let mut case = Case::read(name);
        change(&mut case.json);
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        let opened = ModelFile::open(folder.path());
        let loaded = opened.and_then(|file| file.load(&device(), &LoadOptions::default()));
        let error = loaded.err().expect("it must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    let check = |message: String, why: &str| assert!(message.contains(why), "{message}");
    check(
        refusal("falcon", &|j| j["config"]["alibi"] = json!(true)),
        "alibi",
    );
    check(
        refusal("helium", &|j| j["config"]["num_attention_heads"] = json!(0)),
        "num_attention_heads",
    );
    check(
        refusal("helium", &|j| {
            j["config"]["hidden_size"] = json!(u64::MAX / 2);
        }),
        "hidden_size",
    );
    check(
        refusal("helium", &|j| j["config"]["vocab_size"] = json!(1 << 20)),
        "embed_tokens",
    );
    check(
        refusal("helium", &|j| {
            j["tensors"]["model.layers.0.self_attn.sinks"] = json!([4]);
        }),
        "sinks",
    );
    // Keys and values are stored as the model code stores them.
    let options = EngineOptions {
        kv_dtype: Some(KvDType::Q8_0),
        ..EngineOptions::default()
    };
    let model = Case::read("helium").load(&LoadOptions::default());
    let error = Engine::start(model, &options).err().unwrap();
    assert!(error.to_string().contains("q8_0"), "{error}");
}
