//! SmolLM2 and its reference answers.
//!
//! `CANDLE_ROCM_SMOLLM2` names the model file; `CANDLE_ROCM_TEST_DEVICE` the device (`cpu` if unset), so that the same
//! tests run on the CPU, on a GPU and, with `ROCM_PATH` at hip-sim, on the simulated one.

#![allow(dead_code)] // each test program uses its own part

use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::{LoadOptions, LoadedModel, ModelFile};
use serde::Deserialize;
use std::path::PathBuf;
use worker::device::DeviceRequest;

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/smollm2/greedy.json"
);
/// The references generated this many tokens or up to the end of the answer.
pub const MAX_TOKENS: usize = 48;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

/// One prompt with its references.
#[derive(Deserialize)]
pub struct Case {
    pub prompt: String,
    pub prompt_tokens: Vec<u32>,
    /// llama.cpp on the CPU: activations rounded to 8 bits for each product, as candle's CPU back end does.
    pub llama_cpp: LlamaCpp,
    /// transformers in float32 on the dequantized weights; absent where it was not computed.
    pub float32: Option<Float32>,
    /// Whether every next token is clear enough that any sound implementation gives it.
    #[serde(default)]
    pub assert_exact: bool,
}

#[derive(Deserialize)]
pub struct LlamaCpp {
    pub tokens: Vec<u32>,
    /// For each generated token, the three most likely.
    pub top3_logprobs: Vec<Vec<LogProb>>,
}

#[derive(Deserialize)]
pub struct LogProb {
    pub id: u32,
    pub logprob: f32,
}

#[derive(Deserialize)]
pub struct Float32 {
    pub tokens: Vec<u32>,
    /// Token and logit, the largest first.
    pub first_logits_top10: Vec<(u32, f32)>,
}

pub fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(FIXTURE).unwrap();
    serde_json::from_str::<Fixture>(&text).unwrap().cases
}

pub fn model_path() -> PathBuf {
    std::env::var_os("CANDLE_ROCM_SMOLLM2")
        .expect("CANDLE_ROCM_SMOLLM2 is not set: run scripts/test, or set it to the output of scripts/fetch-smollm2")
        .into()
}

pub fn model_file() -> ModelFile {
    ModelFile::open(&model_path()).unwrap()
}

pub fn model() -> LoadedModel {
    let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let selected = device.parse::<DeviceRequest>().unwrap().select().unwrap();
    assert!(
        selected.name.starts_with(&device),
        "{device} was asked for, {} is used",
        selected.name
    );
    model_file()
        .load(&selected.device, &LoadOptions::default())
        .unwrap()
}

/// How many of the reference's tokens have to be found: all, but where the device rounds activations to 8 bits only
/// those before the first near tie, which such rounding may decide either way.
pub fn decided_steps(case: &Case) -> usize {
    const NEAR_TIE: f32 = 0.5;
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|v| v == value);
    let rounds = is("CANDLE_ROCM_TEST_DEVICE", "rocm") && !is("CANDLE_ROCM_QMATMUL", "dequantize");
    let steps = &case.llama_cpp.top3_logprobs;
    let near_tie = |top: &Vec<LogProb>| top[0].logprob - top[1].logprob < NEAR_TIE;
    let first = steps.iter().position(near_tie).filter(|_| rounds);
    first.unwrap_or(case.llama_cpp.tokens.len())
}

/// The logits after a prompt.
pub fn first_logits(model: &mut Scorer, case: &Case) -> Vec<f32> {
    let logits = model.all_logits(&case.prompt_tokens).unwrap();
    logits.to_vec2().unwrap().pop().unwrap()
}

/// Largest difference between logits and their expected values, relative to the largest logit; NaN if any is.
pub fn difference(logits: &[f32], expected: &[(u32, f32)]) -> f32 {
    assert!(!expected.is_empty());
    let largest = logits.iter().copied().fold(f32::MIN, f32::max).abs();
    expected
        .iter()
        .map(|&(token, value)| (logits[token as usize] - value).abs() / largest)
        .fold(0.0, |a, b| if a >= b { a } else { b })
}
