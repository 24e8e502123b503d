//! Vectors of floats times the matrices of experts that are 8-bit floats.

use super::sorted::{sort, OP};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::ops::quantized::floats::{pass, rows_at_once, Packed, Tiling};
use crate::ops::quantized::{Epilogue, QuantizedMatrix};
use crate::{Buffer, DType, Device, Error, Family, Result, View};
use candle_rocm_kernels::shared::f8::Vectors;
use candle_rocm_kernels::shared::quantized::{Matvec, Slots};

kernels! {
    /// Slots one by one.
    multiply_slots = "moe_matvec_f8_e4m3_{dtype}" [dtype: DType = FLOATS] in Family::MoeF8, part dtype
        => (m: Matvec, slots: Slots, x: Vectors, y: Ptr, error: Ptr);
}

/// Whether slots one by one are right for vectors of a dtype.
pub(super) fn works(device: &Device, dtype: DType) -> Result<bool> {
    multiply_slots::of(dtype)?.works(device)
}

/// Verifies that there are kernels for the vectors, and that all is on this device.
pub(super) fn check(device: &Device, weights: &Buffer, x: &View) -> Result<()> {
    if !FLOATS.contains(&x.dtype) {
        return Err(Error::UnsupportedDType {
            op: OP.0,
            dtype: x.dtype,
        });
    }
    match [weights, x.buffer]
        .iter()
        .all(|b| b.device().same_device(device))
    {
        true => Ok(()),
        false => Err(Error::DeviceMismatch { op: OP.0 }),
    }
}

/// Each slot by itself: `one` is the first expert's matrix, `y` has room for all slots.
pub(super) fn slot_by_slot(
    device: &Device,
    (one, row_bytes): (&QuantizedMatrix, usize),
    x: &View,
    routing: &Slots,
    y: &Buffer,
) -> Result<()> {
    let groups = one.rows.div_ceil(rows_at_once(1));
    let (matrix, config) = pass(device, one, row_bytes, 1, (groups, routing.slots as usize));
    let packed = Packed::new(device, x, one.cols)?;
    let (y, error) = (Ptr::to(y), device.error_word());
    let kernel = multiply_slots::of(x.dtype)?;
    // SAFETY: there is a matrix for each expert, a vector for each slot, and room for its result.
    unsafe {
        kernel.launch(
            device,
            config,
            matrix,
            *routing,
            packed.raw,
            y,
            Ptr::to(&error),
        )
    }
}

/// All slots in tiles, sorted by expert; those without one are left out.
pub(super) fn sorted(
    device: &Device,
    (one, row_bytes): (&QuantizedMatrix, usize),
    x: &View,
    routing: &Slots,
    y: &Buffer,
) -> Result<()> {
    let slots = routing.slots as usize;
    let tiling = Tiling::of(x.dtype, slots / routing.experts as usize);
    let sorted = sort(device, routing, tiling.columns)?;
    let output = Epilogue::default().raw(OP.0, device, y, DType::F32, (slots, one.rows))?;
    let packed = Packed::new(device, x, one.cols)?;
    tiling.launch(
        device,
        (one, row_bytes),
        (&packed, x.dtype),
        (sorted.most, sorted.experts(routing)),
        &output,
    )
}
