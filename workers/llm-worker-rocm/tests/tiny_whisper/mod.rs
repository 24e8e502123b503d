//! A tiny Whisper with random weights, whose windows last two seconds; `families/transformers/generate.py` says what
//! it computes.

#![allow(dead_code)] // each test program uses its own part

use crate::numbers::{numbers, weight};
use safetensors::tensor::TensorView;
use safetensors::Dtype;
use serde_json::{json, Value as Json};
use std::path::Path;

/// The token that ends an answer; those before it are text.
pub const END: u32 = 27;

/// The file beside `generate.py`.
pub fn case() -> Json {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families/transformers");
    let text = std::fs::read(folder.join("whisper.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Tensors by Hugging Face's names: shape and float32.
pub fn tensors(case: &Json) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let norm = case["norm"].as_f64().unwrap();
    let made = |(name, shape): (&String, &Json)| {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        let data = weight(name, &shape, norm);
        (name.clone(), shape, data)
    };
    case["tensors"]
        .as_object()
        .unwrap()
        .iter()
        .map(made)
        .collect()
}

fn tokenizer() -> Json {
    let letters = ('a'..='z').map(String::from);
    let texts: Vec<String> = letters.chain([String::from("Ġ")]).collect();
    let vocab: serde_json::Map<String, Json> = texts
        .into_iter()
        .enumerate()
        .map(|(id, text)| (text, id.into()))
        .collect();
    let names = [
        "endoftext",
        "startoftranscript",
        "en",
        "de",
        "translate",
        "transcribe",
        "startoflm",
        "startofprev",
        "nospeech",
        "notimestamps",
    ];
    let added = names.iter().enumerate().map(|(i, name)| {
        json!({"id": END as usize + i, "content": format!("<|{name}|>"), "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": bytes,
        "decoder": bytes,
    })
}

/// Writes the model's folder; `change` may change `generation_config.json`.
pub fn write(folder: &Path, change: impl FnOnce(&mut Json)) {
    let case = case();
    let tensors = tensors(&case);
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data).unwrap();
        (name, view)
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    let mut settings = case["settings"].clone();
    change(&mut settings);
    for (name, json) in [
        ("config.json", &case["config"]),
        ("generation_config.json", &settings),
        ("tokenizer.json", &tokenizer()),
    ] {
        std::fs::write(folder.join(name), json.to_string()).unwrap();
    }
}

/// The sound that the numbers are of.
pub fn sound(case: &Json) -> Vec<f32> {
    let count = case["samples"].as_u64().unwrap() as usize;
    let noise = numbers("sound", count);
    let sample = |(i, noise): (usize, f64)| {
        let i = i as f64;
        let tone = 0.3 * (0.02 * i * (1.0 + i / 40000.0)).sin() * (i % 6000.0) / 6000.0;
        (tone + 0.05 * noise) as f32
    };
    noise.enumerate().map(sample).collect()
}

/// Samples as a WAV file of floats.
pub fn wav(samples: &[f32]) -> Vec<u8> {
    let bytes = samples.len() as u32 * 4;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend([3u16, 1].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([16_000u32, 64_000].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([4u16, 32].iter().flat_map(|n| n.to_le_bytes()));
    file.extend(b"data");
    file.extend(bytes.to_le_bytes());
    file.extend(samples.iter().flat_map(|s| s.to_le_bytes()));
    file
}

/// What the case says of a segment: start, end, tokens.
pub fn segments(case: &Json) -> Vec<(f64, f64, Vec<u32>)> {
    serde_json::from_value(case["segments"].clone()).unwrap()
}
