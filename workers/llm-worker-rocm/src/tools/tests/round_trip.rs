//! What the writer writes is read again; what nobody wrote breaks nothing.

use super::*;
use serde_json::Map;

/// Numbers that look drawn, the same each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    fn text(&mut self) -> String {
        const PIECES: &[&str] = &[
            "a", "Z", "0", " ", "\n", "\"", "'", "\\", "<", ">", "</", "{", "}", "[", "]", ",",
            ":", "=", "(", ")", "é", "🦀", "｜", "\t", "&lt;", "<b>", "True", "null", "12", "```",
            "-", "\u{7f}", "\r\n",
        ];
        (0..self.below(8)).map(|_| self.one(PIECES)).collect()
    }

    fn value(&mut self, schema: &Json) -> Json {
        match schema["type"].as_str() {
            Some("string") => Json::from(self.text()),
            Some("integer") => Json::from(self.below(1000) as i64 - 500),
            Some("number") => Json::from(self.below(1000) as f64 / 8.0),
            Some("boolean") => Json::from(self.below(2) == 0),
            Some("array") => (0..self.below(4))
                .map(|_| self.value(&schema["items"]))
                .collect(),
            _ => {
                let mut object = Map::new();
                for (key, property) in schema["properties"].as_object().into_iter().flatten() {
                    if self.below(3) > 0 {
                        object.insert(key.clone(), self.value(property));
                    }
                }
                Json::Object(object)
            }
        }
    }
}

fn tools() -> Vec<Json> {
    let text = json!({"type": "string"});
    let inner = json!({"type": "object", "properties": {"x": text, "list": {"type": "array", "items": {"type": "integer"}}}});
    let tool = |name: &str, properties: Json| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}});
    vec![
        tool(
            "weather",
            json!({"city": text, "days": {"type": "integer"}, "exact": {"type": "boolean"}}),
        ),
        tool("no.thing_at-all", json!({})),
        tool(
            "nested",
            json!({"inner": inner, "rows": {"type": "array", "items": inner}, "share": {"type": "number"}, "note": text}),
        ),
    ]
}

/// Marks that no value can contain where they end it.
fn forbidden(form: &CallForm) -> Vec<&'static str> {
    match form.body {
        forms::Body::Tagged(tags) => vec![tags.value_close.trim()],
        forms::Body::Braces { quote } => vec![quote],
        forms::Body::Elements { prefix } => vec![prefix],
        _ => vec![],
    }
}

#[test]
fn calls_that_are_written_are_read() {
    let tools = tools();
    let mut draw = Draw(1);
    for form in FORMS {
        let format = OutputFormat {
            calls: form,
            reasoning: THINK,
        };
        let options = ParserOptions {
            tools: tools.clone(),
            reasoning: true,
            ..ParserOptions::default()
        };
        for round in 0..40 {
            let count = if form.single { 1 } else { 1 + draw.below(3) };
            let calls: Vec<(String, Json)> = (0..count)
                .map(|_| {
                    let tool = &tools[draw.below(tools.len())]["function"];
                    (
                        tool["name"].as_str().unwrap().to_string(),
                        draw.value(&tool["parameters"]),
                    )
                })
                .collect();
            let given: Vec<(&str, &Json)> = calls
                .iter()
                .map(|(name, value)| (name.as_str(), value))
                .collect();
            let answer = form.write(&given);
            let texts = serde_json::to_string(&calls).unwrap();
            if forbidden(form).iter().any(|mark| texts.contains(mark)) {
                continue;
            }
            let parsed = match round {
                0..3 => parse_as(format, &answer, &options, true),
                _ => run(format, &options, &[&answer], true),
            };
            let lists_nothing = matches!(form.body, forms::Body::Elements { .. });
            let mut read = parsed.json();
            let mut wanted = calls.clone();
            if lists_nothing {
                // Numbers and empty lists and objects look alike where elements have no types; the schema tells them.
                read.iter_mut()
                    .chain(&mut wanted)
                    .for_each(|(_, value)| plain(value));
            }
            assert_eq!(read, wanted, "{} {answer:?}", form.name);
            assert_eq!(parsed.content, "", "{} {answer:?}", form.name);
        }
    }
}

/// Numbers as the shortest text of them.
fn plain(value: &mut Json) {
    match value {
        Json::Number(number) => *value = Json::from(number.as_f64().unwrap_or_default()),
        Json::Array(values) => values.iter_mut().for_each(plain),
        Json::Object(object) => object.values_mut().for_each(plain),
        _ => {}
    }
}

#[test]
fn any_text_gives_the_same_however_it_comes() {
    let mut draw = Draw(7);
    for form in FORMS {
        let tools = tools();
        let options = ParserOptions {
            tools: tools.clone(),
            reasoning: true,
            ..ParserOptions::default()
        };
        let format = OutputFormat {
            calls: form,
            reasoning: THINK,
        };
        let arguments = json!({"city": "a", "days": 2});
        let written = form.write(&[("weather", &arguments), ("nested", &json!({"note": "n"}))]);
        for round in 0..8 {
            // Pieces of what the family writes, in another order and with other text among them.
            let mut answer = String::new();
            for _ in 0..draw.below(6) {
                let (a, b) = (draw.below(written.len() + 1), draw.below(written.len() + 1));
                let cut = written.get(a.min(b)..a.max(b)).unwrap_or("<think>");
                answer.push_str(cut);
                answer.push_str(&draw.text());
            }
            if answer.len() > 200 {
                let end = (0..=200)
                    .rev()
                    .find(|end| answer.is_char_boundary(*end))
                    .unwrap_or(0);
                answer.truncate(end);
            }
            let parsed = parse_as(format, &answer, &options, round % 2 == 0);
            let told: usize = parsed
                .calls
                .iter()
                .map(|(name, text, _)| name.len() + text.len())
                .sum();
            assert!(told <= 6 * answer.len() + 64, "{answer}");
        }
    }
}

#[test]
fn long_answers_take_time_in_proportion() {
    let word = "x < y and {\"a\": [\"<tool\"]} ".repeat(4000);
    for form in FORMS {
        let answer = form.write(&[("weather", &json!({"city": word}))]);
        let format = OutputFormat {
            calls: form,
            reasoning: None,
        };
        let mut parser = OutputParser::new(format, with_tools()).unwrap();
        let mut told = 0;
        let bytes: Vec<char> = answer.chars().collect();
        for piece in bytes.chunks(7) {
            let text: String = piece.iter().collect();
            told += parser.push(&text).len();
        }
        told += parser.finish(true).len();
        assert!(told > 0, "{}", form.name);
        assert_eq!(parser.calls(), 1, "{}", form.name);
    }
}
