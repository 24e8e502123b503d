//! A crash of the process that serves is a pause: the other process starts the next one on the same port.

use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Whatever is waited for takes less than this.
const LIMIT: Duration = Duration::from_secs(120);

/// Status and body of an answer; 0 if the process crashed meanwhile.
fn ask(address: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    if stream.read_to_string(&mut answer).is_err() || answer.is_empty() {
        return (0, Value::Null);
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

fn until(address: &str, done: impl Fn(u16, &Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let (status, health) = ask(address, "GET", "/health", "");
        if done(status, &health) {
            return health;
        }
        assert!(begun.elapsed() < LIMIT, "{health}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The program, killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended where the test waited for it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_crash_is_a_pause() {
    let parent = Command::new(env!("CARGO_BIN_EXE_sd-worker-rocm"))
        .env(
            "MODEL_PATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-shapes-sd"),
        )
        .args([
            "serve",
            "--supervise",
            "on",
            "--device",
            "cpu",
            "--port",
            "0",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut program = Program(parent);
    let parent = &mut program.0;
    let mut line = String::new();
    let mut output = BufReader::new(parent.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    until(address, |status, _| status == 200);
    let picture = || {
        let body = json!({"prompt": "a blue star", "steps": 2, "seed": 5}).to_string();
        let (status, answer) = ask(address, "POST", "/v1/images/generations", &body);
        assert_eq!(status, 200, "{answer}");
        answer["data"][0]["b64_json"].as_str().unwrap().to_string()
    };
    let before = picture();

    let id = parent.id();
    let serving = || {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        children.trim().to_string()
    };
    let first = serving();
    let killed = Command::new("kill").args(["-s", "KILL", &first]).status();
    assert!(killed.unwrap().success());
    let told = until(address, |_, health| health["status"] == "restarting");
    let reason = told["restarts"]["reason"].as_str().unwrap();
    assert!(reason.contains("SIGKILL"), "{reason}");
    let health = until(address, |status, _| status == 200);
    assert_eq!(health["restarts"]["count"], 1);
    assert_ne!(serving(), first);
    assert_eq!(picture(), before);

    let stopped = Command::new("kill").arg(id.to_string()).status();
    assert!(stopped.unwrap().success());
    assert!(parent.wait().unwrap().success());
}
