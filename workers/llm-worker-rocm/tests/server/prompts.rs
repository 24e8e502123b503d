//! What completions tell of their prompts, and which of several answers they give.

use crate::client::Server;
use crate::script::{token, Play};
use serde_json::{json, Value};

const TEXT: &str = "/v1/completions";

/// The probabilities that a script gives to prompts: each token is as likely as its place says, and the one behind it
/// twice as likely.
fn list(choice: &Value, name: &str) -> Vec<Value> {
    choice["logprobs"][name].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_prompt_is_told_with_its_answer() {
    let server = Server::new([Play::Say("ef"), Play::Say("ef"), Play::Say("")]);
    let body = json!({"prompt": "aéb", "echo": true, "logprobs": 1, "max_tokens": 2});
    let answer = server.post(TEXT, &body).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "aébef");
    let half = "\u{FFFD}";
    assert_eq!(
        list(choice, "tokens"),
        ["<s>", "a", half, half, "b", "e", "f"]
    );
    assert_eq!(
        list(choice, "token_logprobs"),
        [
            json!(null),
            json!(-1.0),
            json!(-2.0),
            json!(-3.0),
            json!(-4.0),
            json!(-0.25),
            json!(-0.25)
        ]
    );
    // Both halves of a character begin where it does; the beginning of a text has no text itself.
    assert_eq!(list(choice, "text_offset"), [0, 0, 1, 1, 2, 3, 4]);
    let top = list(choice, "top_logprobs");
    assert_eq!(top[0], Value::Null);
    // One more likely token, and the own one.
    assert_eq!(top[1], json!({"b": -0.5, "a": -1.0}));
    // Of two halves that look alike, the more likely one.
    assert_eq!(top[2], json!({half: -1.0}));
    assert_eq!(top[5], json!({"e": -0.25}));
    assert_eq!(answer["usage"]["prompt_tokens"], 5);
    {
        let seen = server.script.seen.lock().unwrap();
        assert_eq!(
            (seen[0].prompt_logprobs, seen[0].top_logprobs),
            (Some(1), Some(1))
        );
    }

    // The same as a stream.
    let mut body = body;
    body["stream"] = json!(true);
    let frames = server.post(TEXT, &body).await.frames();
    let choices: Vec<&Value> = frames.iter().map(|frame| &frame["choices"][0]).collect();
    let text: String = choices
        .iter()
        .map(|c| c["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "aébef");
    for name in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        let parts = choices
            .iter()
            .filter_map(|c| c["logprobs"][name].as_array());
        let streamed: Vec<Value> = parts.flatten().cloned().collect();
        assert_eq!(streamed, list(choice, name), "{name}");
    }

    // Without an answer.
    let body =
        json!({"prompt": [token(b'x'), token(b'y')], "echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = server.post(TEXT, &body).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("xy"), &json!("length"))
    );
    assert_eq!(list(choice, "tokens"), ["x", "y"]);
    assert_eq!(
        list(choice, "top_logprobs"),
        [Value::Null, json!({"y": -1.0})]
    );
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn prompts_in_the_form_of_vllm() {
    let server = Server::new([Play::Say("c"), Play::Say("d"), Play::Say("e")]);
    let body = json!({"prompt": [[token(b'a'), token(b'b')], [token(b'x')]], "prompt_logprobs": 1});
    let answer = server.post(TEXT, &body).await.json();
    let [b, c] = [b'b', b'c'].map(|byte| token(byte).to_string());
    let expected = json!([null, {
        b: {"logprob": -1.0, "rank": null, "decoded_token": "b"},
        c: {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
    }]);
    assert_eq!(answer["choices"][0]["prompt_logprobs"], expected);
    assert_eq!(answer["choices"][1]["prompt_logprobs"], json!([null]));
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["choices"][0]["text"], "c");
    let body = json!({"messages": [{"role": "user", "content": "h"}], "prompt_logprobs": 0});
    let answer = server.post("/v1/chat/completions", &body).await.json();
    let told = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(told.len(), "<user>h<assistant>".len() + 1);
    assert_eq!(told[0], Value::Null);
    assert_eq!(told[7][token(b'h').to_string()]["logprob"], -7.0);
}

#[tokio::test]
async fn the_best_answers_are_given() {
    let server = Server::new([
        Play::Say("a"),
        Play::Say("bb"),
        Play::Say("c"),
        Play::Say("d"),
    ]);
    let body = json!({"prompt": ["x", "y"], "best_of": 2, "seed": 5});
    let answer = server.post(TEXT, &body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    // All tokens of a script are equally likely: the earlier answer is given.
    assert_eq!(
        (&choices[0]["text"], &choices[1]["text"]),
        (&json!("a"), &json!("c"))
    );
    assert_eq!((&choices[1]["index"], choices.len()), (&json!(1), 2));
    // Nobody asked for them, and all answers count.
    assert_eq!(choices[0]["logprobs"], Value::Null);
    assert_eq!(answer["usage"]["completion_tokens"], 2 + 3 + 2 + 2);
    let seen = server.script.seen.lock().unwrap();
    let seeds: Vec<u64> = seen.iter().map(|seen| seen.sampling.seed).collect();
    assert_eq!(seeds, [5, 6, 7, 8]);
    assert_eq!(seen[0].top_logprobs, Some(0));
}

#[tokio::test]
async fn a_text_is_filled_in() {
    let server = Server::filling_in([Play::Say("b"), Play::Say("b"), Play::Say("b")]);
    let [prefix, suffix, middle] = [0, 1, 2].map(|place| token(255) + 1 + place);
    let [a, c] = [b'a', b'c'].map(token);
    let expected = vec![1, prefix, a, suffix, c, middle];
    let body = json!({"prompt": "a", "suffix": "c"});
    let answer = server.post(TEXT, &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "b");
    server
        .post(TEXT, &json!({"prompt": [[a]], "suffix": "c"}))
        .await
        .json();
    let body = json!({"model": "org/model", "prompt": "a", "suffix": "c", "stream": false});
    let answer = server.post("/api/generate", &body).await.json();
    assert_eq!(answer["response"], "b");
    for seen in server.script.seen.lock().unwrap().iter() {
        assert_eq!(seen.prompt, expected);
    }
    // Marks in texts are text.
    let several = server
        .post(TEXT, &json!({"prompt": ["a", "b"], "suffix": "c"}))
        .await;
    assert_eq!(several.error().0, 400);
    let server = Server::filling_in([Play::Say("b")]);
    let body = json!({"prompt": "<|fim_middle|>", "suffix": "c"});
    server.post(TEXT, &body).await.json();
    let seen = server.script.seen.lock().unwrap();
    assert_eq!(
        seen[0]
            .prompt
            .iter()
            .filter(|token| **token == middle)
            .count(),
        1
    );
}

#[tokio::test]
async fn what_cannot_be_told_is_refused() {
    let server = Server::new([]);
    for (body, param) in [
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 0, "logprobs": 1}), "max_tokens"),
        (json!({"echo": true, "logprobs": 65}), "logprobs"),
        (json!({"prompt_logprobs": 65}), "prompt_logprobs"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs"),
        (
            json!({"prompt_logprobs": 1, "stream": true}),
            "prompt_logprobs",
        ),
        (json!({"best_of": 1, "n": 2}), "best_of"),
        (json!({"best_of": 129}), "best_of"),
        (json!({"best_of": 2, "stream": true}), "best_of"),
        (json!({"suffix": "y", "echo": true}), "suffix"),
        (
            json!({"prompt": "x".repeat(4000), "n": 128, "prompt_logprobs": 9}),
            "prompt",
        ),
    ] {
        let mut whole = json!({"prompt": "x"});
        whole
            .as_object_mut()
            .unwrap()
            .extend(body.as_object().unwrap().clone());
        let answer = server.post(TEXT, &whole).await;
        assert_eq!(answer.status, 400, "{body}");
        let error: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(error["error"]["param"], param, "{body}");
    }
}

#[tokio::test]
async fn tokens_in_the_form_of_vllm() {
    let server = Server::new([]);
    let text = |fields: Value| {
        let server = &server;
        async move { server.post("/tokenize", &fields).await.json() }
    };
    let [a, b] = [b'a', b'b'].map(token);
    let found =
        text(json!({"model": "org/model", "prompt": "ab", "return_token_strs": true})).await;
    assert_eq!(
        found,
        json!({"count": 3, "max_model_len": 4096, "tokens": [1, a, b], "token_strs": ["<s>", "a", "b"]})
    );
    let found = text(json!({"prompt": "a</s>", "add_special_tokens": false})).await;
    assert_eq!(
        (&found["tokens"], &found["token_strs"]),
        (&json!([a, 2]), &Value::Null)
    );
    let found = text(json!({"messages": [{"role": "user", "content": "hi"}]})).await;
    assert_eq!(found["count"], "<user>hi<assistant>".len() + 1);
    // llama.cpp's form beside it.
    assert_eq!(text(json!({"content": "a"})).await, json!({"tokens": [a]}));
    let body = json!({"tokens": [1, a, 2]});
    let found = server.post("/detokenize", &body).await.json();
    assert_eq!(
        (&found["content"], &found["prompt"]),
        (&json!("a"), &json!("<s>a</s>"))
    );
    for (body, param) in [
        (json!({"prompt": "a", "messages": []}), "prompt"),
        (json!({"prompt": "a".repeat(800 << 10)}), "prompt"),
        (json!({"messages": []}), "messages"),
        (json!({"prompt": "a", "model": "other"}), "model"),
        (json!({"prompt": 1}), "prompt"),
    ] {
        let answer = server.post("/tokenize", &body).await;
        let error: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(error["error"]["param"], param, "{}", answer.text);
    }
    let info = server.get("/tokenizer_info").await.json();
    assert_eq!(
        (&info["bos_token"], &info["eos_token"]),
        (&json!("<s>"), &json!("</s>"))
    );
    assert_eq!(info["add_bos_token"], true);
    assert!(info["chat_template"]
        .as_str()
        .unwrap()
        .contains("assistant"));
}

#[tokio::test]
async fn a_model_that_nobody_names_is_this_one() {
    let server = Server::new([Play::Say("a"), Play::Say("b")]);
    for model in ["unknown", "default"] {
        let body = json!({"prompt": "x", "model": model});
        assert_eq!(server.post(TEXT, &body).await.json()["model"], "org/model");
    }
}
