//! Products with the matrices of experts.

use super::quantized::{format_of, numbers_of, product, Matrices};
use super::{split_dtype, unknown};
use crate::ops::moe::{
    gate_experts, indexed_moe, moe_gemm_with, sum_experts, ClampedGate, MoeKernel, Routing,
};
use crate::ops::quantized::{Format, QuantizedActivations};
use crate::verify::admit::Finding;
use crate::verify::bench::{difference, read, spoil_memory, tolerance, Numbers, Tensor};
use crate::{DType, DeclaredKernel, Device};

const EXPERTS: usize = 5;
/// Experts of a token.
const TOP: usize = 2;

fn experts_of(slots: usize) -> Vec<f64> {
    let mut numbers = Numbers::new(slots as u64);
    (0..slots).map(|_| numbers.below(EXPERTS) as f64).collect()
}

/// Experts in a format: few slots go one by one, many are sorted for tiles.
pub(super) fn quantized(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let (format, tokens) = match kernel.name.as_str() {
        "moe_sort" => (Format::Q8_0, 75),
        name => match format_of(name, None) {
            Some(format) => (format, 11),
            None => return unknown(kernel),
        },
    };
    let (n, k) = (37, 512);
    let weights = Matrices::new(device, format, EXPERTS * n * k)?;
    let x = Tensor::random(device, DType::F32, &[tokens, 1, k], (-1.0, 1.0))?;
    let ids = Tensor::new(
        device,
        DType::U32,
        &[tokens, TOP],
        &experts_of(tokens * TOP),
    )?;
    spoil_memory(device, tokens * TOP * n * size_of::<f32>())?;
    let sizes = (EXPERTS, n, k);
    let out = indexed_moe(
        device,
        format,
        &weights.buffer,
        sizes,
        &x.view(),
        &ids.view(),
    )?;
    let x = numbers_of(device, &QuantizedActivations::quantize(device, &x.view())?)?;
    let mut want = Vec::new();
    for (slot, expert) in ids.values.iter().enumerate() {
        let matrix = &weights.values[*expert as usize * n * k..][..n * k];
        want.extend(product(&x[slot / TOP * k..][..k], matrix, k));
    }
    let got = read(device, &out, DType::F32)?;
    Ok(difference(&got, &want, 10.0 * tolerance(DType::F32)))
}

/// Experts of floats: `moe_matvec_<dtype>`, `moe_matvec_<experts>_<rows>` and `moe_matmul_<dtype>`.
pub(super) fn rows(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let (n, k, tokens) = (77, 150, 43);
    let slots = tokens * TOP;
    let experts = experts_of(slots);
    let of_weights = split_dtype(head).map_or(dtype, |(_, of)| of);
    let w = Tensor::random(device, of_weights, &[EXPERTS, n, k], (-1.0, 1.0))?;
    spoil_memory(device, slots * n * dtype.size_in_bytes())?;
    let (x, out) = if of_weights == dtype {
        let x = Tensor::random(device, dtype, &[tokens, k], (-1.0, 1.0))?;
        let mut order: Vec<usize> = (0..slots).collect();
        order.sort_by_key(|slot| experts[*slot] as usize);
        let sorted: Vec<f64> = order.iter().map(|slot| experts[*slot]).collect();
        let order: Vec<f64> = order.iter().map(|slot| *slot as f64).collect();
        let order = Tensor::new(device, DType::U32, &[slots], &order)?;
        let sorted = Tensor::new(device, DType::U32, &[slots], &sorted)?;
        let routing = Routing {
            slots: &order.view(),
            experts: &sorted.view(),
            scale: None,
        };
        let which = match head.contains("matmul") {
            true => MoeKernel::Matmul,
            false => MoeKernel::Matvec,
        };
        let out = moe_gemm_with(device, which, &x.view(), &w.view(), routing)?;
        (x, out)
    } else {
        let format = match of_weights {
            DType::F16 => Format::F16,
            _ => Format::BF16,
        };
        let x = Tensor::random(device, dtype, &[tokens, 1, k], (-1.0, 1.0))?;
        let ids = Tensor::new(device, DType::U32, &[tokens, TOP], &experts)?;
        let sizes = (EXPERTS, n, k);
        let out = indexed_moe(device, format, w.buffer(), sizes, &x.view(), &ids.view())?;
        (x, out)
    };
    let mut want = Vec::new();
    for (slot, expert) in experts.iter().enumerate() {
        let matrix = &w.values[*expert as usize * n * k..][..n * k];
        want.extend(product(&x.values[slot / TOP * k..][..k], matrix, k));
    }
    let got = read(device, &out, dtype)?;
    Ok(difference(&got, &want, tolerance(dtype)))
}

/// Gates of experts with biases, and sums over a token's experts: `moe_gate_<dtype>` and `moe_sum_<dtype>`.
pub(super) fn gates(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let (tokens, columns) = (9, 77);
    let slots = tokens * TOP;
    let experts = experts_of(slots);
    let ids = Tensor::new(device, DType::U32, &[tokens, TOP], &experts)?;
    let random = |dims: &[usize]| Tensor::random(device, dtype, dims, (-2.0, 2.0));
    let bias_of = |biases: &Tensor, slot: usize, c: usize| {
        biases.values[experts[slot] as usize * columns + c]
    };
    let x = random(&[tokens, TOP, columns])?;
    let biases = random(&[EXPERTS, columns])?;
    spoil_memory(device, slots * columns * dtype.size_in_bytes())?;
    let (out, want): (_, Vec<f64>) = if head == "moe_gate" {
        let (ups, up_biases) = (
            random(&[tokens, TOP, columns])?,
            random(&[EXPERTS, columns])?,
        );
        let gate = ClampedGate {
            alpha: 1.5,
            limit: 1.25,
        };
        let out = gate_experts(
            device,
            [&x.view(), &ups.view()],
            [&biases.view(), &up_biases.view()],
            &ids.view(),
            gate,
        )?;
        let one = |i: usize| {
            let (slot, c) = (i / columns, i % columns);
            let g = (x.values[i] + bias_of(&biases, slot, c)).min(1.25);
            let u = (ups.values[i] + bias_of(&up_biases, slot, c)).clamp(-1.25, 1.25);
            (u + 1.0) * g / (1.0 + (-1.5 * g).exp())
        };
        (out, (0..slots * columns).map(one).collect())
    } else {
        let weights = Tensor::random(device, DType::F32, &[tokens, TOP], (0.0, 1.0))?;
        let out = sum_experts(
            device,
            &x.view(),
            Some(&biases.view()),
            (&ids.view(), EXPERTS),
            &weights.view(),
        )?;
        let one = |i: usize| {
            let (token, c) = (i / columns, i % columns);
            let of = |slot: usize| {
                weights.values[slot] * (x.values[slot * columns + c] + bias_of(&biases, slot, c))
            };
            (token * TOP..(token + 1) * TOP).map(of).sum()
        };
        (out, (0..tokens * columns).map(one).collect())
    };
    let got = read(device, &out, dtype)?;
    Ok(difference(&got, &want, tolerance(dtype)))
}
