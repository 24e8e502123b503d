//! The llama forward pass against itself: however a sequence is cut into steps, its logits are the same.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::{Device, Tensor};
use common::{tiny_llama, u32, File, Tensor as FileTensor};
use llm_worker_rocm::engine::{Engine, LlamaConfig, LlamaEngine};
use worker::gguf::{MappedGguf, Weights};

const TOKENS: [u32; 9] = [6, 3, 9, 7, 26, 5, 3, 11, 30];

fn engine(change: impl FnOnce(&mut File)) -> LlamaEngine {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = tiny_llama();
    change(&mut file);
    file.write(&path);
    let file = MappedGguf::open(&path).unwrap();
    let config = LlamaConfig::from_gguf(file.header()).unwrap();
    LlamaEngine::load(config, &file, &Device::Cpu, &|_| ()).unwrap()
}

fn rows(logits: &Tensor) -> Vec<Vec<f32>> {
    logits.to_vec2().unwrap()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    let scale = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(scale > 1e-3, "nothing to compare");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * scale, "{a} and {b}");
    }
}

#[test]
fn one_step_or_many() {
    let mut engine = engine(|_| {});
    let whole = rows(&engine.forward_all(&TOKENS, 0).unwrap());
    for cut in [1, 4, 8] {
        engine.forward(&TOKENS[..cut], 0).unwrap();
        let rest = rows(&engine.forward_all(&TOKENS[cut..], cut).unwrap());
        for (found, expected) in rest.iter().zip(&whole[cut..]) {
            assert_close(found, expected);
        }
    }
    engine.forward(&TOKENS[..1], 0).unwrap();
    for (i, &token) in TOKENS.iter().enumerate().skip(1) {
        let logits: Vec<f32> = engine.forward(&[token], i).unwrap().to_vec1().unwrap();
        assert_close(&logits, &whole[i]);
    }
}

#[test]
fn a_sequence_longer_than_the_first_tables_and_cache() {
    let mut engine = engine(|f| {
        f.set("llama.context_length", u32(2048));
    });
    let tokens: Vec<u32> = (0..700).map(|i| 3 + i * 7 % 29).collect();
    let whole = rows(&engine.forward_all(&tokens, 0).unwrap());
    engine.forward(&tokens[..500], 0).unwrap();
    let rest = rows(&engine.forward_all(&tokens[500..], 500).unwrap());
    assert_close(&rest[199], &whole[699]);
}

#[test]
fn rotary_factors_divide_the_frequencies() {
    let factors = |values: [f32; 4]| {
        move |f: &mut File| {
            let factors = FileTensor::f32("rope_freqs.weight", &[4], |i| values[i as usize]);
            f.tensors.push(factors);
        }
    };
    let last = |engine: &mut LlamaEngine| -> Vec<f32> {
        engine.forward(&TOKENS, 0).unwrap().to_vec1().unwrap()
    };
    let plain = last(&mut engine(|_| {}));
    assert_eq!(last(&mut engine(factors([1.0; 4]))), plain);
    // The frequencies are base^(-2 pair / 8); dividing them by that power of the base once more squares the base.
    let step = |pair: i32| 10_000f32.powf(2.0 * pair as f32 / 8.0);
    let scaled = last(&mut engine(factors([step(0), step(1), step(2), step(3)])));
    let squared = last(&mut engine(|f| {
        f.set("llama.rope.freq_base", common::f32(1e8));
    }));
    assert_close(&scaled, &squared);
    let difference = plain
        .iter()
        .zip(&scaled)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(difference > 1e-3, "the factors changed nothing");
}
