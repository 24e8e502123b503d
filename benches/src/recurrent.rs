//! The gated delta rule and the causal convolution before it, at the sizes of Qwen3-Next's successors: a token of some
//! sequences, and prompts.

use crate::measure::{Bench, Tensor, Work};
use candle_rocm::ops::causal_conv::{causal_conv, CausalConv};
use candle_rocm::ops::delta_rule::{delta_rule, DeltaRule};
use candle_rocm::ops::Sequences;
use candle_rocm::{DType, Result};

const HEADS: usize = 32;
const SIZE: usize = 128;
const CHANNELS: usize = 8192;
const KERNEL: usize = 4;
/// Slot of states that are not kept.
const NOWHERE: u32 = u32::MAX;

pub fn run(bench: &Bench) -> Result<()> {
    for sequences in [1, 8, 32] {
        delta(bench, sequences, 1)?;
        convolve(bench, sequences, 1)?;
    }
    for tokens in [64, 512, 1024, 4096] {
        delta(bench, 1, bench.size(tokens))?;
        convolve(bench, 1, bench.size(tokens))?;
    }
    Ok(())
}

/// Tensors of numbers of sequences with `tokens` rows each, whose last state is kept in its slot.
struct Numbers {
    starts: Tensor,
    from: Tensor,
    to: Tensor,
}

impl Numbers {
    fn new(bench: &Bench, sequences: usize, tokens: usize) -> Result<Self> {
        let tensor = |numbers: Vec<u32>| -> Result<Tensor> {
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            Ok(Tensor::new(
                bench.device.upload(&bytes)?,
                DType::U32,
                &[numbers.len()],
            ))
        };
        let (count, rows) = (sequences as u32, tokens as u32);
        Ok(Numbers {
            starts: tensor((0..=count).map(|s| s * rows).collect())?,
            from: tensor((0..count).collect())?,
            to: tensor(
                (0..count * rows)
                    .map(|row| match (row + 1) % rows {
                        0 => row / rows,
                        _ => NOWHERE,
                    })
                    .collect(),
            )?,
        })
    }

    fn sequences(&self, longest: usize) -> Sequences<'_> {
        Sequences {
            starts: self.starts.view(),
            from: self.from.view(),
            to: self.to.view(),
            longest,
        }
    }
}

fn size(sequences: usize, tokens: usize) -> String {
    format!("{sequences}x{tokens}")
}

fn delta(bench: &Bench, sequences: usize, tokens: usize) -> Result<()> {
    let rows = sequences * tokens;
    let dtype = DType::F32;
    let of = || bench.random(dtype, &[rows, HEADS, SIZE]);
    let (q, k, v) = (of()?, of()?, of()?);
    let gate = || bench.random(dtype, &[rows, HEADS]);
    let (a, b) = (gate()?, gate()?);
    // States that grew would become infinite.
    let rates: Vec<u8> = [-0.5f32; HEADS]
        .iter()
        .flat_map(|r| r.to_le_bytes())
        .collect();
    let rate = Tensor::new(bench.device.upload(&rates)?, dtype, &[HEADS]);
    let bias = bench.random(dtype, &[HEADS])?;
    let states = bench.random(dtype, &[sequences, HEADS, SIZE, SIZE])?;
    let numbers = Numbers::new(bench, sequences, tokens)?;
    let rule = DeltaRule {
        q: q.view(),
        k: k.view(),
        v: v.view(),
        a: a.view(),
        b: b.view(),
        rate: rate.view(),
        bias: bias.view(),
        tiled: false,
        epsilon: 1e-6,
    };
    let state = HEADS * SIZE * SIZE;
    let work = match tokens {
        // States are read and written.
        1 => Work::Bytes((2 * sequences * state * dtype.size_in_bytes()) as f64),
        // Four products with the state: decay, what it has for the key, the update, the query.
        _ => Work::Flops((8 * rows * state) as f64),
    };
    bench.time("delta rule", size(sequences, tokens), work, |_| {
        let sequences = numbers.sequences(tokens);
        delta_rule(bench.device, &rule, &states.view(), &sequences).map(drop)
    });
    Ok(())
}

fn convolve(bench: &Bench, sequences: usize, tokens: usize) -> Result<()> {
    let rows = sequences * tokens;
    let dtype = DType::F32;
    let x = bench.random(dtype, &[rows, CHANNELS])?;
    let weight = bench.random(dtype, &[KERNEL, CHANNELS])?;
    let states = bench.random(dtype, &[sequences, KERNEL - 1, CHANNELS])?;
    let numbers = Numbers::new(bench, sequences, tokens)?;
    let conv = CausalConv {
        x: x.view(),
        before: None,
        after: None,
        weight: weight.view(),
        bias: None,
        silu: true,
    };
    // Rows are read and written, and so are states.
    let elements = 2 * CHANNELS * (rows + sequences * (KERNEL - 1));
    let work = Work::Bytes((elements * dtype.size_in_bytes()) as f64);
    bench.time("causal conv", size(sequences, tokens), work, |_| {
        let sequences = numbers.sequences(tokens);
        causal_conv(bench.device, &conv, &states.view(), &sequences).map(drop)
    });
    Ok(())
}
