//! Calls as a family writes them.

use super::forms::{Attribute, Body, CallForm, Ids};
use super::read::key_mark;
use serde_json::Value as Json;

impl CallForm {
    /// The text of calls, each a name and its arguments, with all marks around them.
    pub fn write(&self, calls: &[(&str, &Json)]) -> String {
        let mut text = self.section.open.to_string();
        for (index, (name, arguments)) in calls.iter().enumerate() {
            if index > 0 {
                text.push_str(self.between);
            }
            text.push_str(self.call.open);
            text.push_str(&self.write_one(index, name, arguments));
            text.push_str(self.call.close);
        }
        text.push_str(self.section.close);
        text.replace('\0', "")
    }

    fn write_one(&self, index: usize, name: &str, arguments: &Json) -> String {
        let items = || arguments.as_object().into_iter().flatten();
        match self.body {
            Body::Object {
                number,
                name: name_key,
                arguments: arguments_key,
            } => {
                let number =
                    number.map_or_else(String::new, |key| format!("\"{key}\": \"{index}\", "));
                let name = Json::from(name);
                format!("{{{number}\"{name_key}\": {name}, \"{arguments_key}\": {arguments}}}")
            }
            Body::Json { heads } => {
                let id = match self.ids {
                    Ids::Numbered => index.to_string(),
                    Ids::Letters => format!("call{index:05}"),
                };
                let head = heads.first().copied().unwrap_or("{name}");
                format!(
                    "{}{arguments}",
                    head.replace("{name}", name).replace("{id}", &id)
                )
            }
            Body::Tagged(tags) => {
                let after = tags.after_name.replace("{n}", &(index + 1).to_string());
                let mut text = format!("{name}{after}");
                for (key, value) in items() {
                    let attribute = match (tags.attribute, value.is_string()) {
                        (Attribute::None, _) => String::new(),
                        (Attribute::IsString, is_string) => format!(" string=\"{is_string}\""),
                        (Attribute::Type, _) => format!(" type=\"{}\"", type_name(value)),
                    };
                    text.push_str(&format!(
                        "{}{key}{}{attribute}{}{}{}",
                        tags.key_open,
                        tags.key_end,
                        tags.value_open,
                        bare(value),
                        tags.value_close
                    ));
                }
                text
            }
            Body::Python => {
                let items: Vec<String> = items()
                    .map(|(key, value)| format!("{key}={}", literal(value)))
                    .collect();
                format!("{name}({})", items.join(", "))
            }
            Body::Braces { quote } => format!("{name}{}", braces(arguments, quote)),
            Body::Elements { prefix } => format!("{name}\">{}", elements(arguments, prefix)),
        }
    }
}

fn type_name(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// A text as it is, anything else as JSON.
fn bare(value: &Json) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_string)
}

/// Python's literal of an argument; what is in lists and objects is JSON, which is read as well.
fn literal(value: &Json) -> String {
    match value {
        Json::Bool(true) => "True".to_string(),
        Json::Bool(false) => "False".to_string(),
        Json::Null => "None".to_string(),
        other => other.to_string(),
    }
}

fn braces(value: &Json, quote: &str) -> String {
    match value {
        Json::String(text) => format!("{quote}{text}{quote}"),
        Json::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| braces(value, quote)).collect();
            format!("[{}]", values.join(","))
        }
        Json::Object(object) => {
            let items: Vec<String> = object
                .iter()
                .map(|(key, value)| format!("{}:{}", key_mark(key, quote), braces(value, quote)))
                .collect();
            format!("{{{}}}", items.join(","))
        }
        other => other.to_string(),
    }
}

fn elements(value: &Json, prefix: &str) -> String {
    let element = |key: &str, value: &Json| {
        format!("{prefix}<{key}>{}{prefix}</{key}>", elements(value, prefix))
    };
    match value {
        Json::Object(object) => object
            .iter()
            .map(|(key, value)| element(key, value))
            .collect(),
        Json::Array(values) => values.iter().map(|value| element("item", value)).collect(),
        other => bare(other),
    }
}
