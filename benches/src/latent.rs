//! Attention of all heads to one latent vector of each token at the sizes of DeepSeek-V3, the choice of its keys, and
//! that of experts.

use crate::measure::{Bench, Work};
use candle_rocm::ops::attention::latent::{attend, choose, Keys};
use candle_rocm::ops::moe::{route, Route, Scores};
use candle_rocm::{contiguous_strides, Buffer, DType, Result, View};

const LENGTHS: [usize; 3] = [1024, 4096, 16384];
const SEQUENCES: [usize; 2] = [1, 8];
const HEADS: usize = 128;
const TURNING: usize = 64;
const SIZE: usize = TURNING + 512;
const BLOCK: usize = 16;
/// The indexer's, and the keys that it chooses.
const RANKERS: usize = 64;
const RANKER: usize = 128;
const MOST: usize = 2048;

const EXPERTS: usize = 256;
const ROUTE: Route = Route {
    used: 8,
    scores: Scores::Sigmoid,
    groups: (8, 4),
    best_of_group: 2,
    normalised: Some(1e-20),
    scale: 2.5,
};

pub fn run(bench: &Bench) -> Result<()> {
    for sequences in SEQUENCES {
        for keys in LENGTHS.map(|length| bench.size(length)) {
            decode(bench, sequences, keys)?;
        }
    }
    for tokens in [1, 8, 512] {
        let logits = bench.random(DType::F32, &[tokens, EXPERTS])?;
        let bias = bench.random(DType::F32, &[EXPERTS])?;
        bench.time("route", tokens, Work::Calls, |_| {
            route(bench.device, &logits.view(), Some(&bias.view()), &ROUTE).map(drop)
        });
    }
    Ok(())
}

fn numbers(bench: &Bench, numbers: impl Iterator<Item = usize>) -> Result<Buffer> {
    let bytes: Vec<u8> = numbers.flat_map(|n| (n as u32).to_le_bytes()).collect();
    bench.device.upload(&bytes)
}

/// A new token of each sequence.
fn decode(bench: &Bench, sequences: usize, length: usize) -> Result<()> {
    let row = length / BLOCK;
    let blocks = sequences * row;
    let table = numbers(bench, 0..blocks)?;
    let cu_rows = numbers(bench, 0..=sequences)?;
    let cu_keys = numbers(bench, (0..=sequences).map(|s| s * length))?;
    let (starts, table_dims) = ([sequences + 1], [sequences, row]);
    let table_strides = contiguous_strides(&table_dims);
    let with = |keys| Keys {
        keys,
        scales: None,
        cu_rows: View::contiguous(&cu_rows, DType::U32, &starts, &[1]),
        cu_keys: View::contiguous(&cu_keys, DType::U32, &starts, &[1]),
        blocks: View::contiguous(&table, DType::U32, &table_dims, &table_strides),
        most: length,
    };
    let dtype = DType::F16;
    let q = bench.random(dtype, &[sequences, HEADS, SIZE])?;
    let k = bench.random(dtype, &[blocks, BLOCK, 1, SIZE])?;
    let products = sequences * length * HEADS * (2 * SIZE - TURNING);
    let work = Work::Flops(2.0 * products as f64);
    let keys = with(k.view());
    bench.time(format_args!("decode {sequences}"), length, work, |_| {
        attend(bench.device, &q.view(), &keys, TURNING, 0.1, None).map(drop)
    });
    if length <= MOST {
        return Ok(());
    }
    let q = bench.random(dtype, &[sequences, RANKERS, RANKER])?;
    let weights = bench.random(DType::F32, &[sequences, RANKERS])?;
    let k = bench.random(dtype, &[blocks, BLOCK, 1, RANKER])?;
    let work = Work::Flops(2.0 * (sequences * length * RANKERS * RANKER) as f64);
    let keys = with(k.view());
    bench.time(format_args!("choose {sequences}"), length, work, |_| {
        choose(bench.device, &q.view(), &weights.view(), &keys, MOST).map(drop)
    });
    Ok(())
}
