//! Ollama's routes against scripts.

use crate::calls;
use crate::client::Server;
use crate::script::Play;
use llm_worker_rocm::engine::api::Failure;
use serde_json::{json, Value};

/// The lines of a stream.
fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn chat(fields: Value) -> Value {
    let mut body =
        json!({"model": "org/model:latest", "messages": [{"role": "user", "content": "hi"}]});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_chat_line_by_line_and_whole() {
    let server = Server::new([Play::Say("Hm.</think>Hé"), Play::Say("Hello.")]);
    let options = json!({
        "num_predict": 64, "temperature": 0.5, "top_k": 3, "repeat_last_n": -1, "num_ctx": 2048, "mirostat": null, "stop": ["#"],
    });
    let body = chat(json!({"think": true, "options": options}));
    let streamed = server.post("/api/chat", &body).await;
    assert_eq!(streamed.headers["content-type"], "application/x-ndjson");
    let lines = lines(&streamed.text);
    let joined = |field: &str| -> String {
        let texts = lines
            .iter()
            .filter_map(|line| line["message"][field].as_str());
        texts.collect()
    };
    assert_eq!(
        (joined("thinking").as_str(), joined("content").as_str()),
        ("Hm.", "Hé")
    );
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["model"]),
        (&json!(true), &json!("stop"), &json!("org/model:latest"))
    );
    assert_eq!(last["eval_count"], "Hm.</think>Hé".len() + 1);
    assert_eq!(
        last["prompt_eval_count"],
        "<user>hi<assistant><think>".len() + 1
    );
    assert!(lines[..lines.len() - 1]
        .iter()
        .all(|line| line["done"] == false));
    {
        let seen = server.script.seen.lock().unwrap();
        let sampling = &seen[0].sampling;
        assert_eq!(
            (seen[0].max_tokens, sampling.temperature, sampling.top_k),
            (Some(64), 0.5, Some(3))
        );
        assert_eq!(sampling.repeat_last_n, usize::MAX);
    }
    let whole = server
        .post("/api/chat", &chat(json!({"stream": false})))
        .await
        .json();
    assert_eq!(
        whole["message"],
        json!({"role": "assistant", "content": "Hello."})
    );
    assert_eq!(
        (&whole["done"], &whole["eval_count"]),
        (&json!(true), &json!(7))
    );
    // Nothing asked: the model is there.
    let loaded = server
        .post("/api/chat", &json!({"model": "org/model"}))
        .await
        .json();
    assert_eq!(
        (&loaded["done"], &loaded["done_reason"]),
        (&json!(true), &json!("load"))
    );
}

#[tokio::test]
async fn texts_as_messages_and_as_they_are() {
    let server = Server::new([Play::Say("a"), Play::Say("b</think>"), Play::Say("c")]);
    let prompt_of = |index: usize| {
        let seen = server.script.seen.lock().unwrap();
        let bytes = seen[index].prompt[1..]
            .iter()
            .map(|token| (token - 3) as u8);
        let text = String::from_utf8(bytes.collect()).unwrap();
        // The vocabulary's space.
        text.replace('\u{2581}', " ")
    };
    let body = json!({"model": "alias", "prompt": "x", "system": "S", "stream": false});
    let answer = server.post("/api/generate", &body).await.json();
    assert_eq!(
        (&answer["response"], &answer["done_reason"]),
        (&json!("a"), &json!("stop"))
    );
    assert_eq!(prompt_of(0), "<system>S<user>x<assistant>");
    let raw = json!({"model": "alias", "prompt": "x", "raw": true});
    let lines = lines(&server.post("/api/generate", &raw).await.text);
    let text: String = lines
        .iter()
        .map(|line| line["response"].as_str().unwrap())
        .collect();
    assert_eq!((text.as_str(), prompt_of(1).as_str()), ("b</think>", "x"));
    let form =
        json!({"model": "alias", "prompt": "x", "stream": false, "format": {"type": "integer"}});
    server.post("/api/generate", &form).await.json();
    assert!(server.script.seen.lock().unwrap()[2].constrained);
}

#[tokio::test]
async fn calls_of_tools() {
    const CALL: &str =
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";
    let server = calls::server("<tool_call>", [Play::Say(CALL), Play::Say("20.")]);
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    }}}]);
    let lines = lines(
        &server
            .post("/api/chat", &chat(json!({"tools": tools})))
            .await
            .text,
    );
    let called: Vec<&Value> = lines
        .iter()
        .filter(|line| !line["message"]["tool_calls"].is_null())
        .collect();
    let function = &called[0]["message"]["tool_calls"][0]["function"];
    assert_eq!(
        (called.len(), function),
        (
            1,
            &json!({"name": "weather", "arguments": {"city": "Rome"}})
        )
    );
    let messages = json!([
        {"role": "user", "content": "Warm?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
        {"role": "tool", "tool_name": "weather", "content": "20"},
    ]);
    let body = json!({"model": "alias", "messages": messages, "tools": tools, "stream": false});
    assert_eq!(
        server.post("/api/chat", &body).await.json()["message"]["content"],
        "20."
    );
}

#[tokio::test]
async fn what_is_there_and_mistakes() {
    let broken = Failure::Internal("broken".to_string());
    let server = Server::new([Play::SayAndFail("He", broken)]);
    let tags = server.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["model"], "org/model");
    assert_eq!(
        server.get("/api/ps").await.json()["models"][0]["name"],
        "org/model"
    );
    assert!(server.get("/api/version").await.json()["version"].is_string());
    let shown = server
        .post("/api/show", &json!({"model": "alias"}))
        .await
        .json();
    assert_eq!(
        shown["capabilities"],
        json!(["completion", "tools", "thinking"])
    );
    assert!(shown["template"]
        .as_str()
        .unwrap()
        .contains("for m in messages"));
    let failed = lines(&server.post("/api/chat", &chat(json!({}))).await.text);
    assert!(failed.last().unwrap()["error"]
        .as_str()
        .unwrap()
        .contains("broken"));
    for (path, body, status, word) in [
        (
            "/api/chat",
            chat(json!({"model": "other"})),
            404,
            "org/model",
        ),
        (
            "/api/chat",
            chat(json!({"options": {"temperature": "hot"}})),
            400,
            "temperature",
        ),
        ("/api/chat", chat(json!({"format": "xml"})), 400, "format"),
        (
            "/api/chat",
            chat(json!({"messages": [{"content": "x"}]})),
            400,
            "role",
        ),
        (
            "/api/generate",
            json!({"prompt": "x", "suffix": "y"}),
            400,
            "suffix",
        ),
        (
            "/api/generate",
            json!({"prompt": "x", "template": "y"}),
            400,
            "--chat-template",
        ),
        ("/api/embed", json!({"input": "x"}), 400, "embedding"),
        ("/api/show", json!({"name": "other"}), 404, "org/model"),
    ] {
        let answer = server.post(path, &body).await;
        let error: Value = serde_json::from_str(&answer.text).unwrap();
        let message = error["error"].as_str().unwrap();
        assert!(
            answer.status.as_u16() == status && message.contains(word),
            "{path}: {}",
            answer.text
        );
    }
}
