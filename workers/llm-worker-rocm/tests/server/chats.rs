//! What llama.cpp's server has of chats besides OpenAI's API: grammars that begin at triggers, thoughts with a limit,
//! answers that are begun, and streams that tell more.

use crate::client::Server;
use crate::script::{token, Play};
use serde_json::{json, Value};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A chat of one message with further fields.
fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

/// A chat that ends with this message of the assistant's.
fn begun(message: Value, fields: Value) -> Value {
    let mut body = chat(fields);
    let mut last = json!({"role": "assistant"});
    let map = last.as_object_mut().unwrap();
    map.extend(message.as_object().unwrap().clone());
    body["messages"].as_array_mut().unwrap().push(last);
    body
}

/// The text of the prompt that the engine saw last.
fn prompt(server: &Server) -> String {
    let seen = server.script.seen.lock().unwrap();
    let tokens = &seen.last().unwrap().prompt;
    let bytes = tokens.iter().filter(|&&id| id >= token(0));
    String::from_utf8(bytes.map(|id| (id - token(0)) as u8).collect()).unwrap()
}

/// The fields of a grammar behind triggers.
fn lazy(grammar: &str, triggers: Value) -> Value {
    json!({"grammar": grammar, "grammar_lazy": true, "grammar_triggers": triggers})
}

#[tokio::test]
async fn a_grammar_begins_at_its_trigger() {
    let gbnf = "root ::= \"<x>\" [0-9] \"!\"";
    let cases = [
        (
            "so <x>",
            json!([{"type": "word", "value": "<x>"}]),
            "so <x>9!",
        ),
        ("so <x>", json!([{"type": 1, "value": "<x>"}]), "so <x>9!"),
        // The group is where it begins.
        (
            "o <x>",
            json!([{"type": "pattern", "value": "o\\s*(<x>)"}]),
            "o <x>9!",
        ),
        (
            "<x>",
            json!([{"type": "pattern_full", "value": "<x>"}]),
            "<x>9!",
        ),
        (
            "a<",
            json!([{"type": "token", "token": token(b'<')}]),
            "a<x>9!",
        ),
        // Nothing of that comes.
        (
            "so <y>",
            json!([{"type": "word", "value": "<x>"}]),
            "so <y>",
        ),
        (
            "so <x>",
            json!([{"type": "pattern_full", "value": "<x>"}]),
            "so <x>",
        ),
    ];
    let plays = cases.iter().map(|(words, ..)| Play::SayAndFollow(words));
    let server = Server::new(plays);
    for (_, triggers, expected) in &cases {
        let mut body = lazy(gbnf, triggers.clone());
        body["prompt"] = json!("p");
        let answer = server.post(TEXT, &body).await.json();
        assert_eq!(answer["choices"][0]["text"], *expected, "{triggers}");
    }
    // A schema may begin late, too, and so in a chat.
    let server = Server::new([
        Play::SayAndFollow("Here: {"),
        Play::SayAndFollow("<think>{</think>so {"),
    ]);
    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    let fields = json!({
        "json_schema": schema, "grammar_lazy": true, "grammar_triggers": [{"type": "word", "value": "{"}],
    });
    for (text, thought) in [("Here: ", Value::Null), ("so ", json!("{"))] {
        let answer = server.post(CHAT, &chat(fields.clone())).await.json();
        let message = &answer["choices"][0]["message"];
        let content = message["content"].as_str().unwrap();
        let found: Value = serde_json::from_str(content.strip_prefix(text).unwrap()).unwrap();
        assert_eq!(found, json!({"a": 1}));
        // In thoughts nothing begins.
        assert_eq!(message["reasoning_content"], thought);
    }
}

#[tokio::test]
async fn what_a_trigger_begins_has_to_fit() {
    let server = Server::new([Play::SayAndFollow("<x>")]);
    let mut body = lazy(
        "root ::= \"<y>\"",
        json!([{"type": "word", "value": "<x>"}]),
    );
    body["prompt"] = json!("p");
    let (status, code, message) = server.post(TEXT, &body).await.error();
    assert_eq!(
        (status, code.as_str()),
        (400, "INVALID_REQUEST"),
        "{message}"
    );
    assert!(message.contains("\"<x>\""), "{message}");
    for (bad, word) in [
        (lazy("root ::= \"x\"", json!([])), "grammar_triggers"),
        (
            lazy("root ::= \"x\"", json!([{"type": "pattern", "value": "("}])),
            "unclosed",
        ),
        (
            lazy(
                "root ::= \"x\"",
                json!([{"type": "pattern", "value": "(?=x)"}]),
            ),
            "look-around",
        ),
        (
            lazy("root ::= \"x\"", json!([{"type": "word", "value": ""}])),
            "bytes",
        ),
        (
            lazy("root ::= \"x\"", json!([{"type": "when", "value": "x"}])),
            "grammar_triggers[0]",
        ),
        (
            lazy("", json!([{"type": "word", "value": "x"}])),
            "no grammar",
        ),
        (
            json!({"grammar": "root ::= \"x\"", "grammar_triggers": [{"type": "word", "value": "x"}]}),
            "grammar_lazy",
        ),
        (
            json!({"grammar": "root ::= <x>"}),
            "<x> is not a control token",
        ),
    ] {
        let (status, _, message) = server.post(CHAT, &chat(bad)).await.error();
        assert_eq!(status, 400, "{message}");
        assert!(message.contains(word), "{message}");
    }
}

#[tokio::test]
async fn tokens_are_preserved() {
    // The control token </s> ends answers; <s> is one that can be shown.
    let server = Server::new([
        Play::SayTokens(&[1, 3 + b'a' as u32]),
        Play::SayTokens(&[1, 3 + b'a' as u32]),
    ]);
    let answer = server.post(TEXT, &json!({"prompt": "p"})).await.json();
    assert_eq!(answer["choices"][0]["text"], "a");
    let body = json!({"prompt": "p", "preserved_tokens": ["<s>", "no token"]});
    let answer = server.post(TEXT, &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "<s>a");
}

#[tokio::test]
async fn thoughts_end_after_so_many_tokens() {
    let server = Server::new([
        Play::SayAndFollow("abc"),
        Play::SayAndFollow("<think>ab"),
        Play::SayAndFollow("ab</think>c"),
        Play::SayAndFollow("a\u{e9}"),
        Play::SayAndFollow(""),
        Play::SayAndFollow("ab"),
        Play::Say("abcdef</think>g"),
    ]);
    let message = |answer: Value| answer["choices"][0]["message"].clone();
    let ask = |body: Value| {
        let server = &server;
        async move { message(server.post(CHAT, &chat(body)).await.json()) }
    };
    let thinking = json!({"enable_thinking": true});
    let fields = |more: Value| {
        let mut all = thinking.clone();
        let map = all.as_object_mut().unwrap();
        map.extend(more.as_object().unwrap().clone());
        all
    };
    let told = ask(fields(json!({"reasoning_budget_tokens": 3}))).await;
    assert_eq!(
        told,
        json!({"role": "assistant", "content": "", "reasoning_content": "abc"})
    );
    // Thoughts that the answer begins itself, and what is said at their end.
    let told =
        ask(json!({"thinking_budget_tokens": 2, "reasoning_budget_message": "!Enough."})).await;
    assert_eq!(told["reasoning_content"], "ab!Enough.");
    // Those that end by themselves.
    let told = ask(fields(json!({"reasoning_budget_tokens": 20}))).await;
    assert_eq!(
        (&told["reasoning_content"], &told["content"]),
        (&json!("ab"), &json!("c"))
    );
    // A character is finished first.
    let told = ask(fields(json!({"reasoning_budget_tokens": 2}))).await;
    assert_eq!(told["reasoning_content"], "a\u{e9}");
    let told = ask(fields(json!({"reasoning_budget_tokens": 0}))).await;
    assert_eq!(told, json!({"role": "assistant", "content": ""}));
    // By Anthropic's name.
    let body = json!({
        "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "enabled", "budget_tokens": 2},
    });
    let answer = server.post("/v1/messages", &body).await.json();
    assert_eq!(answer["content"][0]["thinking"], "ab");
    let told = ask(fields(json!({"reasoning_budget_tokens": -1}))).await;
    assert_eq!(told["reasoning_content"], "abcdef");
    for bad in [
        json!({"reasoning_budget_tokens": -2}),
        json!({"reasoning_budget_tokens": 1, "reasoning_budget_message": "x".repeat(5000)}),
    ] {
        assert_eq!(server.post(CHAT, &chat(bad)).await.status, 400);
    }
}

#[tokio::test]
async fn an_answer_that_is_begun_goes_on() {
    let server = Server::new((0..9).map(|_| Play::Say("x</think>y")));
    let text = json!({"content": "Whill"});
    let parts =
        json!({"content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ill"}]});
    let thought = json!({"reasoning_content": "Hm", "content": "So"});
    let thinks = json!({"reasoning_content": "Hm", "content": ""});
    let on = json!({"enable_thinking": true});
    let before = "<user>hi<assistant>";
    for (message, fields, end, reasoning) in [
        (&text, json!({}), "Whill", Value::Null),
        (
            &parts,
            json!({"continue_final_message": true}),
            "Whill",
            Value::Null,
        ),
        (
            &text,
            json!({"continue_final_message": "content"}),
            "Whill",
            Value::Null,
        ),
        // A model that would think first has thought nothing.
        (&text, on.clone(), "<think></think>\n\nWhill", Value::Null),
        (&thought, on, "<think>Hm\n</think>\n\nSo", Value::Null),
        (
            &thought,
            json!({}),
            "<think>Hm\n</think>\n\nSo",
            Value::Null,
        ),
        (&thinks, json!({}), "<think>Hm", json!("x")),
        (
            &thought,
            json!({"continue_final_message": "reasoning_content"}),
            "<think>Hm",
            json!("x"),
        ),
    ] {
        let body = begun(message.clone(), fields);
        let answer = server.post(CHAT, &body).await.json();
        assert_eq!(prompt(&server), format!("{before}{end}"), "{body}");
        let told = &answer["choices"][0]["message"];
        assert_eq!(told["reasoning_content"], reasoning, "{body}");
    }
    let anew = begun(text.clone(), json!({"add_generation_prompt": true}));
    server.post(CHAT, &anew).await.json();
    assert_eq!(prompt(&server), "<user>hi<assistant>Whill<assistant>");
    let mut two = begun(text.clone(), json!({}));
    let last = two["messages"][1].clone();
    two["messages"].as_array_mut().unwrap().push(last);
    for bad in [
        two,
        begun(
            text.clone(),
            json!({"continue_final_message": true, "add_generation_prompt": true}),
        ),
        begun(text, json!({"continue_final_message": "both"})),
        chat(json!({"continue_final_message": true})),
    ] {
        assert_eq!(server.post(CHAT, &bad).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn thinking_is_asked_for_and_told_in_several_ways() {
    let server =
        Server::new((0..4).map(|_| {
            Play::Say("a <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>")
        }));
    // The test's template has no variable for it, so nothing is lost and nothing changes.
    server
        .post(CHAT, &chat(json!({"reasoning_effort": "high"})))
        .await
        .json();
    let fields = json!({"reasoning_effort": "none", "chat_template_kwargs": {}});
    server.post(CHAT, &chat(fields)).await.json();
    assert_eq!(prompt(&server), "<user>hi<assistant>");
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]);
    let answer = server
        .post(CHAT, &chat(json!({"tools": tools})))
        .await
        .json();
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let fields = json!({"tools": tools, "parse_tool_calls": false});
    let answer = server.post(CHAT, &chat(fields)).await.json();
    let message = &answer["choices"][0]["message"];
    assert!(
        message["content"].as_str().unwrap().contains("<tool_call>"),
        "{message}"
    );
    let (status, _, message) = server
        .post(CHAT, &chat(json!({"reasoning_format": "other"})))
        .await
        .error();
    assert_eq!(status, 400, "{message}");
}

#[tokio::test]
async fn streams_tell_more_where_that_is_asked_for() {
    let server = Server::new((0..4).map(|_| Play::Say("ab")));
    let fields = json!({
        "stream": true, "return_progress": true, "timings_per_token": true, "stream_options": {"include_usage": true},
    });
    let total = "<user>hi<assistant>".len() + 1;
    for (path, body) in [
        (CHAT, chat(fields.clone())),
        ("/chat/completions", chat(fields.clone())),
    ] {
        let frames = server.post(path, &body).await.frames();
        assert_eq!(frames[0]["choices"][0]["delta"]["role"], "assistant");
        assert!(frames[0].get("timings").is_none());
        let progress: Vec<&Value> = frames
            .iter()
            .filter_map(|f| f.get("prompt_progress"))
            .collect();
        let processed: Vec<u64> = progress
            .iter()
            .map(|p| p["processed"].as_u64().unwrap())
            .collect();
        assert_eq!(processed, [1, 2, total as u64]);
        assert!(progress
            .iter()
            .all(|p| p["total"] == total && p["cache"] == 1 && p["time_ms"].is_number()));
        let parts: Vec<&Value> = frames
            .iter()
            .filter(|f| f["choices"][0]["delta"]["content"].is_string())
            .collect();
        let counted: Vec<&Value> = parts.iter().map(|f| &f["timings"]["predicted_n"]).collect();
        assert_eq!(counted, [1, 2]);
        let last = frames.last().unwrap();
        assert_eq!(last["usage"]["completion_tokens"], 3);
        assert_eq!(last["timings"]["predicted_n"], 3);
    }
    let body = json!({"prompt": "p", "stream": true, "return_progress": true});
    let frames = server.post(TEXT, &body).await.frames();
    assert_eq!(frames[0]["prompt_progress"]["processed"], 1);
    assert!(frames
        .iter()
        .all(|f| f["choices"][0]["finish_reason"].is_string() == f.get("timings").is_some()));
    let body =
        json!({"input": "p", "stream": true, "return_progress": true, "timings_per_token": true});
    let answer = server.post("/responses", &body).await;
    let events: Vec<Value> = answer
        .text
        .lines()
        .filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).unwrap()))
        .collect();
    let of_kind = |kind: &str| {
        events
            .iter()
            .filter(|e| e["type"] == kind)
            .collect::<Vec<_>>()
    };
    let body = json!({"input": "p", "instructions": "i"});
    let count = server.post("/v1/responses/input_tokens", &body).await;
    let prompt = "<system>i<user>p<assistant>".len() + 1;
    assert_eq!(count.json()["input_tokens"], prompt);
    let progress = of_kind("response.in_progress");
    assert_eq!(
        progress.last().unwrap()["prompt_progress"]["processed"],
        "<user>p<assistant>".len() + 1
    );
    assert_eq!(
        of_kind("response.output_text.delta")[1]["timings"]["predicted_n"],
        2
    );
    assert_eq!(
        of_kind("response.completed")[0]["timings"]["predicted_n"],
        3
    );
}

#[tokio::test]
async fn what_the_model_was_given_can_be_told() {
    let server = Server::new((0..4).map(|_| Play::Say("ab")));
    let fields = json!({"verbose": true, "seed": 5, "top_k": 7});
    let answer = server.post(CHAT, &chat(fields.clone())).await.json();
    let told = &answer["__verbose"];
    assert_eq!(told["prompt"], "<s><user>hi<assistant>");
    assert_eq!(told["content"], "ab</s>");
    let settings = &told["generation_settings"];
    assert_eq!(
        (&settings["seed"], &settings["top_k"]),
        (&json!(5), &json!(7))
    );
    let mut body = fields;
    body["prompt"] = json!("p");
    body["stream"] = json!(true);
    let frames = server.post(TEXT, &body).await.frames();
    assert_eq!(frames.last().unwrap()["__verbose"]["prompt"], "<s>p");
    let body = chat(json!({"verbose": false}));
    let answer = server.post(CHAT, &body).await.json();
    assert!(answer.get("__verbose").is_none());
    let models = server.get("/models").await.json();
    assert_eq!(models["models"][0]["capabilities"], json!(["completion"]));
}
