//! Pictures cut into tiles, each a picture of its own for the encoder.

use super::config::{PanAndScan, VisionConfig};
use super::preprocess::{part, Pixels, Tile};
use image::RgbImage;

/// Lines of patches of all tiles but the first, which is the whole picture: without the margins that the picture does
/// not reach, and a row of the prompt behind each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// Lines, and patches of each.
    pub size: (usize, usize),
    /// Lines of the margin above, and patches of that to the left.
    pub margin: (usize, usize),
}

impl Lines {
    /// Rows of the prompt: of the first tile with `side` patches of a side, and of the lines.
    pub(crate) fn rows(&self, side: usize) -> usize {
        side * side + self.size.0 * (self.size.1 + 1)
    }

    /// Which of the tiles' rows each is, of `grid` tiles behind the first; the row behind all of them ends lines.
    pub(crate) fn order(&self, (rows, columns): (usize, usize), side: usize) -> Vec<u32> {
        let tile = side * side;
        let newline = tile * (1 + rows * columns);
        let mut order: Vec<u32> = (0..tile as u32).collect();
        for line in self.margin.0..self.margin.0 + self.size.0 {
            let places = self.margin.1..self.margin.1 + self.size.1;
            order.extend(places.map(|place| {
                let before = 1 + line / side * columns + place / side;
                (before * tile + line % side * side + place % side) as u32
            }));
            order.push(newline as u32);
        }
        order
    }
}

impl VisionConfig {
    /// The whole at the encoder's size, and parts of a long picture besides, where that is asked for.
    pub(super) fn panned(&self, picture: &RgbImage) -> Pixels {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (columns, rows) = self.pan.map_or((1, 1), |pan| pan.parts(width, height));
        let square =
            |picture: &RgbImage| self.tile(&self.resized(picture, self.side, self.side), 1);
        let mut tiles = vec![square(picture)];
        if columns * rows > 1 {
            let (wide, high) = (width.div_ceil(columns), height.div_ceil(rows));
            for place in 0..columns * rows {
                let (left, top) = (place % columns * wide, place / columns * high);
                let (wide, high) = (wide.min(width - left), high.min(height - top));
                tiles.push(square(&part(picture, left, top, wide, high)));
            }
        }
        Pixels {
            tiles,
            grid: (rows, columns),
            ..Pixels::default()
        }
    }

    /// The whole at the encoder's size, and tiles of the picture in the middle of the size that suits it best.
    pub(super) fn padded(&self, picture: &RgbImage) -> Pixels {
        let side = self.side;
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (wide, high) = best_size(width, height, &self.sizes);
        // As much of it as the picture's shape has.
        let (by_width, by_height) = (wide as f64 / width as f64, high as f64 / height as f64);
        let scaled =
            |x: usize, scale: f64, most: usize| ((x as f64 * scale).ceil() as usize).min(most);
        let (inner_wide, inner_high) = match by_width < by_height {
            true => (wide, scaled(height, by_width, high)),
            false => (scaled(width, by_height, wide), high),
        };
        let mut canvas = RgbImage::new(wide as u32, high as u32);
        let (left, top) = ((wide - inner_wide) / 2, (high - inner_high) / 2);
        let inner = self.resized(picture, inner_wide, inner_high);
        image::imageops::replace(&mut canvas, &inner, left as i64, top as i64);
        let (rows, columns) = (high / side, wide / side);
        let mut tiles = vec![self.tile(&self.resized(picture, side, side), 1)];
        tiles.extend(self.cut(&canvas, rows, columns));
        let patches = side / self.patch;
        Pixels {
            tiles,
            grid: (rows, columns),
            lines: Some(lines(width, height, (columns * patches, rows * patches))),
        }
    }

    /// Tiles of one size and the whole at that size, of a picture whose longer side is brought to a size first.
    pub(super) fn split(&self, picture: &RgbImage) -> Pixels {
        let side = self.side;
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (wide, high) = self.longest_size(width, height, self.longest);
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
                ..Pixels::default()
            };
        }
        let (rows, columns) = (high / side, wide / side);
        let mut tiles = self.cut(&now, rows, columns);
        tiles.push(self.tile(&self.resized(&now, side, side), 1));
        Pixels {
            tiles,
            grid: (rows, columns),
            ..Pixels::default()
        }
    }

    /// As many tiles as suit the picture's shape best, and the whole as a last one if there are several.
    pub(super) fn in_tiles(&self, picture: &RgbImage) -> Pixels {
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
            ..Pixels::default()
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

/// The size among some that loses least of a picture, and of equal ones that which has least besides.
fn best_size(width: usize, height: usize, sizes: &[(usize, usize)]) -> (usize, usize) {
    let (mut best, mut most, mut least) = (sizes[0], 0, usize::MAX);
    for &(wide, high) in sizes {
        let scale = (wide as f64 / width as f64).min(high as f64 / height as f64);
        let kept = (width as f64 * scale) as usize * (height as f64 * scale) as usize;
        let kept = kept.min(width * height);
        let besides = wide * high - kept;
        if kept > most || (kept == most && besides < least) {
            (best, most, least) = ((wide, high), kept, besides);
        }
    }
    best
}

/// What a picture in the middle of so many patches across and down takes of them.
fn lines(width: usize, height: usize, (across, down): (usize, usize)) -> Lines {
    let (w, h) = (width as f64, height as f64);
    // A product that is almost the next number is that.
    let whole = |x: f64| ((x * 1e7).round_ties_even() / 1e7) as usize;
    let margin = match w / h > across as f64 / down as f64 {
        true => (down.saturating_sub(whole(h * (across as f64 / w))) / 2, 0),
        false => (0, across.saturating_sub(whole(w * (down as f64 / h))) / 2),
    };
    Lines {
        size: (down - 2 * margin.0, across - 2 * margin.1),
        margin,
    }
}

impl PanAndScan {
    /// Parts across and down of a picture, 1 and 1 if only the whole is shown.
    fn parts(&self, width: usize, height: usize) -> (usize, usize) {
        let (long, short) = (width.max(height), width.min(height));
        let ratio = long as f64 / short as f64;
        if ratio < self.ratio {
            return (1, 1);
        }
        let parts = ((ratio + 0.5).floor() as usize).min(long / self.smallest);
        let parts = parts.max(2).min(self.most);
        if long.div_ceil(parts.max(1)).min(short) < self.smallest {
            return (1, 1);
        }
        match width >= height {
            true => (parts, 1),
            false => (1, parts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_size_that_keeps_most_of_it() {
        let sizes = [(32, 16), (16, 32), (32, 32), (16, 48), (48, 16)];
        assert_eq!(best_size(61, 37, &sizes), (32, 32));
        assert_eq!(best_size(20, 60, &sizes), (16, 48));
        // All of it fits into each: that with least besides.
        assert_eq!(best_size(10, 10, &sizes), (32, 16));
    }

    #[test]
    fn lines_have_no_margins_and_end_with_a_row() {
        // 61 x 37 pixels in the middle of 8 x 8 patches.
        let wide = lines(61, 37, (8, 8));
        assert_eq!((wide.size, wide.margin), ((4, 8), (2, 0)));
        let high = lines(37, 61, (8, 8));
        assert_eq!((high.size, high.margin), ((8, 4), (0, 2)));
        assert_eq!(wide.rows(4), 16 + 4 * 9);
        // Two tiles of 2 x 2 patches beside each other behind the whole, their second lines.
        let lines = Lines {
            size: (1, 3),
            margin: (1, 1),
        };
        assert_eq!(lines.order((1, 2), 2), [0, 1, 2, 3, 7, 10, 11, 12]);
    }

    #[test]
    fn long_pictures_are_shown_in_parts() {
        let pan = PanAndScan {
            smallest: 256,
            most: 4,
            ratio: 1.2,
        };
        assert_eq!(pan.parts(1000, 900), (1, 1));
        assert_eq!(pan.parts(1200, 600), (2, 1));
        assert_eq!(pan.parts(600, 3000), (1, 4));
        // Parts would be too small.
        assert_eq!(pan.parts(1000, 200), (1, 1));
    }
}
