//! Soft inpainting, as AUTOMATIC1111's extension of this name defines it: grey of a mask mixes what is kept and what is
//! painted in every step, by the step's noise, and how much has changed says which of the picture's pixels are taken.
//!
//! | Module      | Gives                                                                                   |
//! |-------------|-----------------------------------------------------------------------------------------|
//! | `blend`     | latents of a step, mixed                                                                |
//! | `overlay`   | where the new picture lies over the old one                                             |

mod blend;
mod overlay;

use schemars::JsonSchema;
use serde::Deserialize;
use std::ops::RangeInclusive;

/// How the picture and what is painted are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SoftInpainting {
    /// When the picture is kept: below 1 more towards the end, above 1 more at the beginning; 0 to 8.
    pub schedule_bias: f64,
    /// How strongly what is grey in the mask is kept, 0 to 8.
    pub preservation_strength: f64,
    /// Contrast that mixing takes, given back; 1 to 32.
    pub transition_contrast_boost: f64,
    /// How much the mask, too, says which pixels are new ones, 0 to 1.
    pub mask_influence: f64,
    /// The difference of latents at which old and new pixels are seen alike, 0 to 8.
    pub difference_threshold: f64,
    /// How sharp the transition between old and new pixels is, 0 to 8.
    pub difference_contrast: f64,
}

/// A setting: its name, its label in the web UI, its range there, and where it is.
type Setting = (
    &'static str,
    &'static str,
    RangeInclusive<f64>,
    fn(&mut SoftInpainting) -> &mut f64,
);

/// The settings, in the order of the extension's arguments.
const SETTINGS: [Setting; 6] = [
    (
        "schedule_bias",
        "Soft inpainting schedule bias",
        0.0..=8.0,
        |s| &mut s.schedule_bias,
    ),
    (
        "preservation_strength",
        "Soft inpainting preservation strength",
        0.0..=8.0,
        |s| &mut s.preservation_strength,
    ),
    (
        "transition_contrast_boost",
        "Soft inpainting transition contrast boost",
        1.0..=32.0,
        |s| &mut s.transition_contrast_boost,
    ),
    (
        "mask_influence",
        "Soft inpainting mask influence",
        0.0..=1.0,
        |s| &mut s.mask_influence,
    ),
    (
        "difference_threshold",
        "Soft inpainting difference threshold",
        0.0..=8.0,
        |s| &mut s.difference_threshold,
    ),
    (
        "difference_contrast",
        "Soft inpainting difference contrast",
        0.0..=8.0,
        |s| &mut s.difference_contrast,
    ),
];

impl Default for SoftInpainting {
    /// The extension's.
    fn default() -> Self {
        Self {
            schedule_bias: 1.0,
            preservation_strength: 0.5,
            transition_contrast_boost: 4.0,
            mask_influence: 0.0,
            difference_threshold: 0.5,
            difference_contrast: 2.0,
        }
    }
}

impl SoftInpainting {
    /// The settings in the order of the extension's arguments; those that are left out are as usual.
    ///
    /// # Errors
    /// Says that there are too many, or names the first that is out of range.
    pub fn of_numbers(numbers: &[f64]) -> Result<Self, String> {
        if numbers.len() > SETTINGS.len() {
            return Err(format!("there are {} numbers at most", SETTINGS.len()));
        }
        let mut settings = Self::default();
        for ((.., at), number) in SETTINGS.iter().zip(numbers) {
            *at(&mut settings) = *number;
        }
        settings.check()?;
        Ok(settings)
    }

    /// Whether all numbers are in their ranges.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check(mut self) -> Result<(), String> {
        for (name, _, range, at) in &SETTINGS {
            let value = *at(&mut self);
            if !range.contains(&value) {
                let (least, most) = (range.start(), range.end());
                return Err(format!(
                    "{name} is {value}; it must be from {least} to {most}"
                ));
            }
        }
        Ok(())
    }

    /// What it adds to a picture's text, in the web UI's words.
    pub(crate) fn settings(mut self) -> Vec<(&'static str, String)> {
        let numbers = SETTINGS.iter();
        let numbers = numbers.map(|(_, label, _, at)| (*label, at(&mut self).to_string()));
        [("Soft inpainting enabled", "True".to_string())]
            .into_iter()
            .chain(numbers)
            .collect()
    }
}

impl std::str::FromStr for SoftInpainting {
    type Err = String;

    /// `usual`, or what differs from it: `preservation_strength=1,mask_influence=0.5`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        if matches!(text.trim(), "" | "usual") {
            return Ok(settings);
        }
        for part in text.split(',') {
            let names = || SETTINGS.map(|(name, ..)| name).join(", ");
            let wrong = || format!("{part:?} is not NAME=NUMBER with one of {}", names());
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let name = name.trim().replace('-', "_");
            let found = SETTINGS.iter().find(|(known, ..)| *known == name);
            let (.., at) = found.ok_or_else(wrong)?;
            *at(&mut settings) = value.trim().parse().map_err(|_| wrong())?;
        }
        settings.check()?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_by_name_and_by_place() {
        let usual = SoftInpainting::default();
        assert_eq!("".parse(), Ok(usual));
        assert_eq!("usual".parse(), Ok(usual));
        let some = SoftInpainting {
            schedule_bias: 2.0,
            mask_influence: 0.25,
            ..usual
        };
        assert_eq!("schedule-bias=2, mask_influence=0.25".parse(), Ok(some));
        let told = SoftInpainting::of_numbers(&[2.0, 0.5, 4.0, 0.25]);
        assert_eq!(told, Ok(some));
        assert_eq!(some.settings()[4].1, "0.25");
        for (text, part) in [
            ("bias=1", "schedule_bias, preservation_strength"),
            ("schedule_bias", "NAME=NUMBER"),
            ("schedule_bias=9", "from 0 to 8"),
            ("schedule_bias=nan", "schedule_bias is NaN"),
            ("transition_contrast_boost=0.5", "from 1 to 32"),
        ] {
            let error = text.parse::<SoftInpainting>().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(SoftInpainting::of_numbers(&[0.0; 7]).is_err());
    }
}
