//! Launches of flash_attn_sinks.cu: causal attention with sinks and windows, of equal and of packed lengths.

use super::attention::causal;
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Types and the differences that rounding the result makes.
const KINDS: [(Type, &str, f64); 3] = [
    (F16, "__half", 1e-3),
    (BF16, "__nv_bfloat16", 6e-3),
    (F32, "float", 2e-6),
];
/// Widths of heads, and keys in a tile.
const WIDTHS: [(usize, usize); 7] = [
    (64, 64),
    (80, 32),
    (96, 32),
    (112, 32),
    (128, 32),
    (192, 16),
    (256, 16),
];
const ROWS: usize = 8;
const HEADS: usize = 2;
const SINKS: [f64; HEADS] = [0.75, -2.];

fn widths() -> Vec<(usize, usize)> {
    let some = if std::env::var_os("FULL").is_some() {
        7
    } else {
        2
    };
    WIDTHS[..some].to_vec()
}

fn row(kernel: &str, name: &str, (width, tile): (usize, usize), batch: usize, rows: usize) -> Row {
    Row::new(kernel)
        .template(&[
            name,
            &width.to_string(),
            &ROWS.to_string(),
            &tile.to_string(),
        ])
        .grid([HEADS, batch, rows.div_ceil(ROWS)])
        .block([32 * ROWS, 1, 1])
}

fn sinks(row: Row, on: bool) -> Row {
    if on {
        row.input(&Data::new(F32, SINKS)).about("sinks")
    } else {
        row.null()
    }
}

/// Both kernels.
pub fn all(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, tolerance) in KINDS {
        for width in widths() {
            for (window, with_sinks) in [(0, true), (5, false)] {
                rows.push(equal(
                    kind, name, tolerance, width, window, with_sinks, random,
                ));
                rows.push(packed(
                    kind, name, tolerance, width, window, with_sinks, random,
                ));
            }
        }
    }
    rows
}

/// `[batch, heads, rows, width]`: fewer queries than keys, the last of both together.
fn equal(
    kind: Type,
    name: &str,
    tolerance: f64,
    size: (usize, usize),
    window: usize,
    with_sinks: bool,
    random: &mut Random,
) -> Row {
    let (batch, queries, keys, width) = (2, 11, 75, size.0);
    let scale = F32.rounded((width as f64).sqrt().recip());
    let q = Data::random(kind, batch * HEADS * queries * width, -1., 1., random);
    let k = Data::random(kind, batch * keys * width, -1., 1., random);
    let v = Data::random(kind, batch * keys * width, -1., 1., random);
    let (qs, ks, vs) = (q.values(), k.values(), v.values());
    let mut expected = Vec::new();
    for sequence in 0..batch {
        for (head, &sink) in SINKS.iter().enumerate() {
            expected.extend(causal(
                (queries, keys, width),
                scale,
                window,
                with_sinks.then_some(sink),
                |row, d| qs[((sequence * HEADS + head) * queries + row) * width + d],
                |row, d| ks[(sequence * keys + row) * width + d],
                |row, d| vs[(sequence * keys + row) * width + d],
            ));
        }
    }
    let row = row("flash_attn_sinks_kernel", name, size, batch, queries)
        .input(&q)
        .input(&k)
        .input(&v)
        .output(Output::exact(kind, expected).within(tolerance, 0.));
    sinks(row, with_sinks)
        .scalar(F32, scale)
        .ints(&[queries, keys, HEADS, 1, window])
}

/// Queries padded to the longest, keys one sequence after another: `[tokens, heads, width]`.
fn packed(
    kind: Type,
    name: &str,
    tolerance: f64,
    size: (usize, usize),
    window: usize,
    with_sinks: bool,
    random: &mut Random,
) -> Row {
    let (queries, keys, width) = ([9, 3], [20, 41], size.0);
    let (most, total) = (9, 61);
    let scale = F32.rounded((width as f64).sqrt().recip());
    let q = Data::random(kind, 2 * HEADS * most * width, -1., 1., random);
    let k = Data::random(kind, total * HEADS * width, -1., 1., random);
    let v = Data::random(kind, total * HEADS * width, -1., 1., random);
    let (qs, ks, vs) = (q.values(), k.values(), v.values());
    let mut expected = vec![0.; qs.len()];
    for sequence in 0..2 {
        for (head, &sink) in SINKS.iter().enumerate() {
            let (first, start) = ((sequence * HEADS + head) * most * width, sequence * keys[0]);
            let all = causal(
                (queries[sequence], keys[sequence], width),
                scale,
                window,
                with_sinks.then_some(sink),
                |row, d| qs[first + row * width + d],
                |row, d| ks[((start + row) * HEADS + head) * width + d],
                |row, d| vs[((start + row) * HEADS + head) * width + d],
            );
            expected[first..first + all.len()].copy_from_slice(&all);
        }
    }
    let before = Data::new(kind, vec![0.; expected.len()]);
    let row = row("flash_attn_sinks_varlen_kernel", name, size, 2, most)
        .input(&q)
        .input(&k)
        .input(&v)
        .output(
            Output::exact(kind, expected)
                .within(tolerance, 0.)
                .over(before),
        );
    sinks(row, with_sinks)
        .input(&Data::whole(U32, [0, queries[0], queries[0] + queries[1]]))
        .input(&Data::whole(U32, [0, keys[0], total]))
        .scalar(F32, scale)
        .ints(&[most, HEADS, HEADS, window])
}
