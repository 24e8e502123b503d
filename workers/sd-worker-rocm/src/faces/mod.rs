//! Faces of pictures restored: found, brought to where a network expects them, restored, and put back.
//!
//! | Module       | Gives                                                                                  |
//! |--------------|----------------------------------------------------------------------------------------|
//! | [`detect`]   | faces in pictures                                                                      |
//! | [`align`]    | faces cut out upright, and the way back                                                |
//! | [`restorer`] | the networks that restore them                                                         |
//! | [`paste`]    | restored faces in their picture                                                        |
//! | [`folders`]  | the networks that clients may name                                                     |

pub mod align;
pub mod detect;
mod file;
pub mod folders;
pub mod paste;
pub mod restorer;

pub use folders::FaceFolders;

use crate::models::faces::Kind;
use align::Similarity;
use candle_core::Device;
use detect::{central, Detector, SURE};
use file::Opened;
use image::{GrayImage, RgbImage};
use paste::{mask_of, paste, Share};
use restorer::{Parser, Restorer};
use std::ops::ControlFlow;
use std::path::PathBuf;
use worker::{Error, Result};

/// Pixels between the eyes of a face below which it is left alone.
const EYES: f32 = 5.0;

/// How much of the given face CodeFormer lets through, if nothing else is said.
pub const WEIGHT: f64 = 0.5;

/// How faces are restored.
#[derive(Debug, Clone, PartialEq)]
pub struct RestoreFaces {
    /// GFPGAN or CodeFormer.
    pub restorer: PathBuf,
    /// RetinaFace.
    pub detector: PathBuf,
    /// ParseNet; without one the square around a face is put back with soft edges.
    pub parser: Option<PathBuf>,
    /// For CodeFormer, how much of the given face is let through: 0 is the best face, 1 the most alike.
    pub weight: f64,
    /// How much of the restored faces is seen, from 0 to 1.
    pub visibility: f64,
    /// Only the face nearest to the middle.
    pub only_center: bool,
}

impl RestoreFaces {
    /// With defaults.
    pub fn new(restorer: PathBuf, detector: PathBuf) -> Self {
        Self {
            restorer,
            detector,
            parser: None,
            weight: WEIGHT,
            visibility: 1.0,
            only_center: false,
        }
    }

    /// Whether this asks for the same files.
    pub fn same_networks(&self, other: &Self) -> bool {
        let files = |wish: &Self| {
            let Self {
                restorer,
                detector,
                parser,
                ..
            } = wish;
            (restorer.clone(), detector.clone(), parser.clone())
        };
        files(self) == files(other)
    }

    /// What the network is called in a picture's text.
    pub fn label(&self) -> String {
        let stem = self.restorer.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }

    /// What it adds to a picture's text; the first in the words of AUTOMATIC1111's web UI.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![("Face restoration", self.label())];
        for (name, value, usual) in [
            ("Face restoration weight", self.weight, WEIGHT),
            ("Face restoration visibility", self.visibility, 1.0),
        ] {
            if value != usual {
                settings.push((name, value.to_string()));
            }
        }
        if self.only_center {
            settings.push(("Face restoration of", "center".to_string()));
        }
        settings
    }

    /// Checks its numbers.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is not from 0 to 1.
    pub fn check(&self) -> Result<()> {
        for (name, share) in [("weight", self.weight), ("visibility", self.visibility)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(Error::Usage(format!(
                    "the {name} of restored faces is {share}; it must be from 0 to 1"
                )));
            }
        }
        Ok(())
    }

    /// Looks into the files, so that a wrong one is told before a picture is drawn.
    ///
    /// # Errors
    /// [`Error::BadModel`] for files of another kind and damage.
    pub fn look(&self) -> Result<()> {
        Opened::of(&self.restorer, Kind::restores)?;
        Opened::of(&self.detector, |kind| kind == Kind::Detector)?;
        if let Some(parser) = &self.parser {
            Opened::of(parser, |kind| kind == Kind::Parser)?;
        }
        Ok(())
    }
}

/// The networks that restore faces.
pub struct Faces {
    wish: RestoreFaces,
    detector: Detector,
    restorer: Restorer,
    parser: Option<Parser>,
}

impl Faces {
    /// Opens the networks.
    ///
    /// # Errors
    /// [`Error::Usage`] for numbers out of range, [`Error::BadModel`] for files of another kind and damage.
    pub fn open(wish: RestoreFaces, device: &Device) -> Result<Self> {
        wish.check()?;
        Ok(Self {
            detector: Detector::open(&wish.detector, device)?,
            restorer: Restorer::open(&wish.restorer, device)?,
            parser: match &wish.parser {
                Some(path) => Some(Parser::open(path, device)?),
                None => None,
            },
            wish,
        })
    }

    /// The same networks at work for another request that asks for [the same](RestoreFaces::same_networks).
    #[must_use]
    pub fn with(self, wish: &RestoreFaces) -> Self {
        Self {
            wish: wish.clone(),
            ..self
        }
    }

    /// What is asked for.
    pub fn wish(&self) -> &RestoreFaces {
        &self.wish
    }

    /// The kind of the network that restores, for people.
    pub fn kind(&self) -> &'static str {
        self.restorer.kind()
    }

    /// The picture with its faces restored, and how many these are. `told` is told faces done and in all, and may break
    /// off: then there is none.
    ///
    /// # Errors
    /// The device's.
    pub fn restore(
        &mut self,
        picture: &RgbImage,
        told: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<(RgbImage, usize)>> {
        let mut faces = self.detector.find(picture, SURE)?;
        faces.retain(|face| {
            let [a, b, ..] = face.landmarks;
            (a[0] - b[0]).hypot(a[1] - b[1]) >= EYES
        });
        if self.wish.only_center {
            faces = central(faces, picture).into_iter().collect();
        }
        let size = self.restorer.size();
        let mut whole = picture.clone();
        let mut count = 0;
        for (i, face) in faces.iter().enumerate() {
            if told(i, faces.len()).is_break() {
                return Ok(None);
            }
            let Some(there) = Similarity::to_face(&face.landmarks, size) else {
                continue;
            };
            // Each from the picture as it was: a face in another's square is not restored twice.
            let given = there.face(picture, size as u32);
            let restored = self.restorer.restore(&given, self.wish.weight)?;
            let mask = self.mask(&restored, size)?;
            let share = match &mask {
                Some(mask) => Share::Mask(mask),
                None => Share::Square,
            };
            paste(
                &mut whole,
                &restored,
                &there,
                &share,
                self.wish.visibility as f32,
            );
            count += 1;
        }
        match told(faces.len(), faces.len()).is_break() {
            true => Ok(None),
            false => Ok(Some((whole, count))),
        }
    }

    fn mask(&mut self, face: &RgbImage, size: usize) -> Result<Option<GrayImage>> {
        match &mut self.parser {
            None => Ok(None),
            Some(parser) => {
                let parts = parser.parts(face)?;
                match parts.len() == size * size {
                    true => Ok(Some(mask_of(&parts, size))),
                    false => Err(Error::Runtime("a parsed face of another size".to_string())),
                }
            }
        }
    }
}
