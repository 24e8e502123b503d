//! Scales in tiles, as tensor cores of others read them.

/// Rows and columns of a tile.
const TILE: [usize; 2] = [128, 4];

/// Rows of a tile that lie 16 bytes apart.
const LANES: usize = 32;

/// Scales of one byte for `rows` by `columns` of areas, row by row, out of tiles of 128 by 4: a tile's rows `i`,
/// `i + 32`, `i + 64` and `i + 96` lie side by side. Tiles are whole, whatever is needed of them.
///
/// # Errors
/// If there are not as many as that makes.
pub fn untiled(tiled: &[u8], [rows, columns]: [usize; 2]) -> Result<Vec<u8>, String> {
    let [height, width] = TILE;
    let across = columns.div_ceil(width);
    let bytes = rows.div_ceil(height).checked_mul(across);
    let bytes = bytes.and_then(|tiles| tiles.checked_mul(height * width));
    if bytes != Some(tiled.len()) {
        return Err(format!(
            "{} scales do not fit {rows} rows of {columns} in tiles of {height} by {width}",
            tiled.len()
        ));
    }
    if columns == 0 {
        // However many rows there are.
        return Ok(Vec::new());
    }
    let place = |row: usize, column: usize| {
        let tile = row / height * across + column / width;
        let row = row % height;
        tile * height * width + row % LANES * 4 * width + row / LANES * width + column % width
    };
    let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    Ok(all.map(|(row, column)| tiled[place(row, column)]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_taken_apart() {
        // Bytes that say where they are: 3 tiles across, 2 down.
        let tiled: Vec<u8> = (0..6 * 512)
            .map(|at| (at / 512 * 16 + at % 16) as u8)
            .collect();
        let rows = untiled(&tiled, [130, 9]).unwrap();
        assert_eq!(rows.len(), 130 * 9);
        let at = |row: usize, column: usize| rows[row * 9 + column];
        assert_eq!([at(0, 0), at(0, 3), at(0, 4), at(0, 8)], [0, 3, 16, 32]);
        assert_eq!(
            [at(31, 0), at(32, 0), at(96, 2), at(127, 3)],
            [0, 4, 14, 15]
        );
        assert_eq!([at(128, 0), at(129, 8)], [48, 80]);
        // Rows of 32 lie 16 apart.
        let tiled: Vec<u8> = (0..512).map(|at| (at / 16) as u8).collect();
        let rows = untiled(&tiled, [128, 4]).unwrap();
        assert_eq!([rows[5 * 4], rows[37 * 4 + 1], rows[127 * 4]], [5, 5, 31]);
        assert!(untiled(&[], [usize::MAX, 0]).unwrap().is_empty());
        for size in [[128, 5], [129, 4], [usize::MAX, 4], [128, 0]] {
            assert!(untiled(&tiled, size).unwrap_err().contains("do not fit"));
        }
    }
}
