//! How pictures are prepared for a language model that sees.

use crate::editing::resize::Filter;
use crate::models::config::Others;
use crate::models::language::vision::{Patches, VisionConfig};
use crate::models::processor::{Size, WITHOUT_EFFECT};
use candle_core::Result as CandleResult;
use image::RgbImage;
use serde::Deserialize;

/// Most pixels that a configuration may ask for; published ones ask for three quarters.
const MOST: usize = 1 << 24;

/// How pictures are prepared: `preprocessor_config.json`, as far as it is followed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Preparation {
    image_mean: [f32; 3],
    image_std: [f32; 3],
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    size: Option<Size>,
    rescale_factor: f64,
    do_resize: bool,
    do_rescale: bool,
    do_normalize: bool,
    resample: u8,
    patch_size: Option<usize>,
    temporal_patch_size: Option<usize>,
    merge_size: Option<usize>,
    /// What no field has.
    #[serde(flatten)]
    others: Others,
}

impl Default for Preparation {
    fn default() -> Self {
        Self {
            image_mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            image_std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
            min_pixels: None,
            max_pixels: None,
            size: None,
            rescale_factor: 1.0 / 255.0,
            do_resize: true,
            do_rescale: true,
            do_normalize: true,
            resample: 3,
            patch_size: None,
            temporal_patch_size: None,
            merge_size: None,
            others: Others::default(),
        }
    }
}

impl Preparation {
    /// Whether the settings make sense, are implemented and fit a tower.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self, config: &VisionConfig) -> std::result::Result<(), String> {
        self.others.refuse(&WITHOUT_EFFECT)?;
        for (name, said, of_tower) in [
            ("patch_size", self.patch_size, config.patch_size),
            (
                "temporal_patch_size",
                self.temporal_patch_size,
                config.temporal_patch_size,
            ),
            ("merge_size", self.merge_size, config.spatial_merge_size),
        ] {
            if said.is_some_and(|said| said != of_tower) {
                return Err(format!("{name} {said:?} is not the tower's {of_tower}"));
            }
        }
        if !matches!(self.size, None | Some(Size::Area { .. })) {
            return Err(
                "size other than shortest_edge and longest_edge is not implemented".to_string(),
            );
        }
        for (name, set) in [
            ("do_resize", self.do_resize),
            ("do_rescale", self.do_rescale),
            ("do_normalize", self.do_normalize),
        ] {
            if !set {
                return Err(format!("{name} false is not implemented"));
            }
        }
        if self.resample != 3 {
            return Err(format!(
                "resample {} is not implemented; 3, bicubic, is",
                self.resample
            ));
        }
        if (self.rescale_factor * 255.0 - 1.0).abs() > 1e-3 {
            return Err("rescale_factor other than 1/255 is not implemented".to_string());
        }
        if !self.image_std.iter().all(|deviation| *deviation > 0.0) {
            return Err("image_std is not positive".to_string());
        }
        let (least, most) = self.pixels();
        match least <= most && (1..=MOST).contains(&most) {
            true => Ok(()),
            false => Err(format!(
                "{least} to {most} pixels (min_pixels and max_pixels, or size) are not possible; up to {MOST} are"
            )),
        }
    }

    fn pixels(&self) -> (usize, usize) {
        let (least, most) = match self.size {
            Some(Size::Area { least, most }) => (least, most),
            _ => (56 * 56, 28 * 28 * 1280),
        };
        (
            self.min_pixels.unwrap_or(least),
            self.max_pixels.unwrap_or(most),
        )
    }

    /// A picture's size in whole rows of `unit` pixels, within the limits.
    fn rows(&self, (width, height): (usize, usize), unit: usize) -> (usize, usize) {
        let (least, most) = self.pixels();
        let per_unit = |side: usize, factor: f64| side as f64 * factor / unit as f64;
        let whole = |side| (per_unit(side, 1.0).round_ties_even() as usize) * unit;
        let (wide, high) = (whole(width), whole(height));
        let area = (width * height).max(1) as f64;
        if wide * high > most {
            let factor = (most as f64 / area).sqrt();
            let fit = |side| (per_unit(side, factor).floor() as usize).max(1) * unit;
            (fit(width), fit(height))
        } else if wide * high < least {
            let factor = (least as f64 / area).sqrt();
            let fit = |side| (per_unit(side, factor).ceil() as usize) * unit;
            (fit(width), fit(height))
        } else {
            (wide.max(unit), high.max(unit))
        }
    }

    /// A picture, shown in this size, cut into patches.
    ///
    /// # Errors
    /// If there is no room.
    pub fn patches(
        &self,
        picture: &RgbImage,
        size: (usize, usize),
        config: &VisionConfig,
    ) -> CandleResult<Patches> {
        let shown = Filter::Lanczos.resize(picture, size.0 as u32, size.1 as u32);
        let (width, height) = self.rows(size, config.unit());
        let whole = Filter::Bicubic.resize(&shown, width as u32, height as u32);
        Patches::new(&whole, self.image_mean, self.image_std, config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers' `smart_resize` says so.
    #[test]
    fn pictures_in_whole_rows_within_limits() {
        let usual = Preparation::default();
        for (size, rows) in [
            ((48, 32), (84, 56)),
            ((2000, 3000), (812, 1204)),
            ((352, 384), (364, 392)),
            ((90, 10), (168, 28)),
        ] {
            assert_eq!(usual.rows(size, 28), rows, "{size:?}");
        }
        let wide: Preparation = serde_json::from_str(r#"{"max_pixels": 12845056}"#).unwrap();
        assert_eq!(wide.rows((1024, 1024), 28), (1036, 1036));
    }

    #[test]
    fn preparations_that_are_not_followed_are_refused() {
        let tower: VisionConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(Preparation::default().check(&tower), Ok(()));
        for (json, reason) in [
            (r#"{"do_resize": false}"#, "do_resize"),
            (r#"{"do_rescale": false}"#, "do_rescale"),
            (r#"{"do_normalize": false}"#, "do_normalize"),
            (r#"{"resample": 2}"#, "resample 2"),
            (r#"{"rescale_factor": 1.0}"#, "rescale_factor"),
            (r#"{"image_std": [0, 1, 1]}"#, "image_std"),
            (
                r#"{"size": {"shortest_edge": 9, "longest_edge": 3}}"#,
                "9 to 3",
            ),
            (r#"{"max_pixels": 1000000000000}"#, "are not possible"),
            (r#"{"merge_size": 3}"#, "merge_size"),
        ] {
            let preparation: Preparation = serde_json::from_str(json).unwrap();
            let error = preparation.check(&tower).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
