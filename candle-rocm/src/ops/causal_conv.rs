//! Causal depthwise convolution along sequences with states.

use super::check::Op;
use super::sequences::{row_stride, slots, Sequences};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::causal_conv::{
    CausalConv as Layout, CONV_BLOCK, CONV_ROWS, MAX_KERNEL,
};

kernels! {
    /// Convolves all sequences and writes their states; gates and bias may be null.
    convolve = "causal_conv_{dtype}" [dtype: DType = FLOATS] in Family::CausalConv, part dtype
        => (x: Ptr, before: Ptr, after: Ptr, weight: Ptr, bias: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr,
            out: Ptr, layout: Layout);
}

const OP: Op = Op("causal-conv");

/// What is convolved with what: `out[r, c] = after[r, c] f(bias[c] + sum of weight[k, c] (before x)[r - K + 1 + k, c])`,
/// f being SiLU or nothing. All rows are `[rows, channels]` of one dtype (f16, bf16, f32), whose elements lie without
/// gaps; computed in f32 and rounded once.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv<'a> {
    /// The input.
    pub x: View<'a>,
    /// Multiplies the input first.
    pub before: Option<View<'a>>,
    /// Multiplies the output last.
    pub after: Option<View<'a>>,
    /// f32, `[kernel, channels]` without gaps, the factors of the oldest row first; the kernel has 2 to 8.
    pub weight: View<'a>,
    /// f32, `[channels]`.
    pub bias: Option<View<'a>>,
    /// Whether SiLU follows the sum.
    pub silu: bool,
}

/// Convolves each of `sequences` as if rows went before its first: those of its state, the oldest first. `states` is
/// f32, `[slots, kernel - 1, channels]` without gaps; the states that are asked for are written there, in place. Gives
/// `[rows, channels]`. One launch, whose size depends on shapes and [`Sequences::longest`] alone.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView),
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a kernel of another size and for gaps,
/// [`Error::TooLarge`](crate::Error::TooLarge) for 2^32 rows, channels or tasks of the GPU.
pub fn causal_conv(
    device: &Device,
    conv: &CausalConv,
    states: &View,
    sequences: &Sequences,
) -> Result<Buffer> {
    let CausalConv {
        x,
        before,
        after,
        weight,
        bias,
        silu,
    } = conv;
    OP.float(x.dtype, false)?;
    let (&[rows, channels], &[kernel, _]) = (x.dims, weight.dims) else {
        return Err(OP.mismatch(x, weight));
    };
    if !(2..=MAX_KERNEL as usize).contains(&kernel) {
        return Err(OP.invalid(format!(
            "a kernel of {kernel}; 2 to {MAX_KERNEL} are possible"
        )));
    }
    let factors = |factors: &View, dims: &[usize]| {
        OP.has_dtype(factors, DType::F32)?;
        factors.check(OP.0)?;
        match factors.dims == dims && factors.is_contiguous() {
            true => Ok(()),
            false => Err(OP.mismatch(factors, x)),
        }
    };
    factors(weight, &[kernel, channels])?;
    if let Some(bias) = bias {
        factors(bias, &[channels])?;
    }
    let gate_stride = |gate: &Option<View>| -> Result<u64> {
        let Some(gate) = gate else { return Ok(0) };
        OP.same_dtype(gate, x)?;
        match gate.dims == x.dims {
            true => row_stride(OP, gate),
            false => Err(OP.mismatch(gate, x)),
        }
    };
    let tiles = sequences.longest.div_ceil(CONV_ROWS as usize);
    let groups = channels.div_ceil(CONV_BLOCK as usize);
    let layout = Layout {
        x_stride: row_stride(OP, x)?,
        before_stride: gate_stride(before)?,
        after_stride: gate_stride(after)?,
        rows: OP.narrow("number of rows", rows, u32::MAX)?,
        channels: OP.narrow("number of channels", channels, u32::MAX)?,
        sequences: sequences.check(OP, rows)?,
        slots: slots(OP, states, &[kernel - 1, channels])?,
        kernel: kernel as u32,
        tiles: OP.narrow("number of rows", tiles, u32::MAX)?,
        groups: groups as u32,
        silu: (*silu).into(),
    };
    let tasks = (layout.sequences as usize)
        .saturating_mul(tiles)
        .saturating_mul(groups);
    let tasks = OP.narrow("number of tasks", tasks, u32::MAX)?;
    let out = device.alloc(rows * channels * x.dtype.size_in_bytes())?;
    let config = LaunchConfig {
        grid: tasks.min(LaunchConfig::MAX_GRID),
        block: CONV_BLOCK,
        shared_bytes: 0,
    };
    // SAFETY: the views were checked to lie in their buffers and to fit together; the kernel uses no row beyond `rows`
    // and no slot beyond `slots`.
    unsafe {
        convolve::of(x.dtype)?.launch(
            device,
            config,
            Ptr::of(x),
            Ptr::of_optional(before.as_ref()),
            Ptr::of_optional(after.as_ref()),
            Ptr::of(weight),
            Ptr::of_optional(bias.as_ref()),
            Ptr::of(states),
            Ptr::of(&sequences.starts),
            Ptr::of(&sequences.from),
            Ptr::of(&sequences.to),
            Ptr::to(&out),
            layout,
        )?;
    }
    Ok(out)
}
