//! Prompts of models that were trained to fill in the middle of a text.

use super::length::check_length;
use crate::jinja::Rendered;
use crate::server::backend::TextModel;
use crate::tokenizer::FillIn;
use worker::http::ApiError;

/// A place in a text that is to be filled in.
#[derive(Debug, Clone, Default)]
pub struct Infill {
    /// The tokens before it.
    pub prefix: Vec<u32>,
    /// Those behind it.
    pub suffix: Vec<u32>,
    /// Those that it begins with.
    pub begun: Vec<u32>,
    /// Other files that the model may look at, as tokens of all that stands before.
    pub before: Vec<u32>,
}

impl Infill {
    /// The tokens by which the model is told what to do.
    ///
    /// # Errors
    /// 400 for a model that was not trained for it; `field` is what asked for it.
    pub fn tokens_of(model: &TextModel, field: &str) -> Result<FillIn, ApiError> {
        model.tokenizer.fill_in().ok_or_else(|| {
            ApiError::field(
                field,
                format!("{field}: this model has no tokens for filling in the middle of a text"),
            )
        })
    }

    /// The tokens of a part of the text; control tokens that are spelled in it are text.
    ///
    /// # Errors
    /// 400 that names the field for a text that is too long, or that the vocabulary cannot express.
    pub fn text(model: &TextModel, field: &str, text: &str) -> Result<Vec<u32>, ApiError> {
        check_length(model, text)?;
        let mut part = Rendered::default();
        part.push_input(text);
        let tokens = model.tokenizer.encode_rendered(&part, false);
        tokens.map_err(|e| ApiError::field(field, format!("{field}: {e}")))
    }

    /// The prompt: what stands before, the text before the place, that behind it, and what the place begins with.
    pub fn prompt(&self, model: &TextModel, marks: &FillIn) -> Vec<u32> {
        let mut tokens = model.tokenizer.beginning();
        tokens.extend(&self.before);
        for (mark, part) in [
            (marks.prefix, &self.prefix),
            (marks.suffix, &self.suffix),
            (marks.middle, &self.begun),
        ] {
            tokens.push(mark);
            tokens.extend(part);
        }
        tokens
    }
}
