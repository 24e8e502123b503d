//! A folder, the GGUF file that `quantize` writes of it, and the same in steps, against Hugging Face transformers.

use super::device;
use super::transformers::{tokens, tolerance, Case};
use llm_worker_rocm::engine::api::GraphUse;
use llm_worker_rocm::engine::forward::{CacheOptions, DecodeOutput, Step, StepSequence, StepState};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use llm_worker_rocm::quantize::{Conversion, Plan};
use std::path::Path;
use worker::gguf::Weights;
use worker::signal::Interrupt;

/// Writes weights as a GGUF file of f32.
pub fn write_gguf(weights: &dyn Weights, path: &Path) {
    let plan = Plan::new("F32".parse().unwrap(), Vec::new());
    let conversion = Conversion::new(weights, &plan).unwrap();
    conversion.write(path, &Interrupt::manual()).unwrap();
}

/// The largest difference of the rows that the case has, of a model whose prompt comes at once.
pub fn difference_of_prompt(case: &Case, path: &Path) -> f32 {
    let file = ModelFile::open(path).unwrap();
    let model = file.load(&device(), &LoadOptions::default()).unwrap();
    let logits = Scorer::new(model).all_logits(&tokens()).unwrap();
    case.difference_of(&logits.to_vec2().unwrap())
}

/// The same of a model that gets token by token; on a GPU all but the first are graphs.
pub fn difference_in_steps(case: &Case, path: &Path) -> f32 {
    let file = ModelFile::open(path).unwrap();
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
        window_blocks: 0,
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
                window_blocks: Vec::new(),
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

/// Compares the folders of cases, the files written of them, and the files in steps; tells of all before it fails.
pub fn compare(names: &[&str]) {
    let outcomes = names.iter().map(|name| {
        let outcome = std::panic::catch_unwind(|| {
            let case = Case::read(name);
            let folder = tempfile::tempdir().unwrap();
            case.write(folder.path());
            let path = folder.path().join("model.gguf");
            write_gguf(&*open_weights(folder.path()).unwrap(), &path);
            [
                difference_of_prompt(&case, folder.path()),
                difference_of_prompt(&case, &path),
                difference_in_steps(&case, &path),
            ]
        });
        let differences = outcome.unwrap_or([f32::INFINITY; 3]);
        let [folder, file, steps] = differences;
        println!("{name}: {folder:.1e}, as GGUF {file:.1e}, in steps {steps:.1e}");
        (name, differences)
    });
    let outcomes: Vec<_> = outcomes.collect();
    let wrong: Vec<_> = outcomes
        .iter()
        .filter(|(_, d)| d.iter().any(|d| d.is_nan() || *d > tolerance()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
