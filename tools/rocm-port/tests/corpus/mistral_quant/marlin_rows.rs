//! Launches of marlin_repack.cu: weights in the order in which Marlin's matrix instructions want them.

use super::bits;
use crate::data::{Data, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Rows and columns of a tile.
const TILE: (usize, usize) = (16, 64);
const THREADS: &str = "256";
/// The order of eight, and of four, numbers in words.
const EIGHT: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
const FOUR: [usize; 4] = [0, 2, 1, 3];

/// Tiles one after another; in each, 32 lanes of 4 warps have eight numbers: of rows `2 (lane % 4) + {0, 1, 8, 9}`, and
/// columns `lane / 4` and eight more in the warp's sixteen.
fn repacked(bits: usize, k: usize, n: usize, number: impl Fn(usize, usize) -> u32) -> Vec<f64> {
    let mut words = Vec::new();
    for tile in 0..k / TILE.0 * (n / TILE.1) {
        let (top, left) = (tile / (n / TILE.1) * TILE.0, tile % (n / TILE.1) * TILE.1);
        for lane in 0..32 {
            for warp in 0..4 {
                let of = |i: usize| {
                    let row = top + lane % 4 * 2 + [0, 1, 8, 9][i % 4];
                    number(row, left + warp * 16 + lane / 4 + i / 4 * 8)
                };
                if bits == 4 {
                    words.extend(bits::words(EIGHT.map(of), 4));
                } else {
                    words.extend(bits::words(FOUR.map(of), 8));
                    words.extend(bits::words(FOUR.map(|i| of(i + 4)), 8));
                }
            }
        }
    }
    words.iter().map(|&word| f64::from(word)).collect()
}

/// Both kernels.
pub fn all(random: &mut Random) -> Vec<Row> {
    let (k, n) = (32, 192);
    let mut rows = Vec::new();
    for bits in [4usize, 8] {
        let numbers = bits::random(bits, k * n, random);
        let words = |words: Vec<u32>| Data::new(U32, words.iter().map(|&word| f64::from(word)));
        let down = words(bits::columns(&numbers, n, |column| {
            bits::words(column.iter().copied(), bits)
        }));
        let row = |kernel: &str, template: &[&str]| {
            Row::new(kernel)
                .template(template)
                .grid([2, 1, 1])
                .block([256, 1, 1])
                .shared(40 << 10)
        };
        for ordered in [false, true] {
            let order = Data::shuffled(U32, k, random);
            let from = order.values();
            let expected = repacked(bits, k, n, |row, column| {
                numbers[if ordered { from[row] as usize } else { row } * n + column]
            });
            let row = row(
                "gptq_marlin_repack_kernel",
                &[
                    THREADS,
                    &bits.to_string(),
                    if ordered { "true" } else { "false" },
                ],
            )
            .input(&down);
            let row = if ordered {
                row.input(&order)
            } else {
                row.null()
            };
            rows.push(row.output(Output::exact(U32, expected)).ints(&[k, n]));
        }

        // Along rows, with those of each word interleaved.
        let places: &[usize] = if bits == 4 {
            &[0, 4, 1, 5, 2, 6, 3, 7]
        } else {
            &FOUR
        };
        let across: Vec<u32> = numbers
            .chunks(places.len())
            .flat_map(|group| {
                let mut stored = vec![0; group.len()];
                for (number, &place) in group.iter().zip(places) {
                    stored[place] = *number;
                }
                bits::words(stored, bits)
            })
            .collect();
        let expected = repacked(bits, k, n, |row, column| numbers[row * n + column]);
        rows.push(
            row("awq_marlin_repack_kernel", &[THREADS, &bits.to_string()])
                .input(&words(across))
                .output(Output::exact(U32, expected))
                .ints(&[k, n]),
        );
    }
    rows
}
