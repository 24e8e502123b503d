//! Loading on demand, places, memory, queues.

use crate::fleet::{until, Server};
use crate::{start, Models};
use serde_json::{json, Value};
use std::io::Read;
use std::time::Duration;

pub fn models_are_loaded_when_they_are_asked_for() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &[]);
    assert!(server.processes().is_empty());
    assert_eq!(
        (server.state("a"), server.state("b")),
        ("unloaded".to_string(), "unloaded".to_string())
    );
    let first = server.complete("a");
    assert_eq!(
        (first.status, &first.json()["model"]),
        (200, &json!("a")),
        "{}",
        first.body
    );
    assert_eq!(server.processes().len(), 1);
    let entry = server.model("a");
    assert_eq!(
        (&entry["status"]["value"], &entry["voices"]),
        (&json!("loaded"), &json!(3))
    );
    assert_eq!(server.model("a:loud")["parent"], "a");
    // The tag that Ollama's clients add.
    assert_eq!(server.complete("b:latest").json()["model"], "b");
    assert_eq!(server.count("loaded"), 2);
    // Both at once.
    let (one, other) = (server.endless("a"), server.endless("b"));
    drop((one, other));

    let unknown = server.complete("c");
    assert_eq!(
        (unknown.status, unknown.code().as_str()),
        (404, "model_not_found")
    );
    assert!(unknown.body.contains("there are a, b"), "{}", unknown.body);
    let nameless = server.post("/v1/completions", &json!({"prompt": "the"}));
    assert_eq!(
        (nameless.status, &nameless.json()["error"]["param"]),
        (400, &json!("model"))
    );
    assert!(nameless.body.contains("a, b"), "{}", nameless.body);
}

pub fn the_one_unused_longest_makes_room_and_pinned_ones_stay() {
    let models = Models::new(&["a", "b", "c"]);
    std::fs::write(
        models.path("m.toml"),
        "default = \"b\"\n[models.a]\npinned = true\nalias = \"first\"\n",
    )
    .unwrap();
    let config = models.path("m.toml");
    let server = start(
        &models,
        &[
            "--models-max",
            "2",
            "--models-config",
            config.to_str().unwrap(),
        ],
    );
    server.until_state("a", "loaded");
    assert_eq!(server.complete("first").json()["model"], "a");
    assert_eq!(
        server
            .post("/v1/completions", &json!({"prompt": "the", "x": 1}))
            .json()["model"],
        "b"
    );
    assert_eq!(server.complete("c").status, 200);
    assert_eq!(
        (server.state("a"), server.state("b"), server.state("c")),
        ("loaded".into(), "unloaded".into(), "loaded".into())
    );
    // Memory really comes back: its process has ended.
    assert_eq!(server.processes().len(), 2);
    assert_eq!(server.complete("b").status, 200);
    assert_eq!(server.state("a"), "loaded");
}

pub fn a_model_that_answers_is_waited_for() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &["--models-max", "1"]);
    let mut running = server.endless("a");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.complete("b"));
        until("the wait", || server.model("b")["status"]["waiting"] == 1);
        assert_eq!(server.state("a"), "loaded");
        // A client that goes away gives the place free.
        drop(running);
        let answer = waiting.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    });
    assert_eq!(server.state("a"), "unloaded");
    // One that leaves the queue costs nobody a place.
    running = server.endless("b");
    let gone = server.endless_without_waiting("a");
    until("the wait", || server.model("a")["status"]["waiting"] == 1);
    drop(gone);
    until("the end of the wait", || {
        server.model("a")["status"]["waiting"] == 0
    });
    drop(running);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        (server.state("a"), server.state("b")),
        ("unloaded".into(), "loaded".into())
    );
}

impl Server {
    /// Asks and does not wait for anything.
    fn endless_without_waiting(&self, model: &str) -> std::net::TcpStream {
        use std::io::Write;
        let body = json!({"model": model, "prompt": "the cat"}).to_string();
        let mut stream = std::net::TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        stream
    }
}

pub fn waits_have_an_end_and_queues_a_length() {
    let models = Models::new(&["a", "b"]);
    let server = start(
        &models,
        &[
            "--models-max",
            "1",
            "--models-wait",
            "700ms",
            "--models-queue",
            "1",
        ],
    );
    let running = server.endless("a");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.complete("b"));
        until("the wait", || server.model("b")["status"]["waiting"] == 1);
        let full = server.complete("b");
        assert_eq!((full.status, full.code().as_str()), (503, "QUEUE_FULL"));
        assert!(full.head.contains("\r\nretry-after: "), "{}", full.head);
        let late = waiting.join().unwrap();
        assert_eq!(
            (late.status, late.code().as_str()),
            (503, "MODEL_NOT_READY")
        );
        assert!(late.head.contains("\r\nretry-after: "), "{}", late.head);
    });
    drop(running);
}

pub fn idle_models_sleep_or_go() {
    let models = Models::new(&["a", "b"]);
    let config = models.path("m.toml");
    std::fs::write(
        &config,
        "[models.a]\nidle = \"300ms\"\n[models.b]\nsleep-after = 1\n",
    )
    .unwrap();
    let server = start(&models, &["--models-config", config.to_str().unwrap()]);
    assert_eq!(server.complete("b").status, 200);
    assert_eq!(server.complete("a").status, 200);
    server.until_state("a", "unloaded");
    server.until_state("b", "sleeping");
    let processes = server.processes();
    assert_eq!(server.complete("b").status, 200);
    assert_eq!(
        (server.state("b"), server.processes()),
        ("loaded".to_string(), processes)
    );
    // As Ollama has it, until the next request.
    let keep = |time: Value| json!({"model": "b", "prompt": "x", "keep_alive": time});
    assert_eq!(server.post("/v1/completions", &keep(json!(0))).status, 200);
    server.until_state("b", "unloaded");
    let keep = json!({"model": "a", "prompt": "x", "keep_alive": -1});
    assert_eq!(server.post("/v1/completions", &keep).status, 200);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(server.state("a"), "loaded");
    let refused = server.post(
        "/v1/completions",
        &json!({"model": "a", "keep_alive": "soon"}),
    );
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("keep_alive"))
    );
}

pub fn memory_is_made_by_sleep_first() {
    let models = Models::new(&["a", "b"]);
    let config = models.path("m.toml");
    // Each is said to need more than half of all; on the CPU it takes what is said at least.
    std::fs::write(&config, "[defaults]\nmemory = \"600G\"\n").unwrap();
    let arguments = [
        "--models-memory",
        "1T",
        "--models-config",
        config.to_str().unwrap(),
    ];
    let server = start(&models, &arguments);
    assert_eq!(server.complete("a").status, 200);
    assert_eq!(server.complete("b").status, 200);
    assert_eq!(
        (server.state("a"), server.state("b")),
        ("sleeping".into(), "loaded".into())
    );
    assert_eq!(server.complete("a").status, 200);
    assert_eq!(
        (server.state("a"), server.state("b")),
        ("loaded".into(), "sleeping".into())
    );
}

pub fn a_load_without_room_makes_another_go() {
    let models = Models::new(&["a"]);
    let full = models.path("full");
    std::fs::write(&full, "").unwrap();
    models.add("b", &format!("cramped={}", full.display()));
    let server = start(&models, &[]);
    // Nobody else is there to go.
    let refused = server.complete("b");
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "MODEL_LOAD_FAILED"),
        "{}",
        refused.body
    );
    assert!(
        refused.body.contains("out of device memory"),
        "{}",
        refused.body
    );
    assert_eq!(server.complete("a").status, 200);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.until_state("a", "unloaded");
            std::fs::remove_file(&full).unwrap();
        });
        // The room may come a moment after the other one has gone.
        until("the load", || {
            server.post("/models/load", &json!({"model": "b"}));
            server.state("b") == "loaded"
        });
    });
    assert_eq!(server.state("a"), "unloaded");
}

pub fn requests_wait_while_a_model_loads() {
    let models = Models::new(&["quick"]);
    models.add("slow", "load-ms=700");
    let server = start(&models, &[]);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| server.complete("slow")))
            .collect();
        until("the load", || {
            server.model("slow")["status"]["progress"]["value"].as_f64() > Some(0.2)
        });
        assert_eq!(server.model("slow")["status"]["waiting"], 3);
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap().json()["model"], "slow");
        }
    });
    assert_eq!(server.processes().len(), 1);
}

pub fn loading_and_unloading_by_hand() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &["--no-models-autoload"]);
    let refused = server.complete("a");
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "model_not_loaded")
    );
    assert_eq!(
        server
            .post("/v1/completions?autoload=true", &crate::fleet::prompt("b"))
            .status,
        200
    );
    let name = json!({"model": "a"});
    assert_eq!(
        server.post("/models/load", &name).json(),
        json!({"success": true})
    );
    server.until_state("a", "loaded");
    assert_eq!(server.post("/models/load", &name).status, 400);
    assert_eq!(server.complete("a").status, 200);

    // What is answered has its grace; then it is told.
    let mut running = server.endless("a");
    assert_eq!(
        server.post("/models/unload", &name).json(),
        json!({"success": true})
    );
    assert_eq!(server.state("a"), "unloading");
    drop(running);
    server.until_state("a", "unloaded");
    assert_eq!(server.post("/models/unload", &name).status, 400);
    assert_eq!(
        server.post("/models/unload", &json!({"model": "c"})).status,
        404
    );
    assert_eq!(server.post("/models/load", &json!({})).status, 400);

    let brief = start(&models, &["--shutdown-grace", "1"]);
    running = brief.endless("a");
    assert_eq!(brief.post("/models/unload", &name).status, 200);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("\"error\"") && rest.contains("data: [DONE]"),
        "{rest}"
    );
    brief.until_state("a", "unloaded");
}

pub fn lists_are_read_anew() {
    let models = Models::new(&["a", "b"]);
    let server = start(&models, &[]);
    assert_eq!(server.complete("a").status, 200);
    std::fs::rename(models.path("a.echo"), models.path("c.echo")).unwrap();
    let ids = |path: &str| -> Vec<Value> {
        let list = server.json(path);
        list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["id"].clone())
            .filter(|id| !id.as_str().unwrap().contains(':'))
            .collect()
    };
    assert_eq!(ids("/models"), ["a", "b"]);
    assert_eq!(ids("/models?reload=1"), ["b", "c"]);
    assert_eq!(server.complete("a").status, 404);
    assert_eq!(server.complete("c").status, 200);
    until("the end of the old one", || server.processes().len() == 1);
}
