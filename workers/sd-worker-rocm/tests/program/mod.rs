//! The program as a server, and what tests need to talk to it.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Whatever is waited for takes less than this.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The program on a free port, killed when dropped.
pub struct Program {
    process: Child,
    /// Host and port.
    pub address: String,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended where the test waited for it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program; what it is to do is still to be said.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sd-worker-rocm"))
}

impl Program {
    /// Starts `serve` with the rest of its arguments, and waits until it says where it listens.
    pub fn start(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap();
        Self {
            address: address.to_string(),
            process,
        }
    }

    /// Status and body of an answer.
    pub fn send(&self, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = answer.split_at(end.unwrap());
        let head = std::str::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body[4..].to_vec())
    }

    /// The same of JSON; null for a body that is none.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, answer) = self.send(method, path, body);
        (status, serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// Waits until the model is there, or until it can be loaded when it is asked for.
    pub fn until_ready(&self) {
        let begun = std::time::Instant::now();
        while self.ask("GET", "/ready", "").0 != 200 {
            assert!(begun.elapsed() < LIMIT, "it is not ready");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
