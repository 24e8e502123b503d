//! OpenAI's responses against scripts.

use crate::calls;
use crate::client::Server;
use crate::script::Play;
use axum::body::Body;
use axum::http::Request;
use llm_worker_rocm::engine::api::Failure;
use serde_json::{json, Value};

const RESPONSES: &str = "/v1/responses";

/// The events of a stream; each has its name as its type, and they are counted.
fn events(text: &str) -> Vec<Value> {
    let frames = text.split_terminator("\n\n").enumerate();
    let event = |(index, frame): (usize, &str)| {
        let (name, data) = frame.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        assert_eq!(data["sequence_number"], index);
        data
    };
    frames.map(event).collect()
}

fn prompt_of(server: &Server, index: usize) -> String {
    let seen = server.script.seen.lock().unwrap();
    let bytes = seen[index].prompt[1..]
        .iter()
        .map(|token| (token - 3) as u8);
    let text = String::from_utf8(bytes.collect()).unwrap();
    // The vocabulary's space.
    text.replace('\u{2581}', " ")
}

#[tokio::test]
async fn a_response_and_one_that_goes_on_from_it() {
    let server = Server::new([Play::Say("Hello."), Play::Say("Fine."), Play::Say("x")]);
    let first = json!({"input": "hi", "instructions": "Be brief.", "max_output_tokens": 64, "metadata": {"a": "b"}});
    let body = server.post(RESPONSES, &first).await.json();
    let shown =
        ["object", "status", "model", "instructions"].map(|name| body[name].as_str().unwrap());
    assert_eq!(shown, ["response", "completed", "org/model", "Be brief."]);
    assert_eq!(
        (&body["metadata"], &body["error"]),
        (&json!({"a": "b"}), &Value::Null)
    );
    let message = &body["output"][0];
    let part =
        json!([{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}]);
    assert_eq!(
        (&message["type"], &message["role"], &message["content"]),
        (&json!("message"), &json!("assistant"), &part)
    );
    assert_eq!(
        (
            &body["usage"]["output_tokens"],
            &body["usage"]["output_tokens_details"]["reasoning_tokens"]
        ),
        (&json!(7), &json!(0))
    );
    assert_eq!(
        prompt_of(&server, 0),
        "<system>Be brief.<user>hi<assistant>"
    );

    let id = body["id"].as_str().unwrap();
    let next =
        json!({"input": [{"role": "user", "content": "And you?"}], "previous_response_id": id});
    let answer = server.post(RESPONSES, &next).await.json();
    assert_eq!(
        (
            &answer["previous_response_id"],
            &answer["output"][0]["content"][0]["text"]
        ),
        (&json!(id), &json!("Fine."))
    );
    // Without the instructions, which were the first one's.
    assert_eq!(
        prompt_of(&server, 1),
        "<user>hi<assistant>Hello.<user>And you?<assistant>"
    );
    assert_eq!(server.get(&format!("{RESPONSES}/{id}")).await.json(), body);

    let request = Request::delete(format!("{RESPONSES}/{id}")).body(Body::empty());
    assert_eq!(server.send(request.unwrap()).await.status(), 200);
    assert_eq!(server.get(&format!("{RESPONSES}/{id}")).await.status, 404);
    assert_eq!(server.post(RESPONSES, &next).await.error().0, 404);
    let unkept = json!({"input": "hi", "store": false});
    let answer = server.post(RESPONSES, &unkept).await.json();
    assert_eq!(
        (&answer["status"], &answer["incomplete_details"]["reason"]),
        (&json!("completed"), &Value::Null)
    );
    let id = answer["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("{RESPONSES}/{id}")).await.status, 404);
}

#[tokio::test]
async fn a_response_as_a_stream() {
    let server = Server::new([Play::Say("Hm.</think>Hé"), Play::Say("long")]);
    let body = json!({"input": "hi", "stream": true, "reasoning": {"effort": "high"}});
    let answer = server.post(RESPONSES, &body).await;
    let events = events(&answer.text);
    let mut kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let joined = |kind: &str| -> String {
        let of_kind = events.iter().filter(|e| e["type"] == kind);
        of_kind.map(|e| e["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(joined("response.reasoning_text.delta"), "Hm.");
    assert_eq!(joined("response.output_text.delta"), "Hé");
    let whole = &events.last().unwrap()["response"];
    assert_eq!(
        whole["output"][0]["content"][0],
        json!({"type": "reasoning_text", "text": "Hm."})
    );
    assert_eq!(whole["output"][1]["content"][0]["text"], "Hé");
    assert_eq!(
        whole["usage"]["output_tokens_details"]["reasoning_tokens"],
        3
    );
    // Kept as it was told.
    let id = whole["id"].as_str().unwrap();
    assert_eq!(
        &server.get(&format!("{RESPONSES}/{id}")).await.json(),
        whole
    );
    // Cut by a limit.
    let body = json!({"input": "hi", "stream": true, "max_output_tokens": 2, "store": false});
    let cut = server.post(RESPONSES, &body).await;
    let last: Value = self::events(&cut.text).pop().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(
        last["response"]["incomplete_details"]["reason"],
        "max_output_tokens"
    );
}

#[tokio::test]
async fn calls_of_functions_and_their_outputs() {
    const CALL: &str =
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";
    let server = calls::server(
        "<tool_call>",
        [Play::Say(CALL), Play::Say("20."), Play::Say(CALL)],
    );
    let tools = json!([{"type": "function", "name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    }}]);
    let whole = server
        .post(RESPONSES, &json!({"input": "Warm?", "tools": tools}))
        .await
        .json();
    let call = &whole["output"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("weather"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Rome"}));
    let output =
        json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "20"}]);
    let next = json!({"input": output, "tools": tools, "previous_response_id": whole["id"]});
    let answer = server.post(RESPONSES, &next).await.json();
    assert_eq!(answer["output"][0]["content"][0]["text"], "20.");
    let streamed = server
        .post(
            RESPONSES,
            &json!({"input": "Warm?", "tools": tools, "stream": true}),
        )
        .await;
    let events = events(&streamed.text);
    let done = events
        .iter()
        .find(|e| e["type"] == "response.function_call_arguments.done")
        .unwrap();
    let arguments: Value = serde_json::from_str(done["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&done["name"], arguments),
        (&json!("weather"), json!({"city": "Rome"}))
    );
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(
        (&item["id"], &item["status"]),
        (&done["item_id"], &json!("completed"))
    );
}

#[tokio::test]
async fn mistakes_and_failures() {
    let broken = Failure::Internal("broken".to_string());
    let server = Server::new([Play::SayAndFail("He", broken)]);
    let failed = server
        .post(RESPONSES, &json!({"input": "hi", "stream": true}))
        .await;
    let last = events(&failed.text).pop().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert!(last["response"]["error"]["message"]
        .as_str()
        .unwrap()
        .contains("broken"));
    for (body, status, word) in [
        (json!({}), 400, "input"),
        (json!({"input": []}), 400, "input"),
        (
            json!({"input": [{"type": "computer_call"}]}),
            400,
            "computer_call",
        ),
        (json!({"input": "x", "background": true}), 400, "background"),
        (
            json!({"input": "x", "conversation": "c"}),
            400,
            "previous_response_id",
        ),
        (
            json!({"input": "x", "previous_response_id": "resp_0"}),
            404,
            "resp_0",
        ),
        (
            json!({"input": "x", "tools": [{"type": "web_search"}]}),
            400,
            "web_search",
        ),
        (
            json!({"input": "x", "text": {"format": {"type": "xml"}}}),
            400,
            "response_format",
        ),
        (json!({"input": "x", "model": "other"}), 404, "org/model"),
    ] {
        let (found, _, message) = server.post(RESPONSES, &body).await.error();
        assert!(
            found == status && message.contains(word),
            "{found}: {message}"
        );
    }
}
