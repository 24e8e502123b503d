//! `POST /v2/embed`
//!
//! What the vectors are for (`input_type`) is not read: nothing is put before texts, and whoever uses a model that was
//! trained with such beginnings writes them into the texts.

use super::error::CohereError;
use crate::server::error::from_worker;
use crate::server::openai::embeddings::to_base64;
use crate::server::openai::inputs::MAX_INPUTS;
use crate::server::Shared;
use axum::extract::State;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use uuid::Uuid;
use worker::http::{json, ApiError, JsonBody};

/// The fields of a request for vectors.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct EmbedFields {
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// The texts.
    #[serde(default)]
    pub texts: Vec<String>,
    /// The forms of numbers: `float` (the default) and `base64`.
    pub embedding_types: Option<Vec<String>>,
    /// Length of the vectors, at most the model's own.
    pub output_dimension: Option<usize>,
    /// What becomes of texts that are too long: `END` (the default) cuts their ends.
    pub truncate: Option<String>,
    /// Not possible here.
    #[serde(default, deserialize_with = "json::value")]
    pub images: Option<Value>,
    /// Not possible here.
    #[serde(default, deserialize_with = "json::value")]
    pub inputs: Option<Value>,
}

pub(in crate::server) async fn embed(
    State(app): Shared,
    body: Result<JsonBody<EmbedFields>, ApiError>,
) -> Result<Json<Value>, CohereError> {
    let JsonBody(fields) = body?;
    app.check_model(fields.model.as_deref())?;
    let model = app.embedding()?;
    let forms = fields.forms()?;
    let dimensions = model.shortened(fields.output_dimension);
    let dimensions = dimensions.map_err(|e| ApiError::field("output_dimension", e.to_string()))?;
    let compute = move || {
        let embedded = model.embed(&fields.texts);
        let embedded = embedded.map_err(|e| from_worker(&e))?;
        Ok((fields.texts, embedded))
    };
    let (texts, embedded) = app.embeddings.run(compute).await?;
    let tokens: usize = embedded.iter().map(|embedding| embedding.tokens).sum();
    app.note_prompt(tokens);
    let vectors: Vec<Vec<f32>> = embedded.into_iter().map(|e| e.cut(dimensions)).collect();
    let mut embeddings = Map::new();
    for form in forms {
        let values = match form {
            Form::Float => json!(vectors),
            Form::Base64 => vectors.iter().map(|values| to_base64(values)).collect(),
        };
        embeddings.insert(form.name().to_string(), values);
    }
    Ok(Json(json!({
        "id": Uuid::new_v4().to_string(),
        "embeddings": embeddings,
        "texts": texts,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": tokens},
        },
    })))
}

/// A form of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Float,
    Base64,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Base64 => "base64",
        }
    }
}

impl EmbedFields {
    /// The forms of numbers, of a request that asks for nothing that is not done.
    fn forms(&self) -> Result<Vec<Form>, ApiError> {
        let refuse = |field: &str, reason: String| Err(ApiError::field(field, reason));
        for (name, value) in [("images", &self.images), ("inputs", &self.inputs)] {
            if value.as_ref().is_some_and(|value| !value.is_null()) {
                return refuse(name, format!("{name}: only texts have vectors here"));
            }
        }
        let count = self.texts.len();
        if !(1..=MAX_INPUTS).contains(&count) {
            let reason = format!("texts: {count} of them; 1 to {MAX_INPUTS} are possible");
            return refuse("texts", reason);
        }
        if let Some(other) = self.truncate.as_ref().filter(|how| *how != "END") {
            let reason = format!("truncate: texts are cut at their END, not {other:?}");
            return refuse("truncate", reason);
        }
        let mut forms = Vec::new();
        for name in self.embedding_types.iter().flatten() {
            match [Form::Float, Form::Base64]
                .into_iter()
                .find(|f| f.name() == name)
            {
                Some(form) if forms.contains(&form) => {}
                Some(form) => forms.push(form),
                None => {
                    let reason =
                        format!("embedding_types: float and base64 are possible, not {name:?}");
                    return refuse("embedding_types", reason);
                }
            }
        }
        if forms.is_empty() {
            forms.push(Form::Float);
        }
        Ok(forms)
    }
}
