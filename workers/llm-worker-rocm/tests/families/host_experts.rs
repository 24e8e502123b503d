//! Experts in the host's memory, computed there and brought to the GPU, against Hugging Face transformers; and weights
//! where a mapped file has them.

use super::formats::write_gguf;
use super::transformers::{tokens, tolerance, Case};
use super::{device, load_file};
use llm_worker_rocm::engine::api::{ExpertsBy, GraphUse, WeightOptions};
use llm_worker_rocm::engine::forward::{CacheOptions, DecodeOutput};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::engine::LoadedModel;
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use llm_worker_rocm::quantize::{Conversion, Plan};
use std::path::Path;
use worker::signal::Interrupt;

/// Tokens that come at once before the others come one by one.
const PROMPT: usize = 20;

fn load(path: &Path, weights: WeightOptions) -> LoadedModel {
    let options = LoadOptions {
        weights,
        ..LoadOptions::default()
    };
    let file = ModelFile::open(path).unwrap();
    load_file(file, &options).unwrap()
}

fn on_host(layers: usize, experts_by: ExpertsBy) -> WeightOptions {
    WeightOptions {
        host_experts: Some(layers),
        experts_by,
        ..WeightOptions::default()
    }
}

/// The logits of a prompt, and of tokens one by one behind it.
fn logits(path: &Path, weights: WeightOptions) -> Vec<Vec<f32>> {
    let mut forward = load(path, weights).forward;
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
    let host = weights.host_experts != Some(0) && device().is_rocm();
    assert_eq!(forward.without_graphs().is_some(), host);
    let all = tokens();
    let step = |start, end| crate::step(&all, start, end);
    let prompt = forward.forward(&step(0, PROMPT)).unwrap();
    let mut rows = prompt.to_vec2::<f32>().unwrap();
    for i in PROMPT..all.len() {
        let decoded = forward.decode(&step(i, i + 1), None).unwrap();
        assert!(!(host && decoded.graph));
        let DecodeOutput::Logits(logits, _) = decoded.output else {
            panic!("tokens that nobody asked for")
        };
        rows.extend(logits.to_vec2::<f32>().unwrap());
    }
    rows
}

fn largest(rows: &[Vec<f32>]) -> f32 {
    let all = rows.iter().flatten();
    all.fold(0f32, |most, x| most.max(x.abs()))
}

fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest(b)
}

/// Routers by softmax and by sigmoid with biases, experts of all tokens, biases of experts, experts beside the
/// feed-forward part whose gates and what they multiply are one tensor, and experts without gates on fewer channels.
const CASES: [&str; 6] = [
    "qwen2-moe",
    "glm4-moe",
    "gpt-oss",
    "gemma4-experts",
    "nemotron-h-latent",
    "llama4",
];

#[test]
fn experts_in_host_memory_compute_what_transformers_does() {
    if !device().is_rocm() {
        return;
    }
    let mut wrong = Vec::new();
    for name in CASES {
        let case = Case::read(name);
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        let path = folder.path().join("model.gguf");
        write_gguf(&*open_weights(folder.path()).unwrap(), &path);
        for (by, path) in [(ExpertsBy::Host, folder.path()), (ExpertsBy::Device, &path)] {
            // Places for the experts of one token: those of a prompt come in groups.
            let weights = WeightOptions {
                place_bytes: 1,
                ..on_host(usize::MAX, by)
            };
            let all = logits(path, weights);
            let difference = case.difference_of(&all);
            println!("{name} by {by}: {difference:.1e}");
            if difference.is_nan() || difference > tolerance() {
                wrong.push(format!("{name} by {by}: {difference:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A file in blocks: the GPU computes with experts that come as with those that are there, the CPU with activations
/// that it rounds in its own way.
#[test]
fn quantized_experts_in_host_memory_are_those_of_the_gpu() {
    if !device().is_rocm() {
        return;
    }
    let case = Case::read("mixtral");
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    for format in ["Q8_0", "MXFP4"] {
        let path = folder.path().join("model.gguf");
        let plan = Plan::new(format.parse().unwrap(), Vec::new());
        let weights = open_weights(folder.path()).unwrap();
        let conversion = Conversion::new(&*weights, &plan).unwrap();
        conversion.write(&path, &Interrupt::manual()).unwrap();
        let on_gpu = logits(&path, on_host(0, ExpertsBy::Device));
        for (layers, by, most) in [
            (usize::MAX, ExpertsBy::Device, 1e-6),
            (usize::MAX, ExpertsBy::Host, 3e-2),
            (1, ExpertsBy::Measured, 3e-2),
        ] {
            let found = logits(&path, on_host(layers, by));
            let difference = difference(&found, &on_gpu);
            println!("{format}, {layers} layers by {by}: {difference:.1e}");
            assert!(difference <= most, "{format} {layers} {by}: {difference:e}");
        }
    }
}

/// What `/metrics` tells.
#[test]
fn bytes_are_counted_where_they_are() {
    let case = Case::read("mixtral");
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let path = folder.path().join("model.gguf");
    write_gguf(&*open_weights(folder.path()).unwrap(), &path);
    let gguf = worker::gguf::MappedGguf::open(&path).unwrap();
    use worker::gguf::Weights;
    let of = |part: &str| -> u64 {
        let tensors = gguf.header().tensors();
        let own = tensors.filter(|(name, _)| name.contains(part));
        own.map(|(_, info)| info.bytes).sum()
    };
    let (all, experts) = (of(""), of("_exps."));
    let bytes = |weights| load(&path, weights).forward.weight_bytes();
    let plain = bytes(on_host(0, ExpertsBy::Measured));
    let copied = bytes(WeightOptions {
        copy: true,
        ..on_host(usize::MAX, ExpertsBy::Measured)
    });
    assert_eq!(copied.mapped, 0);
    if device().is_rocm() {
        assert_eq!((plain.device, plain.host), (all, 0));
        let host = bytes(on_host(usize::MAX, ExpertsBy::Host));
        assert_eq!((host.device, host.host), (all - experts, experts));
        assert_eq!(host.mapped, experts);
        assert_eq!(copied.host, experts);
        let first = bytes(on_host(1, ExpertsBy::Host));
        assert!(first.host > 0 && first.host < experts);
    } else {
        assert_eq!((plain.device, plain.host), (0, all));
        // All but norms and the router's.
        assert!(plain.mapped >= experts && plain.mapped <= all);
        assert_eq!(copied.host, all);
    }
}

/// On the CPU weights give the same numbers from the mapped file and from a copy, bit for bit.
#[test]
fn mapped_weights_are_those_of_a_copy() {
    if !device().is_cpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [
        ("phi3", "F32"),
        ("llama", "Q8_0"),
        ("qwen2-moe", "Q4_0"),
        ("mixtral", "BF16"),
        ("mixtral", "IQ4_NL"),
    ] {
        let case = Case::read(name);
        let source = folder.path().join(format!("{name}-{format}"));
        std::fs::create_dir(&source).unwrap();
        case.write(&source);
        let path = source.join("model.gguf");
        let plan = Plan::new(format.parse().unwrap(), Vec::new());
        let weights = open_weights(&source).unwrap();
        let conversion = Conversion::new(&*weights, &plan).unwrap();
        conversion.write(&path, &Interrupt::manual()).unwrap();
        for path in [&source, &path] {
            let logits = |copy: bool| {
                let model = load(
                    path,
                    WeightOptions {
                        copy,
                        ..WeightOptions::default()
                    },
                );
                let bytes = model.forward.weight_bytes();
                assert_eq!(bytes.mapped == 0, copy, "{name} {format}");
                let logits = Scorer::new(model).all_logits(&tokens()).unwrap();
                logits.to_vec2::<f32>().unwrap()
            };
            assert_eq!(logits(false), logits(true), "{name} {format}");
        }
    }
}
