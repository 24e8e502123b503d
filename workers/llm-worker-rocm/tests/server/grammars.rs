//! Grammars that are meant to end the server, through every route and field that takes one.
//!
//! A stack that overflows ends the process, so these requests are made in a process of their own.

use crate::client::Server;
use crate::script::Play;
use serde_json::{json, Value};
use std::time::{Duration, Instant};

/// The variable by which a test starts itself once more as the process that may end.
const CHILD: &str = "LLM_WORKER_HOSTILE_GRAMMARS";
/// What a grammar may take to be refused or compiled, in an unoptimized build on a busy machine.
const MOST_TIME: Duration = Duration::from_secs(60);

/// Lines made of the numbers below `count`.
fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|i| line(i) + "\n").collect()
}

/// Grammars and schemas that lie within each other `count` times.
fn grammars(count: usize) -> Vec<(&'static str, Value)> {
    let lark = |text: String| json!({"grammar": text});
    let gbnf = lark;
    let schema = |schema: Value| json!({"json_schema": schema});
    let names: Vec<String> = (0..count).map(|i| format!("n{i}")).collect();
    let object = |value: fn(usize) -> Value| -> Value {
        let named = names.iter().enumerate();
        named
            .map(|(i, name)| (name.clone(), value(i)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let next = |i: usize| json!({"$ref": format!("#/$defs/n{}", i + 1)});
    let mut chain = object(|i| json!({"$ref": format!("#/$defs/n{}", i + 1)}));
    chain[format!("n{count}")] = json!({"type": "integer"});
    let mut objects = object(
        |i| json!({"type": "object", "properties": {"a": {"$ref": format!("#/$defs/n{}", i + 1)}}}),
    );
    objects[format!("n{count}")] = json!({"type": "integer"});
    let mut any = object(
        |i| json!({"anyOf": [{"$ref": format!("#/$defs/n{}", i + 1)}, {"type": "array", "items": {"$ref": format!("#/$defs/n{}", i + 1)}}]}),
    );
    any[format!("n{count}")] = json!({"type": "integer"});
    let brackets = count.min(100_000);
    vec![
        (
            "Lark, rules",
            lark(format!(
                "start: r0\n{}r{count}: \"a\"",
                lines(count, |i| format!("r{i}: r{}", i + 1))
            )),
        ),
        (
            "Lark, terminals",
            lark(format!(
                "start: R0\n{}R{count}: \"a\"",
                lines(count, |i| format!("R{i}: R{}", i + 1))
            )),
        ),
        (
            "Lark, rules of groups",
            lark(format!(
                "start: r0\n{}r{count}: \"a\"",
                lines(count, |i| format!("r{i}: ((((r{}))))", i + 1))
            )),
        ),
        (
            "Lark, brackets",
            lark(format!(
                "start: {}\"a\"{}",
                "(".repeat(brackets),
                ")".repeat(brackets)
            )),
        ),
        (
            "Lark, repetitions",
            lark(format!(
                "start: {}\"a\"{}",
                "(".repeat(150),
                ")*".repeat(150)
            )),
        ),
        (
            "Lark, a sequence",
            lark(format!("start: {}", "\"a\" \"b\" ".repeat(count / 2))),
        ),
        (
            "Lark, a rule's sequence",
            lark(format!("start: {}\nx: \"a\" | \"b\"", "x ".repeat(count))),
        ),
        (
            "Lark, alternatives",
            lark(format!(
                "start: {}",
                names
                    .iter()
                    .map(|n| format!("{n:?}"))
                    .collect::<Vec<_>>()
                    .join("|")
            )),
        ),
        (
            "Lark, a literal",
            lark(format!("start: \"{}\"", "ab".repeat(count))),
        ),
        (
            "Lark, an expression",
            lark(format!(
                "start: /{}a{}/",
                "(".repeat(brackets),
                ")".repeat(brackets)
            )),
        ),
        (
            "Lark, a sequence as an expression",
            lark(format!("start: /{}/", "[ab]c?".repeat(count))),
        ),
        (
            "Lark, a schema",
            lark(format!(
                "start: %json {}",
                json!({"$defs": chain, "$ref": "#/$defs/n0"})
            )),
        ),
        (
            "GBNF, rules",
            gbnf(format!(
                "root ::= r0\n{}r{count} ::= \"a\"",
                lines(count, |i| format!("r{i} ::= r{}", i + 1))
            )),
        ),
        (
            "GBNF, repetitions",
            gbnf(format!(
                "root ::= {}\"a\"{}",
                "(".repeat(5),
                "){0,50}".repeat(5)
            )),
        ),
        (
            "GBNF, a class",
            gbnf(format!("root ::= [{}]", "a".repeat(count))),
        ),
        (
            "schema, references",
            schema(json!({"$defs": chain, "$ref": "#/$defs/n0"})),
        ),
        (
            "schema, objects",
            schema(json!({"$defs": objects, "$ref": "#/$defs/n0"})),
        ),
        (
            "schema, alternatives",
            schema(json!({"$defs": any, "$ref": "#/$defs/n0"})),
        ),
        (
            "schema, names",
            schema(json!({"type": "object", "required": names})),
        ),
        (
            "schema, properties",
            schema(
                json!({"type": "object", "properties": object(|_| json!({})), "required": names}),
            ),
        ),
        (
            "schema, optional properties",
            schema(json!({"type": "object", "properties": object(|_| json!({"type": "integer"}))})),
        ),
        ("schema, values", schema(json!({"enum": names}))),
        (
            "schema, all of",
            schema(
                json!({"allOf": (0..count).map(|i| json!({"$ref": format!("#/$defs/n{i}")})).collect::<Vec<_>>(), "$defs": object(|i| json!({"minimum": i}))}),
            ),
        ),
        (
            "schema, a length",
            schema(json!({"type": "string", "maxLength": count * 1000})),
        ),
        (
            "schema, a remainder",
            schema(json!({"type": "integer", "multipleOf": count * 10 + 1})),
        ),
        (
            "schema, one of",
            schema(json!({"oneOf": [next(0), next(1)], "$defs": chain})),
        ),
        (
            "response_format",
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": names}}}}),
        ),
    ]
}

/// Status and message of a refusal, which names the grammar.
async fn ask(server: &Server, path: &str, mut body: Value, fields: &Value) -> (u16, String) {
    let own = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(own);
    let answer = server.post(path, &body).await;
    (answer.status.as_u16(), answer.text)
}

async fn ask_all(counts: &[usize]) {
    let plays = || (0..2000).map(|_| Play::FollowConstraint);
    let server = Server::new(plays());
    for &count in counts {
        for (name, fields) in grammars(count) {
            let start = Instant::now();
            let text = json!({"prompt": "x", "max_tokens": 1});
            let (status, text) = ask(&server, "/v1/completions", text, &fields).await;
            let time = start.elapsed();
            println!(
                "{name} of {count}: {status} after {time:?}: {}",
                text.chars().take(160).collect::<String>()
            );
            assert!(
                status == 200 || status == 400,
                "{name} of {count}: {status} {text}"
            );
            assert!(time < MOST_TIME, "{name} of {count}: {time:?}");
        }
    }
    // The other routes, and a forced call whose parameters are such a schema.
    let count = *counts.last().unwrap();
    let (_, fields) = grammars(count).swap_remove(0);
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    for (path, body) in [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/jobs", json!({"prompt": "x", "max_tokens": 1})),
    ] {
        let (status, text) = ask(&server, path, body, &fields).await;
        assert!(status == 200 || status == 400, "{path}: {status} {text}");
    }
    for (name, fields) in grammars(count)
        .into_iter()
        .filter(|(_, fields)| fields["json_schema"].is_object())
    {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": fields["json_schema"]}});
        let call = json!({"tools": [tool], "tool_choice": "required"});
        let (status, text) = ask(&server, "/v1/chat/completions", chat.clone(), &call).await;
        assert!(
            status == 200 || status == 400,
            "tool, {name}: {status} {text}"
        );
    }
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn no_grammar_ends_the_server() {
    if let Ok(counts) = std::env::var(CHILD) {
        let counts: Vec<usize> = counts
            .split(',')
            .map(|count| count.parse().unwrap())
            .collect();
        return ask_all(&counts).await;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "grammars::no_grammar_ends_the_server",
            "--nocapture",
        ])
        .env(CHILD, "1000,4000")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned()
        + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}: {said}", child.status);
}
