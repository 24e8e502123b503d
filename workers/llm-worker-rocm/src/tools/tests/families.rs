//! Samples of what the families write, in their templates' words.

use super::*;

/// Two calls of `weather`, for Paris and Bonn, in each form and in variants that models are seen to write.
const SAMPLES: &[(&str, &str)] = &[
    ("hermes", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"city\": \"Bonn\"}, \"name\": \"weather\"}\n</tool_call>"),
    ("hermes", "<tool_call>{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": \\\"Paris\\\"}\"}</tool_call><tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>"),
    ("qwen-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>"),
    ("qwen-coder", "<tool_call><function=weather><parameter=city>Paris</parameter></function></tool_call><tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>"),
    ("llama3", "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}"),
    ("llama3", "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}};<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}"),
    ("llama4", "[weather(city=\"Paris\"), weather(city='Bonn')]"),
    ("mistral-list", "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Bonn\\\"}\", \"id\": \"abcdefghi\"}]"),
    ("mistral-list", "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}][TOOL_CALLS]weather[ARGS]{\"city\": \"Bonn\"}"),
    ("mistral", "[TOOL_CALLS]weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Bonn\"}"),
    ("mistral-id", "[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]weather{\"city\": \"Bonn\"}"),
    ("granite", "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}]<|/tool_call|>"),
    ("granite", "<|tool_call|> [{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}},{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}]"),
    ("nemotron", "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}]</TOOLCALL>"),
    ("apriel", "<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}]</tool_calls>"),
    ("minimax-m1", "<tool_calls>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_calls>"),
    ("minimax-m2", "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bonn</parameter>\n</invoke>\n</minimax:tool_call>"),
    ("minimax-m3", "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"weather\">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"weather\">]<]minimax[>[<city>Bonn]<]minimax[>[</city>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"),
    ("apertus", "<|tools_prefix|>[{\"weather\": {\"city\": \"Paris\"}}, {\"weather\": {\"city\": \"Bonn\"}}]<|tools_suffix|>"),
    ("command", "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}\n]<|END_ACTION|>"),
    ("command-r", "Action:\n```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\n            \"city\": \"Paris\"\n        }\n    },\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\"city\": \"Bonn\"}\n    }\n]```"),
    ("firefunction", " functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}]"),
    ("deepseek-r1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bonn\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("deepseek-r1", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\n  \"city\": \"Paris\"\n}\n```\n<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bonn\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bonn\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("deepseek-v3.2", "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Bonn</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
    ("deepseek-v4", "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Bonn</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"),
    ("step3", "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">\n<steptml:parameter name=\"city\">Paris</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">\n<steptml:parameter name=\"city\">Bonn</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>"),
    ("seed", "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=weather>\n<parameter=city>Bonn</parameter>\n</function>\n</seed:tool_call>"),
    ("glm", "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n</tool_call>"),
    ("glm-4.7", "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call><tool_call>weather<arg_key>city</arg_key><arg_value>Bonn</arg_value></tool_call>"),
    ("hunyuan", "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Bonn</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>{\"city\": \"Bonn\"}<|tool_call_end|><|tool_calls_section_end|>"),
    ("kimi-k3", "<|open|>tools<|sep|><|open|>call tool=\"weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"weather\" index=\"2\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Bonn<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"),
    ("lfm2", "<|tool_call_start|>[weather(city=\"Paris\"), weather(city='Bonn')]<|tool_call_end|>"),
    ("olmo3", "<function_calls>\nweather(city=\"Paris\")\nweather(city=\"Bonn\")\n</function_calls>"),
    ("gemma4", "<|tool_call>call:weather{city:<|\"|>Paris<|\"|>}<tool_call|><|tool_call>call:weather{city:<|\"|>Bonn<|\"|>}<tool_call|><|tool_response>"),
    ("solar", "<|tool_calls|><|tool_call:begin|>call00001<|tool_call:name|>weather<|tool_call:args|>{\"city\": \"Paris\"}<|tool_call:end|><|tool_call:begin|>call00002<|tool_call:name|>weather<|tool_call:args|>{\"city\": \"Bonn\"}<|tool_call:end|><|calls|>"),
    ("internlm2", "<|action_start|><|plugin|>\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}<|action_end|>\n<|action_start|><|plugin|>\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}<|action_end|>"),
    ("functionary3.1", "<function=weather>{\"city\": \"Paris\"}</function><function=weather>{\"city\": \"Bonn\"}</function>"),
    ("functionary3.2", ">>>weather\n{\"city\": \"Paris\"}>>>weather\n{\"city\": \"Bonn\"}"),
    ("minicpm5", "<function name=\"weather\"><param name=\"city\">Paris</param></function>\n<function name=\"weather\"><param name=\"city\">Bonn</param></function>"),
    ("glimmer", " to=weather<|message|><atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter name=\"city\">Paris</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter name=\"city\">Bonn</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"),
    ("harmony", "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Bonn\"}<|call|>"),
    ("gigachat3.1", "<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}"),
    ("gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}"),
];

#[test]
fn every_family_calls() {
    let two = [call("Paris"), call("Bonn")];
    for (name, answer) in SAMPLES {
        let parsed = parse(name, answer, &with_tools());
        assert_eq!(parsed.json(), two, "{name} {answer}");
        assert_eq!(parsed.content, "", "{name} {answer}");
    }
    for form in FORMS {
        assert!(
            SAMPLES.iter().any(|(name, _)| *name == form.name),
            "{}",
            form.name
        );
    }
}

#[test]
fn no_mark_shows_wherever_an_answer_is_cut() {
    for (name, answer) in SAMPLES {
        let format = format_of(name);
        for (cut, _) in answer.char_indices() {
            let parsed = run(format, &with_tools(), &[&answer[..cut]], false);
            assert!(
                parsed.content.trim().is_empty(),
                "{name}: {:?} of {:?}",
                parsed.content,
                &answer[..cut]
            );
        }
    }
}

#[test]
fn text_before_calls_and_after() {
    for (name, answer) in SAMPLES {
        if form(name).begins_bare('{') || form(name).begins_bare('[') || *name == "glimmer" {
            continue;
        }
        let parsed = parse(name, &format!("Let me look. \n\n{answer}"), &with_tools());
        assert_eq!(parsed.content, "Let me look.", "{name}");
        assert_eq!(parsed.calls.len(), 2, "{name}");
        let parsed = parse(
            name,
            &format!("<think>\nHm.\n</think>\n\n{answer}"),
            &with_tools(),
        );
        assert_eq!(
            (parsed.content.as_str(), parsed.reasoning.as_str()),
            ("", "Hm."),
            "{name}"
        );
        assert_eq!(parsed.calls.len(), 2, "{name}");
    }
}

#[test]
fn ids_are_of_the_family() {
    let ids = |name: &str, answer: &str| -> Vec<String> {
        let parsed = parse(name, answer, &with_tools());
        parsed.calls.into_iter().map(|(_, _, id)| id).collect()
    };
    let sample = |wanted: &str| SAMPLES.iter().find(|(name, _)| *name == wanted).unwrap().1;
    assert_eq!(
        ids("kimi", sample("kimi")),
        ["functions.weather:0", "functions.weather:1"]
    );
    assert_eq!(ids("mistral", sample("mistral"))[1], "abcdefghi");
    for name in ["mistral-list", "hermes", "command"] {
        for id in ids(name, sample(name)) {
            assert!(
                id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()),
                "{id}"
            );
        }
    }
    // A number that comes twice names two calls nevertheless.
    let call =
        "<|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let twice = format!("<|tool_calls_section_begin|>{call}{call}<|tool_calls_section_end|>");
    assert_eq!(
        ids("kimi", &twice),
        ["functions.weather:3", "functions.weather:4"]
    );
}

#[test]
fn harmony_has_channels() {
    let format = OutputFormat::of_source("<|channel|> analysis commentary final", true);
    assert_eq!(format.calls.name, "harmony");
    let answer = "<|channel|>analysis<|message|>User asks.\nFine.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|> Now.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Paris\"}";
    let parsed = parse_as(format, answer, &with_tools(), true);
    assert_eq!(parsed.reasoning, "User asks.\nFine.Now.");
    assert_eq!(parsed.content, "I look.");
    assert_eq!(parsed.json(), [call("Paris")]);
    let answer = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 2 < 3.";
    let parsed = parse_as(
        format,
        answer,
        &ParserOptions {
            tools: vec![],
            ..with_tools()
        },
        true,
    );
    assert_eq!(
        (parsed.content.as_str(), parsed.reasoning.as_str()),
        ("It is 2 < 3.", "Hm.")
    );
}

#[test]
fn functionary_chooses_a_recipient() {
    let format = OutputFormat::of_source(">>>all <|start_header_id|>", true);
    assert_eq!(format.calls.name, "functionary3.2");
    assert!(format.opens_call("<|start_header_id|>assistant<|end_header_id|>\n\n>>>"));
    let begun = ParserOptions {
        in_call: true,
        ..with_tools()
    };
    let parsed = parse_as(
        format,
        "all\nI look.>>>weather\n{\"city\": \"Bonn\"}",
        &begun,
        true,
    );
    assert_eq!(parsed.content, "I look.");
    assert_eq!(parsed.json(), [call("Bonn")]);
    let parsed = parse_as(format, "weather\n{\"city\": \"Bonn\"}", &begun, true);
    assert_eq!(
        (parsed.content.as_str(), parsed.json()),
        ("", vec![call("Bonn")])
    );
    let code = "all\nTry\n>>> print({1})\n>>>x{";
    assert_eq!(parse_as(format, code, &begun, true).content, &code[4..]);
}

#[test]
fn forms_are_told_from_templates() {
    let of = |source: &str| OutputFormat::of_source(source, true);
    for (source, name) in [
        ("<tool_call> </think>", "hermes"),
        ("nothing", "hermes"),
        ("<tool_call>\\n<function=", "qwen-coder"),
        ("[TOOL_CALLS]", "mistral-list"),
        ("[TOOL_CALLS] [ARGS]", "mistral"),
        ("[TOOL_CALLS] [CALL_ID] [ARGS]", "mistral-id"),
        ("<|start_header_id|>", "llama3"),
        ("<|tool_call|>", "granite"),
        ("<|tool_call>call: <tool_call|>", "gemma4"),
        ("<tool_call>{function-name}\n<arg_key>", "glm"),
        ("<tool_call>{function-name}<arg_key>", "glm-4.7"),
        ("<｜tool▁call▁begin｜> ```json", "deepseek-r1"),
        ("<｜tool▁call▁begin｜>", "deepseek-v3.1"),
    ] {
        assert_eq!(of(source).calls.name, name, "{source}");
    }
    assert_eq!(of("<tool_call> </think>").reasoning, THINK);
    let untold = OutputFormat::of_source("<|start_header_id|>", false);
    assert_eq!(untold.calls.name, "hermes");
    assert!(of("</think>").opens_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!of("</think>").opens_reasoning("<think>\n\n</think>\n\n"));
    let names = CallForm::names();
    let unique: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
    assert!(FORMS
        .iter()
        .all(|form| form.families.len() > 3 && !form.name.is_empty()));
    assert!(FORMS
        .iter()
        .flat_map(|form| form.relatives)
        .all(|name| CallForm::named(name).is_some()));
}

#[test]
fn the_documentation_lists_all_forms() {
    let text = include_str!("../../../../../docs/llm.md");
    for form in FORMS {
        let row = format!("| `{}` | {} | ", form.name, form.families);
        assert!(text.contains(&row), "docs/llm.md has no row {row}");
    }
}
