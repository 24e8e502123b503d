//! SmolLM2 against greedy references from llama.cpp and from transformers in float32.
//!
//! `CANDLE_ROCM_SMOLLM2` names the model file; `CANDLE_ROCM_TEST_DEVICE` the device (`cpu` if unset), so that the same test
//! runs on the CPU, on a GPU and, with `ROCM_PATH` at hip-sim, on the simulated one.

use llm_worker_rocm::engine::SamplingOptions;
use llm_worker_rocm::generate::Request;
use llm_worker_rocm::model::{Model, ModelFile};
use serde::Deserialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use worker::device::DeviceRequest;
use worker::signal::Interrupt;

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/smollm2/greedy.json"
);
/// The reference generated this many tokens or up to the end of the answer.
const MAX_TOKENS: usize = 48;
/// Allowed difference of a logit, relative to the largest: the CPU rounds activations to 8 bits.
const LOGIT_TOLERANCE: f32 = 0.02;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: String,
    prompt_tokens: Vec<u32>,
    float32: Reference,
    assert_exact: bool,
}

#[derive(Deserialize)]
struct Reference {
    tokens: Vec<u32>,
    /// Token and logit, the largest first.
    first_logits_top10: Vec<(u32, f32)>,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(FIXTURE).unwrap();
    let fixture: Fixture = serde_json::from_str(&text).unwrap();
    assert!(fixture.cases.iter().any(|case| case.assert_exact));
    fixture.cases
}

fn model_file() -> ModelFile {
    let path: PathBuf = std::env::var_os("CANDLE_ROCM_SMOLLM2")
        .expect("CANDLE_ROCM_SMOLLM2 is not set: run scripts/test, or set it to the output of scripts/fetch-smollm2")
        .into();
    ModelFile::open(Path::new(&path)).unwrap()
}

fn model() -> Model {
    let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let selected = device.parse::<DeviceRequest>().unwrap().select().unwrap();
    assert!(device == "auto" || selected.name.starts_with(&device));
    model_file().load(&selected.device).unwrap()
}

#[test]
fn prompts_are_tokenized_as_the_references_did() {
    let file = model_file();
    for case in cases() {
        let tokens = file.tokenizer().encode(&case.prompt, true).unwrap();
        assert_eq!(tokens, case.prompt_tokens, "{:?}", case.prompt);
        // The text in between special tokens comes back unchanged.
        let mut plain = case.prompt.clone();
        for special in ["<|im_start|>", "<|im_end|>"] {
            plain = plain.replace(special, "");
        }
        assert_eq!(file.tokenizer().decode(&tokens), plain);
    }
}

#[test]
fn the_template_of_the_file_gives_the_references_prompts() {
    use llm_worker_rocm::chat::{Message, Role};
    let template = model_file().chat_template().unwrap();
    let prompt = template
        .render(&[Message::new(Role::User, "Are dogs real?")])
        .unwrap();
    assert!(cases().iter().any(|case| case.prompt == prompt), "{prompt}");
}

#[test]
fn greedy_answers_and_first_logits_match_the_references() {
    let mut model = model();
    let mut failures = Vec::new();
    for case in cases() {
        let prompt = &case.prompt;
        let logits = model.engine.forward(&case.prompt_tokens, 0).unwrap();
        let logits = logits.to_vec1::<f32>().unwrap();
        let top = &case.float32.first_logits_top10;
        let largest = top[0].1.abs();
        let worst = top
            .iter()
            .map(|&(token, expected)| (logits[token as usize] - expected).abs() / largest)
            .fold(0.0, f32::max);
        println!("{prompt:?}: largest relative difference of the first logits {worst:.4}");
        // A NaN must fail too.
        if !(worst <= LOGIT_TOLERANCE) {
            failures.push(format!("{prompt:?}: first logits differ by {worst}"));
        }
        if !case.assert_exact {
            continue;
        }
        let request = Request {
            prompt: case.prompt_tokens.clone(),
            max_tokens: MAX_TOKENS,
            sampling: SamplingOptions::greedy(),
        };
        let mut streamed = String::new();
        let generation = model
            .generate(&request, &Interrupt::manual(), &mut |piece| {
                streamed.push_str(piece);
                ControlFlow::Continue(())
            })
            .unwrap();
        if generation.tokens != case.float32.tokens {
            failures.push(format!(
                "{prompt:?}: got {:?} for {:?}",
                generation.tokens, case.float32.tokens
            ));
        }
        assert_eq!(streamed, generation.text);
        assert_eq!(streamed, model.tokenizer.decode(&generation.tokens));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
