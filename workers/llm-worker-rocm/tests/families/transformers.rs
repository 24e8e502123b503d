//! Logits of tiny safetensors folders against those of Hugging Face transformers.
//!
//! `transformers/generate.py` wrote the numbers and says what they are of.

use super::formats::{each, load};
pub use super::numbers::weight;
use super::{device, load_file};
use llm_worker_rocm::engine::forward::{CacheOptions, Step, StepSequence, StepState};
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use serde_json::{json, Value as Json};
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Largest difference, as a share of the row's largest logit. On a GPU the decoder stores keys and values as f16.
pub fn tolerance() -> f32 {
    match device().is_cpu() {
        true => 1e-4,
        false => 3e-3,
    }
}

/// What the numbers are of.
pub fn tokens() -> Vec<u32> {
    (0..24).map(|i| 3 + i * 7 % 29).collect()
}

/// A file beside `generate.py`.
pub struct Case {
    pub json: Json,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families/transformers")
}

/// A byte-level tokenizer for the vocabulary of the cases.
pub fn tokenizer() -> Json {
    let letters = ('a'..='z').map(String::from);
    let texts = ["<pad>", "<s>", "</s>", "Ġ"].map(String::from);
    let vocab: serde_json::Map<String, Json> = texts
        .into_iter()
        .chain(letters)
        .enumerate()
        .map(|(id, text)| (text, id.into()))
        .collect();
    let special = |id: usize, text: &str| {
        json!({"id": id, "content": text, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    };
    json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": [special(0, "<pad>"), special(1, "<s>"), special(2, "</s>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    })
}

/// All cases.
pub fn names() -> impl Iterator<Item = String> {
    let files = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let cases = files.filter(|path| path.extension().is_some_and(|e| e == "json"));
    cases.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string())
}

/// The architectures that there are numbers of.
pub fn architectures() -> HashSet<String> {
    names()
        .map(|name| {
            let case = Case::read(&name);
            case.json["config"]["architectures"][0]
                .as_str()
                .unwrap()
                .to_string()
        })
        .collect()
}

/// The cases of models that answer.
pub fn decoders() -> Vec<String> {
    let decodes = |name: &String| {
        let folder = tempfile::tempdir().unwrap();
        Case::read(name).write(folder.path());
        ModelFile::open(folder.path()).is_ok()
    };
    let mut names: Vec<String> = names().filter(decodes).collect();
    names.sort();
    names
}

impl Case {
    pub fn read(name: &str) -> Self {
        let text = std::fs::read(folder().join(format!("{name}.json"))).unwrap();
        Self {
            json: serde_json::from_slice(&text).unwrap(),
        }
    }

    /// Tensors by name: shape and float32.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, Vec<u8>)> {
        let norm = self.json["norm"].as_f64().unwrap();
        let made = |(name, shape): (&String, &Json)| {
            let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let data = weight(name, &shape, norm);
            (name.clone(), shape, data)
        };
        let tensors = self.json["tensors"].as_object().unwrap();
        tensors.iter().map(made).collect()
    }

    /// Writes the model's folder.
    pub fn write(&self, path: &Path) {
        self.write_tensors(path, safetensors::Dtype::F32, &self.tensors());
    }

    pub fn write_tensors(
        &self,
        path: &Path,
        dtype: safetensors::Dtype,
        tensors: &[(String, Vec<usize>, Vec<u8>)],
    ) {
        let views = tensors.iter().map(|(name, shape, data)| {
            let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), data);
            (name, view.unwrap())
        });
        safetensors::serialize_to_file(views, None, &path.join("model.safetensors")).unwrap();
        for (name, json) in [
            ("config.json", &self.json["config"]),
            ("tokenizer.json", &tokenizer()),
        ] {
            std::fs::write(path.join(name), json.to_string()).unwrap();
        }
    }

    /// The model on the test's device.
    pub fn load(&self, options: &LoadOptions) -> llm_worker_rocm::model::LoadedModel {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        let file = ModelFile::open(folder.path()).unwrap();
        load_file(file, options).unwrap()
    }

    /// The largest difference of the rows that the file has, of a folder whose prompt comes at once, of the last row where
    /// no other is asked for, too.
    pub fn difference(&self, folder: &Path) -> f32 {
        let mut forward = load(folder).forward;
        let cache = CacheOptions {
            blocks: 2,
            block_size: 16,
            dtype: forward.kv_dtype().into(),
            context: 32,
            states: 1,
            window_blocks: 0,
        };
        forward.reserve(&cache).unwrap();
        let count = tokens().len();
        let mut rows = |outputs: Range<usize>| -> Vec<Vec<f32>> {
            let step = Step {
                tokens: tokens(),
                sequences: vec![StepSequence {
                    id: 1,
                    blocks: vec![0, 1],
                    keys: count,
                    rows: count,
                    state: Some(StepState::of_only(0)),
                    ..StepSequence::default()
                }],
                outputs: outputs.map(|row| row as u32).collect(),
            };
            forward.forward(&step).unwrap().to_vec2().unwrap()
        };
        let mut logits = rows(0..count);
        let all = self.difference_of(&logits);
        logits.truncate(count - 1);
        logits.extend(rows(count - 1..count));
        all.max(self.difference_of(&logits))
    }

    /// The largest difference of the rows that the file has.
    pub fn difference_of(&self, logits: &[Vec<f32>]) -> f32 {
        let rows: Vec<(usize, Vec<f32>)> =
            serde_json::from_value(self.json["rows"].clone()).unwrap();
        rows.iter()
            .map(|(row, want)| {
                let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
                let pairs = logits[*row].iter().zip(want);
                pairs.fold(0f32, |a, (got, want)| a.max((got - want).abs())) / largest
            })
            .fold(0.0, f32::max)
    }
}

#[test]
fn the_decoder_computes_what_transformers_does() {
    let names = [
        "llama",
        "llama-bias",
        "llama-3",
        "llama-linear",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2-yarn",
        "qwen2-moe",
        "qwen3",
        "qwen3-moe",
        "phi",
        "phi3",
        "phi3-long",
        "phi4-mini",
        "gemma",
        "gemma2",
        "gemma3",
        "granite",
        "olmo2",
        "olmoe",
        "glm",
        "glm4",
        "starcoder2",
        "smollm3",
        "cohere",
        "cohere-plus",
        "cohere2",
        "ernie4_5",
        "granite-hybrid",
    ];
    each(&names, Case::difference);
}
