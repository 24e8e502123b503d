//! Vectors times the matrices of experts in any format.

use super::sorted::{self, sort, MAX_SORTED_EXPERTS, OP};
use super::{f8, rows};
use crate::kernels::{kernels, Ptr};
use crate::ops::cast::cast;
use crate::ops::copy::contiguous;
use crate::ops::quantized::floats::Tiling as Tiles;
use crate::ops::quantized::format::DeviceFormat;
use crate::ops::quantized::matmul::{self, Tiling, Work};
use crate::ops::quantized::matrix::check_u32;
use crate::ops::quantized::matvec::{self, check_product, result_bytes, units};
use crate::ops::quantized::select::{matvec_threads, MOE_MATVEC_SLOTS};
use crate::ops::quantized::{
    dequantize, Epilogue, Format, Path, QuantizedActivations, QuantizedMatrix, INTEGERS,
};
use crate::{
    contiguous_strides, Buffer, DType, Device, Error, Family, IndexOp, LaunchConfig, Result, View,
};
use candle_rocm_kernels::shared::quantized::{Activations, Matvec, Slots};

kernels! {
    /// Slots one by one.
    multiply_slots = "moe_matvec_{format}" [format: Format = INTEGERS] in Family::MoeQuantized, part format
        => (m: Matvec, slots: Slots, x: Activations, y: Ptr, error: Ptr);
}

/// Each token's vector times the matrices of its experts: `weights` holds `experts` matrices of `n` by `k`, `x` is
/// `[tokens, topk or 1, k]` (f32, f16 or bf16; with 1, a token's experts share its vector), `ids` is `[tokens, topk]`
/// of u32. Gives f32 `[tokens, topk, n]`.
///
/// An id of `u32::MAX` names no expert and gives zeros. Any other id out of range does the same, and the next call that
/// waits for the device fails with [`Error::IndexOutOfRange`]. `CANDLE_ROCM_QMATMUL` forces `matvec` or `matmul` for
/// formats that have both.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::UnsupportedDType`], [`Error::InvalidArgument`], [`Error::OutOfBounds`],
/// [`Error::TooLarge`].
pub fn indexed_moe(
    device: &Device,
    format: Format,
    weights: &Buffer,
    (experts, n, k): (usize, usize, usize),
    x: &View,
    ids: &View,
) -> Result<Buffer> {
    x.check(OP.0)?;
    ids.check(OP.0)?;
    if ids.dtype != DType::U32 {
        return Err(Error::UnsupportedDType {
            op: OP.0,
            dtype: ids.dtype,
        });
    }
    let (&[tokens, inputs, len], &[id_rows, topk]) = (x.dims, ids.dims) else {
        return Err(OP.mismatch(x, ids));
    };
    if tokens != id_rows || len != k || !(inputs == topk || inputs == 1) {
        return Err(OP.mismatch(x, ids));
    }
    let rows = experts.checked_mul(n).ok_or(Error::TooLarge {
        op: OP.0,
        what: "rows of all experts",
        value: usize::MAX,
        limit: u32::MAX as usize,
    })?;
    let all = QuantizedMatrix::new(format, weights, rows, k);
    let row_bytes = all.check(OP.0)?;
    let slots = tokens * topk;
    check_u32(OP.0, "tokens times experts of each", slots)?;
    let bytes = result_bytes(OP.0, (slots, n), DType::F32)?;
    if bytes == 0 {
        return device.alloc(0);
    }
    if experts == 0 {
        return Err(Error::InvalidArgument {
            op: OP.0,
            reason: "there are no experts to choose from".into(),
        });
    }
    if let Some(dtype) = format.plain() {
        return plain_moe(device, dtype, weights, (experts, n, k), x, ids);
    }
    if !format.has_integers() {
        f8::check(device, weights, x)?;
    }
    let ways = Ways::of(device, (format, x.dtype), slots, experts)?;
    if ways == Ways::Floats {
        // Scales of 8-bit floats are f32, and may be larger than f16 holds.
        let to = match format.has_integers() {
            true => DType::F16,
            false => DType::F32,
        };
        let floats = dequantize(device, format, weights, 0, rows * k, to)?;
        return plain_moe(device, to, &floats, (experts, n, k), x, ids);
    }
    let sorted = ways == Ways::Sorted;
    // Slots without an expert are in no tile, and stay zero.
    let y = match sorted {
        true => device.alloc_zeroed(bytes)?,
        false => device.alloc(bytes)?,
    };
    let chosen = contiguous(device, ids)?;
    let routing = Slots {
        experts_of: chosen.as_ptr().cast_const().cast(),
        op: IndexOp::IndexedMoe as u32,
        slots: slots as u32,
        experts: experts as u32,
        slots_per_column: if inputs == 1 { topk as u32 } else { 1 },
        matrix_bytes: (n * row_bytes) as u64,
    };
    let one = QuantizedMatrix { rows: n, ..all };
    if !format.has_integers() {
        let multiply = match sorted {
            true => f8::sorted,
            false => f8::slot_by_slot,
        };
        multiply(device, (&one, row_bytes), x, &routing, &y)?;
        return Ok(y);
    }
    let quantized = QuantizedActivations::quantize(device, x)?;
    check_product(OP.0, device, &all, &quantized)?;
    if sorted {
        sorted_moe(device, &one, row_bytes, &quantized, &routing, &y)?;
    } else {
        slot_by_slot(device, &one, row_bytes, &quantized, &routing, &y)?;
    }
    Ok(y)
}

/// How slots meet their experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ways {
    /// Each by itself.
    OneByOne,
    /// Sorted by expert, for the tiled kernel.
    Sorted,
    /// As floats, where the kernels of both are switched off.
    Floats,
}

impl Ways {
    fn of(
        device: &Device,
        (format, dtype): (Format, DType),
        slots: usize,
        experts: usize,
    ) -> Result<Self> {
        let floats = !format.has_integers();
        let possible = experts <= MAX_SORTED_EXPERTS;
        match device.config().quantized {
            Some(Path::Matvec) => return Ok(Ways::OneByOne),
            Some(Path::Matmul) if possible => return Ok(Ways::Sorted),
            Some(Path::Matmul) => {
                return Err(Error::InvalidArgument {
                    op: OP.0,
                    reason: format!(
                        "{} forces matmul, which sorts at most {MAX_SORTED_EXPERTS} experts, not {experts}; set it to auto",
                        Path::VARIABLE
                    ),
                })
            }
            // Which matrices to dequantize is known on the device only.
            Some(Path::Few | Path::Halves | Path::Float8 | Path::Dequantize | Path::Bf16)
            | None => {}
        }
        let sorts = || -> Result<bool> {
            Ok(possible
                && sorted::works(device)?
                && match floats {
                    true => Tiles::of(dtype, slots / experts).works(device, dtype)?,
                    false => matmul::works(device, format, slots / experts)?,
                })
        };
        let one_by_one = || match floats {
            true => f8::works(device, dtype),
            false => multiply_slots::of(format)?.works(device),
        };
        let many = possible && slots > MOE_MATVEC_SLOTS;
        Ok(if many && sorts()? {
            Ways::Sorted
        } else if one_by_one()? {
            Ways::OneByOne
        } else if !many && sorts()? {
            Ways::Sorted
        } else {
            Ways::Floats
        })
    }
}

/// Experts of plain numbers.
fn plain_moe(
    device: &Device,
    dtype: DType,
    weights: &Buffer,
    (experts, n, k): (usize, usize, usize),
    x: &View,
    ids: &View,
) -> Result<Buffer> {
    let (dims, strides) = ([experts, n, k], [n * k, k, 1]);
    let weights = View::contiguous(weights, dtype, &dims, &strides);
    let run = |x: &View| {
        rows::slot_by_slot(
            device,
            IndexOp::IndexedMoe,
            x,
            &weights,
            (experts, n, k),
            ids,
        )
    };
    match x.dtype {
        DType::F32 => run(x),
        DType::F16 | DType::BF16 => {
            let floats = cast(device, x, DType::F32)?;
            let strides = contiguous_strides(x.dims);
            run(&View::contiguous(&floats, DType::F32, x.dims, &strides))
        }
        dtype => Err(Error::UnsupportedDType { op: OP.0, dtype }),
    }
}

fn slot_by_slot(
    device: &Device,
    one: &QuantizedMatrix,
    row_bytes: usize,
    x: &QuantizedActivations,
    routing: &Slots,
    y: &Buffer,
) -> Result<()> {
    let pairs = one.rows.div_ceil(2);
    let all = pairs.saturating_mul(routing.slots as usize);
    let units = units(one.format, one.cols);
    let (block, lanes) = matvec_threads(device, one.format, 1, all, units);
    let blocks = pairs.div_ceil((block / lanes) as usize);
    let grid = blocks.saturating_mul(routing.slots as usize);
    let config = LaunchConfig {
        grid: grid.min(LaunchConfig::MAX_GRID as usize) as u32,
        block,
        shared_bytes: 0,
    };
    let matrix = matvec::raw(one, row_bytes, lanes);
    let (y, error) = (Ptr::to(y), device.error_word());
    let kernel = multiply_slots::of(one.format)?;
    // SAFETY: there is a matrix for each expert, a vector for each slot, and room for its result.
    unsafe {
        kernel.launch(
            device,
            config,
            matrix,
            *routing,
            x.raw(),
            y,
            Ptr::to(&error),
        )
    }
}

fn sorted_moe(
    device: &Device,
    one: &QuantizedMatrix,
    row_bytes: usize,
    x: &QuantizedActivations,
    routing: &Slots,
    y: &Buffer,
) -> Result<()> {
    let (slots, experts) = (routing.slots as usize, routing.experts as usize);
    let tiling = Tiling::of(device, slots / experts);
    let sorted = sort(device, routing, tiling.columns)?;
    let output = Epilogue::default().raw(OP.0, device, y, DType::F32, (slots, one.rows))?;
    let work = Work {
        tiling,
        column_tiles: sorted.most,
        experts: sorted.experts(routing),
    };
    work.launch(device, one, row_bytes, x, &output)
}
