//! The program as two processes: one holds the port, the other serves and may crash.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use common::{tiny_llama, u32};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Whatever is waited for takes less than this.
const LIMIT: Duration = Duration::from_secs(120);

/// The program, supervised; killed when dropped.
struct Program {
    parent: Child,
    output: BufReader<ChildStdout>,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended where the test waited for it.
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}

fn command(model: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
    command
        .args(["serve", "--supervise", "on", "--port", "0", "--model"])
        .arg(model)
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null());
    command
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(&[&["--device", "cpu"], arguments].concat(), &[])
    }

    fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let mut file = tiny_llama();
        // For answers that take their time.
        file.set("llama.context_length", u32(200_000));
        file.write(&path);
        let mut parent = command(&path)
            .args(["--parallel", "2"])
            .args(arguments)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(parent.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("{line:?}")).to_string();
        Self {
            parent,
            output,
            address,
            _folder: folder,
        }
    }

    /// The process that serves, if there is one.
    fn serving(&self) -> Option<u32> {
        let id = self.parent.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap();
        children
            .split_whitespace()
            .next()
            .map(|id| id.parse().unwrap())
    }

    /// Status, header lines and body of an answer; the port is open at any time.
    fn http(&self, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // A process that crashes takes its connections with it.
        if stream.read_to_string(&mut answer).is_err() || answer.is_empty() {
            return (0, String::new(), String::new());
        }
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_string())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let (status, _, body) = self.http(&request);
        (status, body)
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    fn until_healthy(&self) -> Value {
        let begun = Instant::now();
        loop {
            let (status, body) = self.get("/health");
            if status == 200 {
                return serde_json::from_str(&body).unwrap();
            }
            assert!(begun.elapsed() < LIMIT, "{body}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The text of a fixed answer.
    fn ask(&self) -> (u16, String, String) {
        self.http(&post(
            &json!({"prompt": "the cat", "temperature": 0, "max_tokens": 12}),
        ))
    }

    fn answer(&self) -> String {
        let (status, _, body) = self.ask();
        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        body["choices"][0]["text"].as_str().unwrap().to_string()
    }

    /// Begins an answer that has no end of its own, and reads its first frame.
    fn endless(&self) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let body = json!({"prompt": "the cat", "stream": true, "ignore_eos": true});
        stream.write_all(post(&body).as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "no frame came");
        }
        reader
    }

    /// The exit code, and all that was logged.
    fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        let stderr = self.parent.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        let mut more = String::new();
        self.output.read_to_string(&mut more).unwrap();
        assert_eq!(more, "", "the port is told once");
        (self.parent.wait().unwrap().code(), log)
    }
}

fn post(body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

fn signal(name: &str, process: u32) {
    let id = process.to_string();
    let sent = Command::new("kill").args(["-s", name, &id]).status();
    assert!(sent.unwrap().success());
}

/// Whether a process runs: it is there and no zombie.
fn runs(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_crash_is_a_pause() {
    let program = Program::start(&[]);
    let health = program.until_healthy();
    assert_eq!(health["restarts"], Value::Null);
    let id = program.json("/info")["id"].clone();
    let answer = program.answer();
    assert!(program
        .get("/metrics")
        .1
        .contains("\nllm_restarts_total 0\n"));

    let mut running = program.endless();
    let first = program.serving().unwrap();
    signal("ABRT", first);
    // A connection of that process ends with it, one way or the other.
    let mut rest = Vec::new();
    let _ = running.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
    until("the word of the crash", || {
        let (status, body) = program.get("/health");
        let health: Value = serde_json::from_str(&body).unwrap_or_default();
        status == 503
            && health["status"] == "restarting"
            && health["restarts"]["count"] == 1
            && health["restarts"]["reason"]
                .as_str()
                .is_some_and(|reason| reason.contains("SIGABRT"))
    });
    let (status, head, body) = program.ask();
    assert_eq!(status, 503, "{body}");
    assert!(head.contains("\r\nretry-after: "), "{head}");
    let refused: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(refused["error"]["type"], "unavailable_error");

    let health = program.until_healthy();
    assert_eq!(health["restarts"]["count"], 1);
    assert_ne!(program.serving(), Some(first));
    assert_eq!(program.json("/info")["id"], id);
    assert_eq!(program.answer(), answer);
    assert!(program
        .get("/metrics")
        .1
        .contains("\nllm_restarts_total 1\n"));

    signal("TERM", program.parent.id());
    let (code, log) = program.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains("the server crashed: signal 6 (SIGABRT)"),
        "{log}"
    );
}

#[test]
fn too_many_crashes_are_the_end() {
    let program = Program::start(&["--max-restarts", "1"]);
    for _ in 0..2 {
        program.until_healthy();
        let serving = program.serving().unwrap();
        signal("ABRT", serving);
        until("the end of the process", || !runs(serving));
    }
    let (code, log) = program.end();
    assert_eq!(code, Some(134), "{log}");
    for words in [
        "crashed 2 times in 600 s",
        "SIGABRT",
        "dmesg",
        "--max-restarts",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

/// Whoever signals one process, or all of a control group.
#[test]
fn a_stop_is_graceful_however_often_it_is_told() {
    for both in [false, true] {
        let program = Program::start(&["--shutdown-grace", "1"]);
        program.until_healthy();
        let mut running = program.endless();
        let serving = program.serving().unwrap();
        if both {
            signal("TERM", serving);
        }
        signal("TERM", program.parent.id());
        let mut rest = String::new();
        running.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the server is stopping"), "{rest}");
        assert!(rest.contains("data: [DONE]\n\n"), "{rest}");
        let (code, log) = program.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(!runs(serving));
    }
}

#[test]
fn a_stop_while_it_starts_is_no_failure() {
    let program = Program::start(&[]);
    signal("TERM", program.parent.id());
    let (code, log) = program.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let program = Program::start(&["--shutdown-grace", "100"]);
    program.until_healthy();
    let running = program.endless();
    let serving = program.serving().unwrap();
    signal("INT", program.parent.id());
    until("the stop", || program.get("/ready").1.contains("stopping"));
    signal("INT", program.parent.id());
    let (code, log) = program.end();
    assert_eq!(code, Some(130), "{log}");
    assert!(!runs(serving));
    drop(running);
}

#[test]
fn nobody_serves_without_a_parent() {
    let mut program = Program::start(&[]);
    program.until_healthy();
    let serving = program.serving().unwrap();
    program.parent.kill().unwrap();
    program.parent.wait().unwrap();
    until("the end of the child", || !runs(serving));
}

#[test]
fn a_failure_of_the_start_is_told_once_and_no_crash() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.gguf");
    let output = command(&missing)
        .args(["--device", "cpu"])
        .output()
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert_eq!(log.matches("error: ").count(), 1, "{log}");
    assert!(!log.contains("crashed"), "{log}");
}

/// Launches before the simulated GPU faults: more than loading and the first prompts take, and fewer than some answers.
const LAUNCHES: u32 = 2500;

/// As ROCm does it: in the middle of an answer, by SIGABRT.
#[test]
fn a_fault_of_the_gpu_is_a_pause() {
    let simulated = std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|name| name == "rocm")
        && std::env::var_os("HIP_SIM_ARCH").is_some();
    if !simulated {
        return;
    }
    let program = Program::start_with(
        &["--device", "rocm", "--no-graph", "--kv-blocks", "32"],
        &[
            ("HIP_SIM_WRONG", &format!("abort:{LAUNCHES}")),
            // Its launches would count on a first start only.
            ("CANDLE_ROCM_VERIFY", "off"),
        ],
    );
    assert_eq!(program.until_healthy()["restarts"], Value::Null);
    let answer = program.answer();
    let asked = (1..200).find(|_| program.ask().0 != 200);
    assert!(asked.is_some(), "no fault came");
    until("the word of the crash", || {
        let (_, body) = program.get("/health");
        let health: Value = serde_json::from_str(&body).unwrap_or_default();
        (health["restarts"]["reason"].as_str()).is_some_and(|reason| reason.contains("SIGABRT"))
    });
    program.until_healthy();
    assert_eq!(program.answer(), answer);
}
