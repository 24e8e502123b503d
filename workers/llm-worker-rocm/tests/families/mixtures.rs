//! Newer families from folders and from the GGUF files that `quantize` writes of them, against Hugging Face
//! transformers.

use super::device;
use super::transformers::{tokens, tolerance, Case};
use llm_worker_rocm::engine::api::GraphUse;
use llm_worker_rocm::engine::forward::{CacheOptions, DecodeOutput, Step, StepSequence, StepState};
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use llm_worker_rocm::quantize::{Conversion, Plan};
use std::path::Path;
use worker::signal::Interrupt;

/// Writes the case's folder as a GGUF file.
fn write_gguf(case: &Case, path: &Path) {
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let weights = open_weights(folder.path()).unwrap();
    let plan = Plan::new("F32".parse().unwrap(), Vec::new());
    let conversion = Conversion::new(&*weights, &plan).unwrap();
    conversion.write(path, &Interrupt::manual()).unwrap();
}

/// The largest difference of the rows that the case has, of its GGUF file token by token; on a GPU all but the first
/// are graphs.
fn difference_in_steps(case: &Case) -> f32 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_gguf(case, &path);
    let file = ModelFile::open(&path).unwrap();
    let mut forward = file
        .load(&device(), &LoadOptions::default())
        .unwrap()
        .forward;
    let cache = CacheOptions {
        blocks: 2,
        block_size: 16,
        dtype: forward.kv_dtype(),
        context: 32,
        states: 1,
    };
    forward.reserve(&cache).unwrap();
    forward.set_graphs(GraphUse::On);
    let mut graphs = 0;
    let mut rows = Vec::new();
    for (i, token) in tokens().into_iter().enumerate() {
        let step = Step {
            tokens: vec![token],
            sequences: vec![StepSequence {
                id: 1,
                blocks: vec![1, 0],
                keys: i + 1,
                rows: 1,
                state: Some(StepState::of_only(i)),
            }],
            outputs: vec![0],
        };
        let decoded = forward.decode(&step, None).unwrap();
        graphs += usize::from(decoded.graph);
        match decoded.output {
            DecodeOutput::Logits(logits, _) => rows.extend(logits.to_vec2().unwrap()),
            DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
        }
    }
    if device().is_rocm() {
        assert_eq!(graphs, rows.len() - 1);
    }
    case.difference_of(&rows)
}

#[test]
fn folders_and_files_compute_what_transformers_does() {
    let names = [
        "smollm3-list",
        "smollm3-interval",
        "exaone4",
        "exaone4-small",
        "seed-oss",
        "hunyuan-dense",
        "arcee",
    ];
    let mut wrong = Vec::new();
    for name in names {
        let outcome = std::panic::catch_unwind(|| {
            let case = Case::read(name);
            case.difference().max(difference_in_steps(&case))
        });
        let difference = outcome.unwrap_or(f32::INFINITY);
        println!("{name}: {difference:.1e}");
        if difference.is_nan() || difference > tolerance() {
            wrong.push(format!("{name} {difference:e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
