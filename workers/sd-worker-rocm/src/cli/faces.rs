//! Options that restore faces.

use crate::faces::{RestoreFaces, WEIGHT};
use clap::builder::BoolishValueParser;
use clap::Args;
use std::path::PathBuf;
use worker::{Error, Result};

/// Arguments of restoring faces.
#[derive(Debug, Clone, Args)]
pub struct FaceArgs {
    /// Restore faces with this network: GFPGAN (1.2 to 1.4) or CodeFormer as .safetensors.
    #[arg(long, requires = "face_detector", value_name = "FILE")]
    restore_faces: Option<PathBuf>,

    /// The network that finds faces: RetinaFace (MobileNet or ResNet) as .safetensors.
    #[arg(long, requires = "restore_faces", value_name = "FILE")]
    face_detector: Option<PathBuf>,

    /// The network that says what belongs to a face: ParseNet as .safetensors. Without one the square around a face is put
    /// back with soft edges.
    #[arg(long, requires = "restore_faces", value_name = "FILE")]
    face_parser: Option<PathBuf>,

    /// For CodeFormer, how much of the given face is let through: 0 is the best face, 1 the most alike.
    #[arg(long, default_value_t = WEIGHT, value_name = "X")]
    face_weight: f64,

    /// How much of the restored faces is seen, from 0 to 1.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    face_visibility: f64,

    /// Restore only the face nearest to the picture's middle.
    #[arg(long, value_parser = BoolishValueParser::new())]
    only_center_face: bool,
}

impl FaceArgs {
    /// What is asked for, if anything.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file that is not there and numbers out of range.
    pub(super) fn wish(&self) -> Result<Option<RestoreFaces>> {
        let (Some(restorer), Some(detector)) = (&self.restore_faces, &self.face_detector) else {
            return Ok(None);
        };
        let wish = RestoreFaces {
            parser: self.face_parser.clone(),
            weight: self.face_weight,
            visibility: self.face_visibility,
            only_center: self.only_center_face,
            ..RestoreFaces::new(restorer.clone(), detector.clone())
        };
        wish.check()?;
        for path in [restorer, detector].into_iter().chain(&self.face_parser) {
            if !path.is_file() {
                return Err(Error::Usage(format!("there is no file {}", path.display())));
            }
        }
        Ok(Some(wish))
    }
}
