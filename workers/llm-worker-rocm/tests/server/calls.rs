//! Calls of tools through the server, with templates of several families.

use crate::client::Server;
use crate::script::{tokenizer, Play};
use llm_worker_rocm::chat::ChatTemplate;
use llm_worker_rocm::server::{Loaded, TextModel};
use serde_json::{json, Value};
use std::sync::Arc;

const CHAT: &str = "/v1/chat/completions";

/// What templates of families say of calls.
const FAMILIES: &[(&str, &str)] = &[
    ("hermes", "<tool_call>"),
    ("qwen-coder", "<tool_call>\n<function=NAME>"),
    (
        "glm",
        "<tool_call>{function-name}\n<arg_key>{arg-key}</arg_key>\n<arg_value>",
    ),
    (
        "glm-4.7",
        "<tool_call>{function-name}<arg_key>{arg-key}</arg_key><arg_value>",
    ),
    ("kimi", "<|tool_calls_section_begin|>"),
    ("minimax-m2", "<minimax:tool_call>"),
    ("seed", "<seed:tool_call>"),
    ("lfm2", "<|tool_call_start|>"),
    ("gemma4", "<|tool_call>call:NAME<tool_call|>"),
    ("deepseek-v3.1", "<｜tool▁call▁begin｜>"),
    ("mistral-list", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS]NAME[ARGS]"),
    ("nemotron", "<TOOLCALL>"),
    ("granite", "<|tool_call|>"),
    ("harmony", "<|channel|>commentary"),
    ("llama3", "<|start_header_id|>"),
];

/// A model whose template says these words of calls.
fn model(words: &str, server: &Server) -> TextModel {
    let source = format!(
        "{{% for tool in tools %}}{{{{ tool | tojson }}}}{{% endfor %}}{{{{ {} }}}}{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endfor %}}<assistant>",
        json!(words)
    );
    let template = ChatTemplate::new(&source, Some("<s>"), Some("</s>")).unwrap();
    TextModel::new(server.script.clone(), Arc::new(tokenizer()), template)
}

pub fn server(words: &str, plays: impl IntoIterator<Item = Play>) -> Server {
    let server = Server::new(plays);
    let text = model(words, &server);
    server.app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    server
}

fn body(fields: Value) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city"],
    });
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
    });
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body
}

fn arguments(call: &Value) -> Value {
    serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_function_that_is_named_is_called_once_as_its_schema_says() {
    for (name, words) in FAMILIES {
        let server = server(words, [Play::FollowConstraint]);
        let format = server.app.loaded().unwrap().text.unwrap().format;
        assert_eq!(format.calls.name, *name);
        let choice = json!({"tool_choice": {"type": "function", "function": {"name": "weather"}}});
        let answer = server.post(CHAT, &body(choice)).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}");
        assert_eq!(choice["message"]["content"], Value::Null, "{name}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{name} {calls:?}");
        assert_eq!(calls[0]["function"]["name"], "weather", "{name}");
        let arguments = arguments(&calls[0]);
        let city = arguments["city"].as_str().unwrap();
        assert!(city.chars().count() <= 8, "{name} {arguments}");
        let days = &arguments["days"];
        assert!(
            days.is_null() || days.as_u64().is_some_and(|n| (1..10).contains(&n)),
            "{name} {arguments}"
        );
        assert!(
            arguments.as_object().unwrap().len() <= 2,
            "{name} {arguments}"
        );
    }
}

#[tokio::test]
async fn calls_that_the_model_begins_are_held_to_their_schema() {
    const SAID: &str = "Is 2 < 3? See:\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>";
    let words = FAMILIES.iter().find(|(name, _)| *name == "glm").unwrap().1;
    let server = server(words, [Play::SayAndFollow(SAID)]);
    let answer = server.post(CHAT, &body(json!({}))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "Is 2 < 3? See:");
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 1);
    assert!(
        arguments(&calls[0])["city"]
            .as_str()
            .unwrap()
            .chars()
            .count()
            <= 8,
        "{calls:?}"
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
}

const GLM: &str = "Look:\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>";

#[tokio::test]
async fn no_mark_shows_where_max_tokens_cuts_an_answer() {
    let words = FAMILIES.iter().find(|(name, _)| *name == "glm").unwrap().1;
    for most in (1..GLM.len()).step_by(3) {
        let server = server(words, [Play::Say(GLM), Play::Say(GLM)]);
        let limit = json!({"max_tokens": most});
        let whole = server.post(CHAT, &body(limit)).await.json();
        let content = whole["choices"][0]["message"]["content"].clone();
        let shown = content.as_str().unwrap_or_default();
        assert!("Look:\n<".starts_with(shown), "{most}: {content}");
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
        let stream = json!({"max_tokens": most, "stream": true});
        let frames = server.post(CHAT, &body(stream)).await.frames();
        let pieces = frames
            .iter()
            .filter_map(|f| f["choices"][0]["delta"]["content"].as_str());
        assert_eq!(pieces.collect::<String>(), shown, "{most}");
    }
}

#[tokio::test]
async fn streams_tell_the_name_first_and_then_whole_parameters() {
    let words = FAMILIES.iter().find(|(name, _)| *name == "glm").unwrap().1;
    let server = server(words, [Play::Say(GLM)]);
    let frames = server
        .post(CHAT, &body(json!({"stream": true})))
        .await
        .frames();
    let deltas = frames
        .iter()
        .filter_map(|f| f["choices"][0]["delta"]["tool_calls"].as_array());
    let pieces: Vec<&Value> = deltas.flatten().collect();
    assert_eq!(pieces[0]["function"]["name"], "weather");
    assert!(pieces[1..]
        .iter()
        .all(|piece| piece["function"].get("name").is_none()));
    let texts: Vec<&str> = pieces
        .iter()
        .map(|p| p["function"]["arguments"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["", "{\"city\":\"Rome\"", ",\"days\":3", "}"]);
}
