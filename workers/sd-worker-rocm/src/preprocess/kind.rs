//! The preprocessors, by name.

use super::{canny, filters, network};
use crate::editing::fit::stretched;
use candle_core::Device;
use image::RgbImage;
use std::path::PathBuf;
use worker::{Error, Result};

/// What is made of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it is as the ControlNet wants it.
    None,
    /// Its negative.
    Invert,
    /// Edges.
    Canny,
    /// White where all colours are bright.
    Threshold,
    /// Scribbles: where two blurs differ.
    Scribble,
    /// Lines: how much darker a pixel is than its surroundings.
    Lineart,
    /// A coarser picture.
    Tile,
    /// A softer picture.
    Blur,
    /// The brightest of each pixel's colours.
    Intensity,
    /// Soft edges, by a network (HED).
    SoftEdge,
    /// Lines, by a network.
    LineartNetwork,
}

/// What a threshold is, its usual value, and the least and the most.
pub type Threshold = (&'static str, f64, f64, f64);

/// A row: the kind, names (ours, then AUTOMATIC1111's), thresholds.
type Row = (Kind, &'static [&'static str], &'static [Threshold]);

const ROWS: [Row; 11] = [
    (Kind::None, &["none"], &[]),
    (
        Kind::Invert,
        &["invert", "invert (from white bg & black line)"],
        &[],
    ),
    (
        Kind::Canny,
        &["canny"],
        &[
            ("low threshold", 100.0, 1.0, 255.0),
            ("high threshold", 200.0, 1.0, 255.0),
        ],
    ),
    (
        Kind::Threshold,
        &["threshold"],
        &[("binarization threshold", 127.0, 0.0, 255.0)],
    ),
    (
        Kind::Scribble,
        &["scribble-xdog", "scribble_xdog"],
        &[("XDoG threshold", 32.0, 1.0, 64.0)],
    ),
    (
        Kind::Lineart,
        &[
            "lineart-standard",
            "lineart_standard",
            "lineart_standard (from white bg & black line)",
        ],
        &[],
    ),
    (
        Kind::Tile,
        &["tile", "tile_resample"],
        &[("down sampling rate", 1.0, 1.0, 8.0)],
    ),
    (
        Kind::Blur,
        &["blur", "blur_gaussian"],
        &[("sigma", 9.0, 0.01, 32.0)],
    ),
    (Kind::Intensity, &["intensity", "recolor_intensity"], &[]),
    (Kind::SoftEdge, &["softedge-hed", "softedge_hed"], &[]),
    (Kind::LineartNetwork, &["lineart", "lineart_realistic"], &[]),
];

/// Most pixels of a picture that is looked at.
const MAX_PIXELS: u32 = 1 << 26;

impl Kind {
    /// The kind of this name.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        let asked = if name.is_empty() { "none" } else { name.trim() };
        let is = |row: &&Row| row.1.iter().any(|known| known.eq_ignore_ascii_case(asked));
        match ROWS.iter().find(is) {
            Some((kind, ..)) => Ok(*kind),
            None => {
                let names: Vec<_> = ROWS.iter().map(|(_, names, _)| names[0]).collect();
                Err(Error::Usage(format!(
                    "the preprocessor {name:?} is not implemented; send the picture as the ControlNet wants it (none), or use one of {}",
                    names.join(", ")
                )))
            }
        }
    }

    fn row(self) -> &'static Row {
        // Every kind has one: a test says so.
        ROWS.iter().find(|row| row.0 == self).unwrap_or(&ROWS[0])
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.0)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1[0]
    }

    /// The name that AUTOMATIC1111's extension has for it.
    pub fn web_name(self) -> &'static str {
        let names = self.row().1;
        names.get(1).unwrap_or(&names[0])
    }

    /// What can be set.
    pub fn thresholds(self) -> &'static [Threshold] {
        self.row().2
    }

    /// Whether a network's file is needed.
    pub fn needs_network(self) -> bool {
        matches!(self, Self::SoftEdge | Self::LineartNetwork)
    }
}

/// A preprocessor with its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessor {
    /// What is made.
    pub kind: Kind,
    /// As [`Kind::thresholds`] says; `None` is the usual one.
    pub thresholds: [Option<f64>; 2],
    /// Pixels of the shorter side of the picture that is looked at; `None` is the picture's own.
    pub resolution: Option<u32>,
    /// The network, for those that need one.
    pub network: Option<PathBuf>,
}

impl Preprocessor {
    /// With the usual settings.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            thresholds: [None, None],
            resolution: None,
            network: None,
        }
    }

    /// What is made of a picture. It has the picture's size, unless there is a resolution.
    ///
    /// # Errors
    /// [`Error::Usage`] for settings out of range and a network that is not given; the file's and the device's.
    pub fn run(&self, picture: &RgbImage, device: &Device) -> Result<RgbImage> {
        let name = self.kind.name();
        let mut values = [0.0; 2];
        for (i, given) in self.thresholds.iter().enumerate() {
            let known = self.kind.thresholds().get(i);
            values[i] = match (known, given) {
                (None, None) => continue,
                (None, Some(_)) => {
                    return Err(Error::Usage(format!(
                        "the preprocessor {name} has {} thresholds",
                        self.kind.thresholds().len()
                    )))
                }
                (Some((_, usual, ..)), None) => *usual,
                (Some((what, _, least, most)), Some(given)) => {
                    if !(*least..=*most).contains(given) {
                        return Err(Error::Usage(format!(
                            "the {what} of {name} is {given}; it must be from {least} to {most}"
                        )));
                    }
                    *given
                }
            };
        }
        let picture = self.sized(picture)?;
        let [a, b] = values;
        Ok(match self.kind {
            Kind::None => picture,
            Kind::Invert => filters::invert(picture),
            Kind::Canny => canny::canny(&picture, a, b),
            Kind::Threshold => filters::threshold(&picture, a),
            Kind::Scribble => filters::scribble(&picture, a),
            Kind::Lineart => filters::lineart(&picture),
            Kind::Tile => filters::tile(&picture, a),
            Kind::Blur => filters::blur(&picture, a),
            Kind::Intensity => filters::intensity(&picture),
            Kind::SoftEdge | Kind::LineartNetwork => {
                let Some(path) = &self.network else {
                    return Err(Error::Usage(format!(
                        "the preprocessor {name} needs a network (--network FILE.safetensors)"
                    )));
                };
                network::run(self.kind, path, &picture, device)?
            }
        })
    }

    fn sized(&self, picture: &RgbImage) -> Result<RgbImage> {
        let (width, height) = picture.dimensions();
        let Some(resolution) = self.resolution else {
            return Ok(picture.clone());
        };
        let scale = f64::from(resolution) / f64::from(width.min(height).max(1));
        let side = |side: u32| (f64::from(side) * scale).round().max(1.0);
        let pixels = side(width) * side(height);
        if resolution == 0 || pixels > f64::from(MAX_PIXELS) {
            return Err(Error::Usage(format!(
                "a resolution of {resolution} makes {pixels} pixels; it must make 1 to {MAX_PIXELS}"
            )));
        }
        Ok(stretched(picture, side(width) as u32, side(height) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_row() {
        for kind in Kind::all() {
            assert_eq!(Kind::from_name(kind.name()).unwrap(), kind);
            assert_eq!(Kind::from_name(kind.web_name()).unwrap(), kind);
            assert_eq!(kind.row().0, kind);
        }
        assert_eq!(Kind::from_name("").unwrap(), Kind::None);
        let error = Kind::from_name("openpose_full").unwrap_err().to_string();
        assert!(
            error.contains("openpose_full") && error.contains("canny"),
            "{error}"
        );
    }

    #[test]
    fn settings_are_checked() {
        let picture = RgbImage::new(8, 6);
        let run = |preprocessor: Preprocessor| preprocessor.run(&picture, &Device::Cpu);
        let canny = Preprocessor::new(Kind::Canny);
        let refused = |preprocessor| run(preprocessor).unwrap_err().to_string();
        let text = refused(Preprocessor {
            thresholds: [Some(f64::NAN), None],
            ..canny.clone()
        });
        assert!(text.contains("low threshold"), "{text}");
        let text = refused(Preprocessor {
            thresholds: [Some(1.0), None],
            ..Preprocessor::new(Kind::Invert)
        });
        assert!(text.contains("0 thresholds"), "{text}");
        assert!(refused(Preprocessor::new(Kind::SoftEdge)).contains("network"));
        for resolution in [0, u32::MAX] {
            let resolution = Some(resolution);
            assert!(refused(Preprocessor {
                resolution,
                ..canny.clone()
            })
            .contains("resolution"));
        }
        let larger = run(Preprocessor {
            resolution: Some(12),
            ..canny
        });
        assert_eq!(larger.unwrap().dimensions(), (16, 12));
    }
}
