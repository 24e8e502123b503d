use super::*;
use serde_json::json;

const THINK: Option<ReasoningTags> = Some(ReasoningTags {
    open: "<think>",
    close: "</think>",
});

fn weather() -> Json {
    json!({"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }}})
}

/// Content, reasoning and calls of an answer.
#[derive(Debug, Default, PartialEq)]
struct Parsed {
    content: String,
    reasoning: String,
    calls: Vec<(String, Json)>,
}

fn join(deltas: Vec<Delta>) -> Parsed {
    let mut parsed = Parsed::default();
    let mut texts: Vec<(String, String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::Content(text) => parsed.content += &text,
            Delta::Reasoning(text) => parsed.reasoning += &text,
            Delta::ToolCall {
                index,
                id,
                name,
                arguments,
            } => {
                if let Some(name) = name {
                    assert_eq!(index, texts.len());
                    assert!(!id.is_empty());
                    texts.push((id.clone(), name, String::new()));
                }
                assert_eq!(texts[index].0, id);
                texts[index].2 += &arguments;
            }
        }
    }
    parsed.calls = texts
        .into_iter()
        .map(|(_, name, text)| {
            let arguments = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            (name, arguments)
        })
        .collect();
    parsed
}

/// Parses an answer whole, by characters, and in all cuts in two: the same must come out.
fn parse(tools: ToolFormat, answer: &str, options: &ParserOptions) -> Parsed {
    let format = OutputFormat {
        tools,
        reasoning: THINK,
    };
    let run = |pieces: &[&str]| {
        let mut parser = OutputParser::new(format, options.clone()).unwrap();
        let mut deltas: Vec<Delta> = pieces.iter().flat_map(|p| parser.push(p)).collect();
        deltas.extend(parser.finish());
        let parsed = join(deltas);
        assert_eq!(parser.calls(), parsed.calls.len());
        parsed
    };
    let whole = run(&[answer]);
    let characters: Vec<&str> = answer
        .char_indices()
        .map(|(i, c)| &answer[i..i + c.len_utf8()])
        .collect();
    assert_eq!(run(&characters), whole, "{answer}");
    for (cut, _) in answer.char_indices() {
        assert_eq!(
            run(&[&answer[..cut], &answer[cut..]]),
            whole,
            "{cut} of {answer}"
        );
    }
    whole
}

fn with_tools() -> ParserOptions {
    ParserOptions {
        tools: vec![weather()],
        reasoning: true,
        in_reasoning: false,
    }
}

fn call(city: &str) -> (String, Json) {
    ("weather".to_string(), json!({"city": city}))
}

#[test]
fn every_family_calls() {
    let two = [call("Paris"), call("Bonn")];
    for (format, answer) in [
        (
            ToolFormat::Hermes,
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"city\": \"Bonn\"}, \"name\": \"weather\"}\n</tool_call>",
        ),
        (
            ToolFormat::QwenXml,
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            ToolFormat::Llama3,
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}",
        ),
        (
            ToolFormat::Llama3,
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}};<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}",
        ),
        (
            ToolFormat::Mistral { named: false },
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Bonn\\\"}\"}]",
        ),
        (
            ToolFormat::Mistral { named: true },
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Bonn\"}",
        ),
        (
            ToolFormat::List,
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}]<|/tool_call|>",
        ),
        (
            ToolFormat::DeepSeek { fenced: true },
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bonn\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            ToolFormat::DeepSeek { fenced: false },
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bonn\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ] {
        let parsed = parse(format, answer, &with_tools());
        assert_eq!(parsed.calls, two, "{answer}");
        assert_eq!(parsed.content, "", "{answer}");
    }
}

#[test]
fn text_and_thoughts_around_calls() {
    let answer = "\n<think>\nIs it\nParis?\n</think>\n\nLet me look. \n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a{\\\"}]é\"}}\n</tool_call>\n";
    let parsed = parse(ToolFormat::Hermes, answer, &with_tools());
    assert_eq!(parsed.reasoning, "Is it\nParis?");
    assert_eq!(parsed.content, "Let me look.");
    assert_eq!(parsed.calls, [call("a{\"}]é")]);
    let begun = ParserOptions {
        in_reasoning: true,
        ..with_tools()
    };
    let parsed = parse(ToolFormat::Hermes, "Hm.\n</think>\n\nYes. ", &begun);
    assert_eq!(
        (parsed.reasoning.as_str(), parsed.content.as_str()),
        ("Hm.", "Yes. ")
    );
    let parsed = parse(ToolFormat::Hermes, "still at it </thin", &begun);
    assert_eq!(parsed.reasoning, "still at it </thin");
}

#[test]
fn what_is_no_call_stays_text() {
    for (format, answer) in [
        (ToolFormat::Hermes, "a < b, <tool_ and <think> later \n"),
        (ToolFormat::Hermes, "<tool_call>\nnot JSON\n</tool_call>"),
        (
            ToolFormat::Llama3,
            "{\"name\": \"unknown\", \"parameters\": {}} and more",
        ),
        (ToolFormat::Llama3, "{\"name\": \"wea"),
        (ToolFormat::QwenXml, "<tool_call>\nnothing\n</tool_call> x"),
        (ToolFormat::Mistral { named: true }, "[TOOL_CALLS]wea"),
    ] {
        let parsed = parse(format, answer, &with_tools());
        assert_eq!(parsed.content, answer);
        assert_eq!(parsed.calls, []);
    }
    let without = ParserOptions::default();
    let answer =
        "<think>x</think><tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call> ";
    assert_eq!(parse(ToolFormat::Hermes, answer, &without).content, answer);
}

#[test]
fn arguments_arrive_before_the_call_is_complete() {
    let format = OutputFormat {
        tools: ToolFormat::Hermes,
        reasoning: None,
    };
    let mut parser = OutputParser::new(format, with_tools()).unwrap();
    let mut deltas =
        parser.push("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa");
    deltas.extend(parser.push("ris\""));
    let arguments: String = deltas
        .iter()
        .map(|d| match d {
            Delta::ToolCall { arguments, .. } => arguments.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(arguments, "{\"city\": \"Paris\"");
    // An answer cut short keeps what was told.
    assert_eq!(parser.finish(), []);
    assert_eq!(parser.calls(), 1);
}

#[test]
fn bare_values_get_the_type_of_their_schema() {
    let answer = "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=other>\n[1]\n</parameter>\n</function>\n</tool_call>";
    let parsed = parse(ToolFormat::QwenXml, answer, &with_tools());
    assert_eq!(
        parsed.calls[0].1,
        json!({"city": "12", "days": 3, "other": [1]})
    );
}

#[test]
fn formats_are_told_from_templates() {
    let of = |source: &str| OutputFormat::of_source(source, true);
    assert_eq!(of("<tool_call> </think>").tools, ToolFormat::Hermes);
    assert_eq!(of("<tool_call> </think>").reasoning, THINK);
    assert_eq!(of("<tool_call> <function=").tools, ToolFormat::QwenXml);
    assert_eq!(
        of("[TOOL_CALLS]").tools,
        ToolFormat::Mistral { named: false }
    );
    assert_eq!(
        of("[TOOL_CALLS] [ARGS]").tools,
        ToolFormat::Mistral { named: true }
    );
    assert_eq!(of("<|start_header_id|>").tools, ToolFormat::Llama3);
    assert_eq!(of("<|tool_call|>").tools, ToolFormat::List);
    assert_eq!(
        OutputFormat::of_source("<|start_header_id|>", false).tools,
        ToolFormat::Hermes
    );
    assert!(of("</think>").opens_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!of("</think>").opens_reasoning("<think>\n\n</think>\n\n"));
}

#[test]
fn choices_and_tools_are_checked() {
    let choice = |json: Json| ToolChoice::from_json(Some(&json));
    assert_eq!(ToolChoice::from_json(None).unwrap(), ToolChoice::Auto);
    assert_eq!(choice(json!("required")).unwrap(), ToolChoice::Required);
    assert_eq!(
        choice(json!({"type": "function", "function": {"name": "f"}})).unwrap(),
        ToolChoice::Named("f".to_string())
    );
    assert!(choice(json!("perhaps")).is_err());
    assert!(choice(json!(1)).is_err());
    for bad in [
        json!({}),
        json!({"name": "a b"}),
        json!({"name": "a", "parameters": 1}),
    ] {
        assert!(Tool::from_json(&bad).is_err(), "{bad}");
    }
    let ids: Vec<String> = (0..100).map(|_| new_call_id()).collect();
    assert!(ids.iter().all(|id| id.len() == 9));
    assert_eq!(
        ids.iter().collect::<std::collections::HashSet<_>>().len(),
        100
    );
}
