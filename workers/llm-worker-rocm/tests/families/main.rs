//! Every architecture of the decoder on random weights, against a plain forward pass in f64.
//!
//! `CANDLE_ROCM_TEST_DEVICE` names the device (`cpu` if unset).

mod adapters;
#[path = "../../../worker/tests/common/mod.rs"]
mod common;
mod delta;
mod embedding;
mod expert_adapters;
mod extras;
mod formats;
mod heads;
mod host_experts;
mod integers;
#[path = "../../../../candle-rocm/tests/isolated/mod.rs"]
mod isolated;
mod latent;
mod list;
mod mixtures;
#[path = "../numbers/mod.rs"]
mod numbers;
mod older;
mod pictures;
mod quantized;
mod ranking;
mod recurrent;
mod reference;
mod register;
mod rwkv;
mod saved;
mod shards;
mod sounds;
mod speech;
#[path = "../stages/mod.rs"]
mod split;
mod stages;
#[path = "../tiny_whisper/mod.rs"]
mod tiny_whisper;
mod transformers;
mod weights;
mod window_caches;
mod windows;

use candle_core::{Device, Tensor};
use common::{tiny_llama, File, Tensor as FileTensor};
use list::{families, llama};
use llm_worker_rocm::engine::api::{GraphUse, KvDType};
use llm_worker_rocm::engine::forward::{CacheOptions, DecodeOutput, Step, StepSequence, StepState};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::{LoadOptions, LoadedModel, ModelFile};
use reference::{Reference, Rows};
use weights::{file, tensors};
use worker::device::DeviceRequest;

const WIDTH: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 32;
const HIDDEN: usize = 96;
const EXPERT_HIDDEN: usize = 32;
const VOCAB: usize = 33;
const EPSILON: f32 = 1e-5;
const BASE: f32 = 10_000.0;
const WINDOW: usize = 7;
const NMSE_LIMIT: f64 = 1e-6;

#[derive(Clone, Copy, PartialEq)]
enum QkNorm {
    None,
    Head,
    Full,
}

#[derive(Clone, Copy)]
struct Mixture {
    count: usize,
    used: usize,
    sums_to_one: bool,
    /// A shared expert, with a gate of its own.
    shared: bool,
}

/// What the reference and the file of a family are made from.
#[derive(Clone)]
struct Family {
    name: &'static str,
    blocks: usize,
    interleaved: bool,
    rotary: usize,
    layer_norm: bool,
    gelu: bool,
    /// GELU itself, not by tanh.
    exact_gelu: bool,
    qkv_bias: bool,
    /// Norms, outputs and the feed-forward part have biases, too.
    all_bias: bool,
    fused_qkv: bool,
    packed_ffn: bool,
    plain_ffn: bool,
    qk_norm: QkNorm,
    pre_norms: bool,
    post_norms: bool,
    parallel: bool,
    /// The feed-forward part has a norm of its own, if it is beside attention.
    parallel_norm: bool,
    window: fn(usize) -> bool,
    local_base: Option<f32>,
    positions: fn(usize) -> bool,
    mixture: Option<Mixture>,
    tied: bool,
    embedding_scale: f64,
    residual_scale: f64,
    score_scale: f64,
    score_cap: Option<f64>,
    logit_cap: Option<f64>,
    logit_factor: f64,
    /// Divides each rotary frequency.
    rope_factor: f64,
    numbers: &'static [(&'static str, f32)],
}

/// The tokens from `start` to `end` of the only sequence, all of whose logits are wanted; its blocks are two, the second
/// one first.
fn step(tokens: &[u32], start: usize, end: usize) -> Step {
    Step {
        tokens: tokens[start..end].to_vec(),
        sequences: vec![StepSequence {
            id: 1,
            blocks: vec![1, 0],
            keys: end,
            rows: end - start,
            state: Some(StepState::of_only(start)),
            ..StepSequence::default()
        }],
        outputs: (0..(end - start) as u32).collect(),
    }
}

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

fn load(file: &File) -> LoadedModel {
    // Why something was done in another way than asked for is said in the log.
    let _ = tracing_subscriber::fmt().with_test_writer().try_init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    let opened = ModelFile::open(&path).unwrap();
    load_file(opened, &LoadOptions::default()).unwrap()
}

fn scorer(file: &File) -> Scorer {
    Scorer::new(load(file))
}

fn rows(logits: &Tensor) -> Vec<Vec<f32>> {
    logits.to_vec2().unwrap()
}

fn tokens() -> Vec<u32> {
    (0..23).map(|i| 3 + i * 7 % 29).collect()
}

fn nmse(got: &[Vec<f32>], want: &Rows) -> f64 {
    let pairs = || got.iter().flatten().zip(want.iter().flatten());
    let error: f64 = pairs().map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    error / pairs().map(|(_, b)| b * b).sum::<f64>()
}

#[test]
fn every_family_computes_what_its_reference_does() {
    let tokens = tokens();
    for f in families() {
        let tensors = tensors(&f);
        let want = Reference { f: &f, t: &tensors }.logits(&tokens);
        let mut scorer = scorer(&file(&f, &tensors));
        let got = rows(&scorer.all_logits(&tokens).unwrap());
        let error = nmse(&got, &want);
        println!("{}: {error:.1e}", f.name);
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);
    }
}

/// Token by token, on a GPU as a graph from the second on: every family's launches can be recorded, and depend on
/// nothing but their shape.
#[test]
fn every_family_decodes_what_its_reference_does() {
    let tokens = &tokens()[..9];
    for f in families() {
        let tensors = tensors(&f);
        let want = Reference { f: &f, t: &tensors }.logits(tokens);
        let mut forward = load(&file(&f, &tensors)).forward;
        forward
            .reserve(&CacheOptions {
                blocks: 2,
                block_size: 16,
                dtype: KvDType::F32.into(),
                context: 32,
                states: 1,
                window_blocks: 0,
            })
            .unwrap();
        forward.set_graphs(GraphUse::On);
        let mut graphs = 0;
        let mut got = Vec::new();
        for i in 0..tokens.len() {
            let decoded = forward.decode(&step(tokens, i, i + 1), None).unwrap();
            graphs += usize::from(decoded.graph);
            match decoded.output {
                DecodeOutput::Logits(logits, _) => got.extend(rows(&logits)),
                DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
            }
        }
        let error = nmse(&got, &want);
        println!("{}: {error:.1e}, {graphs} graphs", f.name);
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);
        let expected = if device().is_rocm() {
            tokens.len() - 1
        } else {
            0
        };
        assert_eq!(graphs, expected, "{}", f.name);
    }
}

/// Halves stay halves; on a GPU, activations are halves, too.
#[test]
fn half_weights_compute_what_their_values_do() {
    let tokens = tokens();
    for (type_code, limit) in [(1, 1e-5), (30, 1e-3)] {
        for f in families()
            .into_iter()
            .filter(|f| ["llama", "qwen3moe", "gemma2"].contains(&f.name))
        {
            let mut tensors = tensors(&f);
            let mut file = file(&f, &tensors);
            for tensor in file.tensors.iter_mut().filter(|t| t.dims.len() > 1) {
                let (_, values) = tensors.get_mut(&tensor.name).unwrap();
                tensor.type_code = type_code;
                tensor.data.clear();
                for value in values {
                    if type_code == 1 {
                        let half = half::f16::from_f32(*value);
                        tensor.data.extend(half.to_le_bytes());
                        *value = half.to_f32();
                    } else {
                        let half = half::bf16::from_f32(*value);
                        tensor.data.extend(half.to_le_bytes());
                        *value = half.to_f32();
                    }
                }
            }
            let want = Reference { f: &f, t: &tensors }.logits(&tokens);
            let got = rows(&scorer(&file).all_logits(&tokens).unwrap());
            let error = nmse(&got, &want);
            println!("{} of type {type_code}: {error:.1e}", f.name);
            assert!(error <= limit, "{} of type {type_code}: {error:e}", f.name);
        }
    }
}

#[test]
fn what_a_family_does_not_have_is_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut File)| {
        let f = llama();
        let mut file = file(&f, &tensors(&f));
        change(&mut file);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        file.write(&path);
        let error = ModelFile::open(&path).err().expect("it must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    let check = |message: String, why: &str| assert!(message.contains(why), "{message}");
    check(
        refusal(&|f| {
            f.set("general.architecture", common::string("rwkv6"));
        }),
        "rwkv6",
    );
    check(
        refusal(&|f| {
            let sinks = FileTensor::f32("blk.0.attn_sinks.weight", &[4], |_| 0.0);
            f.tensors.push(sinks);
        }),
        "blk.0.attn_sinks.weight",
    );
    check(
        refusal(&|f| {
            f.set("llama.rope.scaling.type", common::string("dynamic"));
        }),
        "dynamic",
    );
    check(
        refusal(&|f| f.tensors.retain(|t| t.name != "blk.1.ffn_norm.weight")),
        "blk.1.ffn_norm.weight",
    );
    check(
        refusal(&|f| {
            f.set("llama.attention.head_count_kv", common::u32(3));
        }),
        "cannot be shared evenly",
    );
    check(
        refusal(&|f| {
            f.set("llama.expert_count", common::u32(8));
        }),
        "expert_used_count",
    );
}
