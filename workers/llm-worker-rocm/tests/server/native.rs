//! llama.cpp's own API against scripts.

use crate::client::{app, app_changed, text_model, Answer, Server};
use crate::common::u32;
use crate::script::{token, tokenizer_with, Play, Script, END};
use llm_worker_rocm::server::Loaded;
use serde_json::{json, Value};
use std::sync::Arc;

const TEXT: &str = "/completion";

/// The frames of a stream of llama.cpp's, which ends without a mark.
fn frames(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let lines = answer.text.split_terminator("\n\n");
    let frames = lines.map(|line| serde_json::from_str(line.strip_prefix("data: ").unwrap()));
    frames.collect::<Result<_, _>>().unwrap()
}

async fn refusal(body: Value) -> (u16, String) {
    let (status, _, message) = Server::new([]).post(TEXT, &body).await.error();
    (status, message)
}

#[tokio::test]
async fn an_answer() {
    let server = Server::new([Play::Say("One\ntwo")]);
    let asked = json!({"prompt": "hi", "n_predict": 20, "return_tokens": true, "seed": 7});
    let body = server.post(TEXT, &asked).await.json();
    let expected = json!({
        "index": 0, "content": "One\ntwo", "stop": true, "stop_type": "eos", "stopping_word": "", "model": "org/model",
        "id_slot": 0, "tokens_predicted": 8, "tokens_evaluated": 3, "tokens_cached": 10, "prompt": "<s>hi",
        "has_new_line": true, "truncated": false,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&body[key], value, "{key}");
    }
    assert_eq!(body["tokens"][0], token(b'O'));
    assert_eq!(body["timings"]["predicted_n"], 8);
    let settings = &body["generation_settings"];
    assert_eq!(
        (&settings["seed"], &settings["n_predict"]),
        (&json!(7), &json!(20))
    );
    assert_eq!(settings["logit_bias"], json!([]));
    assert_eq!(server.script.seen.lock().unwrap()[0].max_tokens, Some(20));
}

#[tokio::test]
async fn how_answers_end() {
    let server = Server::new([Play::Say("Hello"), Play::Say("Hello"), Play::Say("a\n b")]);
    let limited = json!({"prompt": "hi", "n_predict": 2});
    let body = server.post(TEXT, &limited).await.json();
    assert_eq!(
        (&body["content"], &body["stop_type"]),
        (&json!("He"), &json!("limit"))
    );
    let stopped = json!({"prompt": "hi", "stop": ["x", "ll"]});
    let body = server.post(TEXT, &stopped).await.json();
    assert_eq!(body["content"], "He");
    assert_eq!(
        (&body["stop_type"], &body["stopping_word"]),
        (&json!("word"), &json!("ll"))
    );
    let indented = json!({"prompt": "hi", "n_indent": 2});
    let body = server.post(TEXT, &indented).await.json();
    assert_eq!(
        (&body["content"], &body["stop_type"]),
        (&json!("a\n "), &json!("limit"))
    );
}

#[tokio::test]
async fn a_stream() {
    let server = Server::new([Play::Say("Hi!"), Play::Say("Hi!")]);
    let asked = json!({"prompt": "hi", "stream": true, "n_probs": 2});
    let frames_of = frames(&server.post(TEXT, &asked).await);
    let (last, parts) = frames_of.split_last().unwrap();
    let text: String = parts
        .iter()
        .map(|part| part["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, "Hi!");
    assert!(parts
        .iter()
        .all(|part| part["stop"] == false && part["id_slot"] == 0));
    assert_eq!(parts[1]["tokens"], json!([token(b'i')]));
    assert_eq!(parts[1]["tokens_predicted"], 2);
    let told = &parts[0]["completion_probabilities"][0];
    assert_eq!(
        (&told["token"], &told["bytes"]),
        (&json!("H"), &json!(b"H"))
    );
    assert_eq!(told["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&last["stop"], &last["content"]),
        (&json!(true), &json!(""))
    );
    assert_eq!(
        (&last["stop_type"], &last["tokens_predicted"]),
        (&json!("eos"), &json!(4))
    );
    // Nothing but the prompt's evaluation.
    let silent = json!({"prompt": "hi", "stream": true, "n_predict": 0});
    let frames = frames(&server.post(TEXT, &silent).await);
    assert_eq!(frames.len(), 1);
    assert_eq!(
        (&frames[0]["content"], &frames[0]["tokens_predicted"]),
        (&json!(""), &json!(0))
    );
}

#[tokio::test]
async fn prompts_of_all_kinds() {
    let server = Server::new((0..6).map(|_| Play::Say("x")));
    let several = json!({"prompt": [[1, 2, "a"], "b", {"prompt_string": "c"}], "n": 1});
    let body = server.post(TEXT, &several).await.json();
    assert_eq!(body.as_array().unwrap().len(), 3);
    assert_eq!(
        (&body[2]["index"], &body[2]["prompt"]),
        (&json!(2), &json!("<s>c"))
    );
    let two = json!({"prompt": [1, "a"], "n_cmpl": 2, "seed": 5});
    let body = server.post(TEXT, &two).await.json();
    assert_eq!(body[1]["generation_settings"]["seed"], 6);
    let listed = json!({"prompt": ["a"], "response_fields": ["content", "generation_settings/seed", "none/of/it"], "seed": 1});
    let body = server.post(TEXT, &listed).await.json();
    assert_eq!(
        body,
        json!([{"content": "x", "generation_settings/seed": 1}])
    );
    let seen = server.script.seen.lock().unwrap();
    let prompts: Vec<_> = seen.iter().map(|seen| seen.prompt.clone()).collect();
    assert_eq!(prompts[0], [1, 2, token(b'a')]);
    assert_eq!(prompts[1], [1, token(b'b')]);
    assert_eq!(prompts[3], [1, token(b'a')]);
}

#[tokio::test]
async fn what_is_asked_of_the_engine() {
    let server = Server::new([Play::Say("x"), Play::Say("x")]);
    let asked = json!({
        "prompt": "hi", "id_slot": 3, "cache_prompt": false, "n_keep": -1, "n_probs": 4, "post_sampling_probs": true,
        "logit_bias": [["ab", false], [7, 2]], "ignore_eos": true,
    });
    let body = server.post(TEXT, &asked).await.json();
    let told = &body["completion_probabilities"][0];
    let prob = told["prob"].as_f64().unwrap();
    assert!((prob - (-0.25f64).exp()).abs() < 1e-6, "{prob}");
    assert!(told["top_probs"].is_array());
    let bias = &body["generation_settings"]["logit_bias"];
    assert!(bias
        .as_array()
        .unwrap()
        .contains(&json!({"token": END, "bias": null})));
    let plain = json!({"prompt": "hi", "id_slot": -1, "n_probs": 0});
    server.post(TEXT, &plain).await.json();
    let seen = server.script.seen.lock().unwrap();
    assert_eq!(
        (seen[0].slot, seen[0].afresh, seen[0].keep),
        (Some(3), true, Some(3))
    );
    assert!(seen[0].after_sampling && seen[0].ignore_end);
    assert_eq!(seen[0].sampling.logit_bias[&token(b'b')], f32::NEG_INFINITY);
    assert_eq!(seen[0].sampling.logit_bias[&7], 2.0);
    assert_eq!(
        (seen[1].slot, seen[1].afresh, seen[1].keep),
        (None, false, None)
    );
    assert_eq!(seen[1].top_logprobs, None);
}

#[tokio::test]
async fn what_is_refused() {
    for (fields, word) in [
        (json!({}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (
            json!({"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["aaaa"]}}),
            "no pictures",
        ),
        (json!({"prompt": "a", "n_discard": 3}), "n_discard"),
        (json!({"prompt": "a", "min_keep": 3}), "min_keep"),
        (json!({"prompt": "a", "n_keep": -2}), "n_keep"),
        (json!({"prompt": "a", "id_slot": -2}), "id_slot"),
        (json!({"prompt": "a", "n_probs": 100}), "n_probs"),
        (json!({"prompt": "a", "n_predict": -2}), "-2"),
        (
            json!({"prompt": "a", "response_fields": vec!["x"; 65]}),
            "response_fields",
        ),
        (
            json!({"prompt": "a", "logit_bias": [["a", true]]}),
            "logit_bias",
        ),
        (
            json!({"prompt": "a", "logit_bias": {"a".repeat(70_000): 1}}),
            "logit_bias",
        ),
        (
            json!({"prompt": "a", "grammar": "root ::= (", "n_predict": 1}),
            "rammar",
        ),
    ] {
        let (status, message) = refusal(fields.clone()).await;
        assert_eq!(status, 400, "{fields}: {message}");
        assert!(message.contains(word), "{fields}: {message}");
    }
    // In the form of llama.cpp's server.
    let long = json!({"prompt": "a".repeat(50_000)});
    let answer = Server::new([]).post(TEXT, &long).await;
    let body: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(body["error"]["type"], "exceed_context_size_error");
    assert!(body["error"]["message"]
        .as_str()
        .unwrap()
        .contains("exceeds the available context size"));
}

#[tokio::test]
async fn the_middle_of_a_text() {
    let asked = |fields: Value| {
        let mut body =
            json!({"input_prefix": "ab", "input_suffix": "yz", "prompt": "c", "n_predict": 4});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        body
    };
    let (status, _, message) = Server::new([])
        .post("/infill", &asked(json!({})))
        .await
        .error();
    assert_eq!(status, 501);
    assert!(message.contains("not trained"), "{message}");

    let tokenizer = tokenizer_with(&[], |file| {
        file.set("tokenizer.ggml.fim_pre_token_id", u32(token(1)))
            .set("tokenizer.ggml.fim_suf_token_id", u32(token(2)))
            .set("tokenizer.ggml.fim_mid_token_id", u32(token(3)))
            .set("tokenizer.ggml.fim_sep_token_id", u32(token(4)));
    });
    let script = Arc::new(Script::new([Play::Say("d"), Play::Say("d")]));
    let mut text = text_model(script.clone());
    text.tokenizer = Arc::new(tokenizer);
    let app = app();
    app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    let server = Server::around(app, script, &[]);
    let body = server.post("/infill", &asked(json!({}))).await.json();
    assert_eq!(
        (&body["content"], &body["stop"]),
        (&json!("d"), &json!(true))
    );
    let extra = json!({"input_extra": [{"filename": "f", "text": "t"}]});
    server.post("/infill", &asked(extra)).await.json();
    {
        let seen = server.script.seen.lock().unwrap();
        let bytes = |text: &[u8]| -> Vec<u32> { text.iter().map(|byte| token(*byte)).collect() };
        let middle = bytes(b"\x01ab\x02yz\x03c");
        assert_eq!(seen[0].prompt, [vec![1], middle.clone()].concat());
        let files = bytes(b"\x04f\nt\x04this\n");
        assert_eq!(seen[1].prompt, [vec![1], files, middle].concat());
    }
    for extra in [
        json!([{}]),
        json!([{"filename": "f"}]),
        json!([{"filename": 1, "text": "t"}]),
        json!(3),
    ] {
        let (status, ..) = server
            .post("/infill", &asked(json!({"input_extra": extra})))
            .await
            .error();
        assert_eq!(status, 400, "{extra}");
    }
    let (status, ..) = server
        .post("/infill", &json!({"input_prefix": "a"}))
        .await
        .error();
    assert_eq!(status, 400);
}

#[tokio::test]
async fn what_the_server_is_set_to() {
    let script = Arc::new(Script::new((0..3).map(|_| Play::Say("Hello"))));
    let app = app_changed(|options| {
        options.seed = Some(42);
        options.max_tokens = Some(3);
        options.slots = false;
        options.page = false;
    });
    app.frame.serve(Loaded {
        text: Some(Arc::new(text_model(script.clone()))),
        ..Loaded::default()
    });
    let server = Server::around(app, script, &[]);
    for (asked, expected) in [
        (json!({"prompt": "hi"}), 3),
        (json!({"prompt": "hi", "n_predict": 2, "seed": 1}), 2),
    ] {
        let body = server.post(TEXT, &asked).await.json();
        assert_eq!(body["generation_settings"]["n_predict"], expected);
        assert_eq!(body["tokens_predicted"], expected);
        assert_eq!(
            body["generation_settings"]["seed"],
            asked.get("seed").unwrap_or(&json!(42)).clone()
        );
    }
    let props = server.get("/props").await.json();
    assert_eq!(props["default_generation_settings"]["params"]["seed"], 42);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert_eq!(
        (&props["is_sleeping"], &props["endpoint_slots"]),
        (&json!(false), &json!(false))
    );
    let (status, code, _) = server.get("/slots").await.error();
    assert_eq!((status, code.as_str()), (501, "NOT_SUPPORTED"));
    assert_eq!(server.get("/").await.error().0, 404);
    // -1 is as many as the context takes, whatever the server's default.
    let all = json!({"prompt": "hi", "n_predict": -1});
    let body = server.post(TEXT, &all).await.json();
    assert_eq!(body["content"], "Hello");
}

#[tokio::test]
async fn several_requests_in_one() {
    // They are computed at once, in no order.
    let server = Server::new([Play::Say("Hello"), Play::Say("Hello")]);
    let chat = json!({"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "hi"}]});
    let text = json!({"@requestFormat": "completion", "prompt": "hi"});
    let instances = json!([chat, text, {"@requestFormat": "x"}, 3, {"@requestFormat": "completion", "stream": true}]);
    let body = server
        .post("/predict", &json!({"instances": instances}))
        .await
        .json();
    let told = &body["predictions"];
    assert_eq!(told[0]["choices"][0]["message"]["content"], "Hello");
    assert_eq!(told[1]["content"], "Hello");
    for (index, word) in [(2, "@requestFormat"), (3, "object"), (4, "stream")] {
        let message = told[index]["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{message}");
    }
    let many = vec![text; 65];
    let (status, ..) = server
        .post("/predict", &json!({"instances": many}))
        .await
        .error();
    assert_eq!(status, 400);
}
