//! A folder, the GGUF file that `quantize` writes of it, and the same in steps, against Hugging Face transformers.

use super::transformers::{tokens, tolerance, Case};
use super::{device, load_file};
use llm_worker_rocm::engine::api::GraphUse;
use llm_worker_rocm::engine::forward::{CacheOptions, DecodeOutput};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::engine::LoadedModel;
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use llm_worker_rocm::quantize::{Conversion, NaturalOrder, Plan};
use std::panic::RefUnwindSafe;
use std::path::Path;
use worker::gguf::Weights;
use worker::signal::Interrupt;

/// Tokens that come at once where not all come one by one.
const PROMPT: usize = 15;

/// Writes weights as a GGUF file of f32.
pub fn write_gguf(weights: &dyn Weights, path: &Path) {
    let plan = Plan::new("F32".parse().unwrap(), Vec::new());
    let weights = NaturalOrder::new(weights).unwrap();
    let conversion = Conversion::new(&weights, &plan).unwrap();
    conversion.write(path, &Interrupt::manual()).unwrap();
}

/// A folder or file on the device of the tests.
pub fn load(path: &Path) -> LoadedModel {
    let file = ModelFile::open(path).unwrap();
    load_file(file, &LoadOptions::default()).unwrap()
}

/// The largest difference of the rows that the case has, of a model whose prompt comes at once.
pub fn difference_of_prompt(case: &Case, path: &Path) -> f32 {
    let logits = Scorer::new(load(path)).all_logits(&tokens()).unwrap();
    case.difference_of(&logits.to_vec2().unwrap())
}

/// The same of a model that gets token by token; on a GPU all but the first are graphs.
pub fn difference_in_steps(case: &Case, path: &Path) -> f32 {
    difference_behind(case, path, 0)
}

/// The same of the GGUF file of a folder, most of the tokens at once: steps take their time on a simulated device.
pub fn difference_of_file(case: &Case, folder: &Path) -> f32 {
    let path = folder.join("model.gguf");
    write_gguf(&*open_weights(folder).unwrap(), &path);
    difference_behind(case, &path, PROMPT)
}

/// The same where so many tokens come at once, the others one by one.
fn difference_behind(case: &Case, path: &Path, prompt: usize) -> f32 {
    let mut forward = load(path).forward;
    let cache = CacheOptions {
        blocks: 2,
        block_size: 16,
        dtype: forward.kv_dtype().into(),
        context: 32,
        states: 1,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    forward.set_graphs(GraphUse::On);
    let all = tokens();
    let step = |start, end| crate::step(&all, start, end);
    let mut graphs = 0;
    let mut rows = Vec::new();
    if prompt > 0 {
        let logits = forward.forward(&step(0, prompt)).unwrap();
        rows.extend(logits.to_vec2().unwrap());
    }
    for i in prompt..all.len() {
        let decoded = forward.decode(&step(i, i + 1), None).unwrap();
        graphs += usize::from(decoded.graph);
        match decoded.output {
            DecodeOutput::Logits(logits, _) => rows.extend(logits.to_vec2().unwrap()),
            DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
        }
    }
    if device().is_rocm() {
        assert_eq!(graphs, rows.len() - prompt - 1);
    }
    case.difference_of(&rows)
}

/// The larger one of a folder's difference, whose prompt comes at once, and that of its GGUF file in steps.
pub fn difference_of_both(case: &Case, folder: &Path) -> f32 {
    let of_file = difference_of_file(case, folder);
    case.difference(folder).max(of_file)
}

/// Writes the folders of cases and gives them to `difference`; tells of all before it fails.
pub fn each(names: &[&str], difference: impl Fn(&Case, &Path) -> f32 + RefUnwindSafe) {
    let mut wrong = Vec::new();
    for name in names {
        let outcome = std::panic::catch_unwind(|| {
            let case = Case::read(name);
            let folder = tempfile::tempdir().unwrap();
            case.write(folder.path());
            difference(&case, folder.path())
        });
        let difference = outcome.unwrap_or(f32::INFINITY);
        println!("{name}: {difference:.1e}");
        if difference.is_nan() || difference > tolerance() {
            wrong.push(format!("{name} {difference:e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
