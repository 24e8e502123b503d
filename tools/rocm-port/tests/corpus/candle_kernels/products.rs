//! mmq_gguf: products of blocks with matrices, by tiles, as they are for GPUs before tensor cores (`__CUDA_ARCH__` 610).

use crate::data::{Data, Type::*};
use crate::ggml::{Format, ALL};
use crate::random::Random;
use crate::rows::{Output, Row};
use crate::run::full;
use half::f16;

/// How scales and sums of a block of 128 activations are stored.
#[derive(Clone, Copy, PartialEq)]
enum Scales {
    /// Four f32 scales.
    D4,
    /// Four pairs of f16: scale and sum.
    DS4,
    /// Two f16 scales, and the sums of six groups of 16.
    D2S6,
}

/// How a format takes activations, and 4-byte words that a tile of 64 rows takes in shared memory.
fn layout(word: &str) -> (Scales, usize) {
    match word {
        "q4_0" | "q4_1" => (Scales::DS4, 2112 + 528),
        "q5_1" => (Scales::DS4, 4160 + 528),
        "q5_0" | "q8_0" => (Scales::D4, 4160 + 528),
        "q2_K" => (Scales::D2S6, 4160 + 2112),
        "q3_K" => (Scales::D4, 4160 + 64 + 264),
        "q4_K" => (Scales::DS4, 2112 + 64 + 264),
        "q5_K" => (Scales::DS4, 4160 + 66 + 264),
        _ => (Scales::D4, 4160 + 66 + 264),
    }
}

/// Activations of `columns` columns: blocks of 128, those of a column not one after the other but those of all columns;
/// with their values, column after column. `extra` blocks follow, which tiles read and do not use: candle adds as many as the widest tile has columns.
fn activations(
    scales: Scales,
    length: usize,
    columns: usize,
    extra: usize,
    random: &mut Random,
) -> (Vec<u8>, Vec<f64>) {
    let mut blocks = Vec::new();
    let mut values = vec![0.; length * columns];
    for chunk in 0..length / 128 {
        for column in 0..columns {
            let quants: Vec<i8> = (0..128)
                .map(|_| (random.below(121) as i32 - 60) as i8)
                .collect();
            let of_64: Vec<f64> = (0..2)
                .map(|_| 0.5f64.powi(random.below(3) as i32 + 5))
                .collect();
            let of_32: Vec<f64> = (0..4)
                .map(|i| {
                    if scales == Scales::D2S6 {
                        of_64[i / 2]
                    } else {
                        0.5f64.powi(random.below(3) as i32 + 5)
                    }
                })
                .collect();
            let of = |i: usize| f64::from(quants[i]) * of_32[i / 32];
            let sum = |from: usize, count: usize| (from..from + count).map(of).sum::<f64>();
            let half = |value: f64| f16::from_f64(value).to_le_bytes();
            match scales {
                Scales::D4 => blocks.extend(of_32.iter().flat_map(|&s| (s as f32).to_le_bytes())),
                Scales::DS4 => {
                    blocks.extend(
                        (0..4).flat_map(|i| [half(of_32[i]), half(sum(i * 32, 32))].concat()),
                    );
                }
                Scales::D2S6 => {
                    blocks.extend(of_64.iter().flat_map(|&s| half(s)));
                    blocks.extend((0..6).flat_map(|i| half(sum(i * 16, 16))));
                }
            }
            blocks.extend(quants.iter().map(|&q| q as u8));
            for i in 0..128 {
                values[column * length + chunk * 128 + i] = of(i);
            }
        }
    }
    blocks.extend(vec![0; extra * 144]);
    (blocks, values)
}

/// The name of a format in template arguments.
fn template(word: &str) -> String {
    format!("GGML_TYPE_{}", word.replace("_k", "_K").to_uppercase())
}

/// Launches of one format's file: the narrowest tiles, or all.
pub fn all(word: &str, random: &mut Random) -> Vec<Row> {
    match full() {
        true => instance(word, &[8, 16, 24, 32, 40, 48, 56, 64], random),
        false => instance(word, &[8], random),
    }
}

/// Launches of the kernels of one format's file: widths of tiles, and rows that fill them or do not.
fn instance(word: &str, widths: &[usize], random: &mut Random) -> Vec<Row> {
    let format: &Format = ALL
        .iter()
        .find(|(name, _)| *name == word)
        .expect("a format")
        .1;
    let kind = template(word);
    let length = 512;
    let mut rows = Vec::new();
    for &width in widths {
        for (ragged, count) in [(false, 64), (true, 64), (true, 70)] {
            // Columns that do not fill the second tile; a product is the same for any of them.
            let columns = width + 3;
            let (scales, words) = layout(word);
            let blocks = format.random(count * length, random);
            let (activations, values) = activations(scales, length, columns, 128, random);
            let expected = format.product(&blocks, count, &values, length);
            // The sums of 16 activations, which minima are multiplied with, are f16.
            let error = if scales == Scales::D2S6 { 1e-2 } else { 3e-3 };
            let shared = width * 4 + words * 4 + (width * 144).next_multiple_of(1024);
            let stride = length / format.elements;
            let row = Row::new("mul_mat_q")
                .template(&[&kind, &width.to_string(), &ragged.to_string()])
                .grid([count.div_ceil(64), columns.div_ceil(width), 1])
                .block([32, 8, 1])
                .shared(shared)
                .bytes(&blocks)
                .bytes(&activations)
                .null()
                .null()
                .output(Output::exact(F32, expected).within(error, 2e-5))
                .null()
                .ints(&[length, count, columns, stride, columns, count])
                .ints(&[1, 1, 0, 0, 0])
                .ints(&[1, 1, 0, 0, 0])
                .ints(&[columns])
                .about(format!("tiles of {width}"));
            rows.push(match count % 64 {
                0 => row,
                _ => row.known(
                    "rows that a tile lacks are read unwritten from shared memory, and not used",
                ),
            });
            if ragged && count == 64 {
                continue;
            }

            // The second of two blocks adds what the first left of the tile that they share.
            let count = if ragged { 61 } else { 64 };
            let columns = width - 1;
            let before = Data::random(F32, count * columns, -1., 1., random);
            let part = Data::random(F32, 64 * width * 2, -1., 1., random);
            let (mut expected, parts) = (before.values(), part.values());
            for column in 0..columns {
                for row in 0..count {
                    expected[column * count + row] += parts[column * 64 + row];
                }
            }
            rows.push(
                Row::new("mul_mat_q_stream_k_fixup")
                    .template(&[&kind, &width.to_string(), &ragged.to_string()])
                    .grid([2, 1, 1])
                    .block([32, 8, 1])
                    .null()
                    .null()
                    .output(
                        Output::near(F32, expected, 1.)
                            .within(1e-7, 1e-7)
                            .over(before),
                    )
                    .input(&part)
                    .ints(&[length, count, columns])
                    .size(count)
                    .ints(&[1])
                    .size(0)
                    .ints(&[1])
                    .size(0)
                    .ints(&[columns])
                    .about(format!("tiles of {width}")),
            );
        }
    }
    rows
}

/// Launches of mmq_quantize.cu: a matrix of two rows, and rows that ids pick.
pub fn quantize(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let (length, padded, lines) = (400, 512, 3);
    for (layout, name) in [
        (Scales::D4, "MMQ_Q8_1_DS_LAYOUT_D4"),
        (Scales::DS4, "MMQ_Q8_1_DS_LAYOUT_DS4"),
        (Scales::D2S6, "MMQ_Q8_1_DS_LAYOUT_D2S6"),
    ] {
        for ids in [None, Some([2, 0, 1])] {
            // Eighths: sums are exact. No group is all zeros, whose scale is a division by zero, but those behind the
            // row's end, whose sum and quants are.
            let data = Data::new(
                F32,
                (0..lines * length).map(|_| random.below(127) as f64 / 8. - 8.),
            );
            let values = data.values();
            let mut blocks = vec![0u8; padded / 128 * lines * 144];
            for line in 0..lines {
                let from = ids.map_or(line, |ids: [usize; 3]| ids[line]);
                for chunk in 0..padded / 128 {
                    let of = |i: usize| match chunk * 128 + i {
                        at if at < length => values[from * length + at] as f32,
                        _ => 0.,
                    };
                    let block = &mut blocks[(chunk * lines + line) * 144..][..144];
                    let group = if layout == Scales::D2S6 { 64 } else { 32 };
                    for start in (0..128).step_by(group) {
                        let largest = (start..start + group).fold(0f32, |a, i| a.max(of(i).abs()));
                        let inverse = 127. / largest;
                        let scale = 1. / inverse;
                        for i in start..start + group {
                            let quant = if largest == 0. {
                                0
                            } else {
                                (of(i) * inverse).round() as i8
                            };
                            block[16 + i] = quant as u8;
                        }
                        let sum: f32 = (start..start + 32).map(of).sum();
                        match layout {
                            Scales::D4 => {
                                block[start / 8..start / 8 + 4]
                                    .copy_from_slice(&scale.to_le_bytes());
                            }
                            Scales::DS4 => {
                                let at = start / 8;
                                block[at..at + 2]
                                    .copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                                block[at + 2..at + 4]
                                    .copy_from_slice(&f16::from_f32(sum).to_le_bytes());
                            }
                            Scales::D2S6 => {
                                let at = start / 32;
                                block[at..at + 2]
                                    .copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                            }
                        }
                    }
                    if layout == Scales::D2S6 {
                        for group in 0..6 {
                            let sum: f32 = (group * 16..group * 16 + 16).map(of).sum();
                            let at = 4 + group * 2;
                            block[at..at + 2].copy_from_slice(&f16::from_f32(sum).to_le_bytes());
                        }
                    }
                }
            }
            let row = Row::new("quantize_mmq_q8_1")
                .template(&[name])
                .grid([lines, padded.div_ceil(512), 1])
                .block([128, 1, 1])
                .input(&data);
            let row = match ids {
                Some(ids) => row.input(&Data::whole(I32, ids)),
                None => row.null(),
            };
            let row = row.output(Output::exact(U8, blocks.into_iter().map(f64::from)));
            let row = [length, length, 0, 0, padded]
                .iter()
                .fold(row, |row, &n| row.scalar(I64, n as f64));
            rows.push(row.ints(&[lines, 1]));
        }
    }
    rows
}
