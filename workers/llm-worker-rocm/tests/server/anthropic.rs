//! Anthropic's routes against scripts.

use crate::calls;
use crate::client::Server;
use crate::script::{token, Play};
use llm_worker_rocm::engine::api::Failure;
use serde_json::{json, Value};
use std::time::Duration;

const MESSAGES: &str = "/v1/messages";

/// A request with one message and further fields.
fn asked(fields: Value) -> Value {
    let mut body = json!({"model": "alias", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

/// The events of a stream; each has its name as its type.
fn events(text: &str) -> Vec<Value> {
    let frames = text.split_terminator("\n\n");
    let event = |frame: &str| {
        let (name, data) = frame.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    };
    frames.map(event).collect()
}

#[tokio::test]
async fn a_message() {
    let server = Server::new([Play::Say("Hello."), Play::Say("Hello."), Play::Say("a#b")]);
    let fields = json!({
        "system": [{"type": "text", "text": "Short."}], "stop_sequences": ["#"], "temperature": 0.5, "top_k": 3,
        "top_p": 0.25, "metadata": {"user_id": "x"}, "n": 5,
    });
    let body = server.post(MESSAGES, &asked(fields.clone())).await.json();
    assert!(body["id"].as_str().unwrap().starts_with("msg_"));
    let shown = ["type", "role", "model", "stop_reason"].map(|name| body[name].as_str().unwrap());
    assert_eq!(shown, ["message", "assistant", "org/model", "end_turn"]);
    assert_eq!(body["content"], json!([{"type": "text", "text": "Hello."}]));
    assert_eq!(body["stop_sequence"], Value::Null);
    let prompt = "<system>Short.<user>hi<assistant>".len() + 1;
    let usage = json!({
        "input_tokens": prompt - 1, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 0, "output_tokens": 7,
    });
    assert_eq!(body["usage"], usage);
    // Fewer tokens than it would say.
    let short = server
        .post(MESSAGES, &asked(json!({"max_tokens": 2})))
        .await
        .json();
    assert_eq!(
        (&short["stop_reason"], &short["content"][0]["text"]),
        (&json!("max_tokens"), &json!("He"))
    );
    let stopped = server.post(MESSAGES, &asked(fields.clone())).await.json();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("#"))
    );
    assert_eq!(stopped["content"][0]["text"], "a");
    {
        let seen = server.script.seen.lock().unwrap();
        let sampling = &seen[0].sampling;
        assert_eq!(
            (sampling.temperature, sampling.top_p, sampling.top_k),
            (0.5, Some(0.25), Some(3))
        );
        assert_eq!((seen[0].max_tokens, seen.len()), (Some(200), 3));
        assert_eq!(seen[0].prompt[1..3], [token(b'<'), token(b's')]);
    }
    let counted = server
        .post("/v1/messages/count_tokens", &asked(fields))
        .await
        .json();
    assert_eq!(counted, json!({"input_tokens": prompt}));
}

#[tokio::test]
async fn a_message_as_a_stream() {
    let server = Server::new([Play::Say("Hm.</think>Hé")]);
    let body =
        asked(json!({"stream": true, "thinking": {"type": "enabled", "budget_tokens": 1024}}));
    let answer = server.post(MESSAGES, &body).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let events = events(&answer.text);
    let started = &events[0]["message"];
    assert_eq!(
        (&started["content"], &started["stop_reason"]),
        (&json!([]), &Value::Null)
    );
    assert_eq!(
        started["usage"]["input_tokens"],
        "<user>hi<assistant><think>".len() + 1
    );
    assert_eq!(
        events[1]["content_block"],
        json!({"type": "thinking", "thinking": "", "signature": ""})
    );
    let joined = |kind: &str, field: &str, index: u64| -> String {
        let of_kind = events
            .iter()
            .filter(|e| e["delta"]["type"] == kind && e["index"] == index);
        of_kind
            .map(|e| e["delta"][field].as_str().unwrap())
            .collect()
    };
    assert_eq!(joined("thinking_delta", "thinking", 0), "Hm.");
    assert_eq!(joined("text_delta", "text", 1), "Hé");
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let without_deltas: Vec<&str> = kinds
        .into_iter()
        .filter(|k| *k != "content_block_delta")
        .collect();
    assert_eq!(
        without_deltas,
        [
            "message_start",
            "content_block_start",
            "content_block_stop",
            "content_block_start",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let end = &events[events.len() - 2];
    assert_eq!(
        end["delta"],
        json!({"stop_reason": "end_turn", "stop_sequence": null})
    );
    assert_eq!(end["usage"]["output_tokens"], "Hm.</think>Hé".len() + 1);
}

#[tokio::test]
async fn calls_of_tools() {
    const CALL: &str = "I look.<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";
    let server = calls::server("<tool_call>", [Play::Say(CALL), Play::Say(CALL)]);
    let tools = json!([{"name": "weather", "description": "Looks.", "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    }}]);
    let whole = server
        .post(MESSAGES, &asked(json!({"tools": tools})))
        .await
        .json();
    assert_eq!(whole["stop_reason"], "tool_use");
    let content = whole["content"].as_array().unwrap();
    assert_eq!(content[0], json!({"type": "text", "text": "I look."}));
    let call = &content[1];
    assert_eq!(
        (&call["type"], &call["name"], &call["input"]),
        (
            &json!("tool_use"),
            &json!("weather"),
            &json!({"city": "Rome"})
        )
    );
    let streamed = server
        .post(MESSAGES, &asked(json!({"tools": tools, "stream": true})))
        .await;
    let events = events(&streamed.text);
    let begun = events
        .iter()
        .find(|e| e["content_block"]["type"] == "tool_use")
        .unwrap();
    assert_eq!(
        (&begun["index"], &begun["content_block"]["name"]),
        (&json!(1), &json!("weather"))
    );
    assert!(!begun["content_block"]["id"].as_str().unwrap().is_empty());
    let input: String = events
        .iter()
        .filter(|e| e["delta"]["type"] == "input_json_delta")
        .map(|e| e["delta"]["partial_json"].as_str().unwrap())
        .collect();
    assert_eq!(
        serde_json::from_str::<Value>(&input).unwrap(),
        json!({"city": "Rome"})
    );
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
}

#[tokio::test]
async fn mistakes_are_told_in_anthropics_form() {
    let full = Failure::QueueFull {
        waiting: 3,
        retry_after: Duration::from_secs(2),
    };
    let server = Server::new([
        Play::Refuse(full),
        Play::SayAndFail("He", Failure::Internal("broken".to_string())),
    ]);
    let busy = server.post(MESSAGES, &asked(json!({}))).await;
    assert_eq!(
        (busy.status.as_u16(), &busy.headers["retry-after"]),
        (429, &"2".parse().unwrap())
    );
    let body: Value = serde_json::from_str(&busy.text).unwrap();
    assert_eq!(
        (&body["type"], &body["error"]["type"]),
        (&json!("error"), &json!("rate_limit_error"))
    );
    // On the way, an error is the last event.
    let broken = server.post(MESSAGES, &asked(json!({"stream": true}))).await;
    let events = events(&broken.text);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("api_error"))
    );
    for (fields, status, word) in [
        (json!({"model": "other"}), 404, "org/model"),
        (json!({"messages": []}), 400, "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}),
            400,
            "search_result",
        ),
        (json!({"system": 5}), 400, "system"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            400,
            "web_search_20250305",
        ),
        (json!({"tools": [{}]}), 400, "tools[0]"),
        (json!({"tool_choice": {"type": "some"}}), 400, "tool_choice"),
        (json!({"thinking": {"type": "deep"}}), 400, "thinking"),
        (
            json!({"output_config": {"format": {"type": "xml"}}}),
            400,
            "output_config",
        ),
        (json!({"max_tokens": 0}), 400, "max_tokens"),
        (json!({"temperature": "hot"}), 400, "temperature"),
    ] {
        let refused = server.post(MESSAGES, &asked(fields)).await;
        assert_eq!(refused.status.as_u16(), status, "{}", refused.text);
        let body: Value = serde_json::from_str(&refused.text).unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            body["type"] == "error" && message.contains(word),
            "{message}"
        );
    }
}
