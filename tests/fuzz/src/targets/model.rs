//! Language models: a GGUF file, or a folder with one of its files damaged.

use super::files::{tiny_llama, File};
use super::{damaged_json, JSON_WORDS};
use crate::target::{Target, Verdict};
use crate::{corpus, mutate, Random};
use candle_core::Device;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Opens a model, and loads what is accepted.
fn open(path: &Path) -> Verdict {
    let opened = ModelFile::open(path).and_then(|model| {
        model.describe()?;
        // What a template is refused for concerns no other part of the file.
        let _ = model.chat_template();
        let _ = model.tokenizer().encode("the cat <|im_end|> 1", true);
        model.load(
            &Device::Cpu,
            &LoadOptions {
                context: Some(64),
                ..LoadOptions::default()
            },
        )
    });
    Verdict::of(opened)
}

struct Gguf {
    valid: Vec<u8>,
    header: usize,
    folder: tempfile::TempDir,
}

pub(crate) fn gguf() -> Box<dyn Target> {
    Box::new(Gguf::new())
}

impl Gguf {
    fn new() -> Self {
        let valid = tiny_llama().bytes();
        let header = worker::gguf::Gguf::read(std::io::Cursor::new(&valid[..]));
        Self {
            header: header.map_or(valid.len(), |gguf| gguf.data_offset as usize),
            valid,
            folder: folder(),
        }
    }
}

impl Target for Gguf {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        if random.one_in(20) {
            let mut noise = b"GGUF\x03\0\0\0".to_vec();
            for _ in 0..random.size() {
                noise.push(random.bits() as u8);
            }
            return noise;
        }
        let mut input = self.valid.clone();
        mutate::bytes(&mut input, self.header, random);
        input
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let path = self.folder.path().join("model.gguf");
        match std::fs::write(&path, input) {
            Ok(()) => open(&path),
            Err(error) => Verdict::Fault(error.to_string()),
        }
    }

    fn memory(&self, bytes: usize) -> usize {
        64 * bytes + (64 << 20)
    }
}

/// The header alone: what it says of tensors has to be true.
struct Header(Gguf);

pub(crate) fn gguf_header() -> Box<dyn Target> {
    Box::new(Header(Gguf::new()))
}

impl Target for Header {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        self.0.input(random)
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let Ok(gguf) = worker::gguf::Gguf::read(std::io::Cursor::new(input)) else {
            return Verdict::Refused;
        };
        for (name, info) in gguf.tensors() {
            let end = gguf
                .data_offset
                .checked_add(info.offset)
                .and_then(|at| at.checked_add(info.bytes));
            if end.is_none_or(|end| end > input.len() as u64) || info.elem_count() == 0 {
                return Verdict::Fault(format!("tensor {name:?} is empty or leaves the file"));
            }
        }
        Verdict::Accepted
    }

    fn memory(&self, bytes: usize) -> usize {
        64 * bytes + (64 << 10)
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for files can be made")
}

/// A folder of which one file is damaged.
struct Folder {
    folder: tempfile::TempDir,
    name: &'static str,
    kind: Kind,
}

enum Kind {
    Json(Vec<String>),
    Bytes(Vec<u8>),
}

pub(crate) fn config() -> Box<dyn Target> {
    Box::new(Folder {
        folder: model_folder(),
        name: "config.json",
        kind: Kind::Json(corpus::texts("config")),
    })
}

pub(crate) fn safetensors() -> Box<dyn Target> {
    Box::new(Folder {
        folder: model_folder(),
        name: "model.safetensors",
        kind: Kind::Bytes(weights(&tiny_llama())),
    })
}

/// The small model as Hugging Face's tools write it. Values do not matter.
fn model_folder() -> tempfile::TempDir {
    let folder = folder();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file can be written");
    };
    let named = |files: Vec<(String, Vec<u8>)>, name: &str| {
        let found = files.into_iter().find(|(known, _)| known == name);
        found.expect("the corpus has it").1
    };
    write("config.json", &named(corpus::files("config"), "llama.json"));
    write(
        "tokenizer.json",
        &named(corpus::files("tokenizer"), "bytes.json"),
    );
    write("model.safetensors", &weights(&tiny_llama()));
    folder
}

/// A GGUF file's tensors under the names of Hugging Face's Llama.
fn weights(file: &File) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for tensor in &file.tensors {
        let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
        let start = data.len();
        data.extend_from_slice(&tensor.data);
        header.insert(
            folder_name(&tensor.name),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let mut header = serde_json::Value::from(header).to_string();
    header += &" ".repeat(header.len().wrapping_neg() % 8);
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
}

fn folder_name(name: &str) -> String {
    let name = name.trim_end_matches(".weight");
    let known = match name.strip_prefix("blk.0.") {
        Some("attn_norm") => "layers.0.input_layernorm",
        Some("attn_q") => "layers.0.self_attn.q_proj",
        Some("attn_k") => "layers.0.self_attn.k_proj",
        Some("attn_v") => "layers.0.self_attn.v_proj",
        Some("attn_output") => "layers.0.self_attn.o_proj",
        Some("ffn_norm") => "layers.0.post_attention_layernorm",
        Some("ffn_gate") => "layers.0.mlp.gate_proj",
        Some("ffn_up") => "layers.0.mlp.up_proj",
        Some(_) => "layers.0.mlp.down_proj",
        None if name == "token_embd" => "embed_tokens",
        None => "norm",
    };
    format!("model.{known}.weight")
}

impl Target for Folder {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        match &self.kind {
            Kind::Json(corpus) => damaged_json(corpus, &JSON_WORDS, random),
            Kind::Bytes(valid) => super::weights::damaged(valid, random),
        }
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let path: PathBuf = self.folder.path().join(self.name);
        match std::fs::write(&path, input) {
            Ok(()) => open(self.folder.path()),
            Err(error) => Verdict::Fault(error.to_string()),
        }
    }

    fn memory(&self, bytes: usize) -> usize {
        256 * bytes + (64 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_valid() {
        assert_eq!(open(model_folder().path()), Verdict::Accepted);
        let mut gguf = Gguf::new();
        assert_eq!(gguf.read(&tiny_llama().bytes()), Verdict::Accepted);
    }
}
