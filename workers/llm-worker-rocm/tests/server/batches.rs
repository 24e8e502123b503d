//! Files, and batches of their requests.

use crate::client::{app, json_post, text_model, Answer, Server};
use crate::common::{tiny_llama, u32};
use crate::script::{Play, Script};
use axum::body::Body;
use axum::http::Request as HttpRequest;
use candle_core::Device;
use llm_worker_rocm::chat::ChatTemplate;
use llm_worker_rocm::engine::api::{Event, Request};
use llm_worker_rocm::engine::{Engine, EngineOptions, SamplingOptions};
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use llm_worker_rocm::server::{App, Backend, FileOptions, FileStore, Loaded, TextModel};
use serde_json::{json, Value};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BOUNDARY: &str = "------------------------boundary";

/// A part of a form: its name, the name of a file, its content.
type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

fn form(parts: &[Part]) -> HttpRequest<Body> {
    let mut body = Vec::new();
    for (name, filename, content) in parts {
        let filename = filename.map_or(String::new(), |name| format!("; filename=\"{name}\""));
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"{filename}\r\n\r\n"
        );
        body.extend(head.bytes());
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{BOUNDARY}--\r\n").bytes());
    HttpRequest::post("/v1/files")
        .header(
            "Content-Type",
            format!("multipart/form-data; boundary={BOUNDARY}"),
        )
        .body(Body::from(body))
        .unwrap()
}

impl Server {
    async fn upload(&self, content: &[u8]) -> String {
        let parts = [
            ("purpose", None, &b"batch"[..]),
            ("file", Some("in.jsonl"), content),
        ];
        let answer = Answer::of(self.send(form(&parts)).await).await;
        answer.json()["id"].as_str().unwrap().to_string()
    }

    async fn begin(&self, content: &str, more: Value) -> Value {
        let file = self.upload(content.as_bytes()).await;
        let mut body = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.post("/v1/batches", &body).await.json()
    }

    /// A batch, once it has one of these states.
    async fn until(&self, batch: &Value, states: &[&str]) -> Value {
        let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
        for _ in 0..2000 {
            let now = self.get(&path).await.json();
            if states.contains(&now["status"].as_str().unwrap()) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{}", self.get(&path).await.text);
    }

    async fn content(&self, id: &Value) -> Vec<Value> {
        let answer = self
            .get(&format!("/v1/files/{}/content", id.as_str().unwrap()))
            .await;
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        let lines = answer.text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn line(id: &str, body: Value) -> String {
    let line = json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body});
    format!("{line}\n")
}

/// A server whose files are in a folder, and whose engine takes `parallel` requests.
fn server_in(folder: &Path, plays: Vec<Play>, parallel: usize) -> Server {
    let script = Arc::new(Script::new(plays));
    let app = app();
    let mut text = text_model(script.clone());
    text.parallel = parallel;
    app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    app.keep_files(store(folder).unwrap());
    Server::around(app, script, &[])
}

fn store(folder: &Path) -> worker::Result<FileStore> {
    FileStore::new(FileOptions {
        folder: Some(folder.to_path_buf()),
        max_file_bytes: 1 << 20,
        max_bytes: 3 << 20,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_come_go_and_are_nobody_elses() {
    let server = Server::with_arguments([], &["--api-key", "one", "--api-key", "two"]);
    let send = |key: &'static str, mut request: HttpRequest<Body>| {
        let value = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("Authorization", value);
        async { Answer::of(server.send(request).await).await }
    };
    let get = |key, path: &str| send(key, HttpRequest::get(path).body(Body::empty()).unwrap());
    let content = vec![b'x'; 300_000];
    let names = ["../../etc/passwd", "a.jsonl", "/abs", ".."];
    let mut ids = Vec::new();
    for name in names {
        let parts = [
            ("file", Some(name), &content[..]),
            ("purpose", None, &b"user_data"[..]),
        ];
        let file = send("one", form(&parts)).await.json();
        assert_eq!(
            (&file["object"], &file["bytes"]),
            (&json!("file"), &json!(content.len()))
        );
        assert!(!file["filename"].as_str().unwrap().contains('/'), "{file}");
        ids.push(file["id"].as_str().unwrap().to_string());
    }
    let list = get("one", "/v1/files?limit=3&order=asc").await.json();
    assert_eq!(
        (list["data"].as_array().unwrap().len(), &list["has_more"]),
        (3, &json!(true))
    );
    let next = format!(
        "/v1/files?limit=3&order=asc&after={}",
        list["last_id"].as_str().unwrap()
    );
    let next = get("one", &next).await.json();
    assert_eq!(
        (next["data"].as_array().unwrap().len(), &next["has_more"]),
        (1, &json!(false))
    );
    assert_eq!(
        get("one", "/v1/files?purpose=batch").await.json()["data"],
        json!([])
    );
    for bad in [
        "limit=0",
        "limit=many",
        "limit=1001",
        "order=up",
        "after=file-1",
    ] {
        assert_eq!(
            get("one", &format!("/v1/files?{bad}")).await.error().0,
            400,
            "{bad}"
        );
    }
    let path = format!("/v1/files/{}", ids[0]);
    assert_eq!(
        get("one", &format!("{path}/content")).await.text.len(),
        content.len()
    );
    // Of another key there is nothing.
    assert_eq!(get("two", "/v1/files").await.json()["data"], json!([]));
    for path in [
        path.clone(),
        format!("{path}/content"),
        "/v1/files/..%2Flock".to_string(),
    ] {
        assert_eq!(get("two", &path).await.error().0, 404, "{path}");
    }
    let delete = |key| send(key, HttpRequest::delete(&path).body(Body::empty()).unwrap());
    assert_eq!(delete("two").await.error().0, 404);
    assert_eq!(delete("one").await.json()["deleted"], true);
    assert_eq!(get("one", &path).await.error().0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_that_make_no_file_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(folder.path(), Vec::new(), 4);
    let purpose = ("purpose", None, &b"batch"[..]);
    let file = ("file", Some("a"), &b"x"[..]);
    let long = vec![b'x'; (1 << 20) + 1];
    let field = vec![b'x'; 2000];
    for (parts, status, param) in [
        (&[purpose][..], 400, "file"),
        (&[file], 400, "purpose"),
        (&[file, file, purpose], 400, "file"),
        (&[file, ("purpose", None, b"fine-tune")], 400, "purpose"),
        (
            &[file, purpose, ("expires_after[seconds]", None, b"1")],
            400,
            "expires_after[seconds]",
        ),
        (
            &[file, purpose, ("expires_after[anchor]", None, b"now")],
            400,
            "expires_after[anchor]",
        ),
        (&[file, purpose, ("other", None, &field)], 400, "other"),
        (&[purpose, ("file", Some("a"), &long)], 413, ""),
    ] {
        let answer = Answer::of(server.send(form(parts)).await).await;
        let body: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(
            body["error"]["param"].as_str().unwrap_or_default(),
            param,
            "{body}"
        );
    }
    let no_form = json_post("/v1/files", &json!({"purpose": "batch"}));
    assert_eq!(Answer::of(server.send(no_form).await).await.error().0, 400);
    let count = || std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(count(), 1, "the lock, and nothing else");
    // As many as there is room for.
    let mib = vec![b'x'; 1 << 20];
    for _ in 0..3 {
        server.upload(&mib).await;
    }
    let parts = [purpose, ("file", Some("a"), &mib[..])];
    assert_eq!(
        Answer::of(server.send(form(&parts)).await).await.error().0,
        413
    );
    assert_eq!(count(), 1 + 2 * 3);
    assert_eq!(store(folder.path()).err().unwrap().exit_code(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_has_results_and_errors() {
    let server = Server::new([Play::Say("one"), Play::Say("two"), Play::Say("three")]);
    let lines = line("a", json!({"prompt": "x"}))
        + &line("b", json!({"prompt": "x", "max_tokens": 0}))
        + "\n"
        + &line("c", json!({"prompt": "y", "model": "alias"}))
        + &line("d", json!({"prompt": "y", "model": "other"}))
        + &line("e", json!({"prompt": "z"}));
    let begun = server
        .begin(&lines, json!({"metadata": {"name": "night"}}))
        .await;
    assert_eq!(
        (&begun["object"], &begun["status"]),
        (&json!("batch"), &json!("validating"))
    );
    let done = server.until(&begun, &["completed"]).await;
    assert_eq!(
        done["request_counts"],
        json!({"total": 5, "completed": 3, "failed": 2})
    );
    assert_eq!(done["metadata"], json!({"name": "night"}));
    assert!(done["completed_at"].as_i64() >= done["in_progress_at"].as_i64());
    let mut texts = Vec::new();
    for result in server.content(&done["output_file_id"]).await {
        assert_eq!(result["response"]["status_code"], 200);
        texts.push(
            result["response"]["body"]["choices"][0]["text"]
                .as_str()
                .unwrap()
                .to_string(),
        );
    }
    texts.sort();
    assert_eq!(texts, ["one", "three", "two"]);
    let mut statuses = Vec::new();
    for result in server.content(&done["error_file_id"]).await {
        let id = result["custom_id"].as_str().unwrap().to_string();
        statuses.push((id, result["response"]["status_code"].as_u64().unwrap()));
    }
    statuses.sort();
    assert_eq!(statuses, [("b".to_string(), 400), ("d".to_string(), 404)]);
    let file = format!("/v1/files/{}", done["output_file_id"].as_str().unwrap());
    assert_eq!(server.get(&file).await.json()["purpose"], "batch_output");
    // What has ended cannot be cancelled.
    let cancel = format!("/v1/batches/{}/cancel", done["id"].as_str().unwrap());
    let post = HttpRequest::post(&cancel).body(Body::empty()).unwrap();
    assert_eq!(Answer::of(server.send(post).await).await.error().0, 400);
    let list = server.get("/v1/batches?limit=1").await.json();
    assert_eq!(
        (&list["data"][0]["id"], &list["has_more"]),
        (&done["id"], &json!(false))
    );
    assert_eq!(server.get("/v1/batches/batch_1").await.error().0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_answered_is_refused_with_its_lines() {
    let server = Server::new([]);
    let good = line("a", json!({"prompt": "x"}));
    let other = good.replace("/v1/completions", "/v1/embeddings");
    let many = (0..50_001)
        .map(|i| line(&i.to_string(), json!({})))
        .collect::<String>();
    for (lines, expected) in [
        ("\n\n".to_string(), vec![(1, "empty_file")]),
        (
            good.clone() + "x\n" + &good + "{}",
            vec![
                (2, "invalid_json_line"),
                (3, "duplicate_custom_id"),
                (4, "missing_required_parameter"),
            ],
        ),
        (other, vec![(1, "mismatched_url")]),
        (
            "\0\u{1}\n".repeat(200),
            (1..=100).map(|n| (n, "invalid_json_line")).collect(),
        ),
        (many, vec![(50_001, "too_many_requests")]),
    ] {
        let begun = server.begin(&lines, json!({})).await;
        let failed = server.until(&begun, &["failed", "completed"]).await;
        let errors = failed["errors"]["data"].as_array().unwrap();
        let errors: Vec<(u64, &str)> = errors
            .iter()
            .map(|error| {
                (
                    error["line"].as_u64().unwrap(),
                    error["code"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(errors, expected);
        assert_eq!(
            (&failed["output_file_id"], &failed["status"]),
            (&Value::Null, &json!("failed"))
        );
    }
    let file = server.upload(good.as_bytes()).await;
    for (change, param) in [
        (json!({"input_file_id": "file-1"}), "input_file_id"),
        (json!({"endpoint": "/v1/files"}), "endpoint"),
        (json!({"completion_window": "soon"}), "completion_window"),
        (json!({"metadata": {"a": {"b": 1}}}), "metadata"),
    ] {
        let mut body = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let answer = server.post("/v1/batches", &body).await;
        let error: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_goes_on_with_what_another_one_began() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = ["a", "b", "c"]
        .iter()
        .map(|id| line(id, json!({"prompt": *id})))
        .collect();
    let begun = {
        let server = server_in(
            folder.path(),
            vec![Play::Say("one"), Play::SayAndHang("never")],
            1,
        );
        let begun = server.begin(&lines, json!({})).await;
        while server.script.held() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let path = format!("/v1/files/{}", begun["input_file_id"].as_str().unwrap());
        let delete = HttpRequest::delete(&path).body(Body::empty()).unwrap();
        let refused = Answer::of(server.send(delete).await).await.error();
        assert!(refused.2.contains("cancel that first"), "{refused:?}");
        server.app.frame.stop();
        Backend::stop(&*server.script, Duration::ZERO);
        // The batch's own handles on the folder go with its requests.
        begun
    };
    let store = loop {
        match store(folder.path()) {
            Ok(store) => break store,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    drop(store);
    let server = server_in(folder.path(), vec![Play::Say("two"), Play::Say("three")], 1);
    let done = server.until(&begun, &["completed"]).await;
    assert_eq!(
        done["request_counts"],
        json!({"total": 3, "completed": 3, "failed": 0})
    );
    let results = server.content(&done["output_file_id"]).await;
    let mut ids: Vec<&str> = results
        .iter()
        .map(|r| r["custom_id"].as_str().unwrap())
        .collect();
    ids.sort();
    assert_eq!(ids, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_runs_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(
        folder.path(),
        vec![Play::Say("one"), Play::SayAndHang("never")],
        1,
    );
    let lines: String = ["a", "b", "c"]
        .iter()
        .map(|id| line(id, json!({"prompt": *id})))
        .collect();
    let begun = server
        .begin(&lines, json!({"completion_window": "2s"}))
        .await;
    let over = server.until(&begun, &["expired"]).await;
    assert_eq!(
        over["request_counts"],
        json!({"total": 3, "completed": 1, "failed": 2})
    );
    assert_eq!(server.content(&over["output_file_id"]).await.len(), 1);
    for result in server.content(&over["error_file_id"]).await {
        assert_eq!(result["error"]["code"], "batch_expired");
    }
    assert_eq!(server.script.held(), 0, "it is given up");
}

/// A tiny model's engine.
fn engine(max_sequences: usize) -> (Arc<Engine>, TextModel) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = tiny_llama();
    file.set("llama.context_length", u32(4096));
    file.write(&path);
    let model = ModelFile::open(&path).unwrap();
    let model = model.load(&Device::Cpu, &LoadOptions::default()).unwrap();
    let tokenizer = model.tokenizer.clone();
    let options = EngineOptions {
        max_sequences,
        ..EngineOptions::default()
    };
    let engine = Arc::new(Engine::start(model, &options).unwrap());
    let template = ChatTemplate::new("{{ messages[0].content }}", None, None).unwrap();
    let mut text = TextModel::new(engine.clone(), tokenizer, template);
    text.parallel = max_sequences;
    (engine, text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_batch_keeps_what_it_has() {
    let app: Arc<App> = app();
    let (_engine, text) = engine(2);
    app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    let server = Server::around(app, Arc::default(), &[]);
    let body = json!({"prompt": "the cat", "max_tokens": 200, "ignore_eos": true});
    let lines: String = (0..1000)
        .map(|i| line(&i.to_string(), body.clone()))
        .collect();
    let begun = server.begin(&lines, json!({})).await;
    loop {
        let now = server.until(&begun, &["in_progress", "validating"]).await;
        if now["request_counts"]["completed"].as_u64() >= Some(2) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let cancel = json_post(
        &format!("/v1/batches/{}/cancel", begun["id"].as_str().unwrap()),
        &json!({}),
    );
    let told = Answer::of(server.send(cancel).await).await.json();
    assert_eq!(told["status"], "cancelling");
    let end = server.until(&begun, &["cancelled"]).await;
    let completed = end["request_counts"]["completed"].as_u64().unwrap();
    assert!((2..1000).contains(&completed), "{end}");
    let results = server.content(&end["output_file_id"]).await;
    assert_eq!(results.len() as u64, completed);
    assert_eq!(end["usage"]["output_tokens"], 200 * completed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_go_before_requests_of_batches() {
    let (engine, _) = engine(1);
    let request = |background: bool, tokens: usize| {
        let mut request = Request::new(vec![5, 6, 7], SamplingOptions::greedy());
        request.max_tokens = Some(tokens);
        request.ignore_end = true;
        request.background = background;
        Engine::submit(&engine, request).unwrap()
    };
    // The first one runs while the others come.
    let mut first = request(false, 2000);
    let mut behind = [request(true, 1), request(true, 1)];
    let mut last = request(false, 1);
    let began = |event: Option<Event>| match event {
        Some(Event::Started { at, .. }) => at,
        other => panic!("{other:?}"),
    };
    began(first.events.recv().await);
    let of_last = began(last.events.recv().await);
    for one in &mut behind {
        assert!(began(one.events.recv().await) > of_last);
    }
}
