//! The program as a user runs it.

mod batch;
#[path = "../../../worker/tests/common/mod.rs"]
mod common;
mod conversation;
mod generate;
mod hostile;
#[path = "../numbers/mod.rs"]
mod numbers;
mod process;
mod small;
mod speech;
#[path = "../tiny_whisper/mod.rs"]
mod tiny_whisper;

use common::{tiny_llama, File};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn worker() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
    // A machine without ROCm, whatever this one has.
    command
        .env("ROCM_PATH", "/nonexistent/rocm")
        .env_remove("HIP_PATH")
        .env_remove("HF_ENDPOINT")
        .env("HF_HUB_OFFLINE", "1");
    command
}

fn run(args: &[&str]) -> Output {
    worker().args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

struct TinyModel {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl TinyModel {
    fn new(change: impl FnOnce(&mut File)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let mut file = tiny_llama();
        change(&mut file);
        file.write(&path);
        Self {
            _folder: folder,
            path,
        }
    }

    fn arg(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

fn generate(model: &TinyModel, args: &[&str]) -> Output {
    let mut all = vec!["generate", "--device", "cpu", "--model", model.arg()];
    all.extend(args);
    run(&all)
}
