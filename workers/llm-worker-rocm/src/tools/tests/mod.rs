//! Answers taken apart: in every form, however their text comes in pieces.

mod families;
mod requests;
mod round_trip;
mod texts;

use super::*;
use serde_json::json;

const THINK: Option<ReasoningTags> = Some(ReasoningTags::THINK);

fn weather() -> Json {
    json!({"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }}})
}

fn form(name: &str) -> &'static CallForm {
    CallForm::named(name).unwrap_or_else(|| panic!("{name}"))
}

/// Content, reasoning and calls of an answer.
#[derive(Debug, Default, PartialEq)]
struct Parsed {
    content: String,
    reasoning: String,
    /// Name, arguments, id.
    calls: Vec<(String, String, String)>,
}

impl Parsed {
    /// The calls with their arguments as JSON.
    fn json(&self) -> Vec<(String, Json)> {
        let json =
            |text: &str| serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let calls = self.calls.iter();
        calls
            .map(|(name, text, _)| (name.clone(), json(text)))
            .collect()
    }
}

fn join(deltas: Vec<Delta>) -> Parsed {
    let mut parsed = Parsed::default();
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
                    assert_eq!(index, parsed.calls.len());
                    assert!(!id.is_empty());
                    parsed.calls.push((name, String::new(), id.clone()));
                }
                assert_eq!(parsed.calls[index].2, id);
                parsed.calls[index].1 += &arguments;
            }
        }
    }
    parsed
}

fn run(format: OutputFormat, options: &ParserOptions, pieces: &[&str], complete: bool) -> Parsed {
    let mut parser = OutputParser::new(format, options.clone()).unwrap();
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish(complete));
    let parsed = join(deltas);
    assert_eq!(parser.calls(), parsed.calls.len());
    parsed
}

/// The same with ids that are the form's own made equal, as they are drawn anew.
fn without_ids(mut parsed: Parsed) -> Parsed {
    for (_, _, id) in &mut parsed.calls {
        id.clear();
    }
    parsed
}

/// Parses an answer whole, by characters, and in all cuts in two: the same must come out.
fn parse_as(format: OutputFormat, answer: &str, options: &ParserOptions, complete: bool) -> Parsed {
    let whole = run(format, options, &[answer], complete);
    let same = |pieces: &[&str]| {
        let other = without_ids(run(format, options, pieces, complete));
        let whole = without_ids(Parsed {
            content: whole.content.clone(),
            reasoning: whole.reasoning.clone(),
            calls: whole.calls.clone(),
        });
        assert_eq!(other, whole, "{} {pieces:?}", format.calls.name);
    };
    let characters: Vec<&str> = answer
        .char_indices()
        .map(|(i, c)| &answer[i..i + c.len_utf8()])
        .collect();
    same(&characters);
    for (cut, _) in answer.char_indices() {
        same(&[&answer[..cut], &answer[cut..]]);
    }
    whole
}

fn format_of(name: &str) -> OutputFormat {
    OutputFormat {
        calls: form(name),
        reasoning: THINK,
    }
}

fn parse(name: &str, answer: &str, options: &ParserOptions) -> Parsed {
    parse_as(format_of(name), answer, options, true)
}

fn with_tools() -> ParserOptions {
    ParserOptions {
        tools: vec![weather()],
        reasoning: true,
        ..ParserOptions::default()
    }
}

fn call(city: &str) -> (String, Json) {
    ("weather".to_string(), json!({"city": city}))
}
