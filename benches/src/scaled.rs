//! Products of 8-bit floats with scales of tensors, rows and blocks.

use crate::measure::{Bench, Random, Tensor, Work};
use candle_rocm::ops::scaled::{scaled_matmul, Scales, BLOCK};
use candle_rocm::{DType, Result};

/// Rows and K of weights.
const WEIGHTS: [(usize, usize); 2] = [(4096, 4096), (14336, 4096)];
/// A step of few sequences, of many, and prompts.
const ROWS: [usize; 4] = [1, 16, 512, 4096];

pub fn run(bench: &Bench) -> Result<()> {
    for (n, k) in WEIGHTS {
        let (n, k) = (bench.size(n), bench.size(k));
        let b = floats(bench, &[n, k])?;
        for m in ROWS {
            let a = floats(bench, &[m, k])?;
            let blocks = |rows: usize| bench.random(DType::F32, &[rows, k.div_ceil(BLOCK)]);
            let rows = |rows: usize| bench.random(DType::F32, &[rows]);
            let kinds = [
                ("tensor", rows(1)?, rows(1)?),
                ("rows", rows(m)?, rows(n)?),
                ("blocks", blocks(m)?, blocks(n.div_ceil(BLOCK))?),
            ];
            let work = match m {
                1 => Work::Bytes((n * k) as f64),
                _ => Work::Flops(2.0 * (m * n * k) as f64),
            };
            for (kind, of_a, of_b) in &kinds {
                let (of_a, of_b) = (of_a.view(), of_b.view());
                let (of_a, of_b) = match *kind {
                    "tensor" => (Scales::Tensor(of_a), Scales::Tensor(of_b)),
                    "rows" => (Scales::Rows(of_a), Scales::Rows(of_b)),
                    _ => (Scales::Blocks(of_a), Scales::Blocks(of_b)),
                };
                let size = format_args!("{m}x{n}x{k}");
                bench.time(format_args!("scaled {kind}"), size, work, |_| {
                    let (a, b) = (a.view(), b.view());
                    scaled_matmul(bench.device, &a, &b, &of_a, &of_b, None, DType::BF16).map(drop)
                });
            }
        }
    }
    Ok(())
}

/// 8-bit floats below 2: without the two highest bits of a byte.
fn floats(bench: &Bench, dims: &[usize]) -> Result<Tensor> {
    let mut random = Random(7);
    let count: usize = dims.iter().product();
    let bytes: Vec<u8> = (0..count.div_ceil(8))
        .flat_map(|_| (random.next() & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes())
        .collect();
    let buffer = bench.device.upload(&bytes[..count])?;
    Ok(Tensor::new(buffer, DType::F8E4M3, dims))
}
