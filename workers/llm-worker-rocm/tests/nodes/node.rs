//! Processes that are nodes, and their model.

use crate::common::{tiny_llama, u32, Tensor};
use serde_json::Value;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Whatever is waited for takes less than this.
pub const LIMIT: Duration = Duration::from_secs(120);
/// What all nodes of a test know.
pub const TOKEN: &str = "of this test";

/// A model of several blocks on disk.
pub struct Model {
    folder: tempfile::TempDir,
}

impl Model {
    /// One of so many blocks, each with weights of its own.
    pub fn new(blocks: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut file = tiny_llama();
        file.set("llama.block_count", u32(blocks));
        file.set("llama.context_length", u32(100_000));
        let first: Vec<Tensor> = (file.tensors.iter())
            .filter(|tensor| tensor.name.starts_with("blk.0."))
            .cloned()
            .collect();
        for block in 1..blocks {
            for tensor in &first {
                let name = tensor.name.replace("blk.0.", &format!("blk.{block}."));
                let mut values = tensor.data.chunks_exact(4).cycle().skip(block as usize);
                let other = |_| f32::from_le_bytes(values.next().unwrap().try_into().unwrap());
                file.tensors.push(Tensor::f32(&name, &tensor.dims, other));
            }
        }
        file.write(&folder.path().join("model.gguf"));
        Self { folder }
    }

    /// Another file beside it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command of the program with this model.
    pub fn command(&self, command: &str) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
        program
            .args([command, "--device", "cpu", "--model"])
            .arg(self.file("model.gguf"))
            .env("HF_HUB_OFFLINE", "1")
            .env_remove("CANDLE_ROCM_TOKEN");
        program
    }

    /// One that generates a few tokens.
    pub fn generate(&self) -> Command {
        let mut command = self.command("generate");
        command.args(["the cat", "--greedy", "-n", "24", "--json"]);
        command
    }
}

/// A port that nobody has: below those that the system gives to connections, and other processes begin elsewhere.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(64);
    let next = || first.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % 20_000 + 10_000;
    let ports = std::iter::repeat_with(|| next() as u16);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().unwrap()
}

/// Makes a command one of a node that meets the others at a port.
pub fn as_node(mut command: Command, (rank, nodes): (usize, usize), port: u16) -> Command {
    let (rank, nodes) = (rank.to_string(), nodes.to_string());
    let address = format!("127.0.0.1:{port}");
    command
        .args([
            "--nnodes",
            &nodes,
            "--node-rank",
            &rank,
            "--rendezvous",
            &address,
        ])
        .env("CANDLE_ROCM_TOKEN", TOKEN);
    command
}

/// So many nodes that generate, started in the order of their numbers.
pub fn generate(model: &Model, nodes: usize) -> Vec<Node> {
    let port = free_port();
    let start = |rank| Node::start(as_node(model.generate(), (rank, nodes), port));
    (0..nodes).map(start).collect()
}

/// A process; killed when dropped.
pub struct Node {
    pub child: Child,
    folder: tempfile::TempDir,
}

/// A process that has ended.
pub struct Ended {
    pub code: Option<i32>,
    pub output: String,
    pub log: String,
}

impl Node {
    pub fn start(mut command: Command) -> Self {
        // Files, which never wait for a reader.
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(file("output"))
            .stderr(file("log"));
        let child = command.spawn().unwrap();
        Self { child, folder }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.read("log")
    }

    /// What it has written so far.
    pub fn output(&self) -> String {
        self.read("output")
    }

    /// Waits until it has ended by itself.
    pub fn end(mut self) -> Ended {
        let mut code = None;
        until("the end of a process", || {
            let status = self.child.try_wait().unwrap();
            code = status.and_then(|status| status.code());
            status.is_some()
        });
        Ended {
            code,
            output: self.output(),
            log: self.log(),
        }
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It has ended where the test waited for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The tokens of `generate --json`.
    pub fn tokens(&self) -> Vec<u64> {
        let report: Value = serde_json::from_str(&self.output)
            .unwrap_or_else(|e| panic!("{e}: {:?}, {}", self.output, self.log));
        let tokens = report["tokens"].as_array().unwrap();
        tokens.iter().map(|token| token.as_u64().unwrap()).collect()
    }
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
