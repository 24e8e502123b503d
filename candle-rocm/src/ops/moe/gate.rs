//! What mixtures whose experts have biases do beside the products with their matrices.

use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::ops::check::Op;
use crate::ops::operand::Operand;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::moe::{ExpertGate, ExpertSum};

kernels! {
    /// Gates of all slots, with the biases of their experts.
    gate_slots = "moe_gate_{dtype}" [dtype: DType = FLOATS] in Family::MoeGate
        => (gates: Ptr, ups: Ptr, gate_biases: Ptr, up_biases: Ptr, ids: Ptr, out: Ptr, by: ExpertGate);

    /// Weighted sums over the slots of each token.
    sum_slots = "moe_sum_{dtype}" [dtype: DType = FLOATS] in Family::MoeGate
        => (slots: Ptr, biases: Ptr, ids: Ptr, weights: Ptr, out: Ptr, sizes: ExpertSum);
}

/// The gate of gpt-oss's experts: `(up + 1) gate sigmoid(alpha gate)`, with `gate` at most `limit` and `up` from
/// `-limit` to `limit`. (<https://github.com/openai/gpt-oss>, `swiglu`.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedGate {
    /// Factor of the sigmoid's argument.
    pub alpha: f32,
    /// What gates and what they multiply are clamped to.
    pub limit: f32,
}

/// What each slot's expert makes of the products with its two first matrices, `gates` and `ups`
/// `[tokens, topk, hidden]` of one dtype (f16, bf16 or f32): their biases, `[experts, hidden]` each and of that dtype,
/// are added, then comes the gate. `ids` is u32, `[tokens, topk]`; slots of no expert give zeros. The result lies as
/// `gates` does, without gaps.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView),
/// [`Error::TooLarge`](crate::Error::TooLarge).
pub fn gate_experts(
    device: &Device,
    [gates, ups]: [&View; 2],
    [gate_biases, up_biases]: [&View; 2],
    ids: &View,
    gate: ClampedGate,
) -> Result<Buffer> {
    const OP: Op = Op("moe-gate");
    OP.float(gates.dtype, false)?;
    if gates.dims != ups.dims {
        return Err(OP.mismatch(gates, ups));
    }
    for view in [ups, gate_biases, up_biases] {
        OP.same_dtype(gates, view)?;
    }
    let (slots, columns) = slots(OP, gates, ids)?;
    let experts = experts(OP, gates, gate_biases, columns)?;
    if up_biases.dims != gate_biases.dims {
        return Err(OP.mismatch(gate_biases, up_biases));
    }
    let all = [gates, ups, gate_biases, up_biases, ids];
    for view in all {
        view.check(OP.0)?;
    }
    let [gates, ups, gate_biases, up_biases, ids] =
        all.map(|view| Operand::contiguous(device, view));
    let (gates, ups, ids) = (gates?, ups?, ids?);
    let (gate_biases, up_biases) = (gate_biases?, up_biases?);
    let dtype = gates.view().dtype;
    let out = device.alloc((slots * columns).saturating_mul(dtype.size_in_bytes()))?;
    if out.is_empty() {
        return Ok(out);
    }
    let steps = steps(OP, slots, columns, dtype)?;
    let by = ExpertGate {
        slots: slots as u32,
        columns: columns as u32,
        experts,
        alpha: gate.alpha,
        limit: gate.limit,
    };
    // SAFETY: the operands are dense and as large as the sizes say, and the result has room for all slots.
    unsafe {
        gate_slots::of(dtype)?.launch(
            device,
            LaunchConfig::for_elements(steps),
            gates.ptr(),
            ups.ptr(),
            gate_biases.ptr(),
            up_biases.ptr(),
            ids.ptr(),
            Ptr::to(&out),
            by,
        )?;
    }
    Ok(out)
}

/// What the experts of each token give together: `slots`, `[tokens, topk, width]` of f16, bf16 or f32, with the
/// experts' `biases`, `[experts, width]` of the same dtype, if they have any, times `weights`, f32 `[tokens, topk]`,
/// added up in f32. `ids` is u32, `[tokens, topk]`, of `experts` experts; slots of none count nothing. Gives
/// `[tokens, width]` of the slots' dtype.
///
/// # Errors
/// Those of [`gate_experts`].
pub fn sum_experts(
    device: &Device,
    slots: &View,
    biases: Option<&View>,
    (ids, experts): (&View, usize),
    weights: &View,
) -> Result<Buffer> {
    const OP: Op = Op("moe-sum");
    OP.float(slots.dtype, false)?;
    let (count, columns) = self::slots(OP, slots, ids)?;
    if let Some(biases) = biases {
        OP.same_dtype(slots, biases)?;
        if *biases.dims != [experts, columns] {
            return Err(OP.mismatch(slots, biases));
        }
        biases.check(OP.0)?;
    }
    OP.has_dtype(weights, DType::F32)?;
    if weights.dims != ids.dims {
        return Err(OP.mismatch(ids, weights));
    }
    for view in [slots, ids, weights] {
        view.check(OP.0)?;
    }
    let (tokens, used) = (ids.dims[0], ids.dims[1]);
    let dtype = slots.dtype;
    let out = device.alloc((tokens * columns).saturating_mul(dtype.size_in_bytes()))?;
    if out.is_empty() {
        return Ok(out);
    }
    OP.narrow("number of slots", count, u32::MAX)?;
    let steps = steps(OP, tokens, columns, dtype)?;
    let [slots, ids, weights] = [slots, ids, weights].map(|view| Operand::contiguous(device, view));
    let (slots, ids, weights) = (slots?, ids?, weights?);
    let biases = biases.map(|view| Operand::contiguous(device, view));
    let biases = biases.transpose()?;
    let sizes = ExpertSum {
        tokens: tokens as u32,
        used: used as u32,
        columns: columns as u32,
        experts: OP.narrow("number of experts", experts, u32::MAX)?,
    };
    // SAFETY: the operands are dense and as large as the sizes say, and the result has room for all tokens.
    unsafe {
        sum_slots::of(dtype)?.launch(
            device,
            LaunchConfig::for_elements(steps),
            slots.ptr(),
            biases.as_ref().map_or(Ptr::NULL, Operand::ptr),
            ids.ptr(),
            weights.ptr(),
            Ptr::to(&out),
            sizes,
        )?;
    }
    Ok(out)
}

/// How many slots there are, and the columns of each.
fn slots(op: Op, x: &View, ids: &View) -> Result<(usize, usize)> {
    op.has_dtype(ids, DType::U32)?;
    match (x.dims, ids.dims) {
        (&[tokens, used, columns], &[of, each]) if (tokens, used) == (of, each) => {
            Ok((tokens * used, columns))
        }
        _ => Err(op.mismatch(x, ids)),
    }
}

/// How many experts have biases of so many columns.
fn experts(op: Op, x: &View, biases: &View, columns: usize) -> Result<u32> {
    match *biases.dims {
        [experts, width] if width == columns => op.narrow("number of experts", experts, u32::MAX),
        _ => Err(op.mismatch(x, biases)),
    }
}

/// Packs of 16 bytes in all rows.
fn steps(op: Op, rows: usize, columns: usize, dtype: DType) -> Result<usize> {
    let steps = rows.saturating_mul(columns.div_ceil(16 / dtype.size_in_bytes()));
    op.narrow("number of elements", steps, u32::MAX)?;
    Ok(steps)
}
