//! Launches of indexed_moe.cu: activations in blocks of 8 bits, and products with experts in GGUF's formats.

use crate::data::{Data, Type::*};
use crate::ggml::{self, Format};
use crate::random::Random;
use crate::rows::{Output, Row};
use half::f16;

const FORMATS: [(&str, &Format); 10] = [
    ("q4_0", &ggml::Q4_0),
    ("q4_1", &ggml::Q4_1),
    ("q5_0", &ggml::Q5_0),
    ("q5_1", &ggml::Q5_1),
    ("q8_0", &ggml::Q8_0),
    ("q2k", &ggml::Q2_K),
    ("q3k", &ggml::Q3_K),
    ("q4k", &ggml::Q4_K),
    ("q5k", &ggml::Q5_K),
    ("q6k", &ggml::Q6_K),
];

const SUM_AS_MINIMUM: &str = "the sum that a Q8_1 block carries is taken for a minimum that is to be added, so products of Q8_1 with Q8_1 are \
                              wrong by it";

/// The whole file.
pub fn all(random: &mut Random) -> Vec<Row> {
    let mut rows = vec![quantize(random)];
    for (name, format) in FORMATS {
        for repeated in [false, true] {
            rows.push(experts(name, repeated, random, |count, random| {
                let blocks = format.random(count, random);
                let values = format.values(&blocks);
                (blocks, values)
            }));
        }
    }
    rows.push(experts("q8_1", false, random, ggml::random_q8_1).known(SUM_AS_MINIMUM));
    rows
}

/// Rows of floats as blocks of 32, padded with zeros. They are whole numbers of which the largest is 127 steps, so that
/// no sum and no division is rounded.
fn quantize(random: &mut Random) -> Row {
    let (rows, width, padded) = (2, 200, 256);
    let mut x = Vec::new();
    let mut blocks: Vec<u8> = Vec::new();
    for _ in 0..rows {
        let mut row: Vec<i32> = (0..width).map(|_| random.below(255) as i32 - 127).collect();
        row.iter_mut().step_by(32).for_each(|first| *first = 127);
        x.extend(row.iter().map(|&v| f64::from(v) / 4.));
        row.resize(padded, 0);
        for block in row.chunks(32) {
            let step = if block[0] == 0 { 0. } else { 0.25 };
            let sum = f64::from(block.iter().sum::<i32>()) / 4.;
            blocks.extend(f16::from_f64(step).to_le_bytes());
            blocks.extend(f16::from_f64(sum).to_le_bytes());
            blocks.extend(block.iter().map(|&v| v as u8));
        }
    }
    Row::new("quantize_q8_1")
        .grid([padded.div_ceil(256), rows, 1])
        .block([256, 1, 1])
        .input(&Data::new(F32, x))
        .output(Output::exact(U8, blocks.iter().map(|&b| f64::from(b))))
        .ints(&[width, padded])
}

/// Each of two tokens with two experts; with `repeated` there is an input for each of them.
fn experts(
    name: &str,
    repeated: bool,
    random: &mut Random,
    weights: impl Fn(usize, &mut Random) -> (Vec<u8>, Vec<f64>),
) -> Row {
    let (batch, topk, experts, n, k) = (2, 2, 3, 3, 512);
    let (blocks, w) = weights(experts * n * k, random);
    let inputs = if repeated { batch * topk } else { batch };
    let (x_blocks, x) = ggml::random_q8_1(inputs * k, random);
    let indices = Data::whole(U32, (0..batch * topk).map(|_| random.below(experts)));
    let chosen = indices.values();
    let expected: Vec<f64> = (0..batch * topk * n)
        .map(|at| {
            let (task, column) = (at / n, at % n);
            let (row, weight) = (
                if repeated { task } else { task / topk },
                chosen[task] as usize * n + column,
            );
            (0..k).map(|i| x[row * k + i] * w[weight * k + i]).sum()
        })
        .collect();
    let largest = expected.iter().fold(1f64, |max, x| max.max(x.abs()));
    Row::new(format!("indexed_moe_forward_{name}_q8_1"))
        .grid([n, batch, topk])
        .block([32, 4, 1])
        .bytes(&blocks)
        .bytes(&x_blocks)
        .input(&indices)
        .output(Output::exact(F32, expected).within(largest * 1e-5, 1e-5))
        .ints(&[n, k, batch, topk, k, if repeated { topk } else { 1 }])
        .about(if repeated {
            "inputs for each expert"
        } else {
            ""
        })
}
