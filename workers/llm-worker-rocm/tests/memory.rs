//! Device memory of a forward pass grows with the length of a sequence as its cache does, and no faster.
//!
//! Runs where `CANDLE_ROCM_TEST_DEVICE` names a ROCm device, the simulated one included.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::{DType, Tensor};
use common::{tiny_llama, u32};
use llm_worker_rocm::engine::api::KvDType;
use llm_worker_rocm::engine::forward::{CacheOptions, Step, StepSequence};
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use worker::device::{release_unused, DeviceRequest};

/// New tokens of a pass.
const ROWS: usize = 64;
const BLOCK: usize = 16;

#[test]
fn attention_takes_memory_linear_in_length() {
    let name = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let selected = name.parse::<DeviceRequest>().unwrap().select().unwrap();
    if !selected.device.is_rocm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = tiny_llama();
    file.set("llama.context_length", u32(1 << 16));
    file.write(&path);
    let opened = ModelFile::open(&path).unwrap();
    let mut model = opened
        .load(&selected.device, &LoadOptions::default())
        .unwrap()
        .forward;
    // The model's own, with an allocator that nobody else uses.
    let device = model.device().as_rocm_device().unwrap().clone();
    println!("| tokens | cache | everything else |");
    let mut others = Vec::new();
    for tokens in [4096, 8192, 16384, 32768] {
        let cache = CacheOptions {
            blocks: tokens / BLOCK,
            block_size: BLOCK,
            dtype: KvDType::F16.into(),
            context: tokens,
            states: 0,
            window_blocks: 0,
        };
        model.reserve(&cache).unwrap();
        let cache_bytes = model.kv_token_bytes(KvDType::F16.into()) * tokens;
        // The last piece of a long prompt. What the pieces before it would have written does not matter for memory.
        let step = Step {
            tokens: vec![5; ROWS],
            sequences: vec![StepSequence {
                id: 1,
                blocks: (0..(tokens / BLOCK) as u32).collect(),
                keys: tokens,
                rows: ROWS,
                ..StepSequence::default()
            }],
            outputs: vec![ROWS as u32 - 1],
        };
        model.forward(&step).unwrap();
        let peak = device.device().memory_stats().peak_bytes;
        let other = peak - cache_bytes;
        println!("| {tokens} | {cache_bytes} | {other} |");
        others.push((tokens, other));
    }
    // As loading does: a large buffer that is not needed again. Small ones share slabs of 2 MiB, which stay as long as
    // one of them lives.
    let cached = || device.device().memory_stats().cached_bytes;
    drop(Tensor::zeros(4 << 20, DType::U8, model.device()).unwrap());
    assert!(cached() >= 4 << 20, "{}", cached());
    release_unused(model.device()).unwrap();
    assert!(cached() < 2 << 20, "{}", cached());
    let (shortest, least) = others[0];
    for (tokens, other) in others {
        // Rotary tables and block numbers grow with length, too; a matrix of scores would be 64 times 4 times the
        // tokens in f32.
        let tables = (tokens - shortest) * 64;
        assert!(
            other <= least + tables + (1 << 16),
            "{tokens}: {other} of {least}"
        );
    }
}
