//! Several models behind one server, each in a process of its own: every API, with small random models. Places, queues
//! and crashes are tested with the worker crate's echo.

#[path = "../../../worker/tests/common/mod.rs"]
mod common;
#[path = "../../../worker/tests/common/fleet.rs"]
mod fleet;
#[path = "../numbers/mod.rs"]
mod numbers;
#[path = "../tiny_whisper/mod.rs"]
mod tiny_whisper;

mod apis;

use common::{tiny_llama, u32};
use fleet::Server;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with models.
pub struct Models(tempfile::TempDir);

impl Models {
    /// With text models of these names.
    pub fn new(names: &[&str]) -> Self {
        let models = Self(tempfile::tempdir().unwrap());
        for name in names {
            let mut file = tiny_llama();
            // For answers that take their time.
            file.set("llama.context_length", u32(200_000));
            file.write(&models.path(&format!("{name}.gguf")));
        }
        models
    }

    /// Of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }
}

/// The program with these arguments.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
    command
        .args(["serve", "--port", "0", "--device", "cpu"])
        .env("HF_HUB_OFFLINE", "1");
    command
}

/// The program with a folder of models, and the server that it is.
pub fn start(models: &Models, arguments: &[&str]) -> Server {
    let mut command = command();
    command
        .args(["--parallel", "2", "--models"])
        .arg(models.folder())
        .args(arguments);
    Server::spawn(command)
}
