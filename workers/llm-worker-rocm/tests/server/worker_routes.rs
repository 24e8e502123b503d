//! Health, properties, tokens, metrics, the page, the document.

use crate::client::Server;
use crate::script::{token, Play};
use serde_json::{json, Value};
use std::time::Duration;

#[tokio::test]
async fn health_tells_the_phase() {
    let server = Server::loading();
    server.app.frame.progress.expect(200);
    server.app.frame.progress.add(50);
    let health = server.get("/health").await;
    assert_eq!(health.status, 503);
    let body: Value = serde_json::from_str(&health.text).unwrap();
    assert_eq!(
        (&body["status"], &body["progress"]),
        (&json!("loading"), &json!(0.25))
    );
    assert_eq!(server.get("/ready").await.status, 503);
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    let refused = server.post("/v1/chat/completions", &chat).await;
    assert_eq!(
        refused.error(),
        (
            503,
            "LOADING".into(),
            "the model is loading, 25 % done".into()
        )
    );
    assert_eq!(refused.headers["retry-after"], "1");

    let server = Server::new([]);
    let health = server.get("/health").await.json();
    assert_eq!(health["status"], "healthy");
    assert_eq!(
        health["device"]["fallback"], "there is no GPU",
        "auto's choice shows"
    );
    assert_eq!(server.get("/ready").await.json()["ready"], true);

    server.script.status.lock().unwrap().lost = Some("fell off the bus".to_string());
    let health = server.get("/health").await;
    assert_eq!(health.status, 503);
    assert!(health.text.contains("\"lost\"") && health.text.contains("fell off the bus"));
    assert_eq!(server.get("/ready").await.status, 503);
    assert_eq!(server.get("/info").await.json()["status"], "stopped");
}

#[tokio::test]
async fn tokens_and_templates() {
    let server = Server::new([]);
    let to_tokens = &server;
    let tokens = |body: Value| async move {
        to_tokens.post("/tokenize", &body).await.json()["tokens"].clone()
    };
    let (h, i) = (token(b'h'), token(b'i'));
    assert_eq!(tokens(json!({"content": "hi"})).await, json!([h, i]));
    assert_eq!(
        tokens(json!({"content": "hi", "add_special": true})).await,
        json!([1, h, i])
    );
    let pieces = tokens(json!({"content": "é</s>", "with_pieces": true})).await;
    assert_eq!(pieces[0], json!({"id": token(0xC3), "piece": [0xC3]}));
    assert_eq!(pieces[2], json!({"id": 2, "piece": "</s>"}));
    let text = server
        .post("/detokenize", &json!({"tokens": [h, i]}))
        .await
        .json();
    assert_eq!(text["content"], "hi");
    let (status, _, message) = server
        .post("/detokenize", &json!({"tokens": [999]}))
        .await
        .error();
    assert!(status == 400 && message.contains("999"), "{message}");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "enable_thinking": true});
    let prompt = server.post("/apply-template", &chat).await.json();
    assert_eq!(prompt["prompt"], "<user>hi<assistant><think>");
    let count = server
        .post("/v1/chat/completions/input_tokens", &chat)
        .await;
    // `<s>` and the bytes.
    assert_eq!(
        count.json()["input_tokens"],
        1 + "<user>hi<assistant><think>".len()
    );
}

#[tokio::test]
async fn an_answer_that_is_begun_is_gone_on_with() {
    let server = Server::new([]);
    let say = |last: Value, fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}, last]});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let server = &server;
        async move { server.post("/apply-template", &body).await }
    };
    let begun = || json!({"role": "assistant", "content": "Well"});
    let parts = json!({"role": "assistant", "content": [{"type": "text", "text": "We"}, {"type": "text", "text": "ll"}]});
    for (last, fields) in [
        (begun(), json!({})),
        (parts, json!({})),
        (
            begun(),
            json!({"continue_final_message": true, "add_generation_prompt": false}),
        ),
    ] {
        let prompt = say(last, fields).await.json();
        assert_eq!(prompt["prompt"], "<user>hi<assistant>Well");
    }
    // A new message.
    for fields in [
        json!({"continue_final_message": false}),
        json!({"add_generation_prompt": true}),
    ] {
        let prompt = say(begun(), fields).await.json();
        assert_eq!(prompt["prompt"], "<user>hi<assistant>Well<assistant>");
    }
    // Thoughts that the prompt begins with are over.
    let thinking = say(begun(), json!({"enable_thinking": true})).await.json();
    assert_eq!(
        thinking["prompt"],
        "<user>hi<assistant><think></think>\n\nWell"
    );
    for (last, fields) in [
        (
            begun(),
            json!({"continue_final_message": true, "add_generation_prompt": true}),
        ),
        (
            json!({"role": "user", "content": "x"}),
            json!({"continue_final_message": true}),
        ),
    ] {
        let (status, _, message) = say(last, fields).await.error();
        assert_eq!(status, 400, "{message}");
    }
}

#[tokio::test]
async fn models_and_properties() {
    let server = Server::new([]);
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "org/model");
    assert_eq!(list["data"][0]["text"]["n_ctx"], 4096);
    assert_eq!(
        server.get("/v1/models/org/model").await.json()["id"],
        "org/model"
    );
    assert_eq!(server.get("/v1/models/other").await.error().0, 404);
    let open = Server::answering_any_model([Play::Say("x")]);
    let other = json!({"prompt": "x", "model": "other"});
    open.post("/v1/completions", &other).await.json();
    let props = server.get("/props").await.json();
    assert_eq!(props["n_ctx"], 4096);
    assert_eq!(props["eos_token"], "</s>");
    assert_eq!(props["default_generation_settings"]["top_k"], 40);
}

#[tokio::test]
async fn figures_for_prometheus() {
    let server = Server::new([Play::Say("abc")]);
    server
        .post("/v1/completions", &json!({"prompt": "x"}))
        .await
        .json();
    {
        let mut status = server.script.status.lock().unwrap();
        (status.kv_blocks_total, status.kv_blocks_used) = (8, 2);
        (status.prefix_hit_tokens, status.device_bytes_used) = (5, Some(1024));
    }
    server.get("/nowhere").await;
    let metrics = server.get("/metrics").await;
    for line in [
        "llm_http_answers_total{route=\"/v1/completions\",status=\"200\"} 1",
        "llm_http_answers_total{route=\"unknown\",status=\"404\"} 1",
        "llm_time_to_first_token_seconds_count 1",
        // Three tokens and the one that ends the answer: three times from one to the next.
        "llm_inter_token_seconds_count 3",
        "llm_queue_seconds_count 1",
        "llm_request_seconds_count 1",
        "llm_kv_usage_ratio 0.25",
        "llm_prefix_hit_tokens_total 5",
        "llm_device_memory_used_bytes 1024.0",
        "llm_device_lost 0.0",
    ] {
        assert!(
            metrics.text.lines().any(|l| l == line),
            "{line} is not in\n{}",
            metrics.text
        );
    }
    let kind = &metrics.headers["content-type"];
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
}

#[tokio::test]
async fn times_are_those_of_the_engine() {
    // A stop string that never comes holds the text back, and all tokens come at once.
    let text = Play::SaySlowly("abbb", Duration::from_millis(250));
    let server = Server::new([text]);
    let body = json!({"prompt": "x", "stop": "bbbb"});
    server.post("/v1/completions", &body).await.json();
    let metrics = server.get("/metrics").await.text;
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}"))
            .trim()
            .parse()
            .unwrap()
    };
    let first = value("llm_time_to_first_token_seconds_sum");
    assert!((0.25..2.0).contains(&first), "{first}");
    // Four tokens, and the one that ends the answer.
    assert_eq!(value("llm_inter_token_seconds_count"), 4.0);
    assert_eq!(value("llm_inter_token_seconds_bucket{le=\"0.2\"}"), 0.0);
    let sum = value("llm_inter_token_seconds_sum");
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    // The script says how long the whole took.
    let whole = value("llm_request_seconds_sum");
    assert!((whole - 0.321).abs() < 1e-6, "{whole}");
}

#[tokio::test]
async fn the_page_and_the_document() {
    let server = Server::new([]);
    let index = server.get("/").await;
    assert_eq!(index.headers["cache-control"], "no-cache");
    let addresses = index
        .text
        .split('"')
        .filter(|part| part.starts_with("page/"));
    let mut paths: Vec<String> = addresses.map(|path| format!("/{path}")).collect();
    let base = paths[0].split_once("/style/").unwrap().0.to_string();
    let more = ["app/markdown.js", "vendor/marked/marked.js"];
    paths.extend(more.map(|name| format!("{base}/{name}")));
    for path in paths.iter().map(String::as_str).chain(["/"]) {
        let file = server.get(path).await;
        assert_eq!(file.status, 200, "{path}");
        let header = |name: &str| file.headers[name].to_str().unwrap();
        let kind = match path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(header("content-type"), kind, "{path}");
        assert!(header("content-security-policy").starts_with("default-src 'none'"));
        assert!(path == "/" || header("cache-control").contains("immutable"));
        // It must work without any other server.
        assert!(!file.text.contains("src=\"http") && !file.text.contains("@import"));
        assert!(!file.text.contains("innerHTML"), "{path}");
    }
    // A page of another version gets its files, and asks again.
    let old = server.get("/page/0123/app/app.js").await;
    assert_eq!(
        (old.status.as_u16(), &old.headers["cache-control"]),
        (200, &"no-cache".parse().unwrap())
    );
    for path in [
        "/page/0/../Cargo.toml",
        "/page/0/app",
        "/page/0/app/nothing.js",
        "/page/0/app%2F..%2Findex.html",
    ] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
    let document = server.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.0.3");
    assert!(document["paths"]["/v1/chat/completions"]["post"]["requestBody"].is_object());
    let fields = &document["components"]["schemas"]["SamplingFields"]["properties"];
    for penalty in ["frequency_penalty", "presence_penalty"] {
        // The prompt's tokens do not count, unlike those of `repeat_penalty`.
        let description = fields[penalty]["description"].as_str().unwrap();
        assert!(description.contains("generated"), "{description}");
    }
    let (status, _, message) = server.get("/nowhere").await.error();
    assert!(status == 404 && message.contains("/nowhere"));
    assert_eq!(server.get("/v1/completions").await.error().0, 405);
}

#[tokio::test]
async fn slots_are_files_by_plain_names_and_only_where_they_may_be() {
    let server = Server::new([]);
    let act = |action: &'static str, name: &'static str| {
        let server = &server;
        let path = format!("/slots/0?action={action}");
        async move { server.post(&path, &json!({"filename": name})).await.error() }
    };
    let (status, _, message) = act("save", "a.bin").await;
    assert_eq!(status, 400);
    assert!(message.contains("--slot-save-path"), "{message}");
    let (status, _, message) = act("burn", "a.bin").await;
    assert_eq!(status, 400);
    assert!(message.contains("burn"), "{message}");
    assert_eq!(server.get("/slots").await.json(), json!([]));
    let sleeping = server.get("/is_sleeping").await.json();
    assert_eq!(sleeping, json!({"is_sleeping": false}));
    server.script.status.lock().unwrap().asleep = true;
    let sleeping = server.get("/is_sleeping").await.json();
    assert_eq!(sleeping, json!({"is_sleeping": true}));
    let health = server.get("/health").await;
    assert!(health.text.contains("the model sleeps"), "{}", health.text);
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("llm_asleep 1"), "{metrics}");
}
