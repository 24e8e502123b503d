//! What can be asked for.

use super::soft::SoftInpainting;
use worker::{Error, Result};

/// How a picture of another shape comes to the request's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fit {
    /// Stretched.
    #[default]
    Stretch,
    /// Scaled until nothing is empty; what stands out is cut off on both sides.
    Crop,
    /// Scaled until all of it is in; bands on both sides repeat its edge.
    Fill,
    /// Encoded in its own size; the latents are stretched.
    Latent,
}

impl Fit {
    /// Names, those of AUTOMATIC1111's resize modes, and its labels.
    const NAMES: [(Self, &'static str, &'static str); 4] = [
        (Self::Stretch, "stretch", "Just resize"),
        (Self::Crop, "crop", "Crop and resize"),
        (Self::Fill, "fill", "Resize and fill"),
        (Self::Latent, "latent", "Just resize (latent upscale)"),
    ];

    /// The mode of this name, label, or number of AUTOMATIC1111's.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        of_table(&Self::NAMES, name, "a resize mode")
    }

    /// AUTOMATIC1111's label.
    pub fn label(self) -> &'static str {
        label_of(&Self::NAMES, self)
    }

    /// The names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(_, name, _)| *name)
    }
}

/// What stands where something is to be painted, before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fill {
    /// The picture as it is.
    #[default]
    Original,
    /// Colours that flow in from around the mask.
    Colors,
    /// Latents of nothing but noise.
    Noise,
    /// Latents of zeros.
    Nothing,
}

impl Fill {
    /// Names and AUTOMATIC1111's labels, in the order of its numbers.
    const NAMES: [(Self, &'static str, &'static str); 4] = [
        (Self::Colors, "colors", "fill"),
        (Self::Original, "original", "original"),
        (Self::Noise, "noise", "latent noise"),
        (Self::Nothing, "nothing", "latent nothing"),
    ];

    /// The filling of this name, label, or number of AUTOMATIC1111's `inpainting_fill`.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        of_table(&Self::NAMES, name, "a filling of masks")
    }

    /// AUTOMATIC1111's label.
    pub fn label(self) -> &'static str {
        label_of(&Self::NAMES, self)
    }

    /// The names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(_, name, _)| *name)
    }
}

/// A table's entry by name, label or number.
fn of_table<T: Copy>(table: &[(T, &str, &str)], asked: &str, what: &str) -> Result<T> {
    let number = asked.parse::<usize>().ok();
    let mut entries = table.iter().enumerate();
    let found = entries.find(|(i, (_, name, label))| {
        name.eq_ignore_ascii_case(asked) || label.eq_ignore_ascii_case(asked) || number == Some(*i)
    });
    match found {
        Some((_, (value, ..))) => Ok(*value),
        None => {
            let names: Vec<_> = table.iter().map(|(_, name, _)| *name).collect();
            let names = names.join(", ");
            Err(Error::Usage(format!(
                "{asked:?} is not {what}; use one of {names}"
            )))
        }
    }
}

fn label_of<T: Copy + PartialEq>(table: &[(T, &str, &'static str)], of: T) -> &'static str {
    let found = table.iter().find(|(value, ..)| *value == of);
    found.map_or("", |(.., label)| label)
}

/// Pixels at each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sides {
    /// On the left.
    pub left: usize,
    /// On the right.
    pub right: usize,
    /// Above.
    pub top: usize,
    /// Below.
    pub bottom: usize,
}

impl Sides {
    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The same, larger by so much that width and height of a picture with them are multiples of `multiple`; a
    /// direction without sides is left alone.
    #[must_use]
    pub fn rounded(mut self, (width, height): (usize, usize), multiple: usize) -> Self {
        let more = |size: usize, a: &mut usize, b: &mut usize| {
            let sum = size.saturating_add(*a).saturating_add(*b);
            let missing = sum.next_multiple_of(multiple) - sum;
            match (*a, *b) {
                (0, 0) => {}
                (_, 0) => *a += missing,
                _ => *b += missing,
            }
        };
        more(width, &mut self.left, &mut self.right);
        more(height, &mut self.top, &mut self.bottom);
        self
    }

    /// Width and height of a picture of this size with the sides.
    pub fn around(self, (width, height): (usize, usize)) -> (usize, usize) {
        (
            width.saturating_add(self.left).saturating_add(self.right),
            height.saturating_add(self.top).saturating_add(self.bottom),
        )
    }
}

impl std::str::FromStr for Sides {
    type Err = String;

    /// `64` for all sides, or `left=64,top=32`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong =
            || format!("{text:?} are no sides; give pixels, or left=N,right=N,top=N,bottom=N");
        let number = |text: &str| {
            let number = text.trim().parse::<u16>();
            number.map(usize::from).map_err(|_| wrong())
        };
        if let Ok(all) = number(text) {
            return Ok(Self {
                left: all,
                right: all,
                top: all,
                bottom: all,
            });
        }
        let mut sides = Self::default();
        for part in text.split(',') {
            let (side, pixels) = part.split_once('=').ok_or_else(wrong)?;
            let of = match side.trim() {
                "left" => &mut sides.left,
                "right" => &mut sides.right,
                "top" => &mut sides.top,
                "bottom" => &mut sides.bottom,
                _ => return Err(wrong()),
            };
            *of = number(pixels)?;
        }
        Ok(sides)
    }
}

impl std::fmt::Display for Sides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            left,
            right,
            top,
            bottom,
        } = self;
        write!(f, "left={left},right={right},top={top},bottom={bottom}")
    }
}

/// Pixels around a mask of which web UIs cut a picture out.
pub const USUAL_PADDING: usize = 32;

/// What is done to a picture that a request starts from.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Editing {
    /// How it comes to the request's size.
    pub fit: Fit,
    /// What stands in the mask before the first step.
    pub fill: Fill,
    /// Only what the mask needs, with so many pixels around, is painted, in the request's size, and put back into the
    /// picture, whose size stays.
    pub only_masked: Option<usize>,
    /// Grey of the mask says when its pixels begin to be painted (differential diffusion, arXiv:2306.00950) instead of
    /// how they are mixed.
    pub soft: bool,
    /// Grey of the mask mixes in every step, and differences say which pixels are taken.
    pub soft_inpainting: Option<SoftInpainting>,
    /// Pixels added at the picture's sides, which are painted.
    pub outpaint: Sides,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_and_numbers() {
        assert_eq!(Fit::from_name("Crop").unwrap(), Fit::Crop);
        assert_eq!(Fit::from_name("resize and fill").unwrap(), Fit::Fill);
        assert_eq!(Fit::from_name("0").unwrap(), Fit::Stretch);
        assert_eq!(Fill::from_name("0").unwrap(), Fill::Colors);
        assert_eq!(Fill::from_name("latent nothing").unwrap(), Fill::Nothing);
        let error = Fill::from_name("4").unwrap_err().to_string();
        assert!(error.contains("original, noise"), "{error}");
        for (fill, ..) in Fill::NAMES {
            assert_eq!(Fill::from_name(fill.label()).unwrap(), fill);
        }
    }

    #[test]
    fn sides() {
        let sides: Sides = "left=10, bottom=3".parse().unwrap();
        assert_eq!(sides.around((100, 50)), (110, 53));
        assert_eq!(sides.rounded((100, 50), 16).around((100, 50)), (112, 64));
        // A direction without sides stays as it is.
        let left: Sides = "left=10".parse().unwrap();
        assert_eq!(left.rounded((100, 50), 16).around((100, 50)), (112, 50));
        assert_eq!("8".parse::<Sides>().unwrap().around((1, 1)), (17, 17));
        assert_eq!(sides.to_string().parse::<Sides>().unwrap(), sides);
        for wrong in ["", "left", "up=3", "left=-1", "left=99999999"] {
            assert!(wrong.parse::<Sides>().is_err(), "{wrong}");
        }
    }
}
