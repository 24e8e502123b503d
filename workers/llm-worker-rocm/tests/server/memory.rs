//! The memory that a request takes, measured in a process of its own.

use crate::client::{Answer, Server};
use crate::script::Play;
use axum::body::Body;
use axum::http::Request;
use std::time::Duration;

/// The variable by which a test starts itself once more, with the request to make.
const CHILD: &str = "LLM_WORKER_LARGE_REQUEST";
/// Most bytes of memory that a request may take for each byte of the longest body.
const FACTOR: usize = 16;
/// The longest body, as by default.
const BODY: usize = 16 << 20;
/// The longest text that is tokenized.
const LONGEST_TEXT: usize = 768 << 10;

const TOKENIZE: &str = "/tokenize";
const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Requests that took gigabytes: name, route, what the body begins with, what fills it, how it ends, and the answer.
const REQUESTS: [(&str, &str, &str, &str, &str, u16); 17] = [
    ("tokens", TOKENIZE, r#"{"content": ""#, "a", r#""}"#, 400),
    (
        "pieces",
        TOKENIZE,
        r#"{"with_pieces": true, "content": ""#,
        "ab ",
        r#""}"#,
        400,
    ),
    (
        "detokenize",
        "/detokenize",
        r#"{"tokens": ["#,
        "100,",
        "]}",
        200,
    ),
    (
        "variables",
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"zz": ["#,
        r#"{"a":0},"#,
        "]}}",
        400,
    ),
    ("messages", CHAT, r#"{"messages": ["#, "0,", "]}", 400),
    (
        "message",
        CHAT,
        r#"{"messages": [{"role": "user", "content": ""#,
        "a",
        r#""}]}"#,
        400,
    ),
    (
        "tools",
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "tools": ["#,
        "[],",
        "]}",
        400,
    ),
    (
        "stop",
        TEXT,
        r#"{"prompt": "x", "stop": ["#,
        r#""","#,
        "]}",
        400,
    ),
    (
        "bias",
        TEXT,
        r#"{"prompt": "x", "logit_bias": {"#,
        r#""1":1,"#,
        "}}",
        400,
    ),
    (
        "unknown field",
        TEXT,
        r#"{"prompt": "x", "zz": ["#,
        r#"{"a":0},"#,
        "]}",
        200,
    ),
    ("prompt", TEXT, r#"{"prompt": ""#, "a", r#""}"#, 400),
    ("prompts", TEXT, r#"{"prompt": ["#, r#""","#, "]}", 400),
    ("token prompts", TEXT, r#"{"prompt": ["#, "[],", "]}", 400),
    (
        "schema",
        TEXT,
        r#"{"prompt": "x", "json_schema": ["#,
        "[],",
        "]}",
        400,
    ),
    ("job", "/v1/jobs", r#"{"prompt": ""#, "a", r#""}"#, 400),
    (
        "embeddings",
        "/v1/embeddings",
        r#"{"input": ["#,
        r#""","#,
        "]}",
        400,
    ),
    ("no JSON", TEXT, "", "[", "", 400),
];

/// A figure of this process, in bytes.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Makes a request and tells how many bytes it took at most.
async fn measure(server: &Server, path: &str, body: String, expected: u16) -> usize {
    let request = Request::post(path).header("Content-Type", "application/json");
    let request = request.body(Body::from(body)).unwrap();
    let before = memory("VmRSS");
    // Forgets the peak so far.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let answer = Answer::of(server.send(request).await).await;
    let peak = memory("VmHWM").saturating_sub(before);
    let text: String = answer.text.chars().take(300).collect();
    assert_eq!(answer.status, expected, "{text}");
    peak
}

/// What the process does that is measured.
async fn be_measured(name: &str) {
    let server = Server::new([Play::Say("x")]);
    // What the process takes anyway.
    server.get("/health").await;
    let before = memory("VmRSS");
    let peak = match REQUESTS.iter().find(|request| request.0 == name) {
        Some((_, path, begin, part, end, expected)) => {
            let count = (BODY - begin.len() - end.len() - 2) / part.len();
            let parts = part.repeat(count);
            let body = format!("{begin}{}{end}", parts.trim_end_matches(','));
            measure(&server, path, body, *expected).await
        }
        None => {
            let text = "ab ".repeat(LONGEST_TEXT / 3);
            let body = format!(r#"{{"with_pieces": true, "content": "{text}"}}"#);
            measure(&server, TOKENIZE, body, 200).await
        }
    };
    println!("{name}: {} MiB", peak >> 20);
    assert!(peak < FACTOR * BODY, "{name}: {} MiB", peak >> 20);
    // And gives it back.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let after = memory("VmRSS").saturating_sub(before);
    // But for what lies at the top of an arena of the allocator, which is used again by the next of such requests.
    assert!(after < 4 * BODY, "{name}: {} MiB stay", after >> 20);
}

#[tokio::test]
async fn requests_take_no_more_memory_than_their_bytes_allow() {
    if let Ok(name) = std::env::var(CHILD) {
        return be_measured(&name).await;
    }
    let names = REQUESTS.iter().map(|request| request.0);
    for name in names.chain(["the longest text"]) {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "memory::requests_take_no_more_memory_than_their_bytes_allow",
                "--nocapture",
            ])
            .env(CHILD, name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned()
            + &String::from_utf8_lossy(&child.stderr);
        print!(
            "{}",
            said.lines()
                .filter(|line| line.contains("MiB"))
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        );
        assert!(child.status.success(), "{name}: {said}");
    }
}
