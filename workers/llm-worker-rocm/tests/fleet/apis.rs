//! Every API through the server of several models.

use crate::fleet::{prompt, until, LIMIT};
use crate::tiny_whisper;
use crate::{command, start, Models};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

#[test]
fn every_api_finds_its_model_and_errors_have_its_form() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &[]);
    let chat = json!({"model": "a", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 2});
    assert_eq!(
        server.post("/v1/chat/completions", &chat).json()["model"],
        "a"
    );
    assert_eq!(server.post("/v1/messages", &chat).json()["type"], "message");
    let made = server
        .post(
            "/v1/responses",
            &json!({"model": "b", "input": "the cat", "max_output_tokens": 2}),
        )
        .json();
    // By its id, wherever it is.
    let id = made["id"].as_str().unwrap();
    assert_eq!(server.json(&format!("/v1/responses/{id}"))["id"], id);
    assert_eq!(server.get("/v1/responses/resp_none").status, 404);
    let lines = server.post("/api/chat", &chat);
    // The answer may end with its first token.
    let last = lines.body.trim_end().lines().last().unwrap();
    assert!(last.contains("\"done\":true"), "{}", lines.body);
    assert_eq!(server.post("/api/show", &json!({"name": "a"})).status, 200);
    let tokens = server.post("/tokenize", &json!({"model": "b", "content": "the"}));
    assert!(tokens.json()["tokens"].is_array(), "{}", tokens.body);
    assert_eq!(server.json("/slots?model=a").as_array().unwrap().len(), 2);
    assert_eq!(server.json("/props?model=a")["n_ctx"], 200_000);
    let props = server.json("/props");
    assert_eq!(
        (
            &props["role"],
            &props["max_instances"],
            &props["models_autoload"]
        ),
        (&json!("router"), &json!(4), &json!(true))
    );
    let names = |list: Value| -> Vec<Value> {
        list["models"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["name"].clone())
            .collect()
    };
    assert_eq!(names(server.json("/api/tags")), ["a", "b"]);
    assert_eq!(names(server.json("/api/ps")), ["a", "b"]);
    assert!(server.json("/api/version")["version"].is_string());
    assert_eq!(server.json("/v1/models/a")["status"]["value"], "loaded");

    let stray =
        json!({"model": "c", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    assert!(server.post("/api/chat", &stray).json()["error"].is_string());
    assert_eq!(server.post("/v1/messages", &stray).json()["type"], "error");
    assert_eq!(
        server.post("/v1/chat/completions", &stray).json()["error"]["code"],
        "model_not_found"
    );
    let broken = server.request(
        "POST",
        "/v1/chat/completions",
        &["Content-Type: application/json"],
        b"{\"model\": ",
    );
    assert_eq!(broken.status, 400);
    // The model's own word comes as it is.
    let refused = server.post(
        "/v1/completions",
        &json!({"model": "a", "prompt": "x", "max_tokens": -5}),
    );
    assert_eq!(
        (refused.status, refused.json()["error"]["param"].clone()),
        (400, json!("max_tokens"))
    );
}

#[test]
fn other_kinds_of_models_stand_beside() {
    let models = Models::new(&["text"]);
    let folder = models.path("speech");
    std::fs::create_dir(&folder).unwrap();
    tiny_whisper::write(&folder, |_| {});
    let server = start(&models, &[]);
    let wav = tiny_whisper::wav(&tiny_whisper::sound(&tiny_whisper::case()));
    // The file comes first, the name behind it.
    let mut form = b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n".to_vec();
    form.extend(&wav);
    form.extend(
        b"\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nspeech\r\n--B--\r\n",
    );
    let answer = server.request(
        "POST",
        "/v1/audio/transcriptions",
        &["Content-Type: multipart/form-data; boundary=B"],
        &form,
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.json()["text"].is_string());
    assert_eq!(server.complete("text").status, 200);
    assert_eq!(server.count("loaded"), 2);
    assert!(server.model("speech")["transcription"].is_object());
    let refused = server.complete("speech");
    assert!(
        refused.status == 400 && refused.body.contains("/v1/audio/transcriptions"),
        "{}",
        refused.body
    );
}

#[test]
fn figures_health_and_the_document() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &[]);
    assert_eq!(server.complete("a").status, 200);
    assert_eq!(server.complete("b").status, 200);
    let figures = server.get("/metrics").body;
    for line in ["models_loaded 2", "models_known 2", "models_loads_total 2"] {
        assert!(
            figures.lines().any(|found| found == line),
            "{line} in\n{figures}"
        );
    }
    for model in ["a", "b"] {
        // The model's warm-up is counted, too.
        let begins = format!("llm_requests_finished_total{{model=\"{model}\"}} ");
        assert!(
            figures.lines().any(|line| line.starts_with(&begins)),
            "{begins} in\n{figures}"
        );
    }
    assert_eq!(
        figures
            .matches("# TYPE llm_requests_finished_total counter")
            .count(),
        1,
        "{figures}"
    );
    assert_eq!(server.json("/health")["status"], "healthy");
    let info = server.json("/info");
    assert_eq!(info["models"][0], json!({"id": "a", "state": "loaded"}));
    let document = server.json("/openapi.json");
    for path in [
        "/v1/chat/completions",
        "/models/load",
        "/v1/models/{id}",
        "/api/tags",
        "/metrics",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    assert_eq!(server.get("/nowhere").status, 404);
    // The page's files need no model.
    let page = server.get("/").body;
    let file = page
        .split('"')
        .find(|part| part.ends_with("/app/app.js"))
        .unwrap();
    assert!(server.get(&format!("/{file}")).body.contains("import"));
}

#[test]
fn events_tell_of_states() {
    let models = Models::new(&["a"]);
    let server = start(&models, &[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
        .write_all(b"GET /models/sse HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    assert_eq!(server.complete("a").status, 200);
    assert_eq!(
        server.post("/models/unload", &json!({"model": "a"})).status,
        200
    );
    let mut states = Vec::new();
    while states.last() != Some(&json!("unloaded")) {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(
            (&event["model"], &event["event"]),
            (&json!("a"), &json!("model_status"))
        );
        states.push(event["data"]["status"].clone());
    }
    states.dedup();
    assert_eq!(states, ["loading", "loaded", "unloading", "unloaded"]);
    until("the end", || server.processes().is_empty());
}

#[test]
fn mistakes_are_told_at_the_start() {
    let models = Models::new(&["a"]);
    let config = models.path("m.toml");
    std::fs::write(&config, "[models.a]\ncontxt = 5\n").unwrap();
    let run = |arguments: &[&str]| {
        let output = command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        text
    };
    let folder = models.folder().to_str().unwrap().to_string();
    let text = run(&[
        "--models",
        &folder,
        "--models-config",
        config.to_str().unwrap(),
    ]);
    assert!(
        text.contains("m.toml: [models.\"a\"] there is no option contxt; is context meant?"),
        "{text}"
    );
    std::fs::write(&config, "[models.a]\ntemperature = -1\n").unwrap();
    let text = run(&[
        "--models",
        &folder,
        "--models-config",
        config.to_str().unwrap(),
    ]);
    assert!(
        text.contains("[models.\"a\"]") && text.contains("temperature"),
        "{text}"
    );
    let text = run(&["--models", "/nowhere"]);
    assert!(text.contains("--models /nowhere"), "{text}");
    let text = run(&["--models", &folder, "--model-ref", "x"]);
    assert!(text.contains("--models-config"), "{text}");
    let text = run(&[]);
    assert!(text.contains("--model"), "{text}");
}

#[test]
fn keys_are_checked_by_the_server_and_stay_apart() {
    let models = Models::new(&["a"]);
    let server = start(&models, &["--api-key", "one", "--api-key", "two"]);
    let ask = |key: &str, prompt: &str| {
        let body =
            json!({"model": "a", "prompt": prompt, "temperature": 0, "max_tokens": 2}).to_string();
        let key = format!("Authorization: Bearer {key}");
        server.request(
            "POST",
            "/v1/completions",
            &["Content-Type: application/json", &key],
            body.as_bytes(),
        )
    };
    assert_eq!(server.complete("a").status, 401);
    assert_eq!(ask("three", "the").status, 401);
    assert_eq!(server.get("/models").status, 401);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/").status, 200);
    // A key's requests share their beginnings, those of another key do not.
    let long = "the cat sat on the mat and the dog ".repeat(6);
    assert_eq!(ask("one", &long).status, 200);
    let cached = |key: &str| {
        ask(key, &long).json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert!(cached("one").as_u64().unwrap() > 0);
    assert_eq!(cached("two"), 0);
    // Nobody gets past the server: its models ask for keys of their own.
    let process = server.processes()[0];
    let port = port_of(process);
    let direct = ask_port(port, &prompt("a"));
    assert!(direct.starts_with("HTTP/1.1 401"), "{direct}");
}

/// The port on which a process listens: that of its standard input.
fn port_of(process: u32) -> u16 {
    let link = std::fs::read_link(format!("/proc/{process}/fd/0")).unwrap();
    let socket = link
        .to_string_lossy()
        .trim_matches(|c: char| !c.is_ascii_digit())
        .to_string();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let line = table
        .lines()
        .find(|line| line.split_whitespace().nth(9) == Some(&socket))
        .unwrap();
    let local = line.split_whitespace().nth(1).unwrap();
    u16::from_str_radix(local.rsplit(':').next().unwrap(), 16).unwrap()
}

fn ask_port(port: u16, body: &Value) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let body = body.to_string();
    let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_model_sleeps_and_wakes_up() {
    let models = Models::new(&["a"]);
    let server = start(&models, &["--sleep-after", "1"]);
    let first = server.complete("a").json()["choices"][0]["text"].clone();
    server.until_state("a", "sleeping");
    assert_eq!(server.json("/is_sleeping?model=a")["is_sleeping"], true);
    assert_eq!(server.complete("a").json()["choices"][0]["text"], first);
    // By hand, and Ollama's word for how long.
    until("the sleep", || {
        server.post("/sleep?model=a", &json!({})).status == 200
    });
    assert_eq!(server.post("/wake_up?model=a", &json!({})).status, 200);
    assert_eq!(server.state("a"), "loaded");
    let asked = json!({"model": "a", "prompt": "the", "stream": false, "options": {"num_predict": 1}, "keep_alive": 0});
    assert_eq!(server.post("/api/generate", &asked).status, 200);
    server.until_state("a", "unloaded");
}
