//! A server of several models, and what tests need to talk to it.

#![allow(dead_code)] // each test program uses its own part

use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Whatever is waited for takes less than this.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The program; killed when dropped.
pub struct Server {
    pub parent: Child,
    _output: BufReader<ChildStdout>,
    log: std::fs::File,
    pub address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended where the test waited for it.
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_string()
    }
}

impl Server {
    pub fn spawn(mut command: Command) -> Self {
        let log = tempfile::tempfile().unwrap();
        let stderr = Stdio::from(log.try_clone().unwrap());
        let mut parent = command
            // No router looks after it.
            .env("WORKER_SHUTDOWN_LINGER", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(parent.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .map(str::to_string);
        let address = address.unwrap_or_else(|| panic!("{line:?}"));
        let server = Self {
            parent,
            _output: output,
            log,
            address,
        };
        until("the start", || server.get("/ready").status == 200);
        server
    }

    fn http(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let answer = String::from_utf8(bytes).unwrap();
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("{answer:?}"));
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_lowercase(),
            body: if chunked {
                whole(body)
            } else {
                body.to_string()
            },
        }
    }

    pub fn request(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        self.http(&bytes_of(method, path, headers, body))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    pub fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request(
            "POST",
            path,
            &["Content-Type: application/json"],
            body.to_string().as_bytes(),
        )
    }

    /// The text of a fixed answer.
    pub fn complete(&self, model: &str) -> Answer {
        self.post("/v1/completions", &prompt(model))
    }

    /// Begins an answer that has no end of its own, and reads its first frame.
    pub fn endless(&self, model: &str) -> BufReader<TcpStream> {
        let body = json!({"model": model, "prompt": "the cat", "stream": true, "ignore_eos": true});
        let request = bytes_of(
            "POST",
            "/v1/completions",
            &["Content-Type: application/json"],
            body.to_string().as_bytes(),
        );
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&request).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "no frame came");
        }
        reader
    }

    /// A model's entry in the list.
    pub fn model(&self, name: &str) -> Value {
        let list = self.json("/models");
        let found = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["id"] == name);
        found.unwrap_or_else(|| panic!("{name} in {list}")).clone()
    }

    pub fn state(&self, name: &str) -> String {
        self.model(name)["status"]["value"]
            .as_str()
            .unwrap()
            .to_string()
    }

    pub fn until_state(&self, name: &str, state: &str) {
        until(&format!("{name}: {state}"), || self.state(name) == state);
    }

    /// Models in a state.
    pub fn count(&self, state: &str) -> usize {
        let list = self.json("/v1/models");
        let all = list["data"].as_array().unwrap().iter();
        // Adapters are listed, too, behind a colon.
        let all = all.filter(|entry| !entry["id"].as_str().unwrap().contains(':'));
        all.filter(|entry| entry["status"]["value"] == state)
            .count()
    }

    /// The processes of models.
    pub fn processes(&self) -> Vec<u32> {
        let id = self.parent.id();
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let children = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        let all: Vec<String> = children.collect();
        all.iter()
            .flat_map(|text| text.split_whitespace())
            .map(|id| id.parse().unwrap())
            .collect()
    }

    /// The exit code, and all that was logged.
    pub fn end(mut self) -> (Option<i32>, String) {
        let code = self.parent.wait().unwrap().code();
        let mut log = String::new();
        self.log.rewind().unwrap();
        self.log.read_to_string(&mut log).unwrap();
        (code, log)
    }
}

pub fn prompt(model: &str) -> Value {
    json!({"model": model, "prompt": "the cat", "temperature": 0, "max_tokens": 6})
}

fn bytes_of(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A body that came in chunks.
fn whole(chunks: &str) -> String {
    let mut rest = chunks;
    let mut body = String::new();
    while let Some((length, tail)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        if length == 0 {
            break;
        }
        body.push_str(&tail[..length]);
        rest = &tail[length + 2..];
    }
    body
}

pub fn signal(name: &str, process: u32) {
    assert!(signal_if_there(name, process));
}

/// Whether the process was there for it.
pub fn signal_if_there(name: &str, process: u32) -> bool {
    let id = process.to_string();
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", name, &id]).stderr(Stdio::null()).status();
    sent.unwrap().success()
}

/// Whether a process runs: it is there and no zombie.
pub fn runs(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

pub fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}
