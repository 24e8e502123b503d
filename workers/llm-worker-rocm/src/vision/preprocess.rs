//! Pixels as encoders take them: what transformers' processors do with Pillow (those named `...Pil`).

use super::config::VisionConfig;
use super::kinds::Kind;
use super::resample::resize;
use super::tiles::Lines;
use image::RgbImage;

/// A picture as an encoder takes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pixels {
    /// Pictures of their own for the encoder, each with its rows and columns of patches.
    pub tiles: Vec<Tile>,
    /// Rows and columns of tiles, where the picture was cut.
    pub grid: (usize, usize),
    /// Lines of the tiles together, where rows of the prompt go line by line.
    pub lines: Option<Lines>,
}

/// A part of a picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tile {
    /// Rows of patches.
    pub rows: usize,
    /// Patches of a row.
    pub columns: usize,
    /// Patches, each of its red values, then its green and its blue ones, line by line: in the order of lines, or where
    /// the encoder merges neighbours and patches have positions of their own, group after group.
    pub patches: Vec<u8>,
    /// The same of a video's next frame, where two go together; else none.
    pub second: Vec<u8>,
}

impl VisionConfig {
    /// Pixels of a picture.
    ///
    /// # Errors
    /// A text for the client, if the encoder does not take such a picture.
    pub fn pixels(&self, picture: &RgbImage) -> Result<Pixels, String> {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        if width == 0 || height == 0 {
            return Err("the picture has no pixels".to_string());
        }
        let one = |picture: &RgbImage, group: usize| Pixels {
            tiles: vec![self.tile(picture, group)],
            grid: (1, 1),
            ..Pixels::default()
        };
        let at = |(width, height): (usize, usize)| self.resized(picture, width, height);
        Ok(match self.traits.kind {
            Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl => {
                let size = self.smart_size(width, height, self.pixels, 1)?;
                one(&at(size), self.merge)
            }
            Kind::Gemma3 => self.panned(picture),
            Kind::Gemma4 => one(&at(self.largest_size(width, height)?), 1),
            Kind::Llava if !self.sizes.is_empty() => self.padded(picture),
            Kind::Llava => one(&self.cropped(picture), 1),
            Kind::Pixtral => one(&at(self.bounded_size(width, height)), 1),
            Kind::Idefics3 => self.split(picture),
            Kind::InternVl => self.in_tiles(picture),
        })
    }

    pub(super) fn resized(&self, picture: &RgbImage, width: usize, height: usize) -> RgbImage {
        resize(picture, width as u32, height as u32, self.traits.filter)
    }

    /// The middle of a picture whose shorter side has the encoder's size.
    fn cropped(&self, picture: &RgbImage) -> RgbImage {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let side = self.side;
        let longer =
            |long: usize, short: usize| (side as f64 * long as f64 / short as f64) as usize;
        let (wide, high) = match width <= height {
            true => (side, longer(height, width)),
            false => (longer(width, height), side),
        };
        let resized = self.resized(picture, wide, high);
        let (left, top) = ((wide - side) / 2, (high - side) / 2);
        part(&resized, left, top, side, side)
    }

    /// Patches of a picture in groups of `group` x `group`.
    pub(super) fn tile(&self, picture: &RgbImage, group: usize) -> Tile {
        let patch = self.patch;
        let (rows, columns) = (
            picture.height() as usize / patch,
            picture.width() as usize / patch,
        );
        let stride = picture.width() as usize * 3;
        let raw = picture.as_raw();
        let mut patches = Vec::with_capacity(rows * columns * patch * patch * 3);
        for place in 0..rows * columns {
            let inner = place % (group * group);
            let outer = place / (group * group);
            let row = outer / (columns / group) * group + inner / group;
            let column = outer % (columns / group) * group + inner % group;
            for channel in 0..3 {
                for line in 0..patch {
                    let start = (row * patch + line) * stride + column * patch * 3 + channel;
                    let values = raw[start..].iter().step_by(3).take(patch);
                    patches.extend(values);
                }
            }
        }
        Tile {
            rows,
            columns,
            patches,
            second: Vec::new(),
        }
    }

    /// A tile's numbers, with the encoder's mean and deviation taken out.
    pub fn floats<'a>(&self, tile: &'a Tile) -> impl Iterator<Item = f32> + 'a {
        self.numbers(&tile.patches)
            .chain(self.numbers(&tile.second))
    }

    /// Those of patches.
    pub(super) fn numbers<'a>(&self, patches: &'a [u8]) -> impl Iterator<Item = f32> + 'a {
        // In doubles first, as numpy does.
        let tables: [Vec<f32>; 3] = std::array::from_fn(|channel| {
            let (mean, deviation) = (self.mean[channel], self.deviation[channel]);
            let scaled = (0..=255u8).map(|value| (f64::from(value) / 255.0) as f32);
            scaled.map(|x| (x - mean) / deviation).collect()
        });
        let channel = self.patch * self.patch;
        let values = patches.iter().enumerate();
        values.map(move |(at, value)| tables[at / channel % 3][usize::from(*value)])
    }

    /// Rows of the prompt that a picture takes.
    pub fn rows_of(&self, pixels: &Pixels) -> usize {
        match &pixels.lines {
            Some(lines) => lines.rows(self.side / self.patch),
            None => pixels.tiles.iter().map(|t| self.rows_of_tile(t)).sum(),
        }
    }

    pub(crate) fn rows_of_tile(&self, tile: &Tile) -> usize {
        tile.rows * tile.columns / (self.merge * self.merge)
    }
}

pub(super) fn part(
    picture: &RgbImage,
    left: usize,
    top: usize,
    width: usize,
    height: usize,
) -> RgbImage {
    let (left, top) = (left as u32, top as u32);
    image::imageops::crop_imm(picture, left, top, width as u32, height as u32).to_image()
}
