//! `POST /v1/embeddings`

use super::inputs::EmbeddingInputs;
use crate::server::app::App;
use crate::server::error::from_worker;
use axum::extract::State;
use axum::Json;
use base64::prelude::{Engine as _, BASE64_STANDARD};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::{ApiError, JsonBody};

/// The fields of a request for embeddings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct EmbeddingFields {
    /// The texts: a text, its tokens, a list of texts and tokens, `{"prompt_string": …}`, `{"content": [parts]}`, or a
    /// list of these.
    pub input: Option<EmbeddingInputs>,
    /// The same in place of `input`, for an answer in the form of llama.cpp's server.
    pub content: Option<EmbeddingInputs>,
    /// Whether a text that is too long is cut; otherwise it is refused.
    pub truncate: Option<bool>,
    /// What vectors are divided by, by llama.cpp's numbers: -1 is nothing, 0 the largest value (of 16-bit integers), 1
    /// the sum, 2 (the default) the Euclidean length, more are other powers.
    pub embd_normalize: Option<i32>,
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// `float` (the default) or `base64`: the numbers as bytes, little-endian.
    pub encoding_format: Option<String>,
    /// Length of the vectors, at most the model's own: the first numbers, brought to length 1 again.
    pub dimensions: Option<usize>,
}

/// How vectors are given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// OpenAI's.
    OpenAi,
    /// That of llama.cpp's server, which has a list of vectors for each text.
    Native,
}

/// `POST /v1/embeddings`
pub async fn create(
    State(app): State<Arc<App>>,
    JsonBody(fields): JsonBody<EmbeddingFields>,
) -> Result<Json<Value>, ApiError> {
    answer(app, fields, Form::OpenAi).await
}

/// `POST /embeddings` and `/embedding`, in the form of llama.cpp's server.
pub async fn create_native(
    State(app): State<Arc<App>>,
    JsonBody(fields): JsonBody<EmbeddingFields>,
) -> Result<Json<Value>, ApiError> {
    answer(app, fields, Form::Native).await
}

async fn answer(
    app: Arc<App>,
    fields: EmbeddingFields,
    form: Form,
) -> Result<Json<Value>, ApiError> {
    app.check_model(fields.model.as_deref())?;
    let model = app.embedding()?;
    let base64 = match fields.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let reason = format!("encoding_format is \"float\" or \"base64\", not {other:?}");
            return Err(ApiError::field("encoding_format", reason));
        }
    };
    let dimensions = model.shortened(fields.dimensions);
    let dimensions = dimensions.map_err(|e| ApiError::field("dimensions", e.to_string()))?;
    let (input, form) = match (fields.input, fields.content) {
        (Some(input), None) => (input, form),
        // OpenAI's form has no such field.
        (None, Some(content)) => (content, Form::Native),
        _ => {
            return Err(ApiError::field(
                "input",
                "either input or content is needed",
            ))
        }
    };
    if form == Form::Native && base64 {
        let reason =
            "encoding_format: lists of vectors are given as numbers; base64 has /v1/embeddings";
        return Err(ApiError::field("encoding_format", reason));
    }
    let cut = fields.truncate.unwrap_or(false);
    let norm = fields.embd_normalize;
    let compute = move || {
        let tokens = input.tokens(&model, cut)?;
        let count: usize = tokens.iter().map(Vec::len).sum();
        // OpenAI's form has one vector for each text, and is refused where there is none.
        if form == Form::OpenAi && (norm.is_none() || !model.is_pooled()) {
            let embedded = model.embed_tokens(&tokens).map_err(|e| from_worker(&e))?;
            let vectors = embedded
                .into_iter()
                .map(|e| vec![e.cut(dimensions)])
                .collect();
            return Ok((vectors, count));
        }
        let mut vectors = model.raw_vectors(&tokens).map_err(|e| from_worker(&e))?;
        if model.is_pooled() {
            for vector in vectors.iter_mut().flatten() {
                vector.truncate(dimensions);
                normalize(vector, norm.unwrap_or(EUCLIDEAN));
            }
        }
        Ok((vectors, count))
    };
    let (vectors, tokens) = app.embeddings.run(compute).await?;
    app.note_prompt(tokens);
    let vectors = vectors.into_iter().enumerate();
    if form == Form::Native {
        let entry = |(index, vectors)| json!({"index": index, "embedding": vectors});
        return Ok(Json(vectors.map(entry).collect()));
    }
    let data: Value = vectors
        .map(|(index, vectors)| {
            let vector = vectors.into_iter().next().unwrap_or_default();
            let values = match base64 {
                true => json!(to_base64(&vector)),
                false => json!(vector),
            };
            json!({"object": "embedding", "index": index, "embedding": values})
        })
        .collect();
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": app.options.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// The number of the usual norm in llama.cpp.
const EUCLIDEAN: i32 = 2;

/// Divides a vector by a norm, by llama.cpp's numbers: below 0 by none, 0 by the largest value of 16-bit integers, 1 by
/// the sum of absolute values, others by that power's.
fn normalize(vector: &mut [f32], norm: i32) {
    let values = vector.iter().map(|x| f64::from(x.abs()));
    let size = match norm {
        ..0 => return,
        0 => values.fold(0.0, f64::max) / 32760.0,
        norm => {
            let power = f64::from(norm);
            values.map(|x| x.powf(power)).sum::<f64>().powf(1.0 / power)
        }
    };
    let factor = if size > 0.0 { 1.0 / size } else { 0.0 };
    for x in vector {
        *x = (f64::from(*x) * factor) as f32;
    }
}

/// Numbers as bytes, little-endian, in base64.
pub fn to_base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_those_of_llama_cpp() {
        let normalized = |norm| {
            let mut vector = vec![3.0, -4.0];
            normalize(&mut vector, norm);
            vector
        };
        assert_eq!(normalized(-1), [3.0, -4.0]);
        assert_eq!(normalized(0), [24570.0, -32760.0]);
        assert_eq!(normalized(1), [3.0 / 7.0, -4.0 / 7.0]);
        assert_eq!(normalized(2), [0.6, -0.8]);
        let third = 91f32.cbrt();
        assert!((normalized(3)[0] - 3.0 / third).abs() < 1e-6);
        let mut nothing = vec![0.0, 0.0];
        normalize(&mut nothing, 2);
        assert_eq!(nothing, [0.0, 0.0]);
    }
}
