//! Straight lines: those that M-LSD's maps (arXiv:2106.00186) have found, drawn white on black.

use candle_core::{Result, Tensor};
use image::{Rgb, RgbImage};

/// Lines at most, the likeliest.
const MOST: usize = 200;

/// A line's ends in pixels of the maps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Across and down.
    pub from: (f32, f32),
    /// Across and down.
    pub to: (f32, f32),
}

/// The lines in maps `(1, 9, height, width)`, of which the first five are of use: those that are at least so likely (0 to
/// 1) and longer than so many pixels of the maps.
///
/// # Errors
/// If the device fails.
pub fn lines(maps: &Tensor, least: f64, longer: f64) -> Result<Vec<Line>> {
    let (_, _, height, width) = maps.dims4()?;
    let each = (0..5).map(|i| maps.narrow(1, i, 1)?.flatten_all()?.to_vec1::<f32>());
    let maps: Vec<Vec<f32>> = each.collect::<Result<_>>()?;
    let likely: Vec<f32> = maps[0].iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
    let highest = |x: usize, y: usize| {
        let rows = y.saturating_sub(1)..(y + 2).min(height);
        let here = likely[y * width + x];
        rows.into_iter().all(|row| {
            let columns = x.saturating_sub(1)..(x + 2).min(width);
            columns.into_iter().all(|c| likely[row * width + c] <= here)
        })
    };
    let mut middles: Vec<usize> = (0..width * height)
        .filter(|i| highest(i % width, i / width))
        .collect();
    middles.sort_by(|a, b| likely[*b].total_cmp(&likely[*a]));
    middles.truncate(MOST);
    let line = |i: usize| {
        let (x, y) = ((i % width) as f32, (i / width) as f32);
        Line {
            from: (x + maps[1][i], y + maps[2][i]),
            to: (x + maps[3][i], y + maps[4][i]),
        }
    };
    let long = |i: usize| {
        let (dx, dy) = (maps[1][i] - maps[3][i], maps[2][i] - maps[4][i]);
        f64::from((dx * dx + dy * dy).sqrt())
    };
    Ok(middles
        .into_iter()
        .filter(|i| f64::from(likely[*i]) > least && long(*i) > longer)
        .map(line)
        .collect())
}

/// The lines in a picture of this size, whose pixels are so many times those of the maps.
pub fn draw(lines: &[Line], (width, height): (u32, u32), scale: (f32, f32)) -> RgbImage {
    let mut picture = RgbImage::new(width, height);
    // What lies far outside is cut: ends may be anywhere.
    let place = |value: f32, side: u32| {
        let side = side as f32;
        value.clamp(-side, 2.0 * side) as i64
    };
    for line in lines {
        let end = |(x, y): (f32, f32)| (place(x * scale.0, width), place(y * scale.1, height));
        let ((x, y), (to_x, to_y)) = (end(line.from), end(line.to));
        let (dx, dy) = (to_x - x, to_y - y);
        let steps = dx.abs().max(dy.abs()).max(1);
        for step in 0..=steps {
            // Rounded to the nearest pixel.
            let at = |from: i64, way: i64| from + (2 * way * step + steps).div_euclid(2 * steps);
            let (x, y) = (at(x, dx), at(y, dy));
            if (0..i64::from(width)).contains(&x) && (0..i64::from(height)).contains(&y) {
                picture.put_pixel(x as u32, y as u32, Rgb([255; 3]));
            }
        }
    }
    picture
}
