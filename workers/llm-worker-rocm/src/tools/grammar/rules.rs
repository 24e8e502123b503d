//! Rules of a grammar in the making: what is written twice is one rule.

use super::super::forms::CallForm;
use super::first_text;
use crate::tokenizer::Tokenizer;
use serde_json::{json, Value as Json};
use std::collections::HashMap;

/// White space between the parts of JSON, as llguidance's option takes it: one space, or a line end and indentation.
const WHITE_SPACE: &str = r" |\n[ \t]{0,20}";

/// Rules, and how marks are spelled in a vocabulary.
pub(super) struct Rules<'a> {
    pub(super) form: &'static CallForm,
    tokenizer: &'a Tokenizer,
    lines: Vec<String>,
    names: HashMap<String, String>,
}

impl<'a> Rules<'a> {
    pub(super) fn new(form: &'static CallForm, tokenizer: &'a Tokenizer) -> Self {
        Self {
            form,
            tokenizer,
            lines: Vec::new(),
            names: HashMap::new(),
        }
    }

    /// The grammar whose answers are `start`.
    pub(super) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}\n", self.lines.join("\n"))
    }

    fn named(&mut self, prefix: &str, head: &str, body: &str) -> String {
        let line = format!("{head}: {body}");
        if let Some(name) = self.names.get(&line) {
            return name.clone();
        }
        let name = format!("{prefix}{}", self.names.len());
        self.lines.push(format!("{name}{line}"));
        self.names.insert(line, name.clone());
        name
    }

    /// The name of a rule.
    pub(super) fn rule(&mut self, body: &str) -> String {
        self.named("r", "", body)
    }

    /// The name of a terminal: one regular expression, made of others with `&`, `|` and `~`.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        self.named("T", "", body)
    }

    /// Any text up to the first `mark`, and the mark.
    pub(super) fn lazy(&mut self, mark: &str) -> String {
        self.named("r", &format!("[suffix={}]", literal(mark)), "/(?s:.*)/")
    }

    /// JSON of a schema. References in it are to the definitions of `root`.
    pub(super) fn json(&mut self, schema: &Json, root: &Json) -> String {
        let mut schema = schema.clone();
        if let Some(object) = schema.as_object_mut() {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = root.get(key) {
                    object.entry(key).or_insert_with(|| definitions.clone());
                }
            }
            // White space without end is what small models fall into.
            let lenient = root["x-guidance"]["lenient"] == true;
            let options = json!({"whitespace_pattern": WHITE_SPACE, "lenient": lenient});
            object.insert("x-guidance".to_string(), options);
        }
        self.rule(&format!("%json {schema}"))
    }

    /// A mark as it is written: control tokens where the vocabulary has them, else their text.
    pub(super) fn spell(&self, mark: &str) -> String {
        self.spell_with(mark, self.form.tokens)
    }

    /// The same with these control tokens. A token that ends answers is left to the grammar's end.
    pub(super) fn spell_with(&self, mark: &str, tokens: &[&str]) -> String {
        let mark = mark.replace('\0', "");
        let mut items = Vec::new();
        let mut text = String::new();
        let mut rest = mark.as_str();
        let flush = |text: &mut String, items: &mut Vec<String>| {
            // The lexer takes the longest word: white space that another word is must not begin one.
            let (space, word) = text.split_at(text.len() - text.trim_start().len());
            let words = [space, word].into_iter().filter(|word| !word.is_empty());
            items.extend(words.map(literal));
            text.clear();
        };
        while let Some(c) = rest.chars().next() {
            let token = tokens
                .iter()
                .filter(|token| rest.starts_with(**token))
                .max_by_key(|token| token.len())
                .and_then(|token| Some((token, self.tokenizer.control_id(token)?)));
            if let Some((token, id)) = token {
                flush(&mut text, &mut items);
                if !self.tokenizer.is_end(id) {
                    items.push(format!("<[{id}]>"));
                }
                rest = &rest[token.len()..];
            } else if let Some(after) = rest.strip_prefix("{n}") {
                flush(&mut text, &mut items);
                items.push("/[0-9]{1,4}/".to_string());
                rest = after;
            } else {
                text.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        flush(&mut text, &mut items);
        if items.is_empty() {
            return "\"\"".to_string();
        }
        items.join(" ")
    }

    /// A mark in running text: what comes before it in its first token, and the mark.
    pub(super) fn lead(&mut self, mark: &str) -> String {
        let spelled = self.spell(mark);
        if spelled.starts_with('<') {
            return format!("/(?s:.*)/ {spelled}");
        }
        // Text up to the mark's first control token or white space, which is found in running text.
        let first = first_text(mark).unwrap_or(mark);
        let control = self
            .form
            .tokens
            .iter()
            .filter(|token| self.tokenizer.control_id(token).is_some())
            .filter_map(|token| first.find(*token))
            .min();
        let first = &first[..control.unwrap_or(first.len())];
        let rest = self.spell(&mark[first.len()..]);
        format!("{} {rest}", self.lazy(first))
    }
}

/// A text as Lark spells it: as JSON does, and without characters that no line may have.
pub(super) fn literal(text: &str) -> String {
    Json::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A text as a regular expression.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            c if r"\/.+*?()|[]{}^$".contains(c) => {
                quoted.push('\\');
                quoted.push(c);
            }
            c => quoted.push(c),
        }
    }
    quoted
}
