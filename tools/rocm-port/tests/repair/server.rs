//! An endpoint that says what a test wrote for it.

use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What one request is answered with.
#[derive(Clone)]
pub enum Script {
    /// A message, as one JSON document.
    Whole(String),
    /// A message in pieces.
    Stream(String),
    /// A status, headers and a body.
    Status(u16, &'static str, &'static str),
    /// Pieces without an end.
    Endless,
    /// A piece each 100 ms, without an end.
    Trickle,
    /// A stream that ends in the middle.
    Cut,
    /// The connection is closed.
    Close,
}

/// A server on a port of its own.
pub struct Server {
    pub address: SocketAddr,
    /// Heads and bodies of the requests.
    pub requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Server {
    /// Answers by the scripts, the last one again and again.
    pub fn start(scripts: Vec<Script>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        std::thread::spawn(move || {
            let mut next = 0;
            for stream in listener.incoming().flatten() {
                let Some(request) = read(&stream) else {
                    continue;
                };
                let script = scripts[next.min(scripts.len() - 1)].clone();
                next += 1;
                kept.lock().unwrap().push(request);
                // The client may leave whenever it likes.
                std::thread::spawn(move || answer(stream, script));
            }
        });
        Server { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the n-th request said to the model.
    pub fn asked(&self, number: usize) -> String {
        let requests = self.requests.lock().unwrap();
        let messages = requests[number].1["messages"].as_array().unwrap();
        let texts = messages.iter().map(|m| m["content"].as_str().unwrap());
        texts.collect::<Vec<_>>().join("\n")
    }

    pub fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn read(stream: &TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let before = head.len();
        reader.read_line(&mut head).ok()?;
        if head.len() == before || head[before..].trim().is_empty() {
            break;
        }
    }
    let length = head.lines().find_map(|line| {
        let line = line.to_ascii_lowercase();
        line.strip_prefix("content-length:")?.trim().parse().ok()
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

fn answer(mut stream: TcpStream, script: Script) -> std::io::Result<()> {
    let stream_head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let piece = |text: &str| {
        format!(
            "data: {}\n\n",
            json!({"choices": [{"delta": {"content": text}}]})
        )
    };
    match script {
        Script::Whole(text) => {
            let body = json!({
                "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 200},
            });
            plain(&mut stream, 200, "", &body.to_string())
        }
        Script::Stream(text) => {
            stream.write_all(stream_head.as_bytes())?;
            for part in text.split_inclusive('\n') {
                stream.write_all(piece(part).as_bytes())?;
            }
            let last =
                json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}});
            write!(stream, ": a comment\n\ndata: {last}\n\ndata: [DONE]\n\n")
        }
        Script::Status(status, headers, body) => plain(&mut stream, status, headers, body),
        Script::Endless => {
            stream.write_all(stream_head.as_bytes())?;
            loop {
                stream.write_all(piece(&"no end ".repeat(100)).as_bytes())?;
            }
        }
        Script::Trickle => {
            stream.write_all(stream_head.as_bytes())?;
            loop {
                stream.write_all(piece("x").as_bytes())?;
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Script::Cut => {
            stream.write_all(stream_head.as_bytes())?;
            stream.write_all(piece("--- a/k.hip").as_bytes())
        }
        Script::Close => Ok(()),
    }
}

fn plain(stream: &mut TcpStream, status: u16, headers: &str, body: &str) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\
         {headers}\r\n{body}",
        body.len()
    )
}
