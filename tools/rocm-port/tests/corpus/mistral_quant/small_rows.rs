//! Launches of rotary.cu, gemv.cu and bitsandbytes/dequant.cu.

use super::KINDS;
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// rotary.cu: heads wider than what is rotated, rows of queries apart.
pub fn rotary(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let (tokens, heads, kv_heads, width, half) = (3, 4, 2, 20, 8);
    let (q_stride, k_stride) = (heads * width + 6, kv_heads * width);
    for (kind, name, tolerance) in KINDS {
        let name = if kind == F16 { "half" } else { name };
        for halves in [true, false] {
            let q = Data::random(kind, tokens * q_stride, -1., 1., random);
            let k = Data::random(kind, tokens * k_stride, -1., 1., random);
            let cos = Data::random(kind, tokens * half, -1., 1., random);
            let sin = Data::random(kind, tokens * half, -1., 1., random);
            let (c, s) = (cos.values(), sin.values());
            let turned = |data: &Data, stride: usize, heads: usize| {
                let mut x = data.values();
                for token in 0..tokens {
                    for head in 0..heads {
                        let at = token * stride + head * width;
                        for i in 0..half {
                            let (a, b) = if halves {
                                (at + i, at + half + i)
                            } else {
                                (at + 2 * i, at + 2 * i + 1)
                            };
                            let (c, s) = (c[token * half + i], s[token * half + i]);
                            (x[a], x[b]) = (x[a] * c - x[b] * s, x[b] * c + x[a] * s);
                        }
                    }
                }
                Output::exact(kind, x)
                    .within(2. * tolerance, tolerance)
                    .over(data.clone())
            };
            rows.push(
                Row::new("vllm::rotary_embedding_kernel")
                    .template(&[name, if halves { "true" } else { "false" }])
                    .grid([tokens, 1, 1])
                    .block([heads * half, 1, 1])
                    .output(turned(&q, q_stride, heads))
                    .output(turned(&k, k_stride, kv_heads))
                    .input(&cos)
                    .input(&sin)
                    .ints(&[half])
                    .scalar(I64, q_stride as f64)
                    .scalar(I64, k_stride as f64)
                    .ints(&[heads, kv_heads, width])
                    .about(if halves { "halves" } else { "pairs" }),
            );
        }
    }
    rows
}

/// gemv.cu: blocks of one warp and of several, with and without bias, one input or several.
pub fn gemv(random: &mut Random) -> Vec<Row> {
    let mut shapes = vec![(32, 1, 62, false), (64, 3, 120, true), (256, 8, 700, false)];
    if std::env::var_os("FULL").is_some() {
        shapes.extend(
            [32usize, 64, 128, 256]
                .into_iter()
                .flat_map(|block| (1..=8).map(move |batch| (block, batch, 130, true))),
        );
    }
    // An odd width leaves one over, and rows that pairs cannot be loaded from: only f32 has one that starts anywhere.
    let pairs = ["float2", "half2", "__nv_bfloat162"];
    let mut rows = Vec::new();
    for ((kind, name, tolerance), pair) in KINDS.into_iter().zip(pairs) {
        for &(block, batch, k, biased) in &shapes {
            let m = 5;
            let a = Data::random(kind, m * k, -1., 1., random);
            let x = Data::random(kind, batch * k, -1., 1., random);
            let bias = Data::random(kind, m, -1., 1., random);
            let (weights, xs, bs) = (a.values(), x.values(), bias.values());
            let expected: Vec<f64> = (0..batch * m)
                .map(|at| {
                    let sum: f64 = (0..k)
                        .map(|i| weights[at % m * k + i] * xs[at / m * k + i])
                        .sum();
                    sum + if biased { bs[at % m] } else { 0. }
                })
                .collect();
            let row = Row::new("gemv_kernel_batched")
                .template(&[name, pair, &block.to_string(), &batch.to_string()])
                .grid([m, 1, 1])
                .block([block, 1, 1])
                .input(&a)
                .input(&x);
            let row = if biased {
                row.input(&bias).about("bias")
            } else {
                row.null()
            };
            rows.push(
                row.output(Output::exact(kind, expected).within(10. * tolerance, tolerance))
                    .ints(&[m, k])
                    .scalar(U8, f64::from(u8::from(biased))),
            );
        }
    }
    rows
}

/// Values of bitsandbytes' 4-bit floats, and of those with evenly filled levels of a normal distribution.
const FP4: [f64; 8] = [
    0.,
    5.208333333e-03,
    0.66666667,
    1.,
    0.33333333,
    0.5,
    0.16666667,
    0.25,
];
const NF4: [f64; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

const READS_ON: &str =
    "threads beyond the last number read a scale that is not there: absmax is read without a check";

/// bitsandbytes/dequant.cu: whole tiles, and a part of one.
pub fn bitsandbytes(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, _) in KINDS {
        for (format, count) in [
            (0, 1024),
            (1, 2048),
            (2, 2048),
            (0, 777),
            (1, 1500),
            (2, 90),
        ] {
            let row = bitsandbytes_row(kind, name, format, count, random);
            rows.push(if count % 1024 == 0 {
                row
            } else {
                row.known(READS_ON)
            });
        }
    }
    rows
}

fn bitsandbytes_row(
    kind: Type,
    name: &str,
    format: usize,
    count: usize,
    random: &mut Random,
) -> Row {
    // Numbers that share a scale.
    let block = 64usize;
    let code = Data::random(F32, 256, -1., 1., random);
    let scales = Data::random(F32, count.div_ceil(block), 0.1, 2., random);
    let packed = random.bytes(if format == 0 {
        count
    } else {
        count.div_ceil(2)
    });
    let (levels, s) = (code.values(), scales.values());
    let expected = (0..count).map(|i| {
        // Of two in a byte, the first is in the upper half.
        let bits = if format == 0 {
            packed[i]
        } else {
            packed[i / 2] >> (4 * (1 - i % 2)) & 15
        } as usize;
        let level = match format {
            0 => levels[bits],
            1 => F32.rounded(FP4[bits % 8]) * if bits >= 8 { -1. } else { 1. },
            _ => F32.rounded(NF4[bits]),
        };
        F32.rounded(level * s[i / block])
    });
    let expected: Vec<f64> = expected.collect();
    let tile = if format == 0 { 512 } else { 1024 };
    let row = Row::new("kDequantizeBlockwise")
        .template(&[name, "512", "64", "8", &format.to_string()])
        .grid([count.div_ceil(tile), 1, 1])
        .block([64, 1, 1])
        .input(&code)
        .bytes(&packed)
        .input(&scales)
        .output(Output::exact(kind, expected))
        .ints(&[if format == 0 { block } else { block / 2 }, count]);
    row.about(format!("format {format}, {count} numbers"))
}
