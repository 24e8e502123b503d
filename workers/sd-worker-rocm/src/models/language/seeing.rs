//! A language model that sees: Qwen 2.5 VL.

use super::vision::{Patches, Vision, VisionConfig};
use super::{Language, LanguageConfig};
use crate::models::VarBuilder;
use candle_core::{Result, Tensor};
use serde_json::Value;

/// Settings of a Qwen 2.5 VL model.
#[derive(Debug, Clone, PartialEq)]
pub struct SeeingConfig {
    /// Of the decoder.
    pub language: LanguageConfig,
    /// Of the tower.
    pub vision: VisionConfig,
    /// The token in whose places pictures' rows stand.
    pub picture_token: u32,
}

impl SeeingConfig {
    /// Reads and checks a model's `config.json`.
    ///
    /// # Errors
    /// Names the first setting that is missing, impossible or not implemented.
    pub fn from_json(json: &Value) -> std::result::Result<Self, String> {
        let language = LanguageConfig::from_json(json)?;
        if language.kind != super::config::Kind::Qwen2Vl {
            return Err(
                "a text encoder that sees, other than Qwen 2.5 VL, is not implemented".to_string(),
            );
        }
        let vision = json.get("vision_config").cloned().unwrap_or_default();
        let vision: VisionConfig = match vision {
            Value::Null => return Err("vision_config is missing".to_string()),
            vision => serde_json::from_value(vision).map_err(|e| format!("vision_config: {e}"))?,
        };
        Self::new(language, vision, json["image_token_id"].as_u64())
    }

    /// Of its parts; without another token that of the published models stands for pictures.
    ///
    /// # Errors
    /// If they do not fit together.
    pub fn new(
        language: LanguageConfig,
        vision: VisionConfig,
        picture_token: Option<u64>,
    ) -> std::result::Result<Self, String> {
        vision.check().map_err(|e| format!("vision_config: {e}"))?;
        if vision.out_hidden_size != language.width {
            return Err(format!(
                "vision_config: out_hidden_size {} is not hidden_size {}",
                vision.out_hidden_size, language.width
            ));
        }
        let token = picture_token.unwrap_or(151_655);
        let picture_token = u32::try_from(token).map_err(|_| "image_token_id is too large")?;
        Ok(Self {
            language,
            vision,
            picture_token,
        })
    }
}

/// The model.
#[derive(Debug, Clone)]
pub struct Seeing {
    language: Language,
    vision: Vision,
    config: SeeingConfig,
}

impl Seeing {
    /// Reads the decoder as [`Language::new`] does, and the tower below `visual`.
    ///
    /// # Errors
    /// Those of the parts.
    pub fn new(vb: VarBuilder, config: &SeeingConfig, states: &[usize]) -> Result<Self> {
        Ok(Self {
            language: Language::new(vb.clone(), &config.language, states)?,
            vision: Vision::new(vb.pp("visual"), &config.vision)?,
            config: config.clone(),
        })
    }

    /// The decoder alone.
    pub fn language(&self) -> &Language {
        &self.language
    }

    /// The states of a text in which pictures stand, in their order, where it has the token for that: each such token is
    /// one picture. `(1, tokens, hidden_size)` each, with as many tokens a picture as it has rows.
    ///
    /// # Errors
    /// If there are other numbers of pictures and tokens, tokens are outside the vocabulary, or the device fails.
    pub fn forward(&self, ids: &[u32], pictures: &[Patches]) -> Result<Vec<Tensor>> {
        let is_picture = |id: &u32| *id == self.config.picture_token;
        let wanted = ids.iter().filter(|id| is_picture(id)).count();
        if wanted != pictures.len() {
            candle_core::bail!(
                "a text with {wanted} places for {} pictures",
                pictures.len()
            )
        }
        let mut parts = Vec::new();
        let mut positions: Vec<[usize; 3]> = Vec::new();
        let mut next = 0;
        let mut pictures = pictures.iter();
        for run in ids.chunk_by(|a, b| !is_picture(a) && !is_picture(b)) {
            match pictures.as_slice().first().filter(|_| is_picture(&run[0])) {
                None => {
                    parts.push(self.language.rows(run)?);
                    positions.extend((next..next + run.len()).map(|at| [at; 3]));
                    next += run.len();
                }
                Some(picture) => {
                    pictures.next();
                    let like = self.language.rows(run)?;
                    parts.push(self.vision.forward(picture, &like)?.unsqueeze(0)?);
                    let [down, across] = picture.grid;
                    let place = |at: usize| [next, next + at / across, next + at % across];
                    positions.extend((0..down * across).map(place));
                    next += down.max(across);
                }
            }
        }
        let rows = Tensor::cat(&parts, 1)?;
        self.language.forward_rows(&rows, &positions, None)
    }
}
