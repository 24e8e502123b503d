mod limits;
mod marks;

use super::*;
use serde_json::json;

fn render(source: &str, variables: &Json) -> Result<Rendered, Error> {
    let variables = variables.as_object().unwrap();
    let variable = |(name, value): (&'static String, &'static Json)| Variable {
        name,
        value,
        input: name != "own",
    };
    // The variables of one test live as long as the test.
    let variables: &'static serde_json::Map<String, Json> = Box::leak(Box::new(variables.clone()));
    let variables: Vec<Variable> = variables.iter().map(variable).collect();
    Template::new(source)?.render(&variables)
}

/// `tests/clients/test_jinja.py` holds the same table against Jinja2 itself.
#[test]
fn snippets_render_as_with_jinja2() {
    let variables: Json =
        serde_json::from_str(include_str!("../../tests/jinja/variables.json")).unwrap();
    let mut failures = Vec::new();
    let mut count = 0;
    for line in include_str!("../../tests/jinja/snippets.jsonl").lines() {
        let snippet: Json = serde_json::from_str(line).unwrap();
        let source = snippet["template"].as_str().unwrap();
        let ours = render(source, &variables);
        let same = match (&ours, snippet["text"].as_str()) {
            (Ok(ours), Some(text)) => ours.text == text,
            (Err(e), None) => e.kind != ErrorKind::Limit || e.message.contains("range too big"),
            _ => false,
        };
        if !same {
            failures.push(format!("{source:?}: {ours:?}, not {}", snippet["text"]));
        }
        count += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 700, "{count} snippets");
}

#[test]
fn line_breaks_of_any_kind_are_one() {
    let none = json!({});
    for (source, text) in [
        ("a\r\n{% if 1 %}\r\nb\r\n{% endif %}\r\nc\r\n", "a\nb\nc"),
        ("a\rb\r\n\r\n", "a\nb\n"),
        ("{{ 'a\r\nb' }}", "a\nb"),
    ] {
        assert_eq!(render(source, &none).unwrap().text, text);
    }
}

#[test]
fn faults_name_their_line() {
    let error = render("a\n\n{{ 1 + 'x' }}", &json!({})).unwrap_err();
    assert_eq!((error.kind, error.line), (ErrorKind::Runtime, Some(3)));
    let error = render("a\n{% nosuch %}", &json!({})).unwrap_err();
    assert_eq!((error.kind, error.line), (ErrorKind::Syntax, Some(2)));
    let error = render("{{ raise_exception('no') }}", &json!({})).unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ErrorKind::Raised, "no")
    );
}

#[test]
fn the_clock_has_pythons_formats() {
    let year = chrono::Local::now().format("%Y").to_string();
    let text = render("{{ strftime_now('%d %B %Y') }}", &json!({}))
        .unwrap()
        .text;
    assert!(text.ends_with(&year), "{text}");
}
