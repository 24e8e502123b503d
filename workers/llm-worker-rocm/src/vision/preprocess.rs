//! Pixels as encoders take them: what transformers' processors do with Pillow (those named `...Pil`).

use super::config::VisionConfig;
use super::kinds::Kind;
use super::resample::resize;
use image::RgbImage;

/// Pictures whose sides differ more than this many times are refused, as by Qwen's processors.
const MOST_ASPECT: f64 = 200.0;

/// A picture as an encoder takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Pixels {
    /// Pictures of their own for the encoder, each with its rows and columns of patches.
    pub tiles: Vec<Tile>,
    /// Rows and columns of tiles, where the picture was cut.
    pub grid: (usize, usize),
}

/// A part of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Tile {
    /// Rows of patches.
    pub rows: usize,
    /// Patches of a row.
    pub columns: usize,
    /// Patches, each of its red values, then its green and its blue ones, line by line: in the order of lines, or where
    /// the encoder merges neighbours and patches have positions of their own, group after group.
    pub patches: Vec<u8>,
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
        match self.traits.kind {
            Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl => {
                let (width, height) = self.smart_size(width, height)?;
                let resized = self.resized(picture, width, height);
                Ok(Pixels {
                    tiles: vec![self.tile(&resized, self.merge)],
                    grid: (1, 1),
                })
            }
            Kind::Gemma3 => {
                let resized = self.resized(picture, self.side, self.side);
                Ok(Pixels {
                    tiles: vec![self.tile(&resized, 1)],
                    grid: (1, 1),
                })
            }
            Kind::Llava => {
                let cropped = self.cropped(picture);
                Ok(Pixels {
                    tiles: vec![self.tile(&cropped, 1)],
                    grid: (1, 1),
                })
            }
            Kind::Pixtral => {
                let (width, height) = self.bounded_size(width, height);
                let resized = self.resized(picture, width, height);
                Ok(Pixels {
                    tiles: vec![self.tile(&resized, 1)],
                    grid: (1, 1),
                })
            }
            Kind::Idefics3 => Ok(self.split(picture)),
            Kind::InternVl => Ok(self.in_tiles(picture)),
        }
    }

    fn resized(&self, picture: &RgbImage, width: usize, height: usize) -> RgbImage {
        resize(picture, width as u32, height as u32, self.traits.filter)
    }

    /// The nearest size in whole groups of patches that has neither too few nor too many pixels.
    fn smart_size(&self, width: usize, height: usize) -> Result<(usize, usize), String> {
        let (w, h) = (width as f64, height as f64);
        let aspect = w.max(h) / w.min(h);
        if aspect > MOST_ASPECT {
            return Err(format!(
                "a picture of {width} x {height} pixels is too narrow: one side may be {MOST_ASPECT} times the other"
            ));
        }
        let unit = (self.patch * self.merge) as f64;
        // Python rounds halves to even numbers.
        let nearest = |x: f64| (x / unit).round_ties_even() * unit;
        let (mut wide, mut high) = (nearest(w), nearest(h));
        let (fewest, most) = (self.pixels.0 as f64, self.pixels.1 as f64);
        if wide * high > most {
            let scale = (w * h / most).sqrt();
            let smaller = |x: f64| ((x / scale / unit).floor() * unit).max(unit);
            (wide, high) = (smaller(w), smaller(h));
        } else if wide * high < fewest {
            let scale = (fewest / (w * h)).sqrt();
            let larger = |x: f64| (x * scale / unit).ceil() * unit;
            (wide, high) = (larger(w), larger(h));
        }
        Ok((wide as usize, high as usize))
    }

    /// A size within a square, in whole groups of patches.
    fn bounded_size(&self, width: usize, height: usize) -> (usize, usize) {
        let ratio = width.max(height) as f64 / self.side as f64;
        let unit = self.patch * self.merge;
        let fit = |x: usize| match ratio > 1.0 {
            true => ((x as f64 / ratio).floor() as usize).max(1),
            false => x,
        };
        let whole = |x: usize| fit(x).div_ceil(unit) * unit;
        (whole(width), whole(height))
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

    /// Tiles of one size and the whole at that size, of a picture whose longer side is brought to a size first.
    fn split(&self, picture: &RgbImage) -> Pixels {
        let side = self.side;
        let aspect = f64::from(picture.width()) / f64::from(picture.height());
        let even = |x: f64| {
            let x = x as usize;
            (x + x % 2).max(1)
        };
        let (wide, high) = match aspect >= 1.0 {
            true => (self.longest, even(self.longest as f64 / aspect)),
            false => (even(self.longest as f64 * aspect), self.longest),
        };
        let mut now = self.resized(picture, wide, high);
        // Whole tiles.
        let whole = |x: usize| x.div_ceil(side) * side;
        let aspect = wide as f64 / high as f64;
        let (wide, high) = match wide >= high {
            true => (whole(wide), whole((whole(wide) as f64 / aspect) as usize)),
            false => (whole((whole(high) as f64 * aspect) as usize), whole(high)),
        };
        now = self.resized(&now, wide, high);
        if wide <= side && high <= side {
            return Pixels {
                tiles: vec![self.tile(&now, 1)],
                grid: (0, 0),
            };
        }
        let (rows, columns) = (high / side, wide / side);
        let mut tiles = self.cut(&now, rows, columns);
        tiles.push(self.tile(&self.resized(&now, side, side), 1));
        Pixels {
            tiles,
            grid: (rows, columns),
        }
    }

    /// As many tiles as suit the picture's shape best, and the whole as a last one if there are several.
    fn in_tiles(&self, picture: &RgbImage) -> Pixels {
        let side = self.side;
        let (width, height) = (f64::from(picture.width()), f64::from(picture.height()));
        let (columns, rows) = best_grid(width, height, side as f64, self.tiles);
        let resized = self.resized(picture, columns * side, rows * side);
        let mut tiles = self.cut(&resized, rows, columns);
        if tiles.len() > 1 {
            tiles.push(self.tile(&self.resized(picture, side, side), 1));
        }
        Pixels {
            tiles,
            grid: (rows, columns),
        }
    }

    fn cut(&self, picture: &RgbImage, rows: usize, columns: usize) -> Vec<Tile> {
        let side = self.side;
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        places
            .map(|(row, column)| {
                self.tile(&part(picture, column * side, row * side, side, side), 1)
            })
            .collect()
    }

    /// Patches of a picture in groups of `group` x `group`.
    fn tile(&self, picture: &RgbImage, group: usize) -> Tile {
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
        }
    }

    /// A tile's numbers, with the encoder's mean and deviation taken out.
    pub fn floats<'a>(&self, tile: &'a Tile) -> impl Iterator<Item = f32> + 'a {
        // In doubles first, as numpy does.
        let tables: [Vec<f32>; 3] = std::array::from_fn(|channel| {
            let (mean, deviation) = (self.mean[channel], self.deviation[channel]);
            let scaled = (0..=255u8).map(|value| (f64::from(value) / 255.0) as f32);
            scaled.map(|x| (x - mean) / deviation).collect()
        });
        let channel = self.patch * self.patch;
        let values = tile.patches.iter().enumerate();
        values.map(move |(at, value)| tables[at / channel % 3][usize::from(*value)])
    }

    /// Rows of the prompt that a picture takes.
    pub fn rows_of(&self, pixels: &Pixels) -> usize {
        pixels
            .tiles
            .iter()
            .map(|tile| self.rows_of_tile(tile))
            .sum()
    }

    pub(crate) fn rows_of_tile(&self, tile: &Tile) -> usize {
        tile.rows * tile.columns / (self.merge * self.merge)
    }
}

/// Columns and rows of tiles whose shape is nearest to the picture's; of equal ones the larger if the picture has more
/// than half of its pixels.
fn best_grid(width: f64, height: f64, side: f64, (fewest, most): (usize, usize)) -> (usize, usize) {
    let mut grids: Vec<(usize, usize)> = (1..=most)
        .flat_map(|columns| (1..=most).map(move |rows| (columns, rows)))
        .filter(|(columns, rows)| (fewest..=most).contains(&(columns * rows)))
        .collect();
    grids.sort_by_key(|(columns, rows)| columns * rows);
    let aspect = width / height;
    let (mut best, mut least) = ((1, 1), f64::INFINITY);
    for (columns, rows) in grids {
        let difference = (aspect - columns as f64 / rows as f64).abs();
        let larger = width * height > 0.5 * side * side * (columns * rows) as f64;
        if difference < least || (difference == least && larger) {
            (best, least) = ((columns, rows), difference);
        }
    }
    best
}

fn part(picture: &RgbImage, left: usize, top: usize, width: usize, height: usize) -> RgbImage {
    let (left, top) = (left as u32, top as u32);
    image::imageops::crop_imm(picture, left, top, width as u32, height as u32).to_image()
}
