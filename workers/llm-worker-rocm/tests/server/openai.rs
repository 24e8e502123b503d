//! OpenAI's routes against scripts.

use crate::client::{json_post, Server};
use crate::script::{token, Play};
use llm_worker_rocm::engine::api::{Aim, Failure, MirostatVersion};
use serde_json::{json, Value};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A chat of one message with further fields.
fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"], "additionalProperties": false,
    }}}])
}

#[tokio::test]
async fn a_chat() {
    let server = Server::new([Play::Say("Hello.")]);
    let body = server
        .post(CHAT, &chat(json!({"model": "alias"})))
        .await
        .json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "org/model");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["system_fingerprint"]
        .as_str()
        .unwrap()
        .ends_with("-cpu"));
    let choice = &body["choices"][0];
    assert_eq!(
        choice["message"],
        json!({"role": "assistant", "content": "Hello."})
    );
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["logprobs"], Value::Null);
    // <user>hi<assistant> in bytes, and the token before every text.
    let prompt = "<user>hi<assistant>".len() + 1;
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7, "prompt_tokens_details": {"cached_tokens": 1}})
    );
    assert_eq!(body["timings"]["predicted_n"], 7);
    assert_eq!(body["timings"]["predicted_per_second"], 20.0);
    assert_eq!(body["timings"]["prompt_n"], prompt - 1);
    let seen = server.script.seen.lock().unwrap();
    assert_eq!(body["seed"], seen[0].sampling.seed);
    assert_eq!(seen[0].prompt[1..3], [token(b'<'), token(b'u')]);
    assert_eq!(seen[0].max_tokens, None);
    assert_eq!(seen[0].top_logprobs, None);
}

#[tokio::test]
async fn a_chat_as_a_stream() {
    let server = Server::new([Play::Say("Hé")]);
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let frames = server.post(CHAT, &body).await.frames();
    let deltas: Vec<&Value> = frames[..4]
        .iter()
        .map(|f| &f["choices"][0]["delta"])
        .collect();
    assert_eq!(*deltas[0], json!({"role": "assistant", "content": null}));
    // The two bytes of é come as one piece.
    assert_eq!(*deltas[1], json!({"content": "H"}));
    assert_eq!(*deltas[2], json!({"content": "é"}));
    assert_eq!(*deltas[3], json!({}));
    assert_eq!(frames[3]["choices"][0]["finish_reason"], "stop");
    assert_eq!(frames[3]["timings"]["predicted_n"], 4);
    assert_eq!(frames[4]["choices"], json!([]));
    assert_eq!(frames[4]["usage"]["completion_tokens"], 4);
    assert_eq!(frames.len(), 5);
    for frame in &frames[..4] {
        assert_eq!(frame["object"], "chat.completion.chunk");
        assert_eq!(frame["id"], frames[0]["id"]);
        assert_eq!(frame["usage"], Value::Null);
    }
}

#[tokio::test]
async fn several_answers() {
    let server = Server::new([
        Play::Say("a"),
        Play::Say("bc"),
        Play::Say("d"),
        Play::Say("ef"),
    ]);
    let body = chat(json!({"n": 2, "seed": 7}));
    let answer = server.post(CHAT, &body).await.json();
    let contents: Vec<_> = [0, 1]
        .map(|i| answer["choices"][i]["message"]["content"].clone())
        .into();
    assert_eq!(contents, ["a", "bc"]);
    assert_eq!(answer["choices"][1]["index"], 1);
    assert_eq!(answer["usage"]["completion_tokens"], 2 + 3);
    {
        let seen = server.script.seen.lock().unwrap();
        assert_eq!((seen[0].sampling.seed, seen[1].sampling.seed), (7, 8));
    }
    let body =
        json!({"prompt": ["x", "yy"], "stream": true, "stream_options": {"include_usage": true}});
    let frames = server.post(TEXT, &body).await.frames();
    let text = |index: u64| -> String {
        let choices = frames.iter().map(|frame| &frame["choices"][0]);
        let own = choices.filter(|choice| choice["index"] == index);
        own.map(|choice| choice["text"].as_str().unwrap()).collect()
    };
    assert_eq!((text(0), text(1)), ("d".to_string(), "ef".to_string()));
    let usage = &frames.last().unwrap()["usage"];
    // Both prompts count: a token before each, and their bytes.
    assert_eq!(usage["prompt_tokens"], 2 + 3);
}

#[tokio::test]
async fn stop_strings_end_an_answer() {
    let server = Server::new([Play::SayAndHang("one\ntwo"), Play::Say("one two")]);
    let body = json!({"prompt": "x", "stop": ["\n", "two"]});
    let answer = server.post(TEXT, &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "one");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(server.script.held(), 0, "the engine is told to stop");
    assert_eq!(server.script.answered(), 1, "and that it has answered");
    let answer = server
        .post(TEXT, &json!({"prompt": "x", "stop": "tow"}))
        .await
        .json();
    assert_eq!(answer["choices"][0]["text"], "one two");
}

#[tokio::test]
async fn probabilities() {
    let server = Server::new([Play::Say("é"), Play::Say("ab")]);
    let body = chat(json!({"logprobs": true, "top_logprobs": 3}));
    let answer = server.post(CHAT, &body).await.json();
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    // One entry for each token, half characters included; the end is no part of the answer.
    assert_eq!(content.len(), 2);
    assert_eq!(content[0]["bytes"], json!([0xC3]));
    assert_eq!(content[0]["token"], "\u{FFFD}");
    assert_eq!(content[0]["logprob"], -0.25);
    let top = content[1]["top_logprobs"].as_array().unwrap();
    assert_eq!(
        top[1],
        json!({"token": "~", "logprob": -2.0, "bytes": [126]})
    );
    assert_eq!(
        top[2],
        json!({"token": "</s>", "logprob": -9999.0, "bytes": null})
    );

    let body = json!({"prompt": "x", "logprobs": 2, "return_tokens": true});
    let answer = server.post(TEXT, &body).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b"]));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([-0.25, -0.25]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1]));
    assert_eq!(
        choice["logprobs"]["top_logprobs"][1],
        json!({"b": -0.25, "~": -2.0})
    );
    assert_eq!(choice["tokens"], json!([token(b'a'), token(b'b'), 2]));
}

const CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

#[tokio::test]
async fn calls() {
    let server = Server::new([Play::Say(CALLS), Play::Say(CALLS), Play::Say(CALLS)]);
    let body = chat(json!({"tools": weather()}));
    let choice = server.post(CHAT, &body).await.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1]["type"], "function");
    let arguments = calls[1]["function"]["arguments"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(arguments).unwrap(),
        json!({"city": "Oslo"})
    );
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let body = chat(json!({"tools": weather(), "stream": true, "parallel_tool_calls": false}));
    let frames = server.post(CHAT, &body).await.frames();
    let deltas: Vec<&Value> = frames.iter().map(|f| &f["choices"][0]["delta"]).collect();
    let calls = deltas
        .iter()
        .filter_map(|delta| delta["tool_calls"].as_array());
    let pieces: Vec<&Value> = calls.flatten().collect();
    assert_eq!(pieces[0]["function"]["name"], "weather");
    assert!(pieces.iter().all(|piece| piece["index"] == 0));
    let arguments = pieces
        .iter()
        .map(|piece| piece["function"]["arguments"].as_str().unwrap());
    let arguments: String = arguments.collect();
    assert_eq!(arguments, r#"{"city": "Rome"}"#, "{frames:#?}");

    // Without tools, or told not to call, the same text is text.
    let body = chat(json!({"tools": weather(), "tool_choice": "none"}));
    let choice = server.post(CHAT, &body).await.json()["choices"][0].clone();
    assert_eq!(choice["message"]["content"], CALLS);
    assert_eq!(choice["finish_reason"], "stop");
}

#[tokio::test]
async fn a_forced_call_is_a_constraint() {
    let server = Server::new([Play::FollowConstraint]);
    let body = chat(
        json!({"tools": weather(), "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    );
    let choice = server.post(CHAT, &body).await.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "weather");
    let arguments = call["arguments"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(arguments).unwrap(),
        json!({"city": "Rome"})
    );
    for bad in [
        json!({"tools": weather(), "tool_choice": {"function": {"name": "absent"}}}),
        json!({"tool_choice": "required"}),
        json!({"tools": weather(), "tool_choice": 3}),
        json!({"tools": weather(), "tool_choice": "required", "response_format": {"type": "json_object"}}),
    ] {
        assert_eq!(server.post(CHAT, &chat(bad)).await.status, 400);
    }
}

#[tokio::test]
async fn forms() {
    let server = Server::new((0..4).map(|_| Play::FollowConstraint));
    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let body = chat(json!({"response_format": format}));
    let answer = server.post(CHAT, &body).await.json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(content).unwrap(),
        json!({"a": 1})
    );
    for (fields, expected) in [
        (json!({"json_schema": {"const": "x"}}), "\"x\""),
        (json!({"grammar": "start: \"lark\""}), "lark"),
        (json!({"grammar": "root ::= \"gbnf\""}), "gbnf"),
    ] {
        let mut body = fields;
        body["prompt"] = json!("p");
        let answer = server.post(TEXT, &body).await.json();
        assert_eq!(answer["choices"][0]["text"], expected);
    }
    for bad in [
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}),
        json!({"grammar": "start: unknown"}),
        json!({"response_format": {"type": "xml"}}),
    ] {
        let (status, code, _) = server.post(CHAT, &chat(bad)).await.error();
        assert_eq!((status, code.as_str()), (400, "INVALID_REQUEST"));
    }
}

#[tokio::test]
async fn reasoning_is_told_apart() {
    let thoughts = "<think>Hm.</think>Yes.";
    let server = Server::new([
        Play::Say(thoughts),
        Play::Say("Hm.</think>Yes."),
        Play::Say(thoughts),
        Play::FollowConstraint,
    ]);
    let message = |answer: Value| answer["choices"][0]["message"].clone();
    let body = message(server.post(CHAT, &chat(json!({}))).await.json());
    assert_eq!(
        body,
        json!({"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."})
    );
    // The prompt itself may open the thoughts.
    let fields = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let body = message(server.post(CHAT, &chat(fields)).await.json());
    assert_eq!(body["reasoning_content"], "Hm.");
    let body = message(
        server
            .post(CHAT, &chat(json!({"reasoning_format": "none"})))
            .await
            .json(),
    );
    assert_eq!(body["content"], thoughts);
    // A form leaves no room for thoughts.
    let fields = json!({"enable_thinking": true, "json_schema": {"const": 1}});
    let body = message(server.post(CHAT, &chat(fields)).await.json());
    assert_eq!(body["content"], "1");
}

#[tokio::test]
async fn fields_reach_the_engine() {
    let server = Server::new([
        Play::Say("x"),
        Play::Say("x"),
        Play::Say("x"),
        Play::Say("x"),
    ]);
    let body = json!({
        "prompt": [5, 6], "max_tokens": 9, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "typical_p": 0.75,
        "repetition_penalty": 1.5, "repeat_last_n": -1, "frequency_penalty": 0.5, "presence_penalty": -0.5,
        "logit_bias": {"7": -100}, "seed": 42, "ignore_eos": true, "timeout_ms": 1000, "unknown": {"is": "ignored"},
    });
    server.post(TEXT, &body).await.json();
    // What is off on the wire is absent in the engine.
    let off = json!({"prompt": "", "top_p": 1, "top_k": 0, "min_p": 0, "typical_p": 1.0, "max_tokens": -1, "seed": -1});
    server.post(TEXT, &off).await.json();
    let samplers = json!({
        "prompt": [5], "xtc_probability": 0.5, "dry_multiplier": 0.8, "dry_penalty_last_n": 99,
        "dry_sequence_breakers": ["x"], "dynatemp_range": 0.25, "mirostat": 2, "mirostat_tau": 3.0,
        "samplers": ["top_k", "xtc", "dry", "temperature"], "top_n_sigma": 2.0,
    });
    server.post(TEXT, &samplers).await.json();
    server
        .post(TEXT, &json!({"prompt": "p", "seed": null, "stop": null}))
        .await
        .json();
    let seen = server.script.seen.lock().unwrap();
    let first = &seen[0];
    assert_eq!(first.prompt, [5, 6]);
    assert_eq!(first.max_tokens, Some(9));
    assert!(first.ignore_end && !first.constrained);
    let sampling = &first.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k),
        (0.5, Some(0.25), Some(3))
    );
    assert_eq!(
        (sampling.min_p, sampling.typical_p),
        (Some(0.125), Some(0.75))
    );
    assert_eq!(
        (sampling.repeat_penalty, sampling.repeat_last_n),
        (1.5, usize::MAX)
    );
    assert_eq!(
        (sampling.frequency_penalty, sampling.presence_penalty),
        (0.5, -0.5)
    );
    assert_eq!((sampling.logit_bias[&7], sampling.seed), (-100.0, 42));
    let left = |i: usize| seen[i].deadline.unwrap() - Instant::now();
    assert!(left(0) <= Duration::from_secs(1));
    assert!(left(1) > Duration::from_secs(300), "the server's own limit");
    let off = &seen[1].sampling;
    assert_eq!(
        (off.top_p, off.top_k, off.min_p, off.typical_p),
        (None, None, None, None)
    );
    assert_eq!((off.temperature, seen[1].max_tokens), (0.8, None));
    let further = &seen[2].sampling;
    let order = further.order.to_string();
    assert_eq!(order, "top_k;xtc;dry;temperature");
    // What the order lacks is off.
    assert_eq!((further.top_n_sigma, further.min_p), (None, None));
    let xtc = further.xtc.unwrap();
    assert_eq!((xtc.probability, xtc.threshold), (0.5, 0.1));
    let dry = further.dry.as_ref().unwrap();
    assert_eq!(
        (dry.multiplier, dry.last_n, &dry.breakers[..]),
        (0.8, 99, &["x".to_string()][..])
    );
    assert_eq!(further.dynamic_temperature.unwrap().range, 0.25);
    let aim = Aim::Mirostat {
        version: MirostatVersion::V2,
        tau: 3.0,
        eta: 0.1,
    };
    assert_eq!(further.aim, Some(aim));
    assert_eq!(seen[3].sampling.top_k, Some(40), "the server's default");
    assert_ne!(off.seed, seen[3].sampling.seed, "seeds are random");
}

#[tokio::test]
async fn mistakes_are_named() {
    let server = Server::new([]);
    for (path, body, status, word) in [
        (CHAT, json!({}), 400, "messages"),
        (CHAT, json!({"messages": []}), 400, "messages"),
        (CHAT, json!({"messages": [{"content": "x"}]}), 400, "role"),
        (
            CHAT,
            chat(json!({"temperature": "hot"})),
            400,
            "temperature",
        ),
        (CHAT, chat(json!({"model": "gpt-9"})), 404, "org/model"),
        (CHAT, chat(json!({"n": 0})), 400, "n 0"),
        (CHAT, chat(json!({"samplers": "top_k;best"})), 400, "best"),
        (CHAT, chat(json!({"mirostat": 3})), 400, "mirostat 3"),
        (CHAT, chat(json!({"n": 129})), 400, "128"),
        (CHAT, chat(json!({"max_tokens": 0})), 400, "max_tokens"),
        (
            CHAT,
            chat(json!({"max_tokens": 1, "max_completion_tokens": 2})),
            400,
            "contradict",
        ),
        (
            CHAT,
            chat(json!({"logit_bias": {"a": "1"}})),
            400,
            "logit_bias",
        ),
        (CHAT, chat(json!({"top_logprobs": 2})), 400, "top_logprobs"),
        (
            CHAT,
            chat(json!({"logprobs": true, "top_logprobs": 65})),
            400,
            "64",
        ),
        (CHAT, chat(json!({"stop": 3})), 400, "stop"),
        (CHAT, chat(json!({"stop": vec!["x"; 65]})), 400, "stop"),
        (TEXT, json!({"prompt": {}}), 400, "prompt"),
        (TEXT, json!({"prompt": []}), 400, "prompt"),
        (
            TEXT,
            json!({"prompt": "x", "suffix": "y"}),
            400,
            "no tokens",
        ),
        (
            "/v1/embeddings",
            json!({"input": "x"}),
            400,
            "embedding model",
        ),
    ] {
        let (found, _, message) = server.post(path, &body).await.error();
        assert_eq!(found, status, "{body}");
        assert!(message.contains(word), "{body}: {message}");
    }
}

#[tokio::test]
async fn the_engines_failures_have_their_codes() {
    let long = Failure::TooLong {
        prompt: 5000,
        context: 4096,
    };
    let full = Failure::QueueFull {
        waiting: 64,
        retry_after: Duration::from_millis(1500),
    };
    let cases = [
        (long, 400, "context_length_exceeded"),
        (full, 429, "QUEUE_FULL"),
        (Failure::Invalid("x".into()), 400, "INVALID_REQUEST"),
        (Failure::Timeout(3), 504, "TIMEOUT"),
        (Failure::OutOfMemory("x".into()), 503, "VRAM_OOM"),
        (Failure::DeviceLost("x".into()), 503, "DEVICE_LOST"),
        (Failure::Stopping, 503, "CANCELLED"),
        (Failure::Internal("x".into()), 500, "INFERENCE_FAILED"),
    ];
    for (failure, status, code) in cases {
        let message = failure.to_string();
        let server = Server::new([
            Play::Refuse(failure.clone()),
            Play::SayAndFail("so f", failure.clone()),
            Play::SayAndFail("so f", failure),
        ]);
        let refused = server.post(CHAT, &chat(json!({"stream": true}))).await;
        assert_eq!(refused.error(), (status, code.to_string(), message.clone()));
        let failed = server.post(CHAT, &chat(json!({}))).await;
        assert_eq!(failed.error().0, status);
        if status == 429 {
            assert_eq!(refused.headers["retry-after"], "2");
        }
        if status == 400 && message.contains("5000") {
            assert!(
                message.contains("4096"),
                "both numbers are named: {message}"
            );
        }
        // A stream that has begun tells it in a frame, and still ends.
        let frames = server
            .post(CHAT, &chat(json!({"stream": true})))
            .await
            .frames();
        let last = frames.last().unwrap();
        assert_eq!(last["error"]["code"], code);
        assert_eq!(last["error"]["message"], message);
    }
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_requests() {
    let server = Server::new((0..3).map(|_| Play::SayAndHang("x")));
    let response = server
        .send(json_post(CHAT, &chat(json!({"stream": true, "n": 2}))))
        .await;
    assert_eq!(server.script.held(), 2);
    drop(response);
    assert_eq!((server.script.held(), server.script.answered()), (0, 0));
    // The same for one who waits for the whole answer.
    let waiting = server.send(json_post(CHAT, &chat(json!({}))));
    tokio::time::timeout(Duration::from_millis(500), waiting)
        .await
        .unwrap_err();
    assert_eq!(server.script.seen.lock().unwrap().len(), 3);
    assert_eq!(server.script.held(), 0);
}

#[tokio::test]
async fn one_refusal_gives_all_answers_up() {
    let full = Failure::QueueFull {
        waiting: 1,
        retry_after: Duration::ZERO,
    };
    let server = Server::new([Play::SayAndHang("x"), Play::Refuse(full)]);
    let answer = server.post(CHAT, &chat(json!({"n": 2}))).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(server.script.held(), 0);
}
