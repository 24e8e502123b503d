//! `llm-worker-rocm doctor`: its small model and the tokens of it, and what the section `decode` makes of them.
//!
//! `CANDLE_ROCM_WRITE_FIXTURES=1` makes the model and searches prompts anew.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::Device;
use common::{tiny_llama, u32, File, Tensor};
use llm_worker_rocm::doctor::{cases, Case, MODEL};
use llm_worker_rocm::engine::api::{Event, Request, SamplingOptions};
use llm_worker_rocm::engine::{Engine, EngineOptions};
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use llm_worker_rocm::quantize::{Conversion, Plan};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use worker::signal::Interrupt;

/// Tokens of a case at most.
const MOST_TOKENS: usize = 14;
/// By so much the logit of each token lies above the next one: several times what rounding to 8 bits moves it.
const MARGIN: f32 = 0.3;
/// A case that repeats itself shows little.
const DISTINCT: usize = 4;

/// A llama of one block, wide enough for the K formats.
fn model() -> File {
    let (width, hidden, kv_width) = (256u64, 256u64, 128u64);
    let mut file = tiny_llama();
    file.set("llama.embedding_length", u32(width as u32))
        .set("llama.feed_forward_length", u32(hidden as u32))
        .set("llama.attention.head_count", u32(4))
        .set("llama.attention.head_count_kv", u32(2))
        .set("llama.rope.dimension_count", u32(64));
    let vocabulary = file.tensor_mut("token_embd.weight").dims[1];
    let names: Vec<String> = file
        .tensors
        .iter()
        .map(|tensor| tensor.name.clone())
        .collect();
    file.tensors = (names.iter())
        .enumerate()
        .map(|(number, name)| {
            let dims = match name.trim_end_matches(".weight") {
                "token_embd" => vec![width, vocabulary],
                "blk.0.attn_k" | "blk.0.attn_v" => vec![width, kv_width],
                name if name.ends_with("norm") => vec![width],
                _ => vec![width, hidden],
            };
            let is_norm = dims.len() == 1;
            Tensor::f32(name, &dims, |i| {
                let mixed = (i + 1 + ((number as u64) << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40;
                let value = mixed as f32 / (1 << 24) as f32 - 0.5;
                match is_norm {
                    true => 1.0 + value / 4.0,
                    false => value / 2.0,
                }
            })
        })
        .collect();
    file
}

fn engine(path: &Path) -> Engine {
    let model = ModelFile::open(path).unwrap();
    let model = model.load(&Device::Cpu, &LoadOptions::default()).unwrap();
    let options = EngineOptions {
        kv_blocks: Some(32),
        prefix_cache: false,
        ..EngineOptions::default()
    };
    Engine::start(model, &options).unwrap()
}

/// What the CPU finds behind a prompt, as far as the margin is wide enough.
fn answer(engine: &Engine, prompt: &[u32]) -> Vec<u32> {
    let request = Request {
        max_tokens: Some(MOST_TOKENS),
        ignore_end: true,
        top_logprobs: Some(2),
        ..Request::new(prompt.to_vec(), SamplingOptions::greedy())
    };
    let mut ticket = engine.submit(request).unwrap();
    let mut tokens = Vec::new();
    loop {
        match ticket.events.blocking_recv().unwrap() {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_) => {}
            Event::Token { token, .. } => {
                if token.top[0].1 - token.top[1].1 < MARGIN {
                    return tokens;
                }
                tokens.push(token.token);
            }
            Event::Finished(_) => return tokens,
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

fn distinct(tokens: &[u32]) -> usize {
    tokens.iter().collect::<BTreeSet<_>>().len()
}

fn write_fixtures() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source.gguf");
    model().write(&source);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor");
    let quantized = fixtures.join("tiny.gguf");
    let weights = open_weights(&source).unwrap();
    let plan = Plan::new("q4_k_m".parse().unwrap(), Vec::new());
    let conversion = Conversion::new(&*weights, &plan).unwrap();
    conversion.write(&quantized, &Interrupt::manual()).unwrap();
    let engine = engine(&quantized);
    let mut found = Vec::new();
    for length in [2u32, 5, 20] {
        let prompts = (0..100).map(|seed| -> Vec<u32> {
            let token = |i: u32| 3 + (seed * 7 + i * (11 + seed) + i * i * 5) % 30;
            (0..length).map(token).collect()
        });
        let best = prompts
            .map(|prompt| (answer(&engine, &prompt), prompt))
            .filter(|(tokens, _)| distinct(tokens) >= DISTINCT)
            .max_by_key(|(tokens, _)| tokens.len());
        let (tokens, prompt) = best.expect("a prompt whose answer does not repeat itself");
        found.push(serde_json::json!({ "prompt": prompt, "tokens": tokens }));
    }
    let json = serde_json::to_string(&found).unwrap();
    std::fs::write(fixtures.join("tiny.json"), format!("{json}\n")).unwrap();
}

#[test]
fn the_known_tokens_are_those_of_the_cpu_by_a_wide_margin() {
    if std::env::var_os("CANDLE_ROCM_WRITE_FIXTURES").is_some() {
        write_fixtures();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, MODEL).unwrap();
    let engine = engine(&path);
    let cases = cases();
    assert_eq!(cases.len(), 3);
    for Case { prompt, tokens } in cases {
        let found = answer(&engine, &prompt);
        assert!(found.starts_with(&tokens), "{found:?} {tokens:?}");
        assert!(distinct(&tokens) >= DISTINCT, "{tokens:?}");
    }
}

struct Doctor {
    rocm: tempfile::TempDir,
}

impl Doctor {
    fn new() -> Self {
        let rocm = tempfile::tempdir().unwrap();
        let library = hip_sim::install::find_library(&std::env::current_exe().unwrap()).unwrap();
        hip_sim::install::install(&library, rocm.path()).unwrap();
        Self { rocm }
    }

    /// Exit code and report of the section, as some arch with something wrong.
    fn decode(&self, arch: &str, wrong: &str) -> (Option<i32>, serde_json::Value) {
        let output = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"))
            .env("ROCM_PATH", self.rocm.path())
            .env_remove("HIP_PATH")
            .env("HIP_SIM_ARCH", arch)
            .env("HIP_SIM_WRONG", wrong)
            .args(["doctor", "--small", "--json", "--only", "decode"])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout);
        (
            output.status.code(),
            report.unwrap_or_else(|e| panic!("{e}: {error}")),
        )
    }
}

#[test]
fn a_good_gpu_finds_the_known_tokens() {
    let doctor = Doctor::new();
    for arch in ["gfx942", "gfx1100"] {
        let (code, report) = doctor.decode(arch, "");
        assert_eq!(code, Some(0), "{arch}: {report:#}");
        let section = &report["sections"][0];
        assert_eq!(section["name"], "decode");
        assert_eq!(section["outcome"], "finished");
        assert!(
            section["notes"][0].as_str().unwrap().contains("3 prompts"),
            "{section:#}"
        );
    }
}

#[test]
fn wrong_graphs_are_told_and_wrong_tokens_are_found() {
    let doctor = Doctor::new();
    let codes = |report: &serde_json::Value| -> Vec<String> {
        let findings = report["sections"][0]["findings"].as_array().unwrap();
        let code = |finding: &serde_json::Value| finding["code"].as_str().unwrap().to_string();
        findings.iter().map(code).collect()
    };
    // Graphs are compared with launches before a token of theirs is given out.
    let (code, report) = doctor.decode("gfx1100", "graph");
    assert_eq!(
        (code, codes(&report)),
        (Some(0), vec!["decode.no_graphs".to_string()]),
        "{report:#}"
    );
    let (code, report) = doctor.decode("gfx1100", "abort:40");
    assert_eq!(
        (code, codes(&report)),
        (Some(1), vec!["decode.died".to_string()]),
        "{report:#}"
    );
}
