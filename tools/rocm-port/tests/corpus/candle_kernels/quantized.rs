//! quantized.cu and mmvq_gguf.cu: GGUF's formats, read, multiplied with vectors and matrices, and Q8_1 made.

use crate::data::{Data, Type, Type::*};
use crate::ggml::{random_q8_1, Format, ALL, Q8_0, Q8_K};
use crate::random::Random;
use crate::rows::{Output, Row};
use crate::run::full;
use half::f16;

/// Elements of a row: more than one block of each format, and a multiple of what products take at once.
const LENGTH: usize = 512;

/// An f32 product of rows that are `LENGTH` long: sums of numbers of the order of one.
fn product(kind: Type, expected: Vec<f64>) -> Output {
    match kind {
        F16 | BF16 => Output::exact(kind, expected).within(3e-3, kind.step()),
        _ => Output::exact(kind, expected).within(3e-3, 2e-5),
    }
}

/// Whether a format has blocks of 256.
fn large(format: &Format) -> bool {
    format.elements == 256
}

/// Launches of the kernels that only read blocks.
pub fn dequantize(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let elements = 5 * 256;
    for (word, format) in ALL.into_iter().chain([("q8_K", &Q8_K)]) {
        let blocks = format.random(elements, random);
        let values = format.values(&blocks);
        // As candle launches them: threads of a block, elements that a block takes, and the number that is passed.
        let (threads, taken, number) = match word {
            "q5_0" | "q5_1" => (256, 512, Some(elements)),
            _ if !large(format) => (32, 256, Some(elements / 32)),
            "q4_K" | "q8_K" => (32, 256, None),
            _ => (64, 256, None),
        };
        for kind in [F32, F16] {
            // Products of the scales, and the difference of the minimum, in f32 or f16.
            let largest = values.iter().fold(0., |a: f64, v| a.max(v.abs()));
            let output = Output::near(kind, values.clone(), 4.)
                .within(4. * kind.step() * largest, 4. * kind.step());
            let row = Row::new(format!("dequantize_block_{word}_{}", kind.word()))
                .grid([elements.div_ceil(taken), 1, 1])
                .block([threads, 1, 1])
                .bytes(&blocks)
                .output(output);
            rows.push(number.iter().fold(row, |row, &n| row.ints(&[n])));
        }

        // Rows of a table of five, some of them twice.
        if word != "q8_K" {
            let picked = [3, 0, 4, 3];
            let blocks = format.random(5 * LENGTH, random);
            let values = format.values(&blocks);
            let expected = picked
                .iter()
                .flat_map(|&p| values[p * LENGTH..(p + 1) * LENGTH].to_vec());
            let largest = values.iter().fold(0., |a: f64, v| a.max(v.abs()));
            let (threads, across) = match word {
                _ if !large(format) => (256, LENGTH.div_ceil(512)),
                "q4_K" => (32, LENGTH / 256),
                _ => (64, LENGTH / 256),
            };
            rows.push(
                Row::new(format!("get_rows_{word}"))
                    .grid([picked.len(), across, 1])
                    .block([threads, 1, 1])
                    .bytes(&blocks)
                    .input(&Data::whole(U32, picked))
                    .output(Output::near(F32, expected, 8.).within(1e-6 * largest, 1e-6))
                    .scalar(I64, LENGTH as f64)
                    .size(LENGTH / format.elements * format.bytes),
            );
        }
    }
    for kind in [F32, F16, BF16] {
        let (picked, width) = ([2, 2, 0], 300);
        let table = Data::random(kind, 3 * width, -2., 2., random);
        let values = table.values();
        let expected = picked
            .iter()
            .flat_map(|&p| values[p * width..(p + 1) * width].to_vec());
        rows.push(
            Row::new(format!("get_rows_{}", kind.word()))
                .grid([picked.len(), width.div_ceil(256), 1])
                .block([256, 1, 1])
                .input(&table)
                .input(&Data::whole(U32, picked))
                .output(Output::exact(F32, expected))
                .scalar(I64, width as f64)
                .size(width * kind.bytes()),
        );
    }
    rows
}

/// Launches of products of blocks with one f32 vector.
pub fn float_vectors(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let count = 5;
    for (word, format) in ALL {
        let blocks = format.random(count * LENGTH, random);
        let vector = Data::random(F32, LENGTH, -1., 1., random);
        let expected = format.product(&blocks, count, &vector.values(), LENGTH);
        let name = match large(format) {
            true => format!("dequantize_mul_mat_vec_{}", word.to_lowercase()),
            false => format!("dequantize_mul_mat_vec_{word}_cuda"),
        };
        let row = Row::new(name)
            .grid([count, 1, 1])
            .block([32, 1, 1])
            .bytes(&blocks)
            .input(&vector)
            .output(product(F32, expected));
        // The one of Q5_K does not take the number of rows.
        rows.push(if word == "q5_K" {
            row.ints(&[LENGTH])
        } else {
            row.ints(&[LENGTH, count])
        });
    }
    rows
}

/// Blocks of Q8_1 that make up each row of `data`, padded to `padded` elements: what `quantize_q8_1` has to write.
fn quantized(data: &Data, length: usize, padded: usize) -> Vec<u8> {
    let mut blocks = Vec::new();
    for line in data.values().chunks(length) {
        for start in (0..padded).step_by(32) {
            let values: Vec<f32> = (start..start + 32)
                .map(|i| line.get(i).map_or(0., |&v| v as f32))
                .collect();
            let scale = values.iter().fold(0f32, |a, v| a.max(v.abs())) / 127.;
            let sum: f64 = values.iter().map(|&v| f64::from(v)).sum();
            blocks.extend(f16::from_f32(scale).to_le_bytes());
            blocks.extend(f16::from_f64(sum).to_le_bytes());
            let quant = |v: &f32| {
                if scale == 0. {
                    0
                } else {
                    (v / scale).round() as i8 as u8
                }
            };
            blocks.extend(values.iter().map(quant));
        }
    }
    blocks
}

/// A launch of a kernel that makes Q8_1 of two rows. Numbers are sixteenths, so sums are exact in any order; and none is
/// half-way between two quants.
pub fn quantize(name: &str, kind: Type, random: &mut Random) -> Row {
    let (length, padded, lines) = (300, 512, 2);
    let data = Data::new(
        kind,
        (0..lines * length).map(|_| random.below(127) as f64 / 16. - 4.),
    );
    let expected = quantized(&data, length, padded);
    Row::new(name)
        .grid([padded / 256, lines, 1])
        .block([256, 1, 1])
        .input(&data)
        .output(Output::exact(U8, expected.into_iter().map(f64::from)))
        .ints(&[length, padded])
}

/// Launches of products of blocks with one to eight vectors in Q8_1, or some of them.
pub fn quantized_vectors(random: &mut Random) -> Vec<Row> {
    let vectors: &[usize] = if full() {
        &[1, 2, 3, 4, 5, 6, 7, 8]
    } else {
        &[1, 3, 8]
    };
    let mut rows = vec![quantize("quantize_q8_1", F32, random)];
    for kind in [BF16, F16, F32] {
        rows.push(quantize(
            &format!("mmvq_gguf_quantize_q8_1_{}", kind.word()),
            kind,
            random,
        ));
    }
    for (word, format) in ALL {
        for &vectors in vectors {
            // Kernels of several columns read rows in pairs.
            let count = if vectors == 1 { 3 } else { 4 };
            let blocks = format.random(count * LENGTH, random);
            let (activations, values) = random_q8_1(vectors * LENGTH, random);
            let expected = format.product(&blocks, count, &values, LENGTH);
            let grid = if vectors == 1 {
                count
            } else {
                count.div_ceil(2)
            };
            let warps = if vectors <= 4 { 4 } else { 2 };
            let row = |name: String, kind: Type| {
                Row::new(name)
                    .grid([grid, 1, 1])
                    .block([32, warps, 1])
                    .bytes(&blocks)
                    .bytes(&activations)
                    .output(product(kind, expected.clone()))
            };
            rows.push(
                row(format!("mul_mat_vec_{word}_q8_1_cuda{vectors}"), F32)
                    .ints(&[LENGTH, count, LENGTH, count]),
            );
            for kind in [BF16, F16, F32] {
                let word = word.to_lowercase();
                rows.push(
                    row(
                        format!("mmvq_gguf_{word}_{}_plain_cuda{vectors}", kind.word()),
                        kind,
                    )
                    .ints(&[LENGTH, count, LENGTH / 32, count]),
                );
            }
        }
    }
    rows
}

/// Launches of products of blocks with matrices in Q8_1: tiles that are not full in either direction.
pub fn matrices(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (word, format) in ALL {
        let (across, down) = match word {
            "q4_0" | "q4_1" | "q2_K" | "q4_K" | "q5_K" => (64, 128),
            "q3_K" => (128, 128),
            "q6_K" => (64, 64),
            _ => (128, 64),
        };
        let (count, columns) = (down + 3, 5);
        let blocks = format.random(count * LENGTH, random);
        let (activations, values) = random_q8_1(columns * LENGTH, random);
        let expected = format.product(&blocks, count, &values, LENGTH);
        rows.push(
            Row::new(format!("mul_mat_{word}"))
                .grid([count.div_ceil(down), columns.div_ceil(across), 1])
                .block([32, 4, 1])
                .bytes(&blocks)
                .bytes(&activations)
                .output(product(F32, expected))
                .ints(&[LENGTH, count, columns, LENGTH, count]),
        );
    }
    rows
}

/// Launches of products of experts that ids choose.
pub fn indexed_experts(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let (experts, count, batch, top) = (3, 4, 2, 2);
    for (word, format) in ALL
        .into_iter()
        .filter(|(_, f)| large(f))
        .chain([("q8_0", &Q8_0)])
    {
        let blocks = format.random(experts * count * LENGTH, random);
        // One input for all experts of a batch, or one for each.
        for inputs in [1, top] {
            let (activations, values) = random_q8_1(batch * inputs * LENGTH, random);
            let ids: Vec<usize> = (0..batch * top).map(|i| (i + 2) % experts).collect();
            let bytes = blocks.len() / experts;
            let expected = ids.iter().enumerate().flat_map(|(task, &expert)| {
                let input = if inputs == 1 { task / top } else { task };
                let vector = &values[input * LENGTH..(input + 1) * LENGTH];
                format.product(
                    &blocks[expert * bytes..(expert + 1) * bytes],
                    count,
                    vector,
                    LENGTH,
                )
            });
            let word = word.to_lowercase();
            let name = match word.as_str() {
                "q8_0" => "indexed_moe_forward_q8_0_q8_1".to_owned(),
                word => format!("indexed_moe_forward_{}_q8_1", word.replace('_', "")),
            };
            let row = Row::new(name)
                .grid([count, batch, top])
                .block([32, 4, 1])
                .bytes(&blocks)
                .bytes(&activations)
                .input(&Data::whole(U32, ids.iter().copied()))
                .output(product(F32, expected.collect()))
                .ints(&[count, LENGTH, batch, top, LENGTH, inputs]);
            rows.push(match word.as_str() {
                "q8_0" => row.known(
                    "indexed_moe_forward counts blocks of 256 for Q8_0 too: wrong for all experts but the first",
                ),
                _ => row,
            });
        }
    }
    rows
}
