//! What an answer must look like.

use super::sampling::SamplingFields;
use crate::grammar::{Compiled, Notation};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::from_worker;
use serde_json::Value;
use std::borrow::Cow;
use worker::http::ApiError;

/// What an answer must look like, understood but not compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    /// Who wants it.
    pub source: Source,
    /// What it is.
    pub grammar: Grammar,
}

/// Who wants a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The request's own fields: they describe the whole answer, so there is no reasoning before it.
    Requested,
    /// A call that `tool_choice` forces; its grammar has room for reasoning.
    Forced,
}

/// The notations of a form.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema(Value),
    /// A grammar in llguidance's Lark.
    Lark(String),
    /// A grammar in llama.cpp's GBNF.
    Gbnf(String),
}

impl Form {
    /// The form that a request's fields ask for.
    ///
    /// # Errors
    /// 400 for a malformed or unknown one, or two at once.
    pub fn requested(fields: &SamplingFields) -> Result<Option<Self>, ApiError> {
        let grammar = fields.grammar.as_ref().filter(|text| !text.is_empty());
        let grammars = [
            response_format(fields.response_format.as_ref())?,
            fields.json_schema.clone().map(Grammar::JsonSchema),
            grammar.map(|text| match is_gbnf(text) {
                true => Grammar::Gbnf(text.clone()),
                false => Grammar::Lark(text.clone()),
            }),
        ];
        let mut grammars = grammars.into_iter().flatten();
        match (grammars.next(), grammars.next()) {
            (grammar, None) => Ok(grammar.map(|grammar| Self {
                source: Source::Requested,
                grammar,
            })),
            _ => Err(ApiError::invalid(
                "response_format, json_schema and grammar: only one of them can be followed",
            )),
        }
    }

    /// The form of answers that call a tool, in Lark.
    pub fn forced(grammar: String) -> Self {
        Self {
            source: Source::Forced,
            grammar: Grammar::Lark(grammar),
        }
    }

    /// How it is written, and its text.
    pub fn text(&self) -> (Notation, Cow<'_, str>) {
        match &self.grammar {
            Grammar::JsonObject => (Notation::JsonSchema, Cow::Borrowed(r#"{"type":"object"}"#)),
            Grammar::JsonSchema(schema) => (Notation::JsonSchema, Cow::Owned(schema.to_string())),
            Grammar::Lark(grammar) => (Notation::Lark, Cow::Borrowed(grammar)),
            Grammar::Gbnf(grammar) => (Notation::Gbnf, Cow::Borrowed(grammar)),
        }
    }

    /// Compiles it, once it is its turn.
    ///
    /// # Errors
    /// 400 for a schema or grammar that cannot be followed, 429 if too many wait to be compiled.
    pub async fn compile(&self, app: &App, model: &TextModel) -> Result<Compiled, ApiError> {
        let grammars = model.grammars()?.clone();
        let (notation, text) = self.text();
        if let Some(compiled) = grammars.kept(notation, &text) {
            return Ok(compiled);
        }
        let text = text.into_owned();
        let compile = move || {
            grammars
                .compile(notation, &text)
                .map_err(|e| from_worker(&e))
        };
        app.compilations.run(compile).await
    }
}

/// Lark has no `::=`.
fn is_gbnf(grammar: &str) -> bool {
    grammar.lines().any(|line| {
        line.trim_start()
            .strip_prefix("root")
            .is_some_and(|rest| rest.trim_start().starts_with("::="))
    })
}

fn response_format(format: Option<&Value>) -> Result<Option<Grammar>, ApiError> {
    let refuse = |reason: String| Err(ApiError::field("response_format", reason));
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        // llama.cpp's server takes a schema here, too.
        Some("json_object") => Ok(Some(match format.get("schema") {
            Some(schema) => Grammar::JsonSchema(schema.clone()),
            None => Grammar::JsonObject,
        })),
        Some("json_schema") => match format["json_schema"].get("schema").or(format.get("schema")) {
            Some(schema) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
            None => refuse("response_format: json_schema.schema is missing".to_string()),
        },
        _ => refuse(format!(
            "response_format: the type is \"text\", \"json_object\" or \"json_schema\", not {}",
            format["type"]
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn form(body: Value) -> Result<Option<Grammar>, ApiError> {
        let form = Form::requested(&worker::http::json::from_value(&body).unwrap())?;
        Ok(form.map(|form| form.grammar))
    }

    #[test]
    fn forms() {
        let schema = json!({"type": "integer"});
        assert_eq!(form(json!({})), Ok(None));
        assert_eq!(
            form(json!({"response_format": null, "grammar": ""})),
            Ok(None)
        );
        assert_eq!(form(json!({"response_format": {"type": "text"}})), Ok(None));
        let object = json!({"response_format": {"type": "json_object"}});
        assert_eq!(form(object), Ok(Some(Grammar::JsonObject)));
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"json_schema": schema}),
        ] {
            assert_eq!(form(body), Ok(Some(Grammar::JsonSchema(schema.clone()))));
        }
        let gbnf = "root ::= \"a\"".to_string();
        assert_eq!(
            form(json!({"grammar": gbnf})),
            Ok(Some(Grammar::Gbnf(gbnf)))
        );
        let lark = "start: \"a\"".to_string();
        assert_eq!(
            form(json!({"grammar": lark})),
            Ok(Some(Grammar::Lark(lark)))
        );
        for bad in [
            json!({"response_format": {}}),
            json!({"response_format": {"type": "xml"}}),
            json!({"response_format": {"type": "json_schema"}}),
            json!({"response_format": {"type": "json_object"}, "grammar": "start: \"a\""}),
        ] {
            form(bad).unwrap_err();
        }
    }
}
