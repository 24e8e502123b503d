//! `POST /infill`: the middle of a text, for models that were trained on that.
//!
//! The prompt is that of Qwen2.5-Coder's repositories (<https://arxiv.org/abs/2409.12186>): other files behind marks with
//! their names, then what stands before the middle, what stands behind it, and the middle's beginning.

use super::completion::answer;
use super::request::NativeFields;
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::{blocking, not_supported};
use crate::server::generation::{check_length, Infill, SamplingFields};
use crate::tokenizer::FillIn;
use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use worker::http::json::FromJson;
use worker::http::{ApiError, Caller, JsonBody};

/// Most other files.
const MAX_FILES: usize = 256;
/// Room for an answer whose length nobody says.
const ANSWER: usize = 256;
/// The part of the room that what stands before the middle may take, in quarters.
const BEFORE: usize = 3;

/// What stands around the middle of a text.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct InfillFields {
    /// What stands before it.
    pub input_prefix: String,
    /// What stands behind it.
    pub input_suffix: String,
    /// Other files that belong to it.
    #[serde(default)]
    pub input_extra: Vec<ExtraFile>,
}

/// A file that belongs to a text.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ExtraFile {
    /// Its text.
    pub text: String,
    /// Its name.
    pub filename: Option<String>,
}

/// The body: fields of three kinds side by side.
#[derive(Debug, Clone)]
pub struct InfillBody(SamplingFields, NativeFields, InfillFields);

impl FromJson for InfillBody {
    fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        use worker::http::json::parse;
        Ok(Self(parse(bytes)?, parse(bytes)?, parse(bytes)?))
    }
}

pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(InfillBody(sampling, mut fields, infill)): JsonBody<InfillBody>,
) -> Result<Response, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let marks = model.tokenizer.fill_in().ok_or_else(|| {
        not_supported(
            "this model was not trained to fill in the middle of a text: its vocabulary has no tokens for prefix, suffix and middle",
        )
    })?;
    if infill.input_extra.len() > MAX_FILES {
        let reason = format!("input_extra: at most {MAX_FILES} files are possible");
        return Err(ApiError::field("input_extra", reason));
    }
    let (of_prompt, of_app) = (model.clone(), app.clone());
    let understood = blocking(move || {
        let begun = match fields.prompt.take() {
            None => Vec::new(),
            Some(prompts) => match &prompts.all[..] {
                [one] => one.tokens(&of_prompt, false)?.0,
                _ => return Err(ApiError::field("prompt", "prompt: one is possible here")),
            },
        };
        let answer = match sampling.n_predict {
            Some(0) => 1,
            _ => sampling
                .most_tokens(&of_app.options, false)?
                .unwrap_or(ANSWER),
        };
        let prompt = infill.prompt(&of_prompt, &marks, begun, answer)?;
        fields.understand(&of_app, &of_prompt, sampling, vec![(prompt, None)], false)
    });
    answer(&app, &model, understood.await?, caller).await
}

impl InfillFields {
    /// The prompt; texts are cut where they are too long: what is nearest to the middle stays.
    fn prompt(
        &self,
        model: &TextModel,
        marks: &FillIn,
        begun: Vec<u32>,
        answer: usize,
    ) -> Result<Vec<u32>, ApiError> {
        let encode = |field: &str, text: &str, begins: bool| {
            check_length(model, text)?;
            let encoded = model.tokenizer.encode(text, begins);
            encoded.map_err(|e| ApiError::field(field, format!("{field}: {e}")))
        };
        let before = encode("input_prefix", &self.input_prefix, false)?;
        let behind = encode("input_suffix", &self.input_suffix, false)?;
        let mut extra = Vec::new();
        if let Some(mark) = marks.repository {
            extra.push(mark);
            extra.extend(encode("input_extra", "repository\n", false)?);
        }
        for file in &self.input_extra {
            let name = file.filename.as_deref().unwrap_or("file");
            match marks.file {
                Some(mark) => {
                    extra.push(mark);
                    extra.extend(encode("input_extra", &format!("{name}\n"), false)?);
                }
                None => extra.extend(encode("input_extra", "\n\n--- file ---\n\n", false)?),
            }
            extra.extend(encode("input_extra", &file.text, false)?);
        }
        if let Some(mark) = marks.file.filter(|_| !extra.is_empty()) {
            extra.push(mark);
            extra.extend(encode("input_extra", "this\n", false)?);
        }
        let begin = encode("prompt", "", true)?;
        let room = model
            .backend
            .context()
            .saturating_sub(answer + begin.len() + begun.len() + 3);
        let [before_take, behind_take, extra_take] =
            shares(room, [before.len(), behind.len(), extra.len()]);
        let infill = Infill {
            before: extra.split_off(extra.len() - extra_take),
            prefix: before[before.len() - before_take..].to_vec(),
            suffix: behind[..behind_take].to_vec(),
            begun,
        };
        Ok(infill.prompt(model, marks))
    }
}

/// How many tokens are taken of what stands before, of what stands behind, and of other files.
fn shares(room: usize, [before, behind, extra]: [usize; 3]) -> [usize; 3] {
    // What one does not need, the other may have.
    let quarters = room / 4 * BEFORE;
    let before_take = before.min(quarters.max(room.saturating_sub(behind)));
    let behind_take = behind.min(room - before_take);
    [
        before_take,
        behind_take,
        extra.min(room - before_take - behind_take),
    ]
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn what_is_near_comes_first() {
        assert_eq!(shares(100, [10, 20, 30]), [10, 20, 30]);
        assert_eq!(shares(100, [10, 20, 300]), [10, 20, 70]);
        assert_eq!(shares(100, [500, 500, 500]), [75, 25, 0]);
        assert_eq!(shares(100, [500, 10, 500]), [90, 10, 0]);
        assert_eq!(shares(100, [10, 500, 500]), [10, 90, 0]);
        assert_eq!(shares(0, [5, 5, 5]), [0, 0, 0]);
    }
}
