//! What a target is, and the list of them.

use crate::targets::{
    code_object, configs, grammar, model, picture, requests, template, tokenizer, weights,
};
use crate::Random;

/// What reading an input came to. A panic, an end of the process, a hang and too much memory are noticed from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was taken.
    Accepted,
    /// It was refused with an error.
    Refused,
    /// Something else is wrong: a server's answer that says so, or a server that ended.
    Fault(String),
}

impl Verdict {
    /// Of a result.
    pub fn of<T, E>(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Accepted,
            Err(_) => Self::Refused,
        }
    }
}

/// Something that reads what others wrote.
pub trait Target {
    /// An input: a valid one, damaged.
    fn input(&self, random: &mut Random) -> Vec<u8>;

    /// Reads an input as a worker does.
    fn read(&mut self, input: &[u8]) -> Verdict;

    /// The most memory that reading an input of so many bytes may take.
    fn memory(&self, bytes: usize) -> usize;
}

/// Makes a target, with the files that it needs.
type Make = fn() -> Box<dyn Target>;

/// All targets: name, what is damaged, how to make it, and how many inputs the short run tries.
pub const TARGETS: [(&str, &str, Make, u64); 15] = [
    (
        "gguf-header",
        "a GGUF header, and where it puts tensors",
        model::gguf_header,
        6000,
    ),
    ("gguf", "a GGUF model, opened and loaded", model::gguf, 1500),
    (
        "config",
        "config.json of a language model's folder",
        model::config,
        1500,
    ),
    (
        "safetensors",
        "safetensors of a language model's folder",
        model::safetensors,
        800,
    ),
    (
        "weights",
        "safetensors of an image model, a LoRA, a learnt word",
        weights::target,
        2500,
    ),
    (
        "image-config",
        "configuration of image models' parts",
        configs::target,
        6000,
    ),
    (
        "tokenizer",
        "tokenizer.json, of both workers",
        tokenizer::target,
        1500,
    ),
    ("template", "chat templates", template::target, 1200),
    (
        "grammar",
        "GBNF, Lark, regular expressions, JSON schemas",
        grammar::target,
        150,
    ),
    (
        "picture",
        "PNG, JPEG, WebP and the text in them",
        picture::target,
        2500,
    ),
    ("code-object", "compiled kernels", code_object::target, 6000),
    (
        "code-bundle",
        "compiled kernels for several GPUs in one file, compressed or not",
        code_object::bundle,
        2000,
    ),
    (
        "code-image",
        "compiled kernels as they lie in a GPU's memory",
        code_object::image,
        6000,
    ),
    (
        "llm-requests",
        "requests to llm-worker-rocm",
        requests::llm,
        400,
    ),
    (
        "sd-requests",
        "requests to sd-worker-rocm",
        requests::sd,
        200,
    ),
];
