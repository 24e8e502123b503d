//! SmolLM2 behind the server, on the device that `CANDLE_ROCM_TEST_DEVICE` names: the references' answers through every
//! route.

use crate::client::{app, json_post, Server};
use crate::smollm2::{cases, decided_steps, model, model_file, Case};
use axum::body::to_bytes;
use llm_worker_rocm::chat::ChatTemplate;
use llm_worker_rocm::engine::{Engine, EngineOptions};
use llm_worker_rocm::server::{Backend, Loaded, TextModel};
use serde_json::{json, Value};
use std::sync::Arc;
use std::time::Duration;

/// A server and the engine in it.
fn server(engine_options: &EngineOptions) -> (Server, Engine) {
    let template = model_file().template().map(str::to_string);
    let model = model();
    let tokenizer = model.tokenizer.clone();
    let engine = Engine::start(model, engine_options).unwrap();
    let (bos, eos) = (tokenizer.bos_text(), tokenizer.eos_text());
    let template = ChatTemplate::choose(None, template.as_deref(), bos, eos).unwrap();
    let text = TextModel::new(Arc::new(engine.clone()), tokenizer, template);
    let app = app();
    app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    (Server::around(app, Arc::default(), &[]), engine)
}

/// Tokens of an answer that are computed on a simulated device, which takes its time.
const DEVICE_TOKENS: usize = 12;

/// The first tokens of an answer, as many as any sound computation of this device gives.
fn decided(case: &Case) -> &[u32] {
    let expected = &case.llama_cpp.tokens;
    let most = match std::env::var("CANDLE_ROCM_TEST_DEVICE") {
        Ok(device) if device != "cpu" => DEVICE_TOKENS,
        _ => expected.len(),
    };
    &expected[..decided_steps(case).min(most)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_references_answers_come_through_every_route() {
    let (server, engine) = server(&EngineOptions::default());
    let exact: Vec<Case> = cases()
        .into_iter()
        .filter(|case| case.assert_exact)
        .collect();
    assert!(!exact.is_empty());
    let tokenizer = server.app.loaded().unwrap().text.unwrap().tokenizer.clone();
    for case in &exact {
        let most = decided(case).len();
        let body = |stream: bool| json!({"prompt": case.prompt, "temperature": 0, "max_tokens": most, "return_tokens": true, "stream": stream});
        let whole = server.post("/v1/completions", &body(false)).await.json();
        let tokens: Vec<u32> =
            serde_json::from_value(whole["choices"][0]["tokens"].clone()).unwrap();
        assert!(
            tokens.starts_with(decided(case)),
            "{:?}: {tokens:?}",
            case.prompt
        );
        assert_eq!(whole["usage"]["prompt_tokens"], case.prompt_tokens.len());
        let expected = tokenizer.decode(decided(case));
        let is_expected = |text: &str| assert!(text.starts_with(&expected), "{text:?}");
        is_expected(whole["choices"][0]["text"].as_str().unwrap());

        let frames = server.post("/v1/completions", &body(true)).await.frames();
        let pieces = frames
            .iter()
            .map(|frame| frame["choices"][0]["text"].as_str().unwrap());
        is_expected(&pieces.collect::<String>());

        let job = json!({"operation": "infer", "prompt": case.prompt, "temperature": 0, "max_tokens": most});
        let created = server.post("/v1/jobs", &job).await.json();
        let frames = server
            .get(created["sse_url"].as_str().unwrap())
            .await
            .frames();
        let pieces = frames.iter().filter_map(|frame| frame["t"].as_str());
        is_expected(&pieces.collect::<String>());
    }
    let status = Backend::status(&engine);
    assert_eq!((status.running, status.kv_blocks_used), (0, 0));
    assert_eq!(status.requests_finished, 3 * exact.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_clients_that_go_away() {
    let options = EngineOptions {
        context: Some(48),
        max_sequences: 1,
        max_waiting: 1,
        ..EngineOptions::default()
    };
    let (server, engine) = server(&options);
    let long = json!({"prompt": "word ".repeat(200)});
    let (status, code, message) = server.post("/v1/completions", &long).await.error();
    assert_eq!((status, code.as_str()), (400, "context_length_exceeded"));
    let text = server.post("/v1/completions", &long).await.text;
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(error["error"]["type"], "exceed_context_size_error");
    assert_eq!(error["error"]["n_ctx"], 48);
    assert!(error["error"]["n_prompt_tokens"].as_u64().unwrap() > 48);
    assert!(
        message.contains("48") && message.contains("20"),
        "{message}"
    );

    // One runs, one waits, the third is refused.
    let endless = json!({"prompt": "Once", "temperature": 0, "ignore_eos": true, "stream": true});
    let running = server.send(json_post("/v1/completions", &endless)).await;
    let is = |running, waiting| {
        let status = Backend::status(&engine);
        (status.running, status.waiting) == (running, waiting)
    };
    until(|| is(1, 0)).await;
    let waiting = server.send(json_post("/v1/completions", &endless)).await;
    let refused = server.post("/v1/completions", &endless).await;
    assert_eq!(refused.error().0, 429);
    assert!(refused.headers.contains_key("retry-after"));
    drop(running);
    // The second one runs to the end of the context and says so.
    let bytes = to_bytes(waiting.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"));
    let frames: Vec<Value> = text
        .split("\n\n")
        .filter_map(|frame| serde_json::from_str(frame.strip_prefix("data: ")?).ok())
        .collect();
    assert_eq!(
        frames.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    until(|| Backend::status(&engine).kv_blocks_used == 0).await;
    let status = Backend::status(&engine);
    assert_eq!(
        (status.requests_cancelled, status.requests_finished),
        (1, 1)
    );
    let expired = json!({"prompt": "Once", "timeout_ms": 0});
    assert_eq!(
        server.post("/v1/completions", &expired).await.error().1,
        "TIMEOUT"
    );
}

/// Waits for something that the engine's thread does.
async fn until(done: impl Fn() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not happen");
}
