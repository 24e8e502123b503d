//! Launches of afq.cu and afq_gemm.cu: groups of weights with a scale and a bias each.

use super::{bits, KINDS};
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Sizes of groups.
fn groups() -> Vec<usize> {
    if std::env::var_os("FULL").is_some() {
        vec![32, 64, 128]
    } else {
        vec![64]
    }
}

/// Quantized weights `[rows, columns]`.
struct Weights {
    packed: Vec<u8>,
    scales: Data,
    biases: Data,
    /// What they stand for, not rounded.
    values: Vec<f64>,
}

impl Weights {
    fn new(
        kind: Type,
        bits: usize,
        group: usize,
        rows: usize,
        columns: usize,
        random: &mut Random,
    ) -> Self {
        let numbers = bits::random(bits, rows * columns, random);
        let count = rows * columns / group;
        let scales = Data::random(kind, count, 0.01, 0.1, random);
        let biases = Data::random(kind, count, -1., 1., random);
        let (s, b) = (scales.values(), biases.values());
        let values = numbers
            .iter()
            .enumerate()
            .map(|(i, &q)| f64::from(q) * s[i / group] + b[i / group])
            .collect();
        let packed = numbers
            .chunks(columns)
            .flat_map(|row| bits::pack(row.iter().copied(), bits))
            .collect();
        Self {
            packed,
            scales,
            biases,
            values,
        }
    }

    fn arguments(&self, row: Row) -> Row {
        row.bytes(&self.packed)
            .input(&self.scales)
            .input(&self.biases)
    }
}

/// The kernel's name and template arguments: those of 3 and 6 bits have a kernel of their own.
fn named(stem: &str, name: &str, bits: usize, group: usize) -> Row {
    let group = group.to_string();
    if bits == 3 || bits == 6 {
        Row::new(format!("{stem}_{bits}bit_kernel")).template(&[name, &group])
    } else {
        Row::new(format!("{stem}_kernel")).template(&[name, &bits.to_string(), &group])
    }
}

/// afq.cu.
pub fn weights(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, _) in KINDS {
        for group in groups() {
            for bits in [2, 3, 4, 6, 8] {
                let (height, width) = (5, 2 * group);
                let weights = Weights::new(kind, bits, group, height, width, random);
                let row = named("afq_dequantize", name, bits, group)
                    .grid([(height * width).div_ceil(256), 1, 1])
                    .block([256, 1, 1]);
                let expected = weights.values.iter().copied();
                let output =
                    Output::exact(kind, expected).within(0., if kind == F32 { 2e-7 } else { 0. });
                rows.push(weights.arguments(row).output(output).ints(&[height, width]));
            }
            for bits in [2, 4, 8] {
                rows.push(quantize(kind, name, bits, group, random));
            }
        }
    }
    rows
}

/// Scales from the range of each group; all arithmetic is in f32, so it is followed step by step.
fn quantize(kind: Type, name: &str, bits: usize, group: usize, random: &mut Random) -> Row {
    let (height, width) = (3, 2 * group);
    let w = Data::random(kind, height * width, -2., 3., random);
    let most = ((1u32 << bits) - 1) as f32;
    let (mut scales, mut biases, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for values in w.values().chunks(group) {
        let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        let low = values.iter().copied().fold(f32::MAX, f32::min);
        let range = (values.iter().copied().fold(f32::MIN, f32::max) - low).max(1e-7);
        scales.push(f64::from(range / most));
        biases.push(f64::from(low));
        let inverse = most / range;
        numbers.extend(
            values
                .iter()
                .map(|x| ((x - low) * inverse).round().clamp(0., most) as u32),
        );
    }
    let words: Vec<u32> = numbers
        .chunks(width)
        .flat_map(|row| bits::words(row.iter().copied(), bits))
        .collect();
    let zeros = Data::new(U32, vec![0.; words.len()]);
    Row::new("afq_quantize_kernel")
        .template(&[name, &bits.to_string(), &group.to_string()])
        .grid([(height * width / group * 32).div_ceil(256), 1, 1])
        .block([256, 1, 1])
        .input(&w)
        .output(Output::exact(U32, words.iter().map(|&w| f64::from(w))).over(zeros))
        .output(Output::exact(kind, scales))
        .output(Output::exact(kind, biases))
        .ints(&[height, width])
}

/// afq_gemm.cu.
pub fn products(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, tolerance) in KINDS {
        for group in groups() {
            for bits in [2, 3, 4, 6, 8] {
                let (m, n, k) = (2, 5, 2 * group);
                let row = named("afq_qmv", name, bits, group)
                    .grid([(m * n * 32usize).div_ceil(256), 1, 1])
                    .block([256, 1, 1]);
                rows.push(product(
                    row,
                    (kind, tolerance),
                    bits,
                    group,
                    (m, n, k),
                    random,
                ));
            }
            for bits in [2, 4, 8] {
                let (m, n, k) = (5usize, 37usize, 2 * group);
                let row = Row::new("afq_qmm_kernel")
                    .template(&[
                        name,
                        &bits.to_string(),
                        &group.to_string(),
                        "32",
                        "32",
                        "32",
                    ])
                    .grid([n.div_ceil(32), m.div_ceil(32), 1])
                    .block([32, 32, 1]);
                rows.push(product(
                    row,
                    (kind, tolerance),
                    bits,
                    group,
                    (m, n, k),
                    random,
                ));
            }
        }
    }
    rows
}

fn product(
    row: Row,
    (kind, tolerance): (Type, f64),
    bits: usize,
    group: usize,
    (m, n, k): (usize, usize, usize),
    random: &mut Random,
) -> Row {
    let x = Data::random(kind, m * k, -1., 1., random);
    let weights = Weights::new(kind, bits, group, n, k, random);
    let xs = x.values();
    let expected: Vec<f64> = (0..m * n)
        .map(|at| {
            (0..k)
                .map(|i| xs[at / n * k + i] * weights.values[at % n * k + i])
                .sum()
        })
        .collect();
    weights
        .arguments(row.input(&x))
        .output(Output::exact(kind, expected).within(20. * tolerance, tolerance))
        .ints(&[m, n, k])
}
