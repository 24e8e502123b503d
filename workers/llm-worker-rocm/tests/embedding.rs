//! Embeddings of all-MiniLM-L6-v2 against transformers'.
//!
//! `CANDLE_ROCM_MINILM` names the model folder; `CANDLE_ROCM_TEST_DEVICE` the device (`cpu` if unset).

use candle_core::Device;
use llm_worker_rocm::embedding::EmbeddingModel;
use serde::Deserialize;
use std::path::PathBuf;
use worker::device::DeviceRequest;

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/minilm/reference.json"
);

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

/// A text with what transformers gives for it in float32.
#[derive(Deserialize)]
struct Case {
    text: String,
    tokens: Vec<u32>,
    vector: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(FIXTURE).unwrap();
    serde_json::from_str::<Fixture>(&text).unwrap().cases
}

fn folder() -> PathBuf {
    std::env::var_os("CANDLE_ROCM_MINILM")
        .expect("CANDLE_ROCM_MINILM is not set: run scripts/test, or set it to the output of scripts/fetch-minilm")
        .into()
}

fn device() -> Device {
    let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    device
        .parse::<DeviceRequest>()
        .unwrap()
        .select()
        .unwrap()
        .device
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

#[test]
fn vectors_are_those_of_transformers() {
    assert!(EmbeddingModel::recognises(&folder()));
    let model = EmbeddingModel::open(&folder(), &device()).unwrap();
    assert_eq!((model.dimensions(), model.max_tokens()), (384, 256));
    let cases = cases();
    assert!(cases.len() > 4);
    let texts: Vec<&str> = cases.iter().map(|case| case.text.as_str()).collect();
    let embedded = model.embed(&texts).unwrap();
    for (case, found) in cases.iter().zip(&embedded) {
        let tokens = model.tokenizer().encode_framed(&case.text, 256).unwrap();
        assert_eq!(tokens, case.tokens, "{}", case.text);
        assert_eq!(found.tokens, case.tokens.len());
        let difference = largest_difference(&found.values, &case.vector);
        assert!(difference < 2e-6, "{}: {difference}", case.text);
        let length: f32 = found.values.iter().map(|v| v * v).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    // Padding beside longer texts changes nothing.
    let alone = model.embed(&texts[..1]).unwrap();
    assert!(largest_difference(&alone[0].values, &embedded[0].values) < 1e-6);
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let model = EmbeddingModel::open(&folder(), &Device::Cpu).unwrap();
    for (tokens, reason) in [
        (vec![], "has 0 tokens"),
        (vec![101; 257], "1 to 256"),
        (vec![101, 30522], "no token 30522"),
    ] {
        let error = model.embed_tokens(&[tokens]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert!(model.embed::<&str>(&[]).unwrap().is_empty());
    let folder = tempfile::tempdir().unwrap();
    let error = EmbeddingModel::open(folder.path(), &Device::Cpu)
        .err()
        .unwrap();
    assert!(error.to_string().contains("config.json"), "{error}");
    let other = r#"{"architectures": ["LlamaForCausalLM"]}"#;
    std::fs::write(folder.path().join("config.json"), other).unwrap();
    std::fs::write(
        folder.path().join("model.safetensors"),
        [2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'],
    )
    .unwrap();
    assert!(!EmbeddingModel::recognises(folder.path()));
    let error = EmbeddingModel::open(folder.path(), &Device::Cpu)
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("LlamaForCausalLM is not an embedding model"),
        "{error}"
    );
}
