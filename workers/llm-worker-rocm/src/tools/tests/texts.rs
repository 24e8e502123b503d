//! Text, reasoning, and what only looks like a call.

use super::*;

#[test]
fn text_and_thoughts_around_calls() {
    let answer = "\n<think>\nIs it\nParis?\n</think>\n\nLet me look. \n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a{\\\"}]é\"}}\n</tool_call>\n";
    let parsed = parse("hermes", answer, &with_tools());
    assert_eq!(parsed.reasoning, "Is it\nParis?");
    assert_eq!(parsed.content, "Let me look.");
    assert_eq!(parsed.json(), [call("a{\"}]é")]);
    let begun = ParserOptions {
        in_reasoning: true,
        ..with_tools()
    };
    let parsed = parse("hermes", "Hm.\n</think>\n\nYes. ", &begun);
    assert_eq!(
        (parsed.reasoning.as_str(), parsed.content.as_str()),
        ("Hm.", "Yes. ")
    );
    let parsed = parse("hermes", "still at it </thin", &begun);
    assert_eq!(parsed.reasoning, "still at it </thin");
    let cut = run(format_of("hermes"), &begun, &["still at it </thin"], false);
    assert_eq!(cut.reasoning, "still at it");
}

#[test]
fn what_is_no_call_stays_text() {
    for (name, answer) in [
        ("hermes", "a < b, <tool_ and <think> later \n"),
        ("hermes", "<tool_call>\nnot JSON\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"no\": \"call\"}\n</tool_call>"),
        ("hermes", "{\"name\": \"weather\"}"),
        (
            "llama3",
            "{\"name\": \"unknown\", \"parameters\": {}} and more",
        ),
        ("llama3", "{\"name\": \"wea"),
        ("llama3", "{\"title\": {\"name\": \"weather\"}}"),
        ("llama3", "{}"),
        ("llama4", "[1, 2] and [weather]"),
        ("llama4", "[weather"),
        ("qwen-coder", "<tool_call>\nnothing\n</tool_call> x"),
        ("mistral", "[TOOL_CALLS]wea"),
        ("glm", "<tool_call></tool_call>"),
        ("command-r", "Action: none. ```json"),
        ("minimax-m2", "<invoke and <minimax:tool_calls>"),
        ("gemma4", "<|tool_call>call:{"),
        ("lfm2", "[weather(city=\"Paris\")]"),
    ] {
        let parsed = parse(name, answer, &with_tools());
        assert_eq!(parsed.content, answer, "{name}");
        assert_eq!(parsed.calls, [], "{name}");
    }
    let without = ParserOptions::default();
    let answer =
        "<think>x</think><tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call> ";
    assert_eq!(parse("hermes", answer, &without).content, answer);
}

#[test]
fn a_cut_answer_keeps_its_text() {
    let cut = |name: &str, answer: &str| run(format_of(name), &with_tools(), &[answer], false);
    assert_eq!(cut("hermes", "is 3 <").content, "is 3 <");
    assert_eq!(cut("hermes", "is it <tool_c").content, "is it");
    assert_eq!(cut("hermes", "{\"name\": \"x").content, "{\"name\": \"x");
    assert_eq!(cut("llama3", "{\"title\": \"x").content, "{\"title\": \"x");
    assert_eq!(cut("llama3", "{\"name\": \"x").content, "");
    // What was told of a call stays.
    let parsed = cut(
        "hermes",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa",
    );
    assert_eq!(parsed.calls[0].1, "{\"city\": \"Pa");
    let parsed = cut(
        "glm",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa",
    );
    assert_eq!(
        (parsed.calls[0].0.as_str(), parsed.calls[0].1.as_str()),
        ("weather", "")
    );
}

#[test]
fn a_model_may_leave_out_the_end() {
    for (name, answer) in [
        ("qwen-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n"),
        ("qwen-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"),
        ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris"),
        ("minimax-m2", "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>"),
        ("minimax-m2", "<invoke name=\"weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n</minimax:tool_call>"),
        ("lfm2", "<|tool_call_start|>[weather(city=\"Paris\")"),
        ("hermes", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}"),
    ] {
        let parsed = parse(name, answer, &with_tools());
        assert_eq!(parsed.json(), [call("Paris")], "{name}");
        assert_eq!(parsed.content, "", "{name}");
    }
}

#[test]
fn calls_that_are_not_understood_end_without_a_trace() {
    for (name, answer) in [
        (
            "lfm2",
            "<|tool_call_start|>[weather(city=\"Paris\", days=two words)]<|tool_call_end|> Done.",
        ),
        ("llama4", "[weather(city=\"Paris\", days)] Done."),
    ] {
        let parsed = parse(name, answer, &with_tools());
        assert_eq!(parsed.json(), [call("Paris")], "{name}");
        assert_eq!(parsed.content, "Done.", "{name}");
    }
    let parsed = parse(
        "gemma4",
        "<|tool_call>call:weather{city}<tool_call|>Done.",
        &with_tools(),
    );
    assert_eq!(parsed.json(), [("weather".to_string(), json!({}))]);
    assert_eq!(parsed.content, "Done.");
}

#[test]
fn arguments_arrive_before_the_call_is_complete() {
    let arguments = |name: &str, pieces: &[&str]| -> Vec<String> {
        let mut parser = OutputParser::new(format_of(name), with_tools()).unwrap();
        pieces
            .iter()
            .map(|piece| {
                let deltas = parser.push(piece);
                let text = |delta: &Delta| match delta {
                    Delta::ToolCall { arguments, .. } => arguments.clone(),
                    other => panic!("{other:?}"),
                };
                deltas.iter().map(text).collect()
            })
            .collect()
    };
    let pieces = [
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa",
        "ris\"",
        "}}",
    ];
    assert_eq!(
        arguments("hermes", &pieces),
        ["{\"city\": \"Pa", "ris\"", "}"]
    );
    let pieces = [
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>",
        "\n</tool_call>",
    ];
    assert_eq!(arguments("glm", &pieces), ["{\"city\":\"Paris\"", "}"]);
    let pieces = ["<|tool_call_start|>[weather(city=\"Paris\",", " days=3)"];
    assert_eq!(
        arguments("lfm2", &pieces),
        ["{\"city\":\"Paris\"", ",\"days\":3}"]
    );
}

#[test]
fn bare_values_get_the_type_of_their_schema() {
    let answer = "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=other>\n[1]\n</parameter>\n</function>\n</tool_call>";
    let parsed = parse("qwen-coder", answer, &with_tools());
    assert_eq!(
        parsed.json()[0].1,
        json!({"city": "12", "days": 3, "other": [1]})
    );
    // White space and line ends within a value are its own.
    let answer = "<tool_call>\n<function=weather>\n<parameter=city>\n a\n\n b\n\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(
        parse("qwen-coder", answer, &with_tools()).json(),
        [call(" a\n\n b\n")]
    );
}
