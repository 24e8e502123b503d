//! Answers to one prompt.

use super::common::u32;
use super::*;
use serde_json::Value;
use std::io::Write;

#[test]
fn standard_output_carries_the_text_and_nothing_else() {
    let model = TinyModel::new(|_| {});
    let plain = generate(&model, &["the cat", "--greedy", "-n", "12"]);
    assert_eq!(plain.status.code(), Some(0), "{}", text(&plain.stderr));
    let json = generate(&model, &["the cat", "--greedy", "-n", "12", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        text(&plain.stdout),
        format!("{}\n", json["text"].as_str().unwrap())
    );
    assert_eq!(json["prompt_tokens"], serde_json::json!([6, 3, 9, 7, 26]));
    assert_eq!(json["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(json["finish_reason"], "length");
    assert_eq!(json["device"]["name"], "cpu");
    assert!(json["timings"]["load_ms"].as_f64().unwrap() > 0.0);
    let summary = text(&plain.stderr);
    assert!(
        summary.contains("tokens/s") && summary.contains("load"),
        "{summary}"
    );
}

#[test]
fn a_seed_repeats_its_answer() {
    let model = TinyModel::new(|_| {});
    let draw = |seed| {
        text(
            &generate(
                &model,
                &["the", "--seed", seed, "-n", "24", "--temperature", "2"],
            )
            .stdout,
        )
    };
    assert_eq!(draw("1"), draw("1"));
    assert_ne!(draw("1"), draw("2"));
}

#[test]
fn the_prompt_can_come_from_standard_input() {
    let model = TinyModel::new(|_| {});
    let mut child = worker()
        .args([
            "generate",
            "-",
            "--greedy",
            "-n",
            "4",
            "--json",
            "--device",
            "cpu",
            "--model",
            model.arg(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"the cat").unwrap();
    let output = child.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["prompt_tokens"], serde_json::json!([6, 3, 9, 7, 26]));
}

#[test]
fn a_chat_goes_through_the_template() {
    let model = TinyModel::new(|_| {});
    let output = generate(
        &model,
        &[
            "--chat", "cat", "--system", "the", "--greedy", "-n", "1", "--json",
        ],
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json["prompt_tokens"],
        serde_json::json!([1, 6, 2, 1, 9, 7, 26, 2])
    );
    let model = TinyModel::new(|f| {
        f.remove("tokenizer.chat_template");
    });
    let output = generate(&model, &["--chat", "cat", "--greedy", "-n", "1", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("ChatML"));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["prompt_tokens"][0], 1);
    let output = generate(&model, &["--chat", "cat", "--chat-template", "absent"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("chatml, llama2"));
}

#[test]
fn the_context_is_a_limit_that_is_told() {
    let model = TinyModel::new(|f| {
        f.set("llama.context_length", u32(16));
    });
    let output = generate(&model, &["the cat", "--greedy", "-n", "500", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["finish_reason"], "context");
    assert_eq!(json["tokens"].as_array().unwrap().len(), 16 - 5);
    let output = generate(&model, &["the cat sat on the mat and slept"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("at most 16"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn an_answer_can_be_held_to_a_grammar() {
    let model = TinyModel::new(|_| {});
    let output = generate(
        &model,
        &["the", "--greedy", "--regex", "(cat|dog) sat{2}", "--json"],
    );
    let json: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    let answer = json["text"].as_str().unwrap();
    assert!(["cat satt", "dog satt"].contains(&answer), "{answer}");
    assert_eq!(json["finish_reason"], "stop");
    let output = generate(&model, &["the", "--regex", "("]);
    assert_eq!(output.status.code(), Some(2));
    let output = generate(
        &model,
        &[
            "the", "--greedy", "-n", "40", "--stop", "a", "--stop", "e", "--json",
        ],
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        !json["text"].as_str().unwrap().contains(['a', 'e']),
        "{json}"
    );
}
