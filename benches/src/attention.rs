//! Attention: one row to many keys, and causal over a whole prompt.

use crate::measure::{Bench, Work};
use candle_rocm::ops::attention::kv_cache::{write_packed, Tokens};
use candle_rocm::ops::attention::packed::{Format, Half, PackedCache};
use candle_rocm::ops::attention::{attention, Attention, Lengths, Window};
use candle_rocm::{contiguous_strides, DType, Result, View};

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
    for format in Format::ALL {
        // Those that turn by default do.
        let turns = !matches!(
            format,
            Format::F16 | Format::Bf16 | Format::Q8_0 | Format::F8
        );
        for keys in LENGTHS.map(|length| bench.size(length)) {
            decode_packed(bench, format, turns, keys)?;
        }
    }
    for keys in LENGTHS.map(|length| bench.size(length)) {
        for rows in [1, keys] {
            with_sinks(bench, rows, keys)?;
        }
    }
    Ok(())
}

/// A new token of one sequence, whose keys and values are in a packed cache.
fn decode_packed(bench: &Bench, format: Format, turns: bool, keys: usize) -> Result<()> {
    const BLOCK: usize = 16;
    let blocks = keys.div_ceil(BLOCK);
    let dims = [blocks, BLOCK, KV_HEADS, HEAD_SIZE];
    let half = || Half::new(bench.device, format, dims, turns);
    let (k, v) = (half()?, half()?);
    let cache = PackedCache::new(&k, &v);
    let numbers = |numbers: Vec<u32>| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        bench.device.upload(&bytes)
    };
    let slots = numbers((0..keys as u32).collect())?;
    let given = bench.random(DType::F16, &[keys, KV_HEADS, HEAD_SIZE])?;
    let count = [keys];
    let tokens = Tokens {
        q: None,
        k: given.view(),
        v: given.view(),
        slots: View::contiguous(&slots, DType::U32, &count, &[1]),
    };
    write_packed(bench.device, &cache, &tokens, None)?;
    let table = numbers((0..blocks as u32).collect())?;
    let cu_rows = numbers(vec![0, 1])?;
    let cu_keys = numbers(vec![0, keys as u32])?;
    let (starts, table_dims) = ([2], [1, blocks]);
    let table_strides = contiguous_strides(&table_dims);
    let q = bench.random(DType::F16, &[1, HEADS, HEAD_SIZE])?;
    let scale = (HEAD_SIZE as f32).sqrt().recip();
    let problem = Attention {
        packed: Some(cache),
        window: Window::CAUSAL,
        lengths: Lengths::Paged {
            cu_rows: View::contiguous(&cu_rows, DType::U32, &starts, &[1]),
            cu_keys: View::contiguous(&cu_keys, DType::U32, &starts, &[1]),
            max_rows: 1,
            max_keys: keys,
            blocks: View::contiguous(&table, DType::U32, &table_dims, &table_strides),
        },
        ..Attention::new(q.view(), k.view(), v.view(), scale)
    };
    let bytes: usize = [k.blocks(), v.blocks()]
        .concat()
        .iter()
        .map(|(buffer, _)| buffer.len())
        .sum();
    let work = Work::Bytes(bytes as f64);
    bench.time(format_args!("decode cache {format:?}"), keys, work, |_| {
        attention(bench.device, &problem).map(drop)
    });
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
