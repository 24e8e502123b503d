//! What routers in front of several workers ask, and figures by the names that they look for.

use crate::client::{text_model, Server};
use crate::script::{token, Play, Script, CONTEXT};
use axum::body::Body;
use axum::http::Request;
use llm_worker_rocm::adapters::AdapterSource;
use llm_worker_rocm::engine::api::Failure;
use llm_worker_rocm::server::{Loaded, Origin};
use serde_json::{json, Value};
use std::sync::Arc;

/// A server with some load.
fn loaded() -> Server {
    let script = Arc::<Script>::default();
    let mut text = text_model(script.clone());
    text.parallel = 4;
    let app = crate::client::app();
    app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    let server = Server::around(app, script, &[]);
    let mut status = server.script.status.lock().unwrap();
    (status.running, status.waiting, status.waiting_tokens) = (3, 2, 700);
    (status.kv_block_size, status.kv_blocks_total) = (16, 100);
    status.kv_blocks_used = 25;
    (status.prompt_tokens, status.prefix_hit_tokens) = (300, 100);
    (status.generated_tokens, status.preemptions) = (40, 1);
    drop(status);
    server
}

#[tokio::test]
async fn loads() {
    let server = loaded();
    let path = "/v1/loads?include=core,disagg,queues,memory";
    let answer = server.get(path).await.json();
    assert_eq!(answer["dp_rank_count"], 1);
    assert!(answer["timestamp"].as_str().unwrap() > "2020");
    let expected = json!({
        "dp_rank": 0,
        "num_running_reqs": 3,
        "num_waiting_reqs": 2,
        "num_waiting_uncached_tokens": 700,
        "num_total_reqs": 5,
        "num_used_tokens": 400,
        "max_total_num_tokens": 1600,
        "token_usage": 0.25,
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.25,
        "utilization": 0.75,
        "max_running_requests": 4,
    });
    assert_eq!(answer["loads"], json!([expected]));
    let short = server.get("/loads?model=org/model").await.json();
    assert_eq!(short["loads"], answer["loads"]);
    let older = server.get("/get_load").await.json();
    let expected =
        json!([{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 1100}]);
    assert_eq!(older, expected);
    // A worker that has no engine is there, and idle.
    let server = Server::new([]);
    server.app.frame.serve(Loaded::default());
    let idle = server.get("/v1/loads").await.json();
    assert_eq!(idle["loads"][0]["num_total_reqs"], 0);
    assert_eq!(idle["loads"][0]["token_usage"], 0.0);
    assert_eq!(Server::loading().get("/v1/loads").await.status, 503);
}

#[tokio::test]
async fn what_the_model_is_and_how_it_is_set() {
    let server = loaded();
    let text = server.app.loaded().unwrap().text;
    let origin = Origin {
        path: "/models/model.gguf".into(),
        architecture: Some("llama".to_string()),
    };
    server.app.frame.serve(Loaded {
        text,
        origin: Some(Arc::new(origin)),
        ..Loaded::default()
    });
    for path in ["/model_info", "/get_model_info"] {
        let info = server.get(path).await.json();
        for (name, value) in [
            ("model_path", json!("/models/model.gguf")),
            ("tokenizer_path", json!("/models/model.gguf")),
            ("is_generation", json!(true)),
            ("has_image_understanding", json!(false)),
            ("has_audio_understanding", json!(false)),
            ("model_type", json!("llama")),
            ("architectures", json!(["llama"])),
        ] {
            assert_eq!(info[name], value, "{name}");
        }
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = server.get(path).await.json();
        for (name, value) in [
            ("served_model_name", json!("org/model")),
            ("tp_size", json!(1)),
            ("context_length", json!(CONTEXT)),
            ("max_total_tokens", json!(1600)),
            ("version", json!(env!("CARGO_PKG_VERSION"))),
        ] {
            assert_eq!(info[name], value, "{name}");
        }
    }
    let version = server.get("/version").await.json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
    let model = &server.get("/v1/models").await.json()["data"][0];
    assert_eq!(model["root"], "/models/model.gguf");
    assert_eq!(model["max_model_len"], CONTEXT);
    assert_eq!(model["permission"][0]["object"], "model_permission");
    // While nothing is loaded, the list is there for whoever waits.
    let loading = &Server::loading().get("/v1/models").await.json()["data"][0];
    assert_eq!(
        (&loading["root"], &loading["max_model_len"]),
        (&json!("org/model"), &Value::Null)
    );
}

#[tokio::test]
async fn the_name_that_routers_send_for_want_of_another() {
    let server = Server::new([Play::Say("x")]);
    let body = json!({"prompt": "x", "model": "unknown"});
    server.post("/v1/completions", &body).await.json();
}

#[tokio::test]
async fn prompts_as_tokens() {
    let server = Server::new([]);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "model": "unknown"});
    let rendered = server.post("/v1/chat/completions/render", &chat).await;
    let expected: Vec<u32> = "<user>hi<assistant>".bytes().map(token).collect();
    let rendered = rendered.json();
    let tokens: Vec<u32> = serde_json::from_value(rendered["token_ids"].clone()).unwrap();
    assert!(tokens.ends_with(&expected), "{tokens:?}");
    assert_eq!(rendered["model"], "org/model");
    let prompts = json!({"prompt": ["a", "b"]});
    let rendered = server.post("/v1/completions/render", &prompts).await.json();
    let last = |i: usize| rendered[i]["token_ids"].as_array().unwrap().last().cloned();
    assert_eq!(last(0), Some(json!(token(b'a'))));
    assert_eq!(last(1), Some(json!(token(b'b'))));
    let other = json!({"prompt": "a", "model": "other"});
    let refused = server.post("/v1/completions/render", &other).await.error();
    assert_eq!((refused.0, &*refused.1), (404, "model_not_found"));
    let empty = json!({"messages": []});
    let refused = server.post("/v1/chat/completions/render", &empty).await;
    assert_eq!(refused.status, 400);
}

async fn metrics(server: &Server, accept: &str) -> String {
    let request = Request::get("/metrics").header("Accept", accept);
    let response = server.send(request.body(Body::empty()).unwrap()).await;
    crate::client::Answer::of(response).await.text
}

fn expect(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn figures_by_the_names_of_vllm() {
    let server = loaded();
    let text = metrics(&server, "*/*").await;
    expect(
        &text,
        &[
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{model_name=\"org/model\"} 3.0",
            "vllm:num_requests_waiting{model_name=\"org/model\"} 2.0",
            "vllm:kv_cache_usage_perc{model_name=\"org/model\"} 0.25",
            "# TYPE vllm:cache_config_info gauge",
            "vllm:cache_config_info{model_name=\"org/model\",block_size=\"16\",num_gpu_blocks=\"100\"} 1.0",
            "# TYPE vllm:prompt_tokens_total counter",
            "vllm:prompt_tokens_total{model_name=\"org/model\"} 400",
            "vllm:generation_tokens_total{model_name=\"org/model\"} 40",
            "vllm:prefix_cache_queries_total{model_name=\"org/model\"} 400",
            "vllm:prefix_cache_hits_total{model_name=\"org/model\"} 100",
            "vllm:num_preemptions_total{model_name=\"org/model\"} 1",
            "# TYPE vllm:time_to_first_token_seconds histogram",
            "vllm:time_to_first_token_seconds_count{model_name=\"org/model\"} 0",
            "llm_requests_running 3.0",
            "llm_kv_block_tokens 16.0",
        ],
    );
    assert!(!text.contains("lora_requests_info"), "{text}");
    let open = metrics(&server, "application/openmetrics-text").await;
    expect(
        &open,
        &[
            "# TYPE vllm:prompt_tokens counter",
            "vllm:prompt_tokens_total{model_name=\"org/model\"} 400",
            "# EOF",
        ],
    );
}

#[tokio::test]
async fn how_requests_ended() {
    let server = Server::new([
        Play::Say("abc"),
        Play::Say("abcdef"),
        Play::SayAndFail("a", Failure::Internal("broken".to_string())),
        Play::SayAndHang("abc"),
    ]);
    for (body, status) in [
        (json!({"prompt": "x"}), 200),
        (json!({"prompt": "x", "max_tokens": 2}), 200),
        (json!({"prompt": "x"}), 500),
    ] {
        assert_eq!(server.post("/v1/completions", &body).await.status, status);
    }
    // The fourth client goes away.
    let stream = json!({"prompt": "x", "stream": true});
    let request = crate::client::json_post("/v1/completions", &stream);
    let response = server.send(request).await;
    assert_eq!(server.script.held(), 1);
    drop(response);
    while server.script.held() > 0 {
        tokio::task::yield_now().await;
    }
    let text = metrics(&server, "text/plain").await;
    expect(
        &text,
        &[
            "vllm:request_success_total{model_name=\"org/model\",finished_reason=\"stop\"} 1",
            "vllm:request_success_total{model_name=\"org/model\",finished_reason=\"length\"} 1",
            "vllm:request_success_total{model_name=\"org/model\",finished_reason=\"error\"} 1",
            "vllm:request_success_total{model_name=\"org/model\",finished_reason=\"abort\"} 1",
            "vllm:e2e_request_latency_seconds_count{model_name=\"org/model\"} 3",
            "vllm:request_decode_time_seconds_count{model_name=\"org/model\"} 2",
            "vllm:request_generation_tokens_sum{model_name=\"org/model\"} 6.0",
        ],
    );
}

#[tokio::test]
async fn adapters_that_run_and_wait() {
    let script = Arc::new(Script::default());
    let mut text = text_model(script.clone());
    let adapter = |name: &str| format!("{name}=/adapters/{name}").parse::<AdapterSource>();
    text.adapters = vec![adapter("one").unwrap(), adapter("two").unwrap()];
    {
        let mut status = script.status.lock().unwrap();
        (status.adapters_running, status.adapters_waiting) = (vec![0, 1], vec![1]);
    }
    let app = crate::client::app();
    app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    let server = Server::around(app, script, &[]);
    let text = metrics(&server, "").await;
    let labels = "max_lora=\"2\",running_lora_adapters=\"one,two\",waiting_lora_adapters=\"two\"";
    let line = format!("vllm:lora_requests_info{{model_name=\"org/model\",{labels}}} ");
    assert!(text.contains(&line), "{line} is not in\n{text}");
}
