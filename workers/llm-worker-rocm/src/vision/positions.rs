//! Where a tile's patches are: what they turn by, their learned positions, their windows.

use super::config::VisionConfig;
use super::kinds::Kind;
use super::preprocess::Tile;
use candle_core::{Device, Result, Tensor, D};

/// Rows and columns of a tile's patches, in their order.
fn places(tile: &Tile, group: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let across = tile.columns / group;
    (0..tile.rows * tile.columns).map(move |place| {
        let (inner, outer) = (place % (group * group), place / (group * group));
        let row = outer / across * group + inner / group;
        (row, outer % across * group + inner % group)
    })
}

/// Cosines and sines of patches, f32 `(patches, half of a head)`: a quarter turns by the row, a quarter by the column.
pub(super) fn angles(
    tile: &Tile,
    c: &VisionConfig,
    base: f64,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let quarter = c.width / c.heads / 4;
    let frequency = |i: f64| base.powf(-i / quarter as f64);
    let mut values = Vec::with_capacity(tile.rows * tile.columns * 2 * quarter);
    // Pixtral's columns have the frequencies between those of rows.
    let between = match c.traits.kind {
        Kind::Pixtral => 0.5,
        _ => 0.0,
    };
    for (row, column) in places(tile, c.group()) {
        for (place, shift) in [(row, 0.0), (column, between)] {
            values.extend((0..quarter).map(|i| place as f64 * frequency(i as f64 + shift)));
        }
    }
    let shape = (values.len() / (2 * quarter), 2 * quarter);
    let table = |function: fn(f64) -> f64| {
        let values: Vec<f32> = values.iter().map(|x| function(*x) as f32).collect();
        Tensor::from_vec(values, shape, device)
    };
    Ok((table(f64::cos)?, table(f64::sin)?))
}

/// A square of learned positions brought to a tile's size, linearly, its corners at the tile's.
pub(super) fn interpolated(positions: &Tensor, tile: &Tile, group: usize) -> Result<Tensor> {
    let side = positions.dim(0)?.isqrt();
    let taps = |place: usize, count: usize| {
        let at = place as f32 * (side - 1) as f32 / (count.max(2) - 1) as f32;
        let low = (at.floor() as usize).min(side - 1);
        [
            (low, 1.0 - at.fract()),
            ((low + 1).min(side - 1), at.fract()),
        ]
    };
    let (mut indices, mut weights) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
    for (row, column) in places(tile, group) {
        let (down, across) = (taps(row, tile.rows), taps(column, tile.columns));
        for tap in 0..4 {
            let ((y, a), (x, b)) = (down[tap / 2], across[tap % 2]);
            indices[tap].push((y * side + x) as u32);
            weights[tap].push(a * b);
        }
    }
    let device = positions.device();
    let mut sum: Option<Tensor> = None;
    for (indices, weights) in indices.iter().zip(&weights) {
        let weights = Tensor::new(weights.as_slice(), device)?.to_dtype(positions.dtype())?;
        let rows = positions.index_select(&Tensor::new(indices.as_slice(), device)?, 0)?;
        let part = rows.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?;
        sum = Some(match sum {
            Some(sum) => (sum + part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| candle_core::Error::Msg("no taps".to_string()))
}

/// Learned positions of patches, line by line: the sum of their column's and their row's.
pub(super) fn by_column_and_row(positions: &Tensor, tile: &Tile) -> Result<Tensor> {
    let (_, most, _) = positions.dims3()?;
    if tile.rows.max(tile.columns) > most {
        candle_core::bail!(
            "a picture of {} x {} patches, positions are known of {most} of a side",
            tile.columns,
            tile.rows
        )
    }
    let take = |axis: usize, places: Vec<u32>| {
        let count = places.len();
        let places = Tensor::from_vec(places, count, positions.device())?;
        positions.get(axis)?.index_select(&places, 0)
    };
    let places = places(tile, 1).map(|(row, column)| (column as u32, row as u32));
    let (columns, rows): (Vec<u32>, Vec<u32>) = places.unzip();
    take(0, columns)? + take(1, rows)?
}

/// Groups of patches window by window, and patches of each window.
pub(super) fn windows(tile: &Tile, group: usize, window: usize) -> (Vec<u32>, Vec<usize>) {
    let (rows, columns) = (tile.rows / group, tile.columns / group);
    let (mut order, mut lengths) = (Vec::new(), Vec::new());
    for top in (0..rows).step_by(window) {
        for left in (0..columns).step_by(window) {
            let before = order.len();
            for row in top..(top + window).min(rows) {
                let end = (left + window).min(columns);
                order.extend((left..end).map(|column| (row * columns + column) as u32));
            }
            lengths.push((order.len() - before) * group * group);
        }
    }
    (order, lengths)
}
