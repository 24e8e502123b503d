//! Requests to a server in a process of its own, with a small model on the CPU. The first line of an input is the path,
//! the rest the body.

use super::{damaged_json, JSON_WORDS};
use crate::target::{Target, Verdict};
use crate::{child, corpus, Random};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long an answer is waited for; then the client goes away, as impatient ones do.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long `/health` may take, whatever else goes on.
const HEALTH: Duration = Duration::from_secs(20);
/// Longest beginning of an answer that is read.
const MAX_ANSWER: u64 = 1 << 20;
/// The most resident memory of a server over all requests.
const MAX_RESIDENT: u64 = 1 << 30;
/// Statuses of the 500s that say what they mean: not implemented, not now, too slow, no room.
const MEANT: [u16; 4] = [501, 503, 504, 507];

struct Server {
    name: &'static str,
    arguments: Vec<String>,
    corpus: Vec<(String, String)>,
    running: Option<Running>,
}

struct Running {
    process: Child,
    address: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn llm() -> Box<dyn Target> {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../workers/llm-worker-rocm/src/doctor/tiny.gguf");
    let arguments = [
        "serve",
        "-m",
        &model.display().to_string(),
        "-d",
        "cpu",
        "--port",
        "0",
    ];
    server("llm-worker-rocm", "llm-requests", &arguments)
}

pub(crate) fn sd() -> Box<dyn Target> {
    let arguments = [
        "serve",
        "-d",
        "cpu",
        "--port",
        "0",
        "--max-steps",
        "2",
        "--max-side",
        "64",
        "--max-pixels",
        "4096",
        "--max-batch",
        "1",
    ];
    server("sd-worker-rocm", "sd-requests", &arguments)
}

fn server(name: &'static str, folder: &str, arguments: &[&str]) -> Box<dyn Target> {
    let texts = corpus::texts(folder).into_iter();
    let split = texts.filter_map(|text| {
        let (path, body) = text.split_once('\n')?;
        Some((path.to_string(), body.to_string()))
    });
    Box::new(Server {
        name,
        arguments: arguments.iter().map(|a| (*a).to_string()).collect(),
        corpus: split.collect(),
        running: None,
    })
}

impl Server {
    fn start(&self) -> Result<Running, String> {
        let program = child::program(self.name)?;
        let mut process = Command::new(&program)
            .args(&self.arguments)
            .args(["--supervise", "off", "--log-level", "off"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let output = process.stdout.take().ok_or("no standard output")?;
        let mut running = Running {
            process,
            address: String::new(),
        };
        let mut lines = BufReader::new(output).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some((_, address)) = line.split_once("http://") {
                running.address = address.trim().to_string();
                break;
            }
        }
        // What it says later is of no interest, and must not fill the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        if running.address.is_empty() {
            return Err(format!("{} does not listen", program.display()));
        }
        // The port is open before the model is there.
        for _ in 0..600 {
            if let Ok(200) = ask(&running.address, "GET", "/ready", b"", HEALTH) {
                return Ok(running);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err("the server does not get ready".to_string())
    }
}

/// Sends a request and gives the status; what follows is read and forgotten.
fn ask(
    address: &str,
    method: &str,
    path: &str,
    body: &[u8],
    patience: Duration,
) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    // A server that has seen enough may answer and close before all was sent.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let read = stream.take(MAX_ANSWER).read_to_end(&mut answer);
    let status = String::from_utf8_lossy(&answer)
        .split(' ')
        .nth(1)
        .and_then(|status| status.get(..3)?.parse().ok());
    match (status, read) {
        (Some(status), _) => Ok(status),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Err(std::io::Error::other("no answer")),
    }
}

/// The most memory that a process and its children have had.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = peak
        .and_then(|text| text.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0);
    kib << 10
}

impl Target for Server {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let (path, body) = random.pick(&self.corpus);
        let body = damaged_json(std::slice::from_ref(body), &JSON_WORDS, random);
        [path.as_bytes(), b"\n", &body].concat()
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let end = input.iter().position(|byte| *byte == b'\n');
        let (path, body) = input.split_at(end.unwrap_or(input.len()));
        let path = String::from_utf8_lossy(path);
        let body = body.get(1..).unwrap_or_default();
        if self.running.is_none() {
            match self.start() {
                Ok(running) => self.running = Some(running),
                Err(error) => return Verdict::Fault(error),
            }
        }
        let Some(running) = &mut self.running else {
            return Verdict::Fault("the server is gone".to_string());
        };
        let answer = ask(&running.address, "POST", &path, body, PATIENCE);
        let alive = ask(&running.address, "GET", "/health", b"", HEALTH);
        let ended = running.process.try_wait().ok().flatten();
        let most = resident(running.process.id());
        let fault = match (&answer, alive) {
            _ if ended.is_some() => Some(format!("the server ended: {ended:?}")),
            (_, Err(error)) => Some(format!("/health: {error}")),
            (Ok(status), _) if *status >= 500 && !MEANT.contains(status) => {
                Some(format!("status {status}"))
            }
            _ if most > MAX_RESIDENT => Some(format!("the server has taken {most} bytes")),
            _ => None,
        };
        match (fault, answer) {
            (Some(fault), _) => {
                self.running = None;
                Verdict::Fault(fault)
            }
            (None, Ok(200..=299)) => Verdict::Accepted,
            (None, _) => Verdict::Refused,
        }
    }

    fn memory(&self, bytes: usize) -> usize {
        // Of the client; the server's is looked at in its own process.
        64 * bytes + (64 << 20)
    }
}
