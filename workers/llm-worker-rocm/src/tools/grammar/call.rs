//! The rules of calls in each form.

use super::super::forms::{Attribute, Body, Ids, Tags};
use super::super::schema::{branches, kind, parameters, Kind, Parameter};
use super::super::Tool;
use super::rules::{literal, quoted, Rules};
use super::texts;
use serde_json::{json, Value as Json};

impl Rules<'_> {
    /// Calls and all marks around them; `begun` says that the first call's mark is there already.
    pub(super) fn answer(&mut self, tools: &[Tool], most: usize, begun: bool) -> String {
        let form = self.form;
        if begun {
            return self.after_call_mark(tools, most);
        }
        let open = self.spell(form.section.open);
        let calls = self.after_section(tools, most);
        format!("{open} {calls}")
    }

    /// Calls after the mark that opens all of them.
    pub(super) fn after_section(&mut self, tools: &[Tool], most: usize) -> String {
        let open = self.spell(self.form.call.open);
        let calls = self.after_call_mark(tools, most);
        format!("{open} {calls}")
    }

    /// Calls after the mark that opens the first one.
    pub(super) fn after_call_mark(&mut self, tools: &[Tool], most: usize) -> String {
        let head = self.head();
        let calls = self.after_name_key(tools, most);
        format!("{head} {calls}")
    }

    /// Calls after what stands before the first one's name.
    pub(super) fn after_name_key(&mut self, tools: &[Tool], most: usize) -> String {
        let form = self.form;
        let calls: Vec<String> = tools.iter().map(|tool| self.call(tool)).collect();
        let call = self.rule(&calls.join(" | "));
        let close = self.spell(form.section.close);
        let more = most.saturating_sub(1);
        if more == 0 {
            return format!("{call} {close}");
        }
        let (between, open, head) = (
            self.spell(form.between),
            self.spell(form.call.open),
            self.head(),
        );
        let next = self.rule(&format!("{between} {open} {head} {call}"));
        format!("{call} {next}{{0,{more}}} {close}")
    }

    /// What stands in a call before its name.
    fn head(&mut self) -> String {
        match self.form.body {
            Body::Object {
                number: Some(key),
                name,
                ..
            } => {
                let (before, after) = (format!("{{\"{key}\": \""), format!("\", \"{name}\": "));
                format!("{} /[0-9]{{1,4}}/ {}", literal(&before), literal(&after))
            }
            Body::Object {
                number: None, name, ..
            } => literal(&format!("{{\"{name}\": ")),
            _ => "\"\"".to_string(),
        }
    }

    /// A call from its name to the mark that closes it.
    fn call(&mut self, tool: &Tool) -> String {
        let close = self.spell(self.form.call.close);
        let root = &tool.parameters;
        let inner = match self.form.body {
            Body::Object { arguments, .. } => {
                let head = literal(&format!("{}, \"{arguments}\": ", json!(tool.name)));
                let json = self.json(root, root);
                format!("{head} {json} \"}}\"")
            }
            Body::Json { heads } => {
                let head = self.json_head(heads.first().copied().unwrap_or("{name}"), &tool.name);
                let json = self.json(root, root);
                format!("{head} {json}")
            }
            Body::Tagged(tags) => {
                let head = self.spell(&format!("{}{}", tool.name, tags.after_name));
                let list = self.tagged(&tags, root);
                format!("{head} {list}")
            }
            Body::Python => {
                let head = literal(&format!("{}(", tool.name));
                let list = self.python(root);
                format!("{head} {list} \")\"")
            }
            Body::Braces { quote } => {
                let arguments = self.braces(root, root, quote, 0);
                format!("{} {arguments}", literal(&tool.name))
            }
            Body::Elements { prefix } => {
                let head = literal(&format!("{}\">", tool.name));
                let list = self.elements(root, root, prefix, 0);
                format!("{head} {list}")
            }
        };
        self.rule(&format!("{inner} {close}"))
    }

    fn json_head(&mut self, head: &str, name: &str) -> String {
        let head = head.replace("{name}", name);
        match head.split_once("{id}") {
            None => self.spell(&head),
            Some((before, after)) => {
                let id = match self.form.ids {
                    Ids::Numbered => "/[0-9]{1,4}/",
                    Ids::Letters => "/[a-zA-Z0-9]{9}/",
                };
                format!("{} {id} {}", self.spell(before), self.spell(after))
            }
        }
    }

    /// Required parameters in the schema's order, others may be left out.
    fn tagged(&mut self, tags: &Tags, root: &Json) -> String {
        let Some(list) = parameters(root) else {
            let head = format!("{}K{}", tags.key_open, tags.key_end);
            let (before, after) = head.split_once('K').unwrap_or((&head, ""));
            let text = self.text_until(&texts::any(), tags.value_close);
            let (before, after) = (self.spell(before), self.spell(after));
            let attribute = self.attribute(tags, "string");
            let open = self.spell(tags.value_open);
            let one =
                format!("{before} /[a-zA-Z0-9_.\\-]{{1,64}}/ {after} {attribute} {open} {text}");
            let one = self.rule(&one);
            return format!("{one}*");
        };
        let items: Vec<String> = list
            .iter()
            .map(|parameter| self.tag(tags, parameter, root))
            .collect();
        if items.is_empty() {
            return "\"\"".to_string();
        }
        items.join(" ")
    }

    fn attribute(&mut self, tags: &Tags, kind: &str) -> String {
        match (tags.attribute, kind) {
            (Attribute::None, _) => "\"\"".to_string(),
            (Attribute::IsString, "string") => literal(" string=\"true\""),
            (Attribute::IsString, _) => literal(" string=\"false\""),
            (Attribute::Type, kind) => literal(&format!(" type=\"{kind}\"")),
        }
    }

    fn tag(&mut self, tags: &Tags, parameter: &Parameter, root: &Json) -> String {
        let key = self.spell(&format!(
            "{}{}{}",
            tags.key_open, parameter.key, tags.key_end
        ));
        let branches = branches(&parameter.schema, root);
        let open = self.spell(tags.value_open);
        let mut ways = Vec::new();
        let texts = texts::of(&branches);
        for (branch, text) in branches.iter().zip(&texts) {
            let kind = match kind(branch) {
                Kind::Text | Kind::Any => "string",
                Kind::Number => "number",
                Kind::Boolean => "boolean",
                Kind::Null => "null",
                Kind::Object => "object",
                Kind::List => "array",
            };
            let attribute = self.attribute(tags, kind);
            let value = match text {
                Some(text) => self.text_until(text, tags.value_close),
                None => {
                    let json = self.json(branch, root);
                    let close = self.spell(tags.value_close);
                    format!("{json} {close}")
                }
            };
            let way = format!("{attribute} {open} {value}");
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        let value = self.rule(&ways.join(" | "));
        let item = self.rule(&format!("{key} {value}"));
        let optional = if parameter.required { "" } else { "?" };
        format!("{item}{optional}")
    }

    /// Text as a terminal says, up to a mark that is not in it, and the mark.
    pub(super) fn text_until(&mut self, text: &str, mark: &str) -> String {
        let word = mark.trim();
        let without = format!("~/(?s:.*){}(?s:.*)/", quoted(word));
        let inner = self.terminal(&format!("({text}) & {without}"));
        let spelled = self.spell(mark);
        // As one terminal with the mark, the text ends where the mark is and nowhere before.
        match spelled.contains("<[") {
            true if spelled.starts_with('<') => format!("{inner} {spelled}"),
            true => {
                let cut = mark.find(word).unwrap_or(0);
                format!(
                    "{inner} {} {}",
                    literal(&mark[..cut]),
                    self.spell(&mark[cut..])
                )
            }
            false => self.terminal(&format!("{inner} {spelled}")),
        }
    }

    fn python(&mut self, root: &Json) -> String {
        let Some(list) = parameters(root) else {
            let any = self.json(&json!({}), root);
            let one = self.rule(&format!("/[a-zA-Z_][a-zA-Z0-9_]{{0,63}}/ \"=\" {any}"));
            return format!("({one} (\", \" {one})*)?");
        };
        let items: Vec<(String, bool)> = list
            .iter()
            .map(|parameter| {
                let value = self.python_value(&parameter.schema, root);
                let key = literal(&format!("{}=", parameter.key));
                (self.rule(&format!("{key} {value}")), parameter.required)
            })
            .collect();
        self.separated(&items, "\", \"")
    }

    fn python_value(&mut self, schema: &Json, root: &Json) -> String {
        let branches = branches(schema, root);
        let ways: Vec<String> = branches
            .iter()
            .map(|branch| match kind(branch) {
                Kind::Boolean if branch.get("enum").is_none() && branch.get("const").is_none() => {
                    "\"True\" | \"False\"".to_string()
                }
                Kind::Null => "\"None\"".to_string(),
                _ => self.json(branch, root),
            })
            .collect();
        self.rule(&ways.join(" | "))
    }

    /// Items in their order with a separator between those that are there.
    pub(super) fn separated(&mut self, items: &[(String, bool)], separator: &str) -> String {
        // `more` follows an item, `first` nothing.
        let (mut more, mut first) = ("\"\"".to_string(), "\"\"".to_string());
        for (item, required) in items.iter().rev() {
            let optional = if *required { "" } else { "?" };
            let skipped = if *required {
                String::new()
            } else {
                format!(" | {first}")
            };
            first = self.rule(&format!("{item} {more}{skipped}"));
            more = self.rule(&format!("({separator} {item}){optional} {more}"));
        }
        first
    }
}
