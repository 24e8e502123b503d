//! Quantized matrices in every format: as floats, as tables of embeddings, in products, and as experts of a mixture.

use crate::{tensor, widen, Arrangement, Context, Report, Suite};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("quantized", quantized_tensors),
    Suite::listed("mixtures", mixtures),
];

/// Every format of candle's but Q8_1, from which its CPU has no way back.
const FORMATS: [GgmlDType; 28] = {
    use GgmlDType::*;
    [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Q8K, IQ1S, IQ1M,
        IQ2XXS, IQ2XS, IQ2S, IQ3XXS, IQ3S, IQ4NL, IQ4XS, TQ1_0, TQ2_0, MXFP4, NVFP4, F8E4M3,
    ]
};

fn quantized_tensors(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for format in FORMATS {
        let label = format!("{format:?}").to_lowercase();
        for &(n, k) in context.first(1, &[(3, 256), (7, 512)]) {
            let weights = || {
                tensor(
                    &Device::Cpu,
                    DType::F32,
                    &[n, k],
                    Arrangement::Contiguous,
                    61,
                    (-1., 1.),
                )
            };
            let on_cpu = || weights().and_then(|w| QTensor::quantize(&w, format));
            let on_rocm = || weights().and_then(|w| QTensor::quantize_onto(&w, format, &rocm));
            let got = on_rocm().and_then(|q| q.dequantize(&rocm));
            let want = on_cpu().and_then(|q| q.dequantize(&Device::Cpu));
            report.compare("dequantize", &label, &format!("{n}x{k}"), 1e-12, got, want);
            let ids = |d: &Device| Tensor::new(&[2u32, 0, 1, 2], d);
            let got = on_rocm().and_then(|q| q.embedding(&ids(&rocm)?));
            let want = on_cpu().and_then(|q| {
                q.dequantize(&Device::Cpu)?
                    .index_select(&ids(&Device::Cpu)?, 0)
            });
            report.compare(
                "quantized embedding",
                &label,
                &format!("{n}x{k}"),
                1e-12,
                got,
                want,
            );
            for &rows in context.first(3, &[1usize, 9, 40, 2, 3, 8, 17]) {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    // candle turns plain formats into an f32 tensor, which multiplies with f32 only.
                    if format.block_size() == 1 && dtype != DType::F32 {
                        continue;
                    }
                    let x = |d: &Device| {
                        tensor(d, dtype, &[rows, k], Arrangement::Contiguous, 62, (-1., 1.))
                    };
                    let got = on_rocm().and_then(|q| QMatMul::from_qtensor(q)?.forward(&x(&rocm)?));
                    let want = on_cpu().and_then(|q| {
                        let w = q.dequantize(&Device::Cpu)?.to_dtype(DType::F64)?;
                        widen(&x(&Device::Cpu)?)?.matmul(&w.t()?)?.to_dtype(dtype)
                    });
                    report.compare(
                        "quantized matmul",
                        &label,
                        &format!("{n}x{k} {rows} {dtype:?}"),
                        5e-4,
                        got,
                        want,
                    );
                }
            }
        }
    }
    Ok(())
}

/// Experts of a mixture, few slots one by one and many sorted by expert, with ids that leave an expert out and prefer
/// another.
fn mixtures(context: &Context, report: &mut Report) -> Result<()> {
    const EXPERTS: usize = 4;
    const TOPK: usize = 2;
    let rocm = context.device.clone();
    for format in FORMATS {
        let label = format!("{format:?}").to_lowercase();
        let cases = [(3, TOPK, 5, 256), (45, 1, 35, 256), (3, 1, 5, 512)];
        for &(tokens, inputs, n, k) in context.first(2, &cases) {
            let weights = || {
                let shape = [EXPERTS, n, k];
                let arrangement = Arrangement::Contiguous;
                tensor(&Device::Cpu, DType::F32, &shape, arrangement, 63, (-1., 1.))
            };
            let ids = |d: &Device| {
                let id = |slot: usize| if slot % 5 < 2 { 3u32 } else { slot as u32 % 3 };
                let ids: Vec<u32> = (0..tokens * TOPK).map(id).collect();
                Tensor::from_vec(ids, (tokens, TOPK), d)
            };
            for &dtype in context.first(1, &[DType::F32, DType::F16]) {
                let x = |d: &Device| {
                    let shape = [tokens, inputs, k];
                    tensor(d, dtype, &shape, Arrangement::Contiguous, 64, (-1., 1.))
                };
                let got = weights()
                    .and_then(|w| QTensor::quantize_onto(&w, format, &rocm))
                    .and_then(|q| q.indexed_moe_forward(&x(&rocm)?, &ids(&rocm)?));
                let want = weights()
                    .and_then(|w| QTensor::quantize(&w, format))
                    .and_then(|q| slot_by_slot(&q, &x(&Device::Cpu)?, &ids(&Device::Cpu)?));
                let what = format!("{tokens} tokens {inputs} inputs {n}x{k} {dtype:?}");
                report.compare("indexed_moe", &label, &what, 5e-4, got, want);
            }
        }
    }
    Ok(())
}

/// Each token's vector times the matrices of its experts, in f64: `[tokens, topk, n]`.
fn slot_by_slot(weights: &QTensor, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (tokens, topk) = ids.dims2()?;
    let (_, n, k) = weights.shape().dims3()?;
    let chosen = widen(&weights.dequantize(&Device::Cpu)?)?.index_select(&ids.flatten_all()?, 0)?;
    let x = widen(x)?.broadcast_as((tokens, topk, k))?.contiguous()?;
    chosen
        .matmul(&x.reshape((tokens * topk, k, 1))?)?
        .reshape((tokens, topk, n))?
        .to_dtype(DType::F32)
}
