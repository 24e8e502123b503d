//! Adaptations of every kind on single layers, against LyCORIS' and PEFT's numbers: `tests/reference/make_lora_kinds.py` has
//! made them.

use super::common::{difference, file, tensors};
use super::hashed::weight;
use candle_core::{Device, Tensor};
use sd_worker_rocm::lora::{Lora, LoraFile, Network};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

fn shape(value: &Value) -> Vec<usize> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The file of a case, as LyCORIS or as PEFT writes it.
fn write(place: &Path, case: &str, about: &Value) -> LoraFile {
    let of = |(name, value): (&String, &Value)| {
        let tensor = match value.as_f64() {
            Some(number) => Tensor::new(number as f32, &Device::Cpu).unwrap(),
            None => weight(case, name, &shape(value)),
        };
        (name.clone(), tensor)
    };
    let all: HashMap<String, Tensor> = about["tensors"]
        .as_object()
        .unwrap()
        .iter()
        .map(of)
        .collect();
    let folder = place.join(case);
    std::fs::create_dir_all(&folder).unwrap();
    candle_core::safetensors::save(&all, folder.join("adapter_model.safetensors")).unwrap();
    if !about["config"].is_null() {
        std::fs::write(
            folder.join("adapter_config.json"),
            about["config"].to_string(),
        )
        .unwrap();
    }
    LoraFile::open(&folder).unwrap()
}

#[test]
fn every_kind_as_lycoris_and_peft_have_it() {
    let json = std::fs::read(file("tests/fixtures/networks/lora_kinds.json")).unwrap();
    let about: Value = serde_json::from_slice(&json).unwrap();
    let merged = tensors("tests/fixtures/networks/lora_kinds.safetensors");
    let base: HashMap<&String, Tensor> = about["base"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name, weight("base", name, &shape(value))))
        .collect();
    let names = base.keys().map(ToString::to_string).collect();
    let networks = [(Network::Denoiser, names)];
    let place = tempfile::tempdir().unwrap();
    let cases = about["cases"].as_object().unwrap();
    assert!(cases.len() > 30);
    for (case, about) in cases {
        let lora = Lora::new(case, about["strength"].as_f64().unwrap());
        let file = write(place.path(), case, about);
        let deltas = file
            .deltas(&lora, &networks, |_| true, &Device::Cpu)
            .unwrap();
        let mut sums: HashMap<String, Tensor> = HashMap::new();
        for delta in deltas {
            let own = &base[&delta.tensor];
            let sum = (own + delta.change.delta(own).unwrap()).unwrap();
            sums.insert(delta.tensor, sum);
        }
        let layer = about["layer"].as_str().unwrap();
        for part in ["weight", "bias"] {
            let expected = merged.get(&format!("{case}.{part}"));
            let ours = sums.remove(&format!("{layer}.{part}"));
            assert_eq!(ours.is_some(), expected.is_some(), "{case}.{part}");
            if let (Some(ours), Some(expected)) = (ours, expected) {
                let off = difference(&ours, expected);
                assert!(off < 3e-5, "{case}.{part}: {off}");
            }
        }
        assert!(sums.is_empty(), "{case}");
    }
}
