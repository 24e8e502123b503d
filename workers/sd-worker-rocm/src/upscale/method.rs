//! The ways to make pictures larger, by name.

use crate::editing::resample::Resample;
use crate::editing::resize::Filter;
use std::path::PathBuf;
use worker::{Error, Result};

/// How a picture is made larger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// Its latents are: what is between them is guessed by the denoiser. Only between two passes of one.
    Latent(Resample),
    /// Its pixels are.
    Pixels(Filter),
    /// By a network: a safetensors file.
    Network(PathBuf),
}

/// Names, AUTOMATIC1111's first.
const NAMES: [(&str, &[&str], Method); 12] = [
    (
        "Latent",
        &["latent"],
        Method::Latent(Resample::Bilinear { antialias: false }),
    ),
    (
        "Latent (antialiased)",
        &["latent-antialiased"],
        Method::Latent(Resample::Bilinear { antialias: true }),
    ),
    (
        "Latent (bicubic)",
        &["latent-bicubic"],
        Method::Latent(Resample::Bicubic { antialias: false }),
    ),
    (
        "Latent (bicubic antialiased)",
        &["latent-bicubic-antialiased"],
        Method::Latent(Resample::Bicubic { antialias: true }),
    ),
    (
        "Latent (nearest)",
        &["latent-nearest"],
        Method::Latent(Resample::Nearest),
    ),
    (
        "Latent (nearest-exact)",
        &["latent-nearest-exact"],
        Method::Latent(Resample::NearestExact),
    ),
    ("Lanczos", &["lanczos"], Method::Pixels(Filter::Lanczos)),
    ("Nearest", &["nearest"], Method::Pixels(Filter::Nearest)),
    // Stretched, as AUTOMATIC1111 does it.
    (Method::NONE, &["none", ""], Method::Pixels(Filter::Lanczos)),
    ("Bicubic", &["bicubic"], Method::Pixels(Filter::Bicubic)),
    ("Bilinear", &["bilinear"], Method::Pixels(Filter::Bilinear)),
    ("Box", &["box"], Method::Pixels(Filter::Box)),
];

impl Method {
    /// The name under which AUTOMATIC1111's "Extras" leave a picture as it is.
    pub const NONE: &str = "None";

    /// Names of the ways that need no file.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, ..)| *name)
    }

    /// Names of the ways that stretch latents.
    pub fn latent_names() -> impl Iterator<Item = &'static str> {
        let latent = NAMES.iter().filter(|row| matches!(row.2, Self::Latent(_)));
        latent.map(|(name, ..)| *name)
    }

    /// Names of the filters of pixels.
    pub fn pixel_names() -> impl Iterator<Item = &'static str> {
        let pixels = NAMES.iter().filter(|row| matches!(row.2, Self::Pixels(_)));
        pixels
            .map(|(name, ..)| *name)
            .filter(|name| *name != Self::NONE)
    }

    /// The way of this name, if there is one that needs no file.
    pub fn known(name: &str) -> Option<Self> {
        let is = |known: &str| known.eq_ignore_ascii_case(name.trim());
        let mut rows = NAMES.iter();
        let row = rows.find(|(label, others, _)| is(label) || others.iter().any(|other| is(other)));
        row.map(|(.., method)| method.clone())
    }

    /// The way of this name, or a network's file.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names, if there is no such file.
    pub fn of(name: &str) -> Result<Self> {
        if let Some(known) = Self::known(name) {
            return Ok(known);
        }
        let path = PathBuf::from(name);
        match path.is_file() {
            true => Ok(Self::Network(path)),
            false => {
                let names: Vec<_> = NAMES.iter().map(|(_, others, _)| others[0]).collect();
                Err(Error::Usage(format!(
                    "{name:?} is neither a file with an upscaler nor one of {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// What it is called in a picture's text.
    pub fn label(&self) -> String {
        let row = NAMES.iter().find(|(.., method)| method == self);
        match (row, self) {
            (Some((name, ..)), _) => name.to_string(),
            (None, Self::Network(path)) => {
                let stem = path.file_stem().unwrap_or(path.as_os_str());
                stem.to_string_lossy().into_owned()
            }
            (None, other) => format!("{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(
            Method::of("lanczos").unwrap(),
            Method::Pixels(Filter::Lanczos)
        );
        assert_eq!(
            Method::of("Latent (nearest)").unwrap(),
            Method::Latent(Resample::Nearest)
        );
        for name in Method::names() {
            let method = Method::of(name).unwrap();
            assert_eq!(Method::of(&method.label()).unwrap(), method, "{name}");
        }
        assert_eq!(Method::latent_names().count(), 6);
        let error = Method::of("4x-none.safetensors").unwrap_err().to_string();
        assert!(error.contains("latent-bicubic, "), "{error}");
    }
}
