//! Attention: one row to many keys, and causal over a whole prompt.

use crate::measure::{Bench, Work};
use candle_rocm::ops::attention::{attention, Attention, Window};
use candle_rocm::{DType, Result};

const LENGTHS: [usize; 3] = [1024, 4096, 16384];
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_SIZE: usize = 128;

pub fn run(bench: &Bench) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for keys in LENGTHS.map(|length| bench.size(length)) {
            let bytes = 2 * keys * KV_HEADS * HEAD_SIZE * dtype.size_in_bytes();
            time(bench, "decode", dtype, 1, keys, Work::Bytes(bytes as f64))?;
            // Half of the scores are visible; each is a product, and so is its use.
            let flops = 2.0 * (keys * keys * HEADS * HEAD_SIZE) as f64;
            time(bench, "causal", dtype, keys, keys, Work::Flops(flops))?;
        }
    }
    for keys in LENGTHS.map(|length| bench.size(length)) {
        for rows in [1, keys] {
            with_sinks(bench, rows, keys)?;
        }
    }
    Ok(())
}

/// Heads as gpt-oss has them, with sinks.
fn with_sinks(bench: &Bench, rows: usize, keys: usize) -> Result<()> {
    const HEADS: usize = 64;
    const HEAD_SIZE: usize = 64;
    let dtype = DType::BF16;
    let q = bench.random(dtype, &[1, rows, HEADS, HEAD_SIZE])?;
    let k = bench.random(dtype, &[1, keys, KV_HEADS, HEAD_SIZE])?;
    let v = bench.random(dtype, &[1, keys, KV_HEADS, HEAD_SIZE])?;
    let sinks = bench.random(DType::F32, &[HEADS])?;
    let (name, work) = match rows {
        1 => {
            let bytes = 2 * keys * KV_HEADS * HEAD_SIZE * dtype.size_in_bytes();
            ("decode", Work::Bytes(bytes as f64))
        }
        _ => {
            let flops = 2.0 * (keys * keys * HEADS * HEAD_SIZE) as f64;
            ("causal", Work::Flops(flops))
        }
    };
    bench.time(format_args!("{name} sinks {dtype}"), keys, work, |_| {
        let problem = Attention {
            window: Window::CAUSAL,
            sinks: Some(sinks.view()),
            ..Attention::new(q.view(), k.view(), v.view(), 0.125)
        };
        attention(bench.device, &problem).map(drop)
    });
    Ok(())
}

fn time(
    bench: &Bench,
    name: &str,
    dtype: DType,
    rows: usize,
    keys: usize,
    work: Work,
) -> Result<()> {
    let q = bench.random(dtype, &[1, rows, HEADS, HEAD_SIZE])?;
    let k = bench.random(dtype, &[1, keys, KV_HEADS, HEAD_SIZE])?;
    let v = bench.random(dtype, &[1, keys, KV_HEADS, HEAD_SIZE])?;
    bench.time(format_args!("{name} {dtype}"), keys, work, |_| {
        let scale = (HEAD_SIZE as f32).sqrt().recip();
        let mut problem = Attention::new(q.view(), k.view(), v.view(), scale);
        problem.window = Window::CAUSAL;
        attention(bench.device, &problem).map(drop)
    });
    Ok(())
}
