//! Grammars of calls, in every family's form.

use crate::{tokenizer, Walk};
use llm_worker_rocm::grammar::Grammars;
use llm_worker_rocm::tools::{
    CallForm, CallRules, Delta, OfferedCalls, OutputFormat, OutputParser, ParserOptions,
    ReasoningTags, ToolChoice, FORMS,
};
use serde_json::{json, Value as Json};
use std::sync::Arc;

fn tools() -> Vec<Json> {
    let tool = |name: &str, properties: Json, required: Json| {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": properties, "required": required,
        }}})
    };
    vec![
        tool(
            "weather",
            json!({
                "city": {"enum": ["Paris", "Bonn"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "note": {"type": "string", "maxLength": 8},
            }),
            json!(["city", "note"]),
        ),
        tool(
            "time",
            json!({
                "utc": {"type": "boolean"},
                "on": {"type": "string", "pattern": "^[0-9]{4}$"},
                "zone": {"type": ["string", "null"], "enum": ["CET", "GMT", null]},
                "at": {"type": "object", "properties": {"hour": {"$ref": "#/$defs/hour"}}, "required": ["hour"]},
                "list": {"type": "array", "items": {"$ref": "#/$defs/hour"}, "maxItems": 2},
            }),
            json!(["utc", "on", "at"]),
        ),
    ]
    .into_iter()
    .map(|mut tool: Json| {
        tool["function"]["parameters"]["$defs"] = json!({"hour": {"type": "integer", "minimum": 0, "maximum": 23}});
        tool
    })
    .collect()
}

fn format(form: &'static CallForm) -> OutputFormat {
    OutputFormat {
        calls: form,
        reasoning: None,
    }
}

fn rules<'a>(tools: &'a [Json], choice: &'a ToolChoice, parallel: bool) -> CallRules<'a> {
    CallRules {
        tools,
        choice,
        parallel,
        in_reasoning: false,
        in_call: false,
    }
}

fn parser(format: OutputFormat) -> OutputParser {
    let options = ParserOptions {
        tools: tools(),
        reasoning: true,
        ..ParserOptions::default()
    };
    OutputParser::new(format, options).unwrap()
}

/// Content and calls of an answer.
fn read(format: OutputFormat, answer: &str) -> (String, Vec<(String, Json)>) {
    let mut parser = parser(format);
    let mut deltas = parser.push(answer);
    deltas.extend(parser.finish(true));
    let mut calls: Vec<(String, String)> = Vec::new();
    let mut content = String::new();
    for delta in deltas {
        match delta {
            Delta::ToolCall {
                index,
                name,
                arguments,
                ..
            } => {
                calls.extend(name.map(|name| (name, String::new())));
                calls[index].1 += &arguments;
            }
            Delta::Reasoning(_) => {}
            Delta::Content(text) => content += &text,
        }
    }
    let parsed = calls.into_iter().map(|(name, text)| {
        let arguments =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{answer}: {text}: {e}"));
        (name, arguments)
    });
    (content, parsed.collect())
}

/// The calls of an answer; there is nothing else in it.
fn calls(format: OutputFormat, answer: &str) -> Vec<(String, Json)> {
    let (content, calls) = read(format, answer);
    assert_eq!(content, "", "{}: {answer}", format.calls.name);
    calls
}

/// Whether arguments are as the schemas of [`tools`] say.
fn check(name: &str, arguments: &Json, answer: &str) {
    let keys = |allowed: &[&str]| {
        let keys = arguments.as_object().unwrap().keys();
        keys.into_iter().all(|key| allowed.contains(&key.as_str()))
    };
    let hour = |value: &Json| value.as_u64().is_some_and(|hour| hour < 24);
    let good = match name {
        "weather" => {
            let city = arguments["city"].as_str().unwrap_or_default();
            let days = &arguments["days"];
            let note = arguments["note"].as_str().unwrap_or("longer than eight");
            keys(&["city", "days", "note"])
                && ["Paris", "Bonn"].contains(&city)
                && (days.is_null() || days.as_u64().is_some_and(|n| (1..10).contains(&n)))
                && note.chars().count() <= 8
        }
        "time" => {
            let on = arguments["on"].as_str().unwrap_or_default();
            let zone = &arguments["zone"];
            let list = arguments["list"].as_array().cloned().unwrap_or_default();
            keys(&["utc", "on", "zone", "at", "list"])
                && arguments["utc"].is_boolean()
                && on.len() == 4
                && on.chars().all(|c| c.is_ascii_digit())
                && [json!(null), json!("CET"), json!("GMT")].contains(zone)
                && hour(&arguments["at"]["hour"])
                && list.len() <= 2
                && list.iter().all(hour)
        }
        _ => false,
    };
    assert!(good, "{name} {arguments} of {answer:?}");
}

#[test]
fn forced_calls_are_as_their_schemas_say_in_every_form() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let (tools, named) = (tools(), ToolChoice::Named("time".to_string()));
    for (i, form) in FORMS.iter().enumerate() {
        let format = format(form);
        for (choice, parallel) in [
            (&ToolChoice::Required, false),
            (&ToolChoice::Required, true),
            (&named, true),
        ] {
            let grammar = format
                .forced_grammar(&rules(&tools, choice, parallel), &tokenizer)
                .unwrap()
                .unwrap();
            let constraint = grammars
                .lark(&grammar)
                .unwrap_or_else(|e| panic!("{grammar}\n{e}"));
            let answer = Walk::new(&tokenizer, constraint, i as u64).finish();
            let calls = calls(format, &answer);
            assert!(!calls.is_empty(), "{}: {answer}", form.name);
            // A function that is named is called once.
            let once = !parallel || *choice == named;
            assert!(!once || calls.len() == 1, "{}: {answer}", form.name);
            for (name, arguments) in calls {
                check(&name, &arguments, &answer);
                assert!(*choice == ToolChoice::Required || name == "time");
            }
        }
    }
}

#[test]
fn forced_grammars_take_what_families_write() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let tools = tools();
    let weather = json!({"city": "Bonn", "note": "<a>\n\"b"});
    let days = json!({"city": "Paris", "days": 3, "note": ""});
    let time =
        json!({"utc": true, "on": "0730", "zone": "CET", "at": {"hour": 7}, "list": [1, 23]});
    let short = json!({"utc": false, "on": "1200", "zone": null, "at": {"hour": 0}});
    for form in FORMS {
        let format = format(form);
        let given: &[(&str, &Json)] = &[
            ("weather", &weather),
            ("time", &time),
            ("weather", &days),
            ("time", &short),
        ];
        let answers = match form.write(&given[..2]) {
            _ if form.write(&given[..1]) == form.write(&given[..2]) => vec![],
            two => vec![two, form.write(&given[2..3]), form.write(&given[3..])],
        };
        for answer in answers {
            let several = calls(format, &answer).len() > 1;
            let grammar = format
                .forced_grammar(&rules(&tools, &ToolChoice::Required, true), &tokenizer)
                .unwrap()
                .unwrap();
            if several && ["harmony", "gigachat", "gigachat3.1"].contains(&form.name) {
                continue;
            }
            let mut walk = Walk::new(&tokenizer, grammars.lark(&grammar).unwrap(), 1);
            walk.follow(&answer);
            assert!(
                walk.allowed().iter().any(|t| tokenizer.is_end(*t)),
                "{}: {answer}",
                form.name
            );
        }
    }
}

#[test]
fn calls_that_are_offered_are_held_to_their_schemas() {
    let tokenizer = Arc::new(tokenizer());
    let grammars = Grammars::new(&tokenizer).unwrap();
    let tools = tools();
    let weather = json!({"city": "Bonn", "note": ""});
    for (i, form) in FORMS.iter().enumerate() {
        let format = format(form);
        let offered = format
            .offered_grammars(&rules(&tools, &ToolChoice::Auto, false), false, &tokenizer)
            .unwrap()
            .unwrap();
        let visible = format.visible_tokens();
        let constraint = OfferedCalls::new(
            &grammars,
            &offered,
            parser(format),
            tokenizer.clone(),
            &visible,
        )
        .unwrap_or_else(|e| panic!("{:?}\n{e}", offered.marked));
        // Text is free, and may end.
        let mut walk = Walk::new(&tokenizer, Box::new(constraint.clone()), i as u64);
        walk.follow("Is 2 < 3 [or] {not}? <b>Yes</b>.");
        assert!(walk.constraint.is_free(), "{}", form.name);
        assert!(
            walk.allowed().iter().any(|t| tokenizer.is_end(*t)),
            "{}",
            form.name
        );
        // A call is begun, and whatever is drawn then, it is one of the schema.
        let written = form.write(&[("weather", &weather)]);
        let until = written.find("weather").unwrap() + "weather".len();
        let bare = ["llama3", "llama4"].contains(&form.name);
        let before = if bare { "" } else { "Let me look.\n" };
        let mut walk = Walk::new(&tokenizer, Box::new(constraint), i as u64);
        walk.follow(&format!("{before}{}", &written[..until]));
        if bare || form.name.starts_with("functionary") {
            // What begins such a call may begin text as well, up to the name.
            walk.follow(&written[until..until + 3]);
        }
        assert!(!walk.constraint.is_free(), "{}: {}", form.name, walk.text());
        let answer = walk.finish();
        let (content, calls) = read(format, &answer);
        assert_eq!(content.trim(), before.trim(), "{}: {answer}", form.name);
        assert_eq!(calls.len(), 1, "{}: {answer}", form.name);
        check(&calls[0].0, &calls[0].1, &answer);
    }
}

#[test]
fn what_a_schema_says_beyond_grammars_may_be_left_out() {
    let tokenizer = Arc::new(tokenizer());
    let grammars = Grammars::new(&tokenizer).unwrap();
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let compile = |strict: bool, lenient: bool| {
        let tools = [
            json!({"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}),
        ];
        let format = format(CallForm::common());
        let offered = format
            .offered_grammars(&rules(&tools, &ToolChoice::Auto, true), lenient, &tokenizer)
            .unwrap()
            .unwrap();
        OfferedCalls::new(&grammars, &offered, parser(format), tokenizer.clone(), &[]).is_ok()
    };
    assert!(!compile(false, false));
    assert!(compile(false, true));
    assert!(!compile(true, true));
}

#[test]
fn thoughts_may_come_before_a_forced_call() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let format = OutputFormat {
        calls: CallForm::common(),
        reasoning: Some(ReasoningTags::THINK),
    };
    let tools = tools();
    for (in_reasoning, thoughts) in [
        (false, "<think>\nSo <b> it is.\n</think>\n\n"),
        (false, ""),
        (true, "\nSo it is.\n</think>\n\n"),
    ] {
        let rules = CallRules {
            in_reasoning,
            ..rules(&tools, &ToolChoice::Required, false)
        };
        let grammar = format.forced_grammar(&rules, &tokenizer).unwrap().unwrap();
        let mut walk = Walk::new(&tokenizer, grammars.lark(&grammar).unwrap(), 1);
        walk.follow(thoughts);
        walk.follow("<tool_call>\n{\"name\": \"");
        let answer = walk.finish();
        let start = answer.find("<tool_call>").unwrap();
        assert_eq!(calls(format, &answer[start..]).len(), 1, "{answer}");
    }
}

#[test]
fn choices_that_cannot_be_met_are_refused() {
    let tokenizer = tokenizer();
    let format = format(CallForm::common());
    let grammar = |tools: &[Json], choice: ToolChoice| {
        format.forced_grammar(&rules(tools, &choice, true), &tokenizer)
    };
    assert_eq!(grammar(&tools(), ToolChoice::Auto).unwrap(), None);
    assert_eq!(grammar(&tools(), ToolChoice::None).unwrap(), None);
    assert!(grammar(&[], ToolChoice::Required).is_err());
    let error = grammar(&tools(), ToolChoice::Named("other".to_string())).unwrap_err();
    assert!(error.to_string().contains("other"), "{error}");
}
