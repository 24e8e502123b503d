//! Kernels are compiled before they are needed: what is foreseen, in which processes, and that no request waits for it.
//! On the simulated device only, whose compiler is the system's.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::rocm_backend::candle_rocm::{self, CodeObject};
use common::{llama, u32, File};
use llm_worker_rocm::engine::api::{Event, KvDType, KvTypes, Request, SamplingOptions};
use llm_worker_rocm::engine::{Engine, EngineOptions};
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use worker::device::DeviceRequest;

/// Lengths of prompts that take different kernels.
const PROMPTS: [usize; 4] = [1, 2, 16, 200];
/// Elements of a row: a whole number of the largest blocks.
const WIDTH: u64 = 256;

fn is_simulated() -> bool {
    std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|name| name == "rocm")
        && std::env::var_os("HIP_SIM_ARCH").is_some()
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
    command.stdin(Stdio::null());
    command
}

/// A model that takes all of the prompts.
fn model() -> File {
    let mut file = llama(WIDTH);
    file.set("llama.context_length", u32(512));
    file
}

/// The model in another type.
fn quantized(folder: &Path, kind: &str) -> PathBuf {
    let (source, output) = (folder.join("model.gguf"), folder.join(kind));
    model().write(&source);
    let written = program()
        .args(["quantize", "--type", kind, "--model"])
        .args([&source, &output])
        .output()
        .unwrap();
    assert!(written.status.success(), "{written:?}");
    output
}

fn answer(engine: &Engine, prompt: usize, sampling: SamplingOptions) {
    let mut request = Request::new((0..prompt as u32).map(|i| i % 29 + 3).collect(), sampling);
    request.max_tokens = Some(4);
    let mut ticket = engine.submit(request).unwrap();
    loop {
        match ticket.events.blocking_recv().expect("the answer ends") {
            Event::Finished(_) => return,
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
}

#[test]
fn what_first_requests_use_is_foreseen() {
    if !is_simulated() {
        return;
    }
    let device = DeviceRequest::Rocm(0).select().unwrap().device;
    let gpu = candle_rocm::Device::new(0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut foreseen: BTreeSet<CodeObject> = BTreeSet::new();
    let kinds = [
        ("F32", None),
        ("F16", None),
        ("BF16", None),
        ("Q8_0", Some(KvDType::Q8_0)),
        ("Q4_K_M", None),
        ("IQ4_XS", Some(KvDType::Q4_0)),
    ];
    for (kind, kv_dtype) in kinds {
        let file = ModelFile::open(&quantized(folder.path(), kind)).unwrap();
        foreseen.extend(file.kernels(kv_dtype.map(KvTypes::from)));
        let model = file.load(&device, &LoadOptions::default()).unwrap();
        let options = EngineOptions {
            kv_dtype,
            prefix_cache: false,
            ..EngineOptions::default()
        };
        let engine = Engine::start(model, &options).unwrap();
        for prompt in PROMPTS {
            answer(&engine, prompt, SamplingOptions::greedy());
        }
        let drawn = SamplingOptions {
            temperature: 0.8,
            top_k: Some(40),
            top_p: Some(0.95),
            min_p: Some(0.05),
            ..SamplingOptions::greedy()
        };
        answer(&engine, 1, drawn);
        let loaded: BTreeSet<CodeObject> = gpu.loaded_objects().into_iter().collect();
        let unforeseen: Vec<String> = loaded
            .difference(&foreseen)
            .map(|o| o.to_string())
            .collect();
        assert!(unforeseen.is_empty(), "{kind}: {unforeseen:?}");
        let unused: Vec<String> = foreseen
            .difference(&loaded)
            .map(|o| o.to_string())
            .collect();
        println!("{kind}: {} files, unused so far: {unused:?}", loaded.len());
    }
}

/// The program on the simulated device, with a cache of its own.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended where the test waited for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(model: &Path, cache: &Path, arguments: &[&str]) -> Self {
        let mut child = serve(model, cache)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap();
        Self {
            address: address.to_string(),
            child,
        }
    }

    fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_string(),
        )
    }

    /// Waits for the model; gives the stages that were seen.
    fn until_ready(&mut self) -> BTreeSet<String> {
        let mut stages = BTreeSet::new();
        loop {
            let (status, body) = self.http("GET", "/health", "");
            if status == 200 {
                return stages;
            }
            let health: Value = serde_json::from_str(&body).unwrap();
            stages.extend(health["stage"].as_str().map(str::to_string));
            assert_eq!(self.child.try_wait().unwrap(), None, "it did not load");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Code objects that the process that serves has compiled itself.
    fn compiled(&self) -> u64 {
        let (_, text) = self.http("GET", "/metrics", "");
        let figure = text
            .lines()
            .find_map(|line| line.strip_prefix("llm_kernels_compiled_total "));
        figure.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    }

    fn complete(&self, tokens: usize) {
        let prompt: Vec<usize> = (0..tokens).map(|i| i * 5 % 29 + 3).collect();
        let body = json!({"prompt": prompt, "max_tokens": 3});
        let (status, body) = self.http("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{body}");
    }

    fn log(mut self) -> String {
        self.child.kill().unwrap();
        let mut log = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        log
    }
}

fn serve(model: &Path, cache: &Path) -> Command {
    let mut command = program();
    command
        .args([
            "serve",
            "--supervise",
            "off",
            "--device",
            "rocm",
            "--port",
            "0",
        ])
        .arg("--model")
        .arg(model)
        .env("CANDLE_ROCM_CACHE_DIR", cache);
    command
}

/// The entries of the cache that the test run uses, to be removed without loss.
fn copy_of_cache(to: &Path) {
    let Some(from) = std::env::var_os("CANDLE_ROCM_CACHE_DIR") else {
        return;
    };
    let arch = std::env::var("HIP_SIM_ARCH").unwrap();
    for entry in std::fs::read_dir(from).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.contains(&arch) && name.ends_with(".co") {
            std::os::unix::fs::symlink(&path, to.join(name)).unwrap();
        }
    }
}

/// Removes what is compiled of these families.
fn forget(cache: &Path, families: &[&str]) {
    for entry in std::fs::read_dir(cache).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if families.iter().any(|family| name.starts_with(family)) {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn a_first_start_compiles_side_by_side_and_no_request_compiles() {
    if !is_simulated() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = quantized(folder.path(), "Q8_0");
    let cache = folder.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    copy_of_cache(&cache);
    // Whatever else is missing is compiled here.
    let mut server = Server::start(&model, &cache, &[]);
    server.until_ready();
    assert_eq!(server.compiled(), 0, "in processes of its own");
    drop(server);

    let missing = ["sampling-hip", "rope-hip", "gated-hip"];
    forget(&cache, &missing);
    let mut server = Server::start(&model, &cache, &["--compile-jobs", "2"]);
    let stages = server.until_ready();
    assert!(
        stages
            .iter()
            .any(|stage| stage.starts_with("compiling kernels ")),
        "{stages:?}"
    );
    assert_eq!(server.compiled(), 0);
    for tokens in PROMPTS {
        server.complete(tokens);
    }
    assert_eq!(server.compiled(), 0);
    let log = server.log();
    assert!(
        log.contains("compiled 3 of 3 files of kernels in "),
        "{log}"
    );
    assert!(log.contains(", in 2 processes"), "{log}");

    // What nobody compiled ahead is compiled before the server is ready all the same.
    forget(&cache, &missing[..1]);
    let mut server = Server::start(&model, &cache, &["--compile-jobs", "0"]);
    server.until_ready();
    assert_eq!(server.compiled(), 1);
    server.complete(200);
    assert_eq!(server.compiled(), 1);
    drop(server);

    // A compiler that fails is a warning at first, then the reason of the failure.
    forget(&cache, &missing[..1]);
    let failed = serve(&model, &cache)
        .env("HIP_SIM_CXX", "false")
        .output()
        .unwrap();
    let log = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{log}");
    assert!(
        log.contains("sampling.hip is not compiled, its first use will try again"),
        "{log}"
    );
    assert!(log.contains("error: "), "{log}");

    // The command does without a model; sampling.hip is still missing.
    let compile = |arguments: &[&str]| {
        let output = program()
            .args(["compile-kernels", "--device", "rocm"])
            .args(arguments)
            .env("CANDLE_ROCM_CACHE_DIR", &cache)
            .env("HIP_SIM_CXX", "false")
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, log) = compile(&["--compile-jobs", "1"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("were not compiled"), "{log}");
    let (code, log) = compile(&["--arch", "voodoo2"]);
    assert_eq!(code, Some(2), "{log}");
}
