//! Where pictures and sounds stand in prompts.
//!
//! A chat's template leaves a family's placeholder for each picture; here it becomes the picture's tokens with what
//! stands around them, and each of these tokens a row of the picture.
//!
//! | Module    | Gives                                                       |
//! |-----------|-------------------------------------------------------------|
//! | `picture` | what stands for a picture                                   |
//! | `turns`   | the positions of tokens, where these have three of them     |
//! | `text`    | words in the places of others                               |

mod picture;
mod text;
mod turns;

use self::text::{find, replaced};
use crate::engine::media::{Content, Media, MediaItem, Span};
use crate::jinja::Rendered;
use crate::tokenizer::Tokenizer;
use crate::vision::{Kind, VisionConfig};
use image::RgbImage;
use std::sync::{Arc, Mutex, PoisonError};
use worker::picture::{decode, to_rgb, DecodeLimits};
use worker::{Error, Result};

/// Stands for a picture in messages to templates that know nothing of pictures: no character of any text.
pub const PICTURE_MARK: &str = "\u{fdd0}picture\u{fdd1}";

/// Held while a picture is decoded.
static DECODING: Mutex<()> = Mutex::new(());

/// What makes items and prompts of an encoder's family.
#[derive(Debug, Clone)]
pub struct Processor {
    vision: VisionConfig,
}

/// A picture's part of a prompt.
struct Expansion {
    text: String,
    /// Rows of each of the tokens in it that stand for rows.
    runs: Vec<usize>,
}

impl Processor {
    /// That of an encoder.
    pub fn new(config: &VisionConfig) -> Self {
        Self {
            vision: config.clone(),
        }
    }

    /// A picture of a file's bytes.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no picture, too large, or of a shape that the encoder does not take.
    pub fn picture(&self, bytes: &[u8], limits: &DecodeLimits) -> Result<Arc<MediaItem>> {
        // One at a time: a small file may be a picture of many pixels.
        let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        self.picture_of(&to_rgb(&decode(bytes, limits)?))
    }

    /// A picture of pixels.
    ///
    /// # Errors
    /// [`Error::Usage`] for a shape that the encoder does not take.
    pub fn picture_of(&self, picture: &RgbImage) -> Result<Arc<MediaItem>> {
        let pixels = self.vision.pixels(picture).map_err(Error::Usage)?;
        Ok(Arc::new(MediaItem::new(Content::Picture(pixels))))
    }

    /// The encoder of pictures, whose shape says what it takes.
    pub fn vision(&self) -> &VisionConfig {
        &self.vision
    }

    /// Rows of a prompt that an item takes.
    pub fn rows_of(&self, item: &MediaItem) -> usize {
        match &item.content {
            Content::Picture(pixels) => self.vision.rows_of(pixels),
        }
    }

    /// The tokens of a chat with pictures, and where these are; for `add_bos` see [`Tokenizer::encode`].
    ///
    /// # Errors
    /// [`Error::Usage`] if the template has not left a place for each picture, or the vocabulary cannot express the
    /// text.
    pub fn prompt(
        &self,
        rendered: &Rendered,
        items: &[Arc<MediaItem>],
        tokenizer: &Tokenizer,
        add_bos: bool,
    ) -> Result<(Vec<u32>, Media)> {
        let traits = self.vision.traits;
        let (token, id) = self.token(tokenizer, &rendered.text)?;
        let marks = find(&rendered.text, PICTURE_MARK, &[]);
        let (places, is_alone) = match marks.is_empty() {
            true => (
                find(&rendered.text, traits.placeholder, &rendered.input),
                false,
            ),
            false => (marks, true),
        };
        if places.len() != items.len() {
            return Err(Error::Usage(format!(
                "the chat template has left {} places for {} pictures",
                places.len(),
                items.len()
            )));
        }
        let expansions: Vec<Expansion> = items
            .iter()
            .map(|item| match &item.content {
                Content::Picture(pixels) => self.expansion(pixels, &token, is_alone),
            })
            .collect();
        let text = replaced(rendered, &places, &expansions);
        let tokens = tokenizer
            .encode_rendered(&text, add_bos)
            .map_err(|e| Error::Usage(e.to_string()))?;
        let mut runs = expansions.iter().zip(items).flat_map(|(e, item)| {
            let mut first = 0;
            e.runs.iter().map(move |run| {
                first += run;
                (first - run, *run, item)
            })
        });
        let mut all = Vec::with_capacity(tokens.len());
        let mut spans = Vec::new();
        let astray = || {
            Error::Usage(format!(
                "a message spells {token}, which stands for pictures"
            ))
        };
        for token in tokens {
            if token != id {
                all.push(token);
                continue;
            }
            let (first, len, item) = runs.next().ok_or_else(astray)?;
            spans.push(Span {
                start: all.len(),
                len,
                item: item.clone(),
                first,
            });
            all.resize(all.len() + len, id);
        }
        if runs.next().is_some() {
            return Err(astray());
        }
        let turns = traits.sections.then(|| self.turns(all.len(), &spans));
        let media = Media {
            spans,
            turns,
            whole: traits.kind == Kind::Gemma3,
        };
        Ok((all, media))
    }

    /// The token that stands for rows: the family's, or where the vocabulary lacks it, as llama.cpp's files of LLaVA do,
    /// a control token that the text does not have.
    fn token(&self, tokenizer: &Tokenizer, text: &str) -> Result<(String, u32)> {
        let own = self.vision.traits.token;
        if let Some(id) = tokenizer.control_id(own) {
            return Ok((own.to_string(), id));
        }
        let ids = 0..tokenizer.vocab_size() as u32;
        let mut unused = ids.filter_map(|id| {
            let spelled = tokenizer.control_text(id)?;
            let round = tokenizer.control_id(spelled) == Some(id);
            (round && !tokenizer.is_end(id) && !text.contains(spelled))
                .then(|| (spelled.to_string(), id))
        });
        unused.next().ok_or_else(|| {
            Error::Usage(format!(
                "the vocabulary has no control token {own}: pictures have no place in prompts"
            ))
        })
    }
}
