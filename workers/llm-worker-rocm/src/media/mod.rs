//! Where pictures, videos and sounds stand in prompts.
//!
//! A chat's template leaves a family's placeholder for each of them; here it becomes the item's tokens with
//! what stands around them, and each of these tokens a row of the item.
//!
//! | Module    | Gives                                                       |
//! |-----------|-------------------------------------------------------------|
//! | `picture` | what stands for a picture                                   |
//! | `sound`   | a sound of a file's bytes, and what stands for it           |
//! | `video`   | frames of a video, and what stands for them                 |
//! | `turns`   | the positions of tokens, where these have three of them     |
//! | `text`    | words in the places of others                               |

mod picture;
mod sound;
mod text;
mod turns;
mod video;

pub use self::video::VideoPart;

use self::text::{find, replaced};
use crate::engine::media::{Content, Media, MediaItem, Span};
use crate::jinja::Rendered;
use crate::sound::SoundConfig;
use crate::tokenizer::Tokenizer;
use crate::vision::{VideoOptions, VisionConfig};
use image::RgbImage;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use worker::picture::{decode, to_rgb, DecodeLimits};
use worker::{Error, Result};

/// Stands for a picture in messages to templates that know nothing of pictures: no character of any text.
pub const PICTURE_MARK: &str = "\u{fdd0}picture\u{fdd1}";

/// The same for a video.
pub const VIDEO_MARK: &str = "\u{fdd0}video\u{fdd1}";

/// The same for a sound.
pub const SOUND_MARK: &str = "\u{fdd0}sound\u{fdd1}";

/// Held while a picture or a sound is decoded.
static DECODING: Mutex<()> = Mutex::new(());

/// How pictures and videos are taken, where that is not as the family's processor does.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PictureOptions {
    /// Parts of long pictures are shown besides the whole, as Gemma 3's processor does on request.
    pub pan_and_scan: bool,
    /// Frames of videos, where a request says nothing else.
    pub videos: VideoOptions,
}

/// What makes items and prompts of a model's encoders; for those that it lacks, why.
#[derive(Debug, Clone)]
pub struct Processor {
    vision: std::result::Result<VisionConfig, String>,
    sound: std::result::Result<SoundConfig, String>,
    videos: VideoOptions,
}

/// Kinds of items, each with an encoder, a placeholder and a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sense {
    Sight,
    Motion,
    Hearing,
}

impl Sense {
    fn of(content: &Content) -> Self {
        match content {
            Content::Picture(_) => Self::Sight,
            Content::Video(_) => Self::Motion,
            Content::Sound(_) => Self::Hearing,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sight => "pictures",
            Self::Motion => "videos",
            Self::Hearing => "sounds",
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Self::Sight => PICTURE_MARK,
            Self::Motion => VIDEO_MARK,
            Self::Hearing => SOUND_MARK,
        }
    }
}

/// An item's part of a prompt.
struct Expansion {
    text: String,
    /// Rows of each of the tokens in it that stand for rows.
    runs: Vec<usize>,
}

/// Where an item goes.
struct Place<'a> {
    /// What of the text gives way to it.
    range: Range<usize>,
    expansion: Expansion,
    item: &'a Arc<MediaItem>,
    /// The token that stands for its rows.
    token: u32,
    /// What its rows have in the prompt.
    filler: u32,
}

impl Processor {
    /// That of a model's encoders, or why it lacks one.
    ///
    /// # Errors
    /// A text, for options that the family of the encoder of pictures does not have.
    pub fn new(
        vision: std::result::Result<&VisionConfig, &String>,
        sound: std::result::Result<&SoundConfig, &String>,
        options: &PictureOptions,
    ) -> std::result::Result<Self, String> {
        let vision = vision.cloned().map_err(String::clone);
        Ok(Self {
            vision: match (vision, options.pan_and_scan) {
                (Ok(vision), true) => Ok(vision.with_pan_and_scan()?),
                (vision, _) => vision,
            },
            sound: sound.cloned().map_err(String::clone),
            videos: options.videos,
        })
    }

    /// A picture of a file's bytes.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no picture, too large, or of a shape that the encoder does not take.
    pub fn picture(&self, bytes: &[u8], limits: &DecodeLimits) -> Result<Arc<MediaItem>> {
        self.vision()?;
        // One at a time: a small file may be a picture of many pixels.
        let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        self.picture_of(&to_rgb(&decode(bytes, limits)?))
    }

    /// A picture of pixels.
    ///
    /// # Errors
    /// [`Error::Usage`] for a shape that the encoder does not take.
    pub fn picture_of(&self, picture: &RgbImage) -> Result<Arc<MediaItem>> {
        let pixels = self.vision()?.pixels(picture).map_err(Error::Usage)?;
        Ok(Arc::new(MediaItem::new(Content::Picture(pixels))))
    }

    /// The encoder of pictures, whose shape says what it takes.
    ///
    /// # Errors
    /// [`Error::Usage`] if the model has none.
    pub fn vision(&self) -> Result<&VisionConfig> {
        let missing =
            |reason: &String| Error::Usage(format!("this model takes no pictures: {reason}"));
        self.vision.as_ref().map_err(missing)
    }

    /// The encoder of sounds, whose shape says what it takes.
    ///
    /// # Errors
    /// [`Error::Usage`] if the model has none.
    pub fn hearing(&self) -> Result<&SoundConfig> {
        let missing =
            |reason: &String| Error::Usage(format!("this model takes no sounds: {reason}"));
        self.sound.as_ref().map_err(missing)
    }

    /// Rows of a prompt that an item takes.
    pub fn rows_of(&self, item: &MediaItem) -> usize {
        match (&item.content, &self.vision) {
            (Content::Picture(pixels), Ok(vision)) => vision.rows_of(pixels),
            (Content::Video(video), Ok(vision)) => vision.rows_of(&video.pixels),
            (Content::Picture(_) | Content::Video(_), Err(_)) => 0,
            (Content::Sound(frames), _) => frames.rows(),
        }
    }

    /// The tokens of a chat with pictures, videos and sounds, and where these are; for `add_bos` see
    /// [`Tokenizer::encode`]. Those of a kind are in the order of their places.
    ///
    /// # Errors
    /// [`Error::Usage`] if the template has not left a place for each, or the vocabulary cannot express the text.
    pub fn prompt(
        &self,
        rendered: &Rendered,
        items: &[Arc<MediaItem>],
        tokenizer: &Tokenizer,
        add_bos: bool,
    ) -> Result<(Vec<u32>, Media)> {
        let mut places = self.places(Sense::Sight, rendered, items, tokenizer, None)?;
        places.extend(self.places(Sense::Motion, rendered, items, tokenizer, None)?);
        let sight = places.first().map(|place| place.token);
        places.extend(self.places(Sense::Hearing, rendered, items, tokenizer, sight)?);
        places.sort_by_key(|place| place.range.start);
        let text = replaced(
            rendered,
            places.iter().map(|place| (&place.range, &place.expansion)),
        );
        let tokens = tokenizer
            .encode_rendered(&text, add_bos)
            .map_err(|e| Error::Usage(e.to_string()))?;
        let mut runs = places.iter().flat_map(|place| {
            let mut first = 0;
            place.expansion.runs.iter().map(move |run| {
                first += run;
                (first - run, *run, place)
            })
        });
        let mut all = Vec::with_capacity(tokens.len());
        let mut spans = Vec::new();
        let astray = || {
            let reason = "a message spells a token that stands for pictures, videos or sounds";
            Error::Usage(reason.to_string())
        };
        for token in tokens {
            if !places.iter().any(|place| place.token == token) {
                all.push(token);
                continue;
            }
            let (first, len, place) = runs.next().ok_or_else(astray)?;
            if place.token != token {
                return Err(astray());
            }
            spans.push(Span {
                start: all.len(),
                len,
                item: place.item.clone(),
                first,
            });
            all.resize(all.len() + len, place.filler);
        }
        if runs.next().is_some() {
            return Err(astray());
        }
        // Without pictures tokens are turned by their place.
        let vision = self.vision.as_ref().ok();
        let vision = vision.filter(|_| sight.is_some());
        let turns = vision
            .filter(|vision| vision.traits.sections)
            .map(|vision| vision.turns(all.len(), &spans));
        let media = Media {
            spans,
            turns,
            whole: vision.is_some_and(|vision| vision.whole),
        };
        Ok((all, media))
    }

    /// Where the items of a kind go.
    fn places<'a>(
        &self,
        sense: Sense,
        rendered: &Rendered,
        items: &'a [Arc<MediaItem>],
        tokenizer: &Tokenizer,
        taken: Option<u32>,
    ) -> Result<Vec<Place<'a>>> {
        let items = items
            .iter()
            .filter(|item| Sense::of(&item.content) == sense);
        let items: Vec<_> = items.collect();
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let (placeholder, own, filler) = match sense {
            Sense::Sight => {
                let traits = self.vision()?.traits;
                (traits.placeholder, traits.token, None)
            }
            Sense::Motion => {
                let video = self.vision()?.moving().map_err(Error::Usage)?;
                (video.placeholder, video.token, None)
            }
            Sense::Hearing => {
                let traits = self.hearing()?.traits;
                (traits.token, traits.token, traits.filler)
            }
        };
        let marks = find(&rendered.text, sense.mark(), &[]);
        let (ranges, is_alone) = match marks.is_empty() {
            true => (find(&rendered.text, placeholder, &rendered.input), false),
            false => (marks, true),
        };
        if ranges.len() != items.len() {
            return Err(Error::Usage(format!(
                "the chat template has left {} places for {} {}",
                ranges.len(),
                items.len(),
                sense.name()
            )));
        }
        let (token, id) = rows_token(tokenizer, own, &rendered.text, taken, sense)?;
        let filler = filler.and_then(|filler| tokenizer.control_id(filler));
        let places = ranges.into_iter().zip(items).map(|(mut range, item)| {
            let expansion = match &item.content {
                Content::Picture(pixels) => self.vision()?.expansion(pixels, &token, is_alone),
                Content::Video(video) => {
                    let vision = self.vision()?;
                    if !is_alone {
                        range = vision.with_marks(range, rendered);
                    }
                    vision.video_expansion(video, &token, is_alone)
                }
                Content::Sound(frames) => self.hearing()?.expansion(frames, &token, is_alone),
            };
            Ok(Place {
                range,
                expansion,
                item,
                token: id,
                filler: filler.unwrap_or(id),
            })
        });
        places.collect()
    }
}

/// The token that stands for rows: the family's, or where the vocabulary lacks it, as llama.cpp's files of LLaVA do, a
/// control token that the text does not have.
fn rows_token(
    tokenizer: &Tokenizer,
    own: &str,
    text: &str,
    taken: Option<u32>,
    sense: Sense,
) -> Result<(String, u32)> {
    if let Some(id) = tokenizer.control_id(own) {
        return Ok((own.to_string(), id));
    }
    let ids = 0..tokenizer.vocab_size() as u32;
    let mut unused = ids.filter_map(|id| {
        let spelled = tokenizer.control_text(id)?;
        let round = tokenizer.control_id(spelled) == Some(id) && taken != Some(id);
        (round && !tokenizer.is_end(id) && !text.contains(spelled))
            .then(|| (spelled.to_string(), id))
    });
    unused.next().ok_or_else(|| {
        Error::Usage(format!(
            "the vocabulary has no control token {own}: {} have no place in prompts",
            sense.name()
        ))
    })
}
