//! Launches of scalar_fp8.cu, vector_fp8.cu, blockwise_fp8.cu and blockwise_fp8_gemm.cu: 8-bit floats (e4m3).

use super::KINDS;
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// As the kernels narrow: in f32 within the largest, over binary16.
fn narrowed(value: f64) -> f64 {
    F16.rounded(F32.rounded(value).clamp(-448., 448.))
}

/// The scale of numbers, and what they become with it; all arithmetic is in f32.
fn quantized(values: &[f64]) -> (f64, Vec<f64>) {
    let largest = values.iter().fold(0f64, |max, x| max.max(x.abs())) as f32;
    let scale = f64::from((largest / 448.).max(1e-12));
    (scale, values.iter().map(|x| narrowed(x / scale)).collect())
}

fn scaled(value: f64, scale: f64) -> f64 {
    F32.rounded(value * scale)
}

/// scalar_fp8.cu.
pub fn scalar(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    // Every number but NaN, and numbers of all sizes.
    let all = Data {
        kind: F8,
        bytes: (0..=255u8).filter(|b| b & 127 != 127).collect(),
    };
    let count = 700;
    for (kind, name, _) in KINDS {
        let row = |kernel: &str, count: usize| {
            Row::new(kernel)
                .template(&[name])
                .grid([count.div_ceil(256), 1, 1])
                .block([256, 1, 1])
        };
        rows.push(
            row("fp8_to_dtype_kernel", all.bytes.len())
                .input(&all)
                .output(Output::exact(kind, all.values()))
                .size(all.bytes.len()),
        );
        let numbers =
            (0..count).map(|_| random.between(-1., 1.) * 2f64.powf(random.between(-12., 10.)));
        let wide = Data::new(kind, numbers.collect::<Vec<_>>());
        rows.push(
            row("dtype_to_fp8_kernel", count)
                .input(&wide)
                .output(Output::exact(F8, wide.values().into_iter().map(narrowed)))
                .size(count),
        );
    }
    rows
}

/// vector_fp8.cu: a scale for 128 numbers.
pub fn vector(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, _) in KINDS {
        let count = 300usize;
        let vectors = count.div_ceil(128);
        let row = |kernel: &str| {
            Row::new(kernel)
                .template(&[name])
                .grid([vectors, 1, 1])
                .block([256, 1, 1])
        };
        let weights = Data::random(F8, count, -448., 448., random);
        let scales = Data::random(F32, vectors, 0.001, 0.1, random);
        let s = scales.values();
        let expected = weights
            .values()
            .into_iter()
            .enumerate()
            .map(|(i, w)| scaled(w, s[i / 128]));
        rows.push(
            row("dequant_fp8_vector_kernel")
                .input(&weights)
                .input(&scales)
                .output(Output::exact(kind, expected))
                .size(count),
        );
        let x = Data::random(kind, count, -3., 3., random);
        let (scales, weights): (Vec<f64>, Vec<Vec<f64>>) =
            x.values().chunks(128).map(quantized).unzip();
        rows.push(
            row("quant_fp8_vector_kernel")
                .input(&x)
                .output(Output::exact(F8, weights.concat()))
                .output(Output::exact(F32, scales))
                .size(count),
        );
    }
    rows
}

/// Weights in blocks: their sizes, and those of rows in memory.
#[derive(Clone, Copy)]
struct Blocks {
    height: usize,
    width: usize,
    row_stride: usize,
    scale_stride: usize,
    y: usize,
    x: usize,
}

impl Blocks {
    fn numbers(&self) -> [usize; 6] {
        [
            self.height,
            self.width,
            self.row_stride,
            self.scale_stride,
            self.y,
            self.x,
        ]
    }

    fn grid(&self) -> [usize; 3] {
        [self.width.div_ceil(self.x), self.height.div_ceil(self.y), 1]
    }

    fn scale(&self, row: usize, column: usize) -> usize {
        row / self.y * self.scale_stride + column / self.x
    }
}

/// blockwise_fp8.cu: ragged blocks, rows and rows of scales apart.
pub fn blocks(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let b = Blocks {
        height: 37,
        width: 50,
        row_stride: 53,
        scale_stride: 4,
        y: 16,
        x: 24,
    };
    for (kind, name, _) in KINDS {
        let row = |kernel: &str| {
            Row::new(kernel)
                .template(&[name])
                .grid(b.grid())
                .block([32, 32, 1])
        };
        let elements = b.height * b.row_stride;
        let inside = |at: usize| at % b.row_stride < b.width;
        let weights = Data::random(F8, elements, -448., 448., random);
        let scales = Data::random(F32, b.grid()[1] * b.scale_stride, 0.001, 0.1, random);
        let before = Data::random(kind, elements, -1., 1., random);
        let (w, s, mut after) = (weights.values(), scales.values(), before.values());
        for at in (0..elements).filter(|&at| inside(at)) {
            after[at] = scaled(w[at], s[b.scale(at / b.row_stride, at % b.row_stride)]);
        }
        rows.push(
            row("dequant_fp8_blockwise_kernel")
                .input(&weights)
                .input(&scales)
                .output(Output::exact(kind, after).over(before))
                .ints(&b.numbers()),
        );

        let x = Data::random(kind, elements, -3., 3., random);
        let (xs, mut after, mut scale_after) = (x.values(), w, s);
        for tile in 0..b.grid()[0] * b.grid()[1] {
            let (top, left) = (tile / b.grid()[0] * b.y, tile % b.grid()[0] * b.x);
            let of: Vec<usize> = (top..(top + b.y).min(b.height))
                .flat_map(|y| (left..(left + b.x).min(b.width)).map(move |x| y * b.row_stride + x))
                .collect();
            let (scale, numbers) = quantized(&of.iter().map(|&at| xs[at]).collect::<Vec<_>>());
            scale_after[b.scale(top, left)] = scale;
            of.iter()
                .zip(numbers)
                .for_each(|(&at, number)| after[at] = number);
        }
        rows.push(
            row("quant_fp8_blockwise_kernel")
                .input(&x)
                .output(Output::exact(F8, after).over(weights))
                .output(Output::exact(F32, scale_after).over(scales))
                .ints(&b.numbers()),
        );
    }
    rows
}

/// blockwise_fp8_gemm.cu.
pub fn products(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, tolerance) in [(F16, "half", 1e-3), (BF16, "__nv_bfloat16", 5e-3)] {
        rows.push(matmul(kind, name, tolerance, random));
        for repeated in [false, true] {
            rows.push(experts(kind, name, tolerance, repeated, random));
        }
    }
    rows
}

/// Scales so that products are of the order of 1.
fn scales(count: usize, random: &mut Random) -> Data {
    Data::random(F32, count, 1e-4, 1e-3, random)
}

fn matmul(kind: Type, name: &str, tolerance: f64, random: &mut Random) -> Row {
    let (m, n, k) = (5, 41, 72);
    let b = Blocks {
        height: n,
        width: k,
        row_stride: k,
        scale_stride: 4,
        y: 16,
        x: 24,
    };
    let x = Data::random(kind, m * k, -1., 1., random);
    let w = Data::random(F8, n * k, -448., 448., random);
    let s = scales(b.grid()[1] * b.scale_stride, random);
    let (xs, ws, ss) = (x.values(), w.values(), s.values());
    let expected: Vec<f64> = (0..m * n)
        .map(|at| {
            let (row, column) = (at / n, at % n);
            (0..k)
                .map(|i| xs[row * k + i] * ws[column * k + i] * ss[b.scale(column, i)])
                .sum()
        })
        .collect();
    Row::new("fp8_gemm::fp8_matmul_tiled")
        .template(&[name, "32", "32", "32"])
        .grid([n.div_ceil(32), m.div_ceil(32), 1])
        .block([32, 32, 1])
        .input(&x)
        .input(&w)
        .input(&s)
        .output(Output::exact(kind, expected).within(tolerance, tolerance))
        .ints(&[m, n, k, b.scale_stride, b.y, b.x])
}

/// Each token with the experts that it names; with `repeated` it comes once for each.
fn experts(kind: Type, name: &str, tolerance: f64, repeated: bool, random: &mut Random) -> Row {
    let (tokens, topk, experts, n, k) = (3, 2, 4, 5, 168);
    let b = Blocks {
        height: n,
        width: k,
        row_stride: k,
        scale_stride: 7,
        y: 4,
        x: 28,
    };
    let x = Data::random(
        kind,
        tokens * k * if repeated { topk } else { 1 },
        -1.,
        1.,
        random,
    );
    let w = Data::random(F8, experts * n * k, -448., 448., random);
    let size = n.div_ceil(b.y) * b.scale_stride;
    let s = scales(experts * size, random);
    let indices = Data::whole(U32, (0..tokens * topk).map(|_| random.below(experts)));
    let (xs, ws, ss, chosen) = (x.values(), w.values(), s.values(), indices.values());
    let expected: Vec<f64> = (0..tokens * topk * n)
        .map(|at| {
            let (pair, column) = (at / n, at % n);
            let (expert, row) = (
                chosen[pair] as usize,
                if repeated { pair } else { pair / topk },
            );
            let product = |i: usize| {
                xs[row * k + i]
                    * ws[(expert * n + column) * k + i]
                    * ss[expert * size + b.scale(column, i)]
            };
            (0..k).map(product).sum()
        })
        .collect();
    Row::new("fp8_gemm::fp8_moe_gemm")
        .template(&[name])
        .grid([(tokens * topk * n).div_ceil(16), 1, 1])
        .block([512, 1, 1])
        .input(&x)
        .input(&w)
        .input(&s)
        .input(&indices)
        .output(Output::exact(kind, expected).within(tolerance, tolerance))
        .ints(&[tokens, topk, experts, n, k, b.scale_stride, b.y, b.x])
        .scalar(U8, f64::from(u8::from(repeated)))
        .about(if repeated {
            "inputs for each expert"
        } else {
            ""
        })
}
