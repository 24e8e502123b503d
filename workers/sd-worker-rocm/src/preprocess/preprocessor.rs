//! A preprocessor with its settings.

use super::kind::Kind;
use super::network::Network;
use super::{canny, filters, shuffle};
use crate::editing::fit::stretched;
use candle_core::Device;
use image::RgbImage;
use std::path::PathBuf;
use worker::{Error, Result};

/// Most pixels of a picture that is looked at.
const MAX_PIXELS: u32 = 1 << 26;

/// A preprocessor with its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessor {
    /// What is made.
    pub kind: Kind,
    /// As [`Kind::thresholds`] says; `None` is the usual one.
    pub thresholds: [Option<f64>; 2],
    /// Pixels of the shorter side of the picture that is looked at; `None` is the picture's own.
    pub resolution: Option<u32>,
    /// The network, for those that need one: a file or a folder.
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
        let [a, b] = self.values()?;
        let picture = self.sized(picture)?;
        Ok(match self.kind {
            Kind::None | Kind::Inpaint => picture,
            Kind::Invert => filters::invert(picture),
            Kind::Canny => canny::canny(&picture, a, b),
            Kind::Threshold => filters::threshold(&picture, a),
            Kind::Scribble => filters::scribble(&picture, a),
            Kind::Lineart => filters::lineart(&picture),
            Kind::Tile => filters::tile(&picture, a),
            Kind::Blur => filters::blur(&picture, a),
            Kind::Intensity => filters::intensity(&picture, a),
            Kind::Luminance => filters::luminance(&picture, a),
            Kind::Shuffle => shuffle::shuffle(&picture, a as u32)
                .map_err(Error::candle("shuffling a picture"))?,
            kind => {
                let Some(path) = &self.network else {
                    return Err(Error::Usage(format!(
                        "the preprocessor {name} needs a network (--network, a .safetensors file or a folder)"
                    )));
                };
                Network::open(kind, path, device)?.run(&picture, [a, b])?
            }
        })
    }

    /// The thresholds, checked.
    fn values(&self) -> Result<[f64; 2]> {
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
        Ok(values)
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
