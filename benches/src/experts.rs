//! A mixture of experts as gpt-oss's smaller model has it: matrices in MXFP4, biases and a clamped gate, of one token
//! and of a prompt.

use crate::measure::{Bench, Random, Work};
use candle_rocm::ops::moe::{gate_experts, indexed_moe, sum_experts, ClampedGate};
use candle_rocm::ops::quantized::Format;
use candle_rocm::{Buffer, DType, Result, View};

const EXPERTS: usize = 32;
/// Experts of a token.
const USED: usize = 4;
const WIDTH: usize = 2880;
const GATE: ClampedGate = ClampedGate {
    alpha: 1.702,
    limit: 7.0,
};

pub fn run(bench: &Bench) -> Result<()> {
    let device = bench.device;
    let format = Format::MXFP4;
    let matrix = WIDTH * WIDTH / format.block_size() * format.type_size();
    let mut random = Random(5);
    let mut weights = || -> Result<Buffer> {
        // Exponents below 64 are tiny numbers, and finite.
        let bytes: Vec<u8> = (0..(EXPERTS * matrix).div_ceil(8))
            .flat_map(|_| (random.next() & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes())
            .collect();
        let buffer = device.alloc(EXPERTS * matrix)?;
        device.upload_into(&bytes[..EXPERTS * matrix], &buffer, 0)?;
        Ok(buffer)
    };
    let [gate, up, down] = [weights()?, weights()?, weights()?];
    let biases = bench.random(DType::F32, &[EXPERTS, WIDTH])?;
    for tokens in [1, bench.size(512)] {
        let x = bench.random(DType::F32, &[tokens, 1, WIDTH])?;
        let ids = bench.indices(&[tokens, USED], EXPERTS)?;
        let shares = bench.random(DType::F32, &[tokens, USED])?;
        let dims = [tokens, USED, WIDTH];
        let strides = [USED * WIDTH, WIDTH, 1];
        let product = |of: &Buffer, x: &View| {
            let sizes = (EXPERTS, WIDTH, WIDTH);
            indexed_moe(device, format, of, sizes, x, &ids.view())
        };
        let work = match tokens {
            1 => Work::Bytes((3 * USED * matrix) as f64),
            _ => Work::Flops(2.0 * (3 * tokens * USED * WIDTH * WIDTH) as f64),
        };
        bench.time("experts mxfp4", tokens, work, |_| {
            let (open, ups) = (product(&gate, &x.view())?, product(&up, &x.view())?);
            let both = [
                &slots(&open, &dims, &strides),
                &slots(&ups, &dims, &strides),
            ];
            let bias = biases.view();
            let hidden = gate_experts(device, both, [&bias, &bias], &ids.view(), GATE)?;
            let out = product(&down, &slots(&hidden, &dims, &strides))?;
            let ids = (&ids.view(), EXPERTS);
            sum_experts(
                device,
                &slots(&out, &dims, &strides),
                Some(&bias),
                ids,
                &shares.view(),
            )
            .map(drop)
        });
        let hidden = bench.random(DType::F32, &dims)?;
        let elements = (3 * tokens * USED * WIDTH * DType::F32.size_in_bytes()) as f64;
        bench.time("gate of experts", tokens, Work::Bytes(elements), |_| {
            let (both, bias) = ([&hidden.view(), &hidden.view()], biases.view());
            gate_experts(device, both, [&bias, &bias], &ids.view(), GATE).map(drop)
        });
    }
    Ok(())
}

/// What products gave, of tokens and their experts.
fn slots<'a>(buffer: &'a Buffer, dims: &'a [usize], strides: &'a [usize]) -> View<'a> {
    View::contiguous(buffer, DType::F32, dims, strides)
}
