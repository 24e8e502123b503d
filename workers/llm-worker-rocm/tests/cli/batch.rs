//! Batches: files of requests, also after the program was killed.

use super::common::u32;
use super::*;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// A folder with a model, and room for inputs and outputs.
struct Batch {
    model: TinyModel,
    folder: tempfile::TempDir,
}

impl Batch {
    fn new() -> Self {
        Self {
            model: TinyModel::new(|file| {
                file.set("llama.context_length", u32(2048));
            }),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn input(&self, lines: &[String]) -> PathBuf {
        let path = self.path("in.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = worker();
        command
            .arg("batch")
            .arg(self.path("in.jsonl"))
            .arg("-o")
            .arg(self.path("out.jsonl"))
            .args(["--device", "cpu", "--model", self.model.arg()])
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end; gives the summary.
    fn run(&self, args: &[&str]) -> Value {
        let output = self.command(args).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn results(&self) -> Vec<Value> {
        results(&self.path("out.jsonl"))
    }
}

fn results(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The results by their ids, each of which comes once.
fn by_id(results: &[Value]) -> BTreeMap<String, &Value> {
    let mut all = BTreeMap::new();
    for result in results {
        let id = result["custom_id"].as_str().unwrap().to_string();
        assert!(all.insert(id, result).is_none(), "twice: {result}");
    }
    all
}

fn line(id: impl std::fmt::Display, url: &str, body: Value) -> String {
    json!({"custom_id": id.to_string(), "method": "POST", "url": url, "body": body}).to_string()
}

/// A request for so many tokens.
fn completion(id: usize, tokens: usize) -> String {
    let word = ["the cat", "a dog", "the hat", "one"][id % 4];
    let body = json!({"prompt": format!("{word} {}", "x".repeat(id / 4 % 9)), "max_tokens": tokens, "temperature": 0, "ignore_eos": true});
    line(format!("id-{id}"), "/v1/completions", body)
}

fn completions(count: usize, tokens: usize) -> Vec<String> {
    (0..count).map(|id| completion(id, tokens)).collect()
}

#[test]
fn every_line_has_its_result_or_its_error() {
    let batch = Batch::new();
    let messages = json!([{"role": "user", "content": "the cat"}]);
    let mut lines = vec![
        line(
            "chat",
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 3, "ignore_eos": true}),
        ),
        line(
            "text",
            "/v1/completions",
            json!({"prompt": ["the", "cat"], "max_tokens": 3, "ignore_eos": true, "n": 2}),
        ),
        line(
            "response",
            "/v1/responses",
            json!({"input": "the cat", "max_output_tokens": 3, "ignore_eos": true}),
        ),
        line(
            "message",
            "/v1/messages",
            json!({"model": "default", "messages": messages, "max_tokens": 3, "ignore_eos": true}),
        ),
        line(
            "refused",
            "/v1/completions",
            json!({"prompt": "the", "max_tokens": 0}),
        ),
        line("message refused", "/v1/messages", json!({"messages": []})),
        line("no embeddings", "/v1/embeddings", json!({"input": "the"})),
        line(
            "no reranker",
            "/v1/rerank",
            json!({"query": "the", "documents": ["a"]}),
        ),
        line(
            "no such model",
            "/v1/completions",
            json!({"prompt": "the", "model": "other"}),
        ),
        "{\"custom_id\": ".to_string(),
        String::new(),
        line(
            "chat",
            "/v1/chat/completions",
            json!({"messages": messages}),
        ),
        line("elsewhere", "/v1/images/generations", json!({})),
        line(
            "streams",
            "/v1/completions",
            json!({"prompt": "the", "stream": true}),
        ),
    ];
    lines.push(line(
        "long",
        "/v1/completions",
        json!({"prompt": "x".repeat(5000)}),
    ));
    batch.input(&lines);
    let summary = batch.run(&["--max-line-bytes", "4096"]);
    assert_eq!(
        (&summary["lines"], &summary["answered"], &summary["failed"]),
        (&json!(14), &json!(4), &json!(10))
    );
    // Two prompts with two answers of three tokens each, and three others.
    assert_eq!(summary["completion_tokens"], 12 + 9);
    let all = batch.results();
    assert_eq!(all.len(), 14);
    let of_requests: Vec<Value> = all
        .iter()
        .filter(|r| r["error"].is_null())
        .cloned()
        .collect();
    let of_requests = by_id(&of_requests);
    let body = |id: &str, status: u16| {
        let response = &of_requests[id]["response"];
        assert_eq!(response["status_code"], status, "{id}: {response}");
        assert!(response["request_id"].as_str().unwrap().len() > 8);
        assert!(of_requests[id]["id"]
            .as_str()
            .unwrap()
            .starts_with("batch_req_"));
        &response["body"]
    };
    assert_eq!(body("chat", 200)["object"], "chat.completion");
    assert_eq!(body("text", 200)["choices"].as_array().unwrap().len(), 4);
    assert_eq!(body("response", 200)["object"], "response");
    assert_eq!(body("message", 200)["type"], "message");
    assert_eq!(body("refused", 400)["error"]["param"], "max_tokens");
    // In the form of its own API.
    assert_eq!(body("message refused", 400)["type"], "error");
    assert!(body("no embeddings", 400)["error"]["message"]
        .as_str()
        .unwrap()
        .contains("--embedding-model"));
    assert!(body("no reranker", 400)["error"]["message"]
        .as_str()
        .unwrap()
        .contains("--rerank-model"));
    body("no such model", 404);
    let mut faults: Vec<(u64, &str)> = all
        .iter()
        .filter(|result| !result["error"].is_null())
        .map(|result| {
            (
                result["error"]["line"].as_u64().unwrap(),
                result["error"]["code"].as_str().unwrap(),
            )
        })
        .collect();
    faults.sort();
    let expected = [
        (10, "invalid_json_line"),
        (12, "duplicate_custom_id"),
        (13, "invalid_url"),
        (14, "invalid_body"),
        (15, "line_too_long"),
    ];
    assert_eq!(faults, expected);

    // Again: nothing is left to do, not even to load the model.
    let before = std::fs::read(batch.path("out.jsonl")).unwrap();
    let summary = batch.run(&["--max-line-bytes", "4096"]);
    assert_eq!(
        (&summary["skipped"], &summary["answered"]),
        (&json!(14), &json!(0))
    );
    assert_eq!(std::fs::read(batch.path("out.jsonl")).unwrap(), before);
    // What has failed is asked again, and stands once.
    let summary = batch.run(&["--max-line-bytes", "100000", "--retry-errors"]);
    assert_eq!(
        (
            &summary["skipped"],
            &summary["answered"],
            &summary["failed"]
        ),
        (&json!(4), &json!(0), &json!(10))
    );
    assert_eq!(batch.results().len(), 14);
}

/// Waits until an output has so many lines.
fn wait_for_lines(path: &Path, child: &mut Child, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .count()
        < count
    {
        assert_eq!(child.try_wait().unwrap(), None, "it ended early");
        assert!(Instant::now() < deadline, "it does nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_killed_run_is_gone_on_with_whatever_the_order() {
    let batch = Batch::new();
    let lines = completions(200, 40);
    batch.input(&lines);
    let mut child = batch
        .command(&["--concurrency", "4"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for_lines(&batch.path("out.jsonl"), &mut child, 20);
    child.kill().unwrap();
    child.wait().unwrap();
    let so_far = results(&batch.path("out.jsonl")).len();
    assert!((20..200).contains(&so_far), "{so_far}");
    // As a loss of power leaves it.
    let out = std::fs::File::options()
        .append(true)
        .open(batch.path("out.jsonl"));
    out.unwrap()
        .write_all(b"{\"id\":\"batch_req_1\",\"custom_id\":\"id-1")
        .unwrap();
    let summary = batch.run(&[]);
    assert_eq!(summary["skipped"], so_far);
    assert_eq!(summary["answered"], 200 - so_far);
    let first = batch.results();
    let first = by_id(&first);
    assert_eq!(first.len(), 200);

    // The same requests in another order, alone: the same answers.
    let other = Batch::new();
    let mut turned: Vec<String> = lines.into_iter().step_by(5).collect();
    turned.reverse();
    other.input(&turned);
    other.run(&["--concurrency", "1"]);
    let second = other.results();
    for (id, result) in by_id(&second) {
        let text = |result: &Value| result["response"]["body"]["choices"][0]["text"].clone();
        assert_eq!(text(result), text(first[&id]), "{id}");
    }
    assert_eq!(second.len(), 40);
}

#[test]
fn an_interrupted_run_finishes_what_has_begun() {
    let batch = Batch::new();
    batch.input(&completions(400, 40));
    let mut child = batch
        .command(&["--concurrency", "3", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_lines(&batch.path("out.jsonl"), &mut child, 5);
    let id = child.id().to_string();
    assert!(Command::new("kill")
        .args(["-INT", &id])
        .status()
        .unwrap()
        .success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("the same command goes on"));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let done = batch.results().len();
    assert_eq!(
        (&summary["is_interrupted"], &summary["answered"]),
        (&json!(true), &json!(done))
    );
    assert!((5..400).contains(&done), "{done}");
    assert_eq!(batch.run(&[])["answered"], 400 - done);
}

#[test]
fn another_input_or_model_is_noticed() {
    let batch = Batch::new();
    batch.input(&completions(3, 2));
    batch.run(&[]);
    let refused = |args: &[&str], what: &str| {
        let output = batch.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains(what),
            "{}",
            text(&output.stderr)
        );
    };
    let before = batch.results();
    batch.input(&completions(5, 2));
    refused(&[], "another input");
    assert_eq!(batch.results(), before);
    let summary = batch.run(&["--force"]);
    assert_eq!(
        (&summary["skipped"], &summary["answered"]),
        (&json!(3), &json!(2))
    );
    // The output is for the new input from now on.
    assert_eq!(batch.run(&[])["skipped"], 5);
    let other = TinyModel::new(|file| {
        file.set("llama.context_length", u32(1024));
    });
    refused(&["--model", other.arg()], "cannot be used multiple times");
    std::fs::copy(other.arg(), batch.model.arg()).unwrap();
    refused(&[], "another model");
    std::fs::remove_file(batch.path("out.jsonl.state")).unwrap();
    refused(&[], "out.jsonl.state");
    std::fs::write(batch.path("out.jsonl"), "a letter\n").unwrap();
    refused(&["--force"], "no result of a batch");
    assert_eq!(
        std::fs::read(batch.path("out.jsonl")).unwrap(),
        b"a letter\n"
    );
}

#[test]
fn arguments_that_make_no_sense() {
    let batch = Batch::new();
    let input = batch.input(&completions(1, 1));
    let (input, model) = (input.to_str().unwrap(), batch.model.arg());
    for (args, what) in [
        (&["-o", "x.jsonl"][..], "--model, or --url"),
        (&["-o", "-", "--json", "--model", model], "-o -"),
        (&["-o", input, "--model", model], "the input and the output"),
        (
            &["-o", "x.jsonl", "--model", model, "--concurrency", "0"],
            "--concurrency",
        ),
        (
            &["-o", "x.jsonl", "--model", model, "--api-key", "k"],
            "--url",
        ),
        (&["-o", "x.jsonl", "--url", "ftp://x"], "http://"),
        (
            &["-o", "x.jsonl", "--url", "http://x", "--model", model],
            "cannot be used with",
        ),
        (
            &["-o", "x.jsonl", "--url", "http://x", "--context", "9"],
            "cannot be used with",
        ),
        (&["-o", "/dev/null", "--model", model], "regular file"),
        (&["-o", "/nowhere/x.jsonl", "--model", model], "/nowhere"),
        (&["-o", "x.jsonl", "--model", "absent.gguf"], "absent.gguf"),
    ] {
        let output = run(&[&["batch", input][..], args].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(
            text(&output.stderr).contains(what),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty());
    }
    let output = run(&["batch", "absent.jsonl", "-o", "x.jsonl", "--model", model]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!Path::new("x.jsonl").exists());
}

#[test]
fn through_pipes() {
    let batch = Batch::new();
    let mut child = worker()
        .args([
            "batch",
            "-",
            "-o",
            "-",
            "--device",
            "cpu",
            "--model",
            batch.model.arg(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    // Each is answered while the next one is not written yet.
    for id in 0..3 {
        writeln!(input, "{}", completion(id, 2)).unwrap();
        assert_eq!(next()["custom_id"], format!("id-{id}"));
    }
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The most memory that a run had.
fn peak_kib(mut child: Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let now = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        peak = now.unwrap_or(0).max(peak);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    peak
}

#[test]
fn memory_does_not_grow_with_the_input() {
    let batch = Batch::new();
    let mut peaks = Vec::new();
    for count in [1000, 100_000] {
        batch.input(&vec!["{\"custom_id\": \"a\", \"body\":".to_string(); count]);
        let child = batch.command(&[]).stderr(Stdio::null()).spawn().unwrap();
        peaks.push(peak_kib(child));
        assert_eq!(batch.results().len(), count);
        std::fs::remove_file(batch.path("out.jsonl")).unwrap();
    }
    // 100,000 lines are 3 MiB, and their results 20 MiB.
    assert!(peaks[1] < peaks[0] + (8 << 10), "{peaks:?} KiB");
}

/// A server that refuses each request once. Gives its address.
fn reluctant_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut seen = Vec::new();
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut length, mut key, mut first) = (0, false, String::new());
            reader.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let line = line.trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                key |= line == "authorization: bearer secret";
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let (status, answer) = match (
                first.starts_with("POST /v1/completions "),
                key,
                seen.contains(&body),
            ) {
                (true, true, true) => ("200 OK", "{\n\"usage\": {\"completion_tokens\": 2}}"),
                (true, true, false) => ("429 No\r\nRetry-After: 0", "{}"),
                _ => ("400 Bad", "{}"),
            };
            seen.push(body);
            let reply = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
                answer.len()
            );
            reader.get_mut().write_all(reply.as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn a_server_elsewhere_is_asked_again() {
    let batch = Batch::new();
    let mut lines = completions(8, 2);
    lines.push("no request".to_string());
    let input = batch.input(&lines);
    let out = batch.path("out.jsonl");
    let ask = |url: &str, args: &[&str]| {
        let fixed = [
            "batch",
            input.to_str().unwrap(),
            "-o",
            out.to_str().unwrap(),
            "--url",
            url,
        ];
        run(&[&fixed[..], args].concat())
    };
    let url = reluctant_server();
    let output = ask(&url, &["--api-key", "secret", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&summary["answered"], &summary["failed"]),
        (&json!(8), &json!(1))
    );
    assert_eq!(summary["completion_tokens"], 16);
    assert_eq!(batch.results().len(), 9);
    // Nobody is there: what is done stays, and what is not has no result.
    let output = ask(
        "http://127.0.0.1:1",
        &["--retries", "0", "--force", "--retry-errors"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    std::fs::remove_file(&out).unwrap();
    let output = ask("http://127.0.0.1:1", &["--retries", "0"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("does not answer"),
        "{}",
        text(&output.stderr)
    );
}
