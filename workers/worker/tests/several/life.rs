//! Failures, crashes, ends.

use crate::fleet::{runs, signal, until};
use crate::{start, Models};
use serde_json::{json, Value};
use std::io::{BufRead, Read};

pub fn a_model_that_cannot_be_loaded_harms_no_other() {
    let models = Models::new(&["good"]);
    models.add("bad", "fail=it is no model");
    let server = start(&models, &[]);
    let answer = server.complete("bad");
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "MODEL_LOAD_FAILED"),
        "{}",
        answer.body
    );
    assert!(answer.body.contains("it is no model"), "{}", answer.body);
    assert!(answer.head.contains("\r\nretry-after: "), "{}", answer.head);
    let status = server.model("bad")["status"].clone();
    assert_eq!(
        (&status["value"], &status["failed"], &status["exit_code"]),
        (&json!("unloaded"), &json!(true), &json!(2))
    );
    // While it rests, the answer comes at once and no process is started.
    assert_eq!(server.complete("bad").code(), "MODEL_LOAD_FAILED");
    assert_eq!(server.complete("good").status, 200);
    let health = server.json("/health");
    assert!(
        health["degraded"][0]
            .as_str()
            .unwrap()
            .contains("model bad"),
        "{health}"
    );
    // Mended, it is served: by hand there is no rest.
    models.add("bad", "");
    assert_eq!(
        server.post("/models/load", &json!({"model": "bad"})).status,
        200
    );
    server.until_state("bad", "loaded");
    assert_eq!(server.model("bad")["status"]["failed"], Value::Null);
}

pub fn a_crash_in_the_middle_of_an_answer_is_told_and_the_next_request_starts_it_anew() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &[]);
    let mut other = server.endless("b");
    let before = server.processes();
    let mut running = server.endless("a");
    let process = server
        .processes()
        .into_iter()
        .find(|id| !before.contains(id))
        .unwrap();
    signal("ABRT", process);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("went away") && rest.contains("RESTARTING"),
        "{rest}"
    );
    assert!(rest.contains("data: [DONE]"), "{rest}");
    until("the word of it", || {
        server.model("a")["status"]["failed"] == true
    });
    let status = server.model("a")["status"].clone();
    assert!(
        status["error"].as_str().unwrap().contains("SIGABRT"),
        "{status}"
    );
    assert_eq!(status["exit_code"], 134);
    // The other one goes on.
    let mut line = String::new();
    for _ in 0..6 {
        line.clear();
        assert!(other.read_line(&mut line).unwrap() > 0);
    }
    assert_eq!(server.complete("a").status, 200);
    let figures = server.get("/metrics").body;
    assert!(
        figures.lines().any(|line| line == "models_crashes_total 1"),
        "{figures}"
    );
    assert!(
        figures
            .lines()
            .any(|line| line == "echo_restarts_total{model=\"a\"} 1"),
        "{figures}"
    );
}

pub fn a_model_that_crashes_too_often_rests() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &["--max-restarts", "0", "--crash-window", "600"]);
    assert_eq!(server.complete("a").status, 200);
    signal("ABRT", server.processes()[0]);
    until("the end", || server.processes().is_empty());
    until("the word of it", || {
        server.model("a")["status"]["failed"] == true
    });
    let refused = server.complete("a");
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "RESTARTING"),
        "{}",
        refused.body
    );
    assert_eq!(server.complete("b").status, 200);
}

pub fn nothing_outlives_the_server() {
    let models = Models::new(&["a", "b"]);
    let mut server = start(&models, &[]);
    assert_eq!(server.complete("a").status, 200);
    let running = server.endless("b");
    let processes = server.processes();
    assert_eq!(processes.len(), 2);
    server.parent.kill().unwrap();
    server.parent.wait().unwrap();
    until("the end of all", || !processes.iter().any(|&id| runs(id)));
    drop(running);
}

pub fn a_stop_lets_answers_end_visibly() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &["--shutdown-grace", "1", "--models-max", "1"]);
    let mut running = server.endless("a");
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.complete("b"));
        until("the wait", || server.model("b")["status"]["waiting"] == 1);
        let processes = server.processes();
        signal("TERM", server.parent.id());
        let mut rest = String::new();
        running.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the server is stopping"), "{rest}");
        assert!(rest.contains("data: [DONE]"), "{rest}");
        until("the end of its process", || {
            !processes.iter().any(|&id| runs(id))
        });
        waiting.join().unwrap()
    });
    assert_eq!(
        (waiting.status, waiting.code().as_str()),
        (503, "CANCELLED")
    );
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("[a] "), "lines carry the model's name: {log}");
}

pub fn requests_and_answers_pass_as_they_are() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &["--api-key", "one", "--api-key", "two"]);
    let ask = |path: &str, key: &str| {
        let key = format!("X-Api-Key: {key}");
        let headers = [
            "Content-Type: text/plain",
            "X-Request-Id: 7",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            &key,
        ];
        server.request("POST", path, &headers, b"as it is")
    };
    for path in ["/mirror/any?model=a", "/models/load"] {
        assert_eq!(server.request("POST", path, &[], b"{}").status, 401);
        assert_eq!(ask(path, "three").status, 401);
    }
    let answer = ask("/mirror/any?model=a", "two");
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(
        answer.head.contains("\r\nx-mirror: polished"),
        "{}",
        answer.head
    );
    let got = answer.json();
    assert_eq!(
        (&got["model"], &got["body"]),
        (&json!("a"), &json!("as it is"))
    );
    // Whose key it is stays known, and different keys stay apart.
    let caller = |key: &str| ask("/mirror/any?model=a", key).json()["caller"].clone();
    assert_eq!(caller("two"), got["caller"]);
    assert_ne!(caller("one"), got["caller"]);
    let headers: Vec<&str> = got["headers"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|pair| pair[0].as_str())
        .collect();
    assert!(
        headers.contains(&"x-request-id") && headers.contains(&"host"),
        "{headers:?}"
    );
    for gone in ["x-api-key", "keep-alive", "te", "connection"] {
        assert!(!headers.contains(&gone), "{headers:?}");
    }
    // By what the path says, whoever knows it among those that are loaded.
    assert_eq!(ask("/mirror/b", "one").status, 404);
    assert_eq!(ask("/mirror/any?model=b", "one").status, 200);
    assert_eq!(ask("/mirror/b", "one").json()["model"], "b");
    assert_eq!(ask("/mirror/c", "one").status, 404);
    assert_eq!(server.get("/").body, "page");
}
