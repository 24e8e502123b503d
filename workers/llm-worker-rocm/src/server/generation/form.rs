//! What an answer must look like.

use super::prepare::Held;
use super::sampling::SamplingFields;
use crate::grammar::{gbnf_to_lark, LazyGrammar, Notation, Trigger};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::from_worker;
use crate::tools::Thoughts;
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
    /// What begins it, if not the answer does.
    pub lazy: Option<Lazy>,
    /// Control tokens that literals of GBNF may be.
    pub tokens: Vec<String>,
}

/// Where a form begins in an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Lazy {
    /// What begins it.
    pub triggers: Vec<Trigger>,
    /// In a chat, whether its prompt ends among thoughts; in thoughts nothing begins a form.
    pub in_reasoning: Option<bool>,
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
            (Some(grammar), None) => Ok(Some(Self {
                source: Source::Requested,
                grammar,
                lazy: lazy(fields)?,
                tokens: fields.preserved_tokens(),
            })),
            (None, _) if fields.grammar_lazy == Some(true) => Err(ApiError::field(
                "grammar_lazy",
                "grammar_lazy: there is no grammar and no schema that could begin",
            )),
            (None, _) => Ok(None),
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
            lazy: None,
            tokens: Vec::new(),
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

    /// Whether it is all of the answer, so that there is no room for thoughts before it.
    pub fn is_whole(&self) -> bool {
        self.source == Source::Requested && self.lazy.is_none()
    }

    /// Compiles it, once it is its turn.
    ///
    /// # Errors
    /// 400 for a schema or grammar that cannot be followed, 429 if too many wait to be compiled.
    pub async fn compile(&self, app: &App, model: &TextModel) -> Result<Held, ApiError> {
        let grammars = model.grammars()?.clone();
        let (notation, text) = self.text();
        let (notation, text) = match notation {
            // Here tokens that it spells are known.
            Notation::Gbnf => {
                let id = |token: &str| model.tokenizer.control_id(token);
                let tokens = self
                    .tokens
                    .iter()
                    .filter_map(|t| Some((t.as_str(), id(t)?)));
                let lark = gbnf_to_lark(&text, &tokens.collect::<Vec<_>>(), &id);
                (
                    Notation::Lark,
                    Cow::Owned(lark.map_err(|e| from_worker(&e))?),
                )
            }
            _ => (notation, text),
        };
        let kept = grammars.kept(notation, &text);
        if let (Some(compiled), None) = (&kept, &self.lazy) {
            return Ok(Held::Form(compiled.clone()));
        }
        let text = text.into_owned();
        let lazy = self.lazy.clone();
        let (tokenizer, format) = (model.tokenizer.clone(), model.format);
        let compile = move || {
            let compiled = match kept {
                Some(compiled) => compiled,
                None => grammars
                    .compile(notation, &text)
                    .map_err(|e| from_worker(&e))?,
            };
            let Some(lazy) = lazy else {
                return Ok(Held::Form(compiled));
            };
            let thoughts = lazy.in_reasoning;
            let thoughts = thoughts.and_then(|begun| Thoughts::of(format, begun, &tokenizer));
            let lazy = LazyGrammar::new(compiled, &lazy.triggers, tokenizer, thoughts);
            lazy.map(|lazy| Held::Lazy(Box::new(lazy)))
                .map_err(|e| ApiError {
                    param: Some("grammar_triggers".to_string()),
                    ..from_worker(&e)
                })
        };
        app.compilations.run(compile).await
    }
}

/// What begins the form of an answer that is free before.
fn lazy(fields: &SamplingFields) -> Result<Option<Lazy>, ApiError> {
    let triggers = fields.grammar_triggers.as_deref().unwrap_or_default();
    if !fields.grammar_lazy.unwrap_or(false) {
        return match triggers.is_empty() {
            true => Ok(None),
            false => Err(ApiError::field(
                "grammar_triggers",
                "grammar_triggers are for a grammar with grammar_lazy: true",
            )),
        };
    }
    if triggers.is_empty() {
        return Err(ApiError::field(
            "grammar_triggers",
            "grammar_lazy: true needs grammar_triggers, or the grammar would never begin",
        ));
    }
    let triggers = triggers.iter().enumerate().map(|(index, json)| {
        let wrong = |reason: &str| {
            ApiError::field(
                "grammar_triggers",
                format!("grammar_triggers[{index}]: {reason}"),
            )
        };
        let text = || {
            let value = json["value"].as_str();
            value
                .map(str::to_string)
                .ok_or_else(|| wrong("value must be a text"))
        };
        match (json["type"].as_str(), json["type"].as_u64()) {
            (Some("token"), _) | (_, Some(0)) => {
                let token = json["token"].as_u64().and_then(|id| u32::try_from(id).ok());
                let token = token.ok_or_else(|| wrong("token must be a token's number"));
                token.map(Trigger::Token)
            }
            (Some("word"), _) | (_, Some(1)) => text().map(Trigger::Word),
            (Some("pattern"), _) | (_, Some(2)) => text().map(Trigger::Pattern),
            (Some("pattern_full"), _) | (_, Some(3)) => text().map(Trigger::FullPattern),
            _ => Err(wrong(
                "type must be \"word\", \"pattern\", \"pattern_full\" or \"token\"",
            )),
        }
    });
    Ok(Some(Lazy {
        triggers: triggers.collect::<Result<_, _>>()?,
        in_reasoning: None,
    }))
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
        let word = json!({"type": "word", "value": "<x>"});
        let body = json!({"grammar": "start: \"a\"", "grammar_lazy": true, "grammar_triggers": [
            word, {"type": 2, "value": "y+"}, {"type": "token", "token": 7}, {"type": 3, "value": "z"},
        ]});
        let fields = worker::http::json::from_value(&body).unwrap();
        let lazy = Form::requested(&fields).unwrap().unwrap().lazy.unwrap();
        let expected = [
            Trigger::Word("<x>".to_string()),
            Trigger::Pattern("y+".to_string()),
            Trigger::Token(7),
            Trigger::FullPattern("z".to_string()),
        ];
        assert_eq!(lazy.triggers, expected);
        for bad in [
            json!({"grammar_lazy": true, "grammar_triggers": [word]}),
            json!({"grammar": "start: \"a\"", "grammar_lazy": true}),
            json!({"grammar": "start: \"a\"", "grammar_triggers": [word]}),
            json!({"grammar": "start: \"a\"", "grammar_lazy": true, "grammar_triggers": [{"type": 4, "value": "x"}]}),
            json!({"grammar": "start: \"a\"", "grammar_lazy": true, "grammar_triggers": [{"type": "token"}]}),
            json!({"grammar": "start: \"a\"", "grammar_lazy": true, "grammar_triggers": [{"type": "word"}]}),
            json!({"response_format": {}}),
            json!({"response_format": {"type": "xml"}}),
            json!({"response_format": {"type": "json_schema"}}),
            json!({"response_format": {"type": "json_object"}, "grammar": "start: \"a\""}),
        ] {
            form(bad).unwrap_err();
        }
    }
}
