//! Values that are neither JSON nor text: lists and objects in notations of their own.

use super::super::read::key_mark;
use super::super::schema::{branches, kind, properties, Kind};
use super::rules::{literal, Rules};
use super::texts;
use serde_json::{json, Value as Json};

/// Deepest nesting that is written out; what is deeper is text or a plain value.
const MAX_DEPTH: usize = 8;

impl Rules<'_> {
    /// `{key:value,…}` with texts between `quote`.
    pub(super) fn braces(
        &mut self,
        schema: &Json,
        root: &Json,
        quote: &str,
        depth: usize,
    ) -> String {
        let ways: Vec<String> = branches(schema, root)
            .iter()
            .map(|branch| self.braces_branch(branch, root, quote, depth))
            .collect();
        self.rule(&ways.join(" | "))
    }

    fn braces_branch(&mut self, branch: &Json, root: &Json, quote: &str, depth: usize) -> String {
        let open = self.spell(quote);
        let text = |rules: &mut Self, terminal: &str| {
            let text = rules.text_until(terminal, quote);
            format!("{open} {text}")
        };
        match kind(branch) {
            Kind::Text => {
                let terminal = texts::of(std::slice::from_ref(branch)).remove(0);
                text(self, &terminal.unwrap_or_else(texts::any))
            }
            Kind::Object if depth < MAX_DEPTH => match properties(branch, root) {
                Some(list) => {
                    let items: Vec<(String, bool)> = list
                        .iter()
                        .map(|p| {
                            let key = self.spell(&format!("{}:", key_mark(&p.key, quote)));
                            let value = self.braces(&p.schema, root, quote, depth + 1);
                            (self.rule(&format!("{key} {value}")), p.required)
                        })
                        .collect();
                    let items = self.separated(&items, "\",\"");
                    format!("\"{{\" {items} \"}}\"")
                }
                None => {
                    let value = self.braces(&json!({}), root, quote, MAX_DEPTH);
                    let item = self.rule(&format!("/[a-zA-Z0-9_]{{1,64}}/ \":\" {value}"));
                    format!("\"{{\" ({item} (\",\" {item})*)? \"}}\"")
                }
            },
            Kind::List if depth < MAX_DEPTH => {
                let item = self.braces(&branch["items"], root, quote, depth + 1);
                format!("\"[\" {} \"]\"", counted(branch, &item, "\",\""))
            }
            Kind::Any | Kind::Object | Kind::List => {
                let plain = self.json(&json!({"type": ["number", "boolean", "null"]}), root);
                let words = text(self, &texts::any());
                format!("{words} | {plain}")
            }
            Kind::Number | Kind::Boolean | Kind::Null => self.json(branch, root),
        }
    }

    /// An element for each property.
    pub(super) fn elements(
        &mut self,
        schema: &Json,
        root: &Json,
        prefix: &str,
        depth: usize,
    ) -> String {
        let Some(list) = properties(schema, root) else {
            return "\"\"".to_string();
        };
        let items: Vec<String> = list
            .iter()
            .map(|p| {
                let open = self.spell(&format!("{prefix}<{}>", p.key));
                let value = self.element(&p.schema, root, prefix, &p.key, depth + 1);
                let item = self.rule(&format!("{open} {value}"));
                let optional = if p.required { "" } else { "?" };
                format!("{item}{optional}")
            })
            .collect();
        if items.is_empty() {
            return "\"\"".to_string();
        }
        items.join(" ")
    }

    /// The inside of an element, and what closes it.
    fn element(
        &mut self,
        schema: &Json,
        root: &Json,
        prefix: &str,
        key: &str,
        depth: usize,
    ) -> String {
        let close_mark = format!("{prefix}</{key}>");
        let close = self.spell(&close_mark);
        let branches = branches(schema, root);
        let terminals = texts::of(&branches);
        let ways: Vec<String> = branches
            .iter()
            .zip(terminals)
            .map(|(branch, terminal)| match (kind(branch), terminal) {
                (Kind::Object, _) if depth < MAX_DEPTH => {
                    format!("{} {close}", self.elements(branch, root, prefix, depth))
                }
                (Kind::List, _) if depth < MAX_DEPTH => {
                    let open = self.spell(&format!("{prefix}<item>"));
                    let item = self.element(&branch["items"], root, prefix, "item", depth + 1);
                    let item = self.rule(&format!("{open} {item}"));
                    format!("{} {close}", counted(branch, &item, "\"\""))
                }
                // A value is text up to any mark.
                (_, Some(terminal)) => {
                    let text = format!(
                        "({terminal}) & ~/(?s:.*){}(?s:.*)/",
                        super::rules::quoted(prefix)
                    );
                    self.text_until(&text, &close_mark)
                }
                _ => format!("{} {close}", self.json(branch, root)),
            })
            .collect();
        self.rule(&ways.join(" | "))
    }
}

/// As many items as a list's schema allows.
fn counted(schema: &Json, item: &str, separator: &str) -> String {
    let count = |key: &str| schema[key].as_u64().map(|n| n.min(1000));
    let least = count("minItems").unwrap_or(0);
    let most = count("maxItems").map(|most| most.max(least));
    if most == Some(0) {
        return literal("");
    }
    let more = match most {
        Some(1) => String::new(),
        Some(most) => format!(
            "({separator} {item}){{{},{}}}",
            least.saturating_sub(1),
            most - 1
        ),
        None => format!("({separator} {item}){{{},}}", least.saturating_sub(1)),
    };
    match least {
        0 => format!("({item} {more})?"),
        _ => format!("{item} {more}"),
    }
}
