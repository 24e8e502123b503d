//! Recurrences over states: the selective scan of Mamba 1 and 2, RWKV 7's, and the gated linear recurrence of Griffin.
//!
//! Rows of several sequences lie behind each other. A sequence's state is read from a slot of the states, or begins with
//! zeros, and the state behind a row is written in place to the slot that is named for it, see [`Sequences`]. What a row gives depends on
//! its sequence alone, bit for bit. Launches depend on shapes only.

use super::check::Op;
use super::sequences::{row_stride, slots, Sequences};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::state_space::{
    GatedRecurrence, SelectiveScan, WkvScan, STATE_BLOCK, STATE_LANES, STATE_LINES, WKV_HEAD,
};

/// Elements of a channel's state that a lane has, of heads with one decay each.
const HEAD_PARTS: [u32; 5] = [1, 2, 4, 8, 16];
/// The same where each element of a state has its own decay.
const STATE_PARTS: [u32; 2] = [1, 4];

kernels! {
    /// The selective scan of heads with one decay each.
    scan_heads = "selective_scan_heads_{parts}_{dtype}" [parts: u32 = HEAD_PARTS, dtype: DType = FLOATS]
        in Family::StateSpace, part dtype
        => (x: Ptr, dt: Ptr, b: Ptr, c: Ptr, a: Ptr, d: Ptr, dt_bias: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr,
            y: Ptr, shape: SelectiveScan);

    /// The same of channels whose states' elements have their own.
    scan_states = "selective_scan_states_{parts}_{dtype}" [parts: u32 = STATE_PARTS, dtype: DType = FLOATS]
        in Family::StateSpace, part dtype
        => (x: Ptr, dt: Ptr, b: Ptr, c: Ptr, a: Ptr, d: Ptr, dt_bias: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr,
            y: Ptr, shape: SelectiveScan);

    /// RWKV 7's.
    scan_wkv7 = "wkv7_scan_{dtype}" [dtype: DType = [DType::F32]] in Family::StateSpace, part dtype
        => (r: Ptr, w: Ptr, k: Ptr, v: Ptr, a: Ptr, b: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr, y: Ptr,
            shape: WkvScan);

    /// Griffin's.
    recurrence = "gated_recurrence_{dtype}" [dtype: DType = FLOATS] in Family::StateSpace, part dtype
        => (x: Ptr, input_gate: Ptr, recurrent_gate: Ptr, rates: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr,
            y: Ptr, shape: GatedRecurrence);
}

/// Operands of [`selective_scan`]. Rows of `x`, `dt`, `b` and `c`, of one dtype (f16, bf16 or f32), may lie apart; what
/// belongs to a row has no gaps. The others are f32 without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Selective<'a> {
    /// What is scanned, `[rows, heads, head_size]`.
    pub x: View<'a>,
    /// Steps in time before their bias and softplus, `[rows, heads]`.
    pub dt: View<'a>,
    /// What brings inputs into the state, `[rows, groups, states]`.
    pub b: View<'a>,
    /// What reads the state, as `b`.
    pub c: View<'a>,
    /// The decay's rate, below zero: `[heads]` (Mamba 2), or `[heads, states]` for heads of one channel (Mamba 1).
    pub a: View<'a>,
    /// What goes around the state, `[heads]`.
    pub d: View<'a>,
    /// Added to steps, `[heads]`.
    pub dt_bias: Option<View<'a>>,
    /// Least and most step behind softplus.
    pub limits: (f32, f32),
}

/// `state = exp(dt a) state + dt x b`, `y = state . c + d x` for each channel, with `dt = clamp(softplus(dt + bias))`
/// (Mamba, arXiv 2312.00752; Mamba 2, arXiv 2405.21060): `[rows, heads, head_size]` in the dtype of `x`. States are f32
/// `[slots, heads, head_size, states]`.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView);
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for gaps within a row, numbers of channels (Mamba 2: sizes
/// of heads) that are no multiple of 4, and other states of a channel than 16, 32, 64, 128 or 256 (16 or 64 where each has
/// its own rate);
/// [`Error::TooLarge`](crate::Error::TooLarge).
pub fn selective_scan(
    device: &Device,
    scan: &Selective,
    states: &View,
    sequences: &Sequences,
) -> Result<Buffer> {
    const OP: Op = Op("selective-scan");
    OP.float(scan.x.dtype, false)?;
    let (&[rows, heads, head_size], &[_, groups, width]) = (scan.x.dims, scan.b.dims) else {
        return Err(OP.mismatch(&scan.x, &scan.b));
    };
    for (view, dims) in [
        (&scan.x, &[rows, heads, head_size][..]),
        (&scan.dt, &[rows, heads]),
        (&scan.b, &[rows, groups, width]),
        (&scan.c, &[rows, groups, width]),
    ] {
        OP.same_dtype(view, &scan.x)?;
        if view.dims != dims {
            return Err(OP.mismatch(view, &scan.x));
        }
    }
    let by_state = scan.a.dims.len() == 2;
    let rates: &[usize] = if by_state { &[heads, width] } else { &[heads] };
    whole(OP, &scan.a, DType::F32, rates)?;
    for vector in [Some(&scan.d), scan.dt_bias.as_ref()].into_iter().flatten() {
        whole(OP, vector, DType::F32, &[heads])?;
    }
    let slots = slots(OP, states, &[heads, head_size, width])?;
    let count = sequences.check(OP, rows)?;
    if groups == 0 || heads % groups != 0 {
        return Err(OP.invalid(format!("{heads} heads cannot share {groups} groups evenly")));
    }
    let lines = if by_state { heads } else { head_size };
    if by_state && head_size != 1 || !lines.is_multiple_of(STATE_LINES as usize) {
        return Err(OP.invalid(format!(
            "{heads} heads of {head_size} channels; {STATE_LINES} channels that share what is read are needed"
        )));
    }
    if by_state && !(heads / groups).is_multiple_of(STATE_LINES as usize) {
        return Err(OP.invalid(format!("groups of {} channels", heads / groups)));
    }
    let choices: &[u32] = if by_state { &STATE_PARTS } else { &HEAD_PARTS };
    let mut choices = choices.iter().copied();
    let Some(parts) = choices.find(|parts| width == (parts * STATE_LANES) as usize) else {
        return Err(OP.invalid(format!("states of {width} elements for each channel")));
    };
    let channels = heads * head_size;
    let y = device.alloc(rows.saturating_mul(channels) * scan.x.dtype.size_in_bytes())?;
    if y.is_empty() {
        return Ok(y);
    }
    let tiles = tiles(OP, channels)?;
    let shape = SelectiveScan {
        x_row: row_stride(OP, &scan.x)?,
        dt_row: row_stride(OP, &scan.dt)?,
        b_row: row_stride(OP, &scan.b)?,
        c_row: row_stride(OP, &scan.c)?,
        rows: OP.narrow("rows", rows, u32::MAX)?,
        slots,
        sequences: count,
        tiles,
        channels: OP.narrow("channels", channels, u32::MAX)?,
        head_size: OP.narrow("channels of a head", head_size, u32::MAX)?,
        heads_per_group: (heads / groups) as u32,
        least_step: scan.limits.0,
        most_step: scan.limits.1,
    };
    let config = config(count, tiles);
    let arguments = [
        Ptr::of(&scan.x),
        Ptr::of(&scan.dt),
        Ptr::of(&scan.b),
        Ptr::of(&scan.c),
        Ptr::of(&scan.a),
        Ptr::of(&scan.d),
        Ptr::of_optional(scan.dt_bias.as_ref()),
        Ptr::of(states),
        Ptr::of(&sequences.starts),
        Ptr::of(&sequences.from),
        Ptr::of(&sequences.to),
        Ptr::to(&y),
    ];
    let [x, dt, b, c, a, d, bias, s, starts, from, to, out] = arguments;
    // SAFETY: the views were checked to lie in their buffers and to fit together, and the output has an element for
    // each of `x`; starts and slots are the caller's promise.
    unsafe {
        match by_state {
            true => scan_states::of(parts, scan.x.dtype)?.launch(
                device, config, x, dt, b, c, a, d, bias, s, starts, from, to, out, shape,
            )?,
            false => scan_heads::of(parts, scan.x.dtype)?.launch(
                device, config, x, dt, b, c, a, d, bias, s, starts, from, to, out, shape,
            )?,
        }
    }
    Ok(y)
}

/// Operands of [`wkv7`]: f32 `[rows, heads, head_size]` without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Wkv7<'a> {
    /// What reads the state (receptance).
    pub r: View<'a>,
    /// What the state is multiplied by.
    pub w: View<'a>,
    /// Keys.
    pub k: View<'a>,
    /// Values.
    pub v: View<'a>,
    /// What is read from the state to be added back...
    pub a: View<'a>,
    /// ...along this.
    pub b: View<'a>,
}

/// `S = S diag(w) + (S a) bᵀ + v kᵀ`, `y = S r` for each head (RWKV 7, arXiv 2503.14456): f32 `[rows, heads, head_size]`.
/// States are f32 `[slots, heads, head_size (values), head_size (keys)]`.
///
/// # Errors
/// As [`selective_scan`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for heads of other than 64 elements.
pub fn wkv7(device: &Device, scan: &Wkv7, states: &View, sequences: &Sequences) -> Result<Buffer> {
    const OP: Op = Op("wkv7");
    let &[rows, heads, size] = scan.r.dims else {
        return Err(OP.mismatch(&scan.r, states));
    };
    for view in [&scan.r, &scan.w, &scan.k, &scan.v, &scan.a, &scan.b] {
        whole(OP, view, DType::F32, &[rows, heads, size])?;
    }
    let slots = slots(OP, states, &[heads, size, size])?;
    let count = sequences.check(OP, rows)?;
    if size != WKV_HEAD as usize {
        return Err(OP.invalid(format!("heads of {size} elements, not {WKV_HEAD}")));
    }
    let y = device.alloc(scan.r.elem_count() * size_of::<f32>())?;
    if y.is_empty() {
        return Ok(y);
    }
    let channels = heads * size;
    let tiles = tiles(OP, channels)?;
    let shape = WkvScan {
        rows: OP.narrow("rows", rows, u32::MAX)?,
        slots,
        sequences: count,
        tiles,
        channels: OP.narrow("channels", channels, u32::MAX)?,
    };
    // SAFETY: as in `selective_scan`.
    unsafe {
        scan_wkv7::of(DType::F32)?.launch(
            device,
            config(count, tiles),
            Ptr::of(&scan.r),
            Ptr::of(&scan.w),
            Ptr::of(&scan.k),
            Ptr::of(&scan.v),
            Ptr::of(&scan.a),
            Ptr::of(&scan.b),
            Ptr::of(states),
            Ptr::of(&sequences.starts),
            Ptr::of(&sequences.from),
            Ptr::of(&sequences.to),
            Ptr::to(&y),
            shape,
        )?;
    }
    Ok(y)
}

/// Operands of [`gated_recurrence`]: `[rows, channels]` without gaps, of one dtype (f16, bf16 or f32).
#[derive(Clone, Copy, Debug)]
pub struct Gated<'a> {
    /// What enters.
    pub x: View<'a>,
    /// How much of it, before the sigmoid.
    pub input_gate: View<'a>,
    /// How fast the state decays, before the sigmoid.
    pub recurrent_gate: View<'a>,
    /// The channels' own share of that, above zero: f32 `[channels]`.
    pub rates: View<'a>,
}

/// `h = a h + sqrt(1 - a²) sigmoid(input_gate) x` with `a = exp(-8 rate sigmoid(recurrent_gate))`; the first row of a
/// sequence that begins comes without the root (RG-LRU of Griffin, arXiv 2402.19427): `[rows, channels]` in the dtype of
/// `x`. States are f32 `[slots, channels]`.
///
/// # Errors
/// As [`selective_scan`].
pub fn gated_recurrence(
    device: &Device,
    scan: &Gated,
    states: &View,
    sequences: &Sequences,
) -> Result<Buffer> {
    const OP: Op = Op("gated-recurrence");
    OP.float(scan.x.dtype, false)?;
    let &[rows, channels] = scan.x.dims else {
        return Err(OP.mismatch(&scan.x, states));
    };
    for view in [&scan.x, &scan.input_gate, &scan.recurrent_gate] {
        whole(OP, view, scan.x.dtype, &[rows, channels])?;
    }
    whole(OP, &scan.rates, DType::F32, &[channels])?;
    let slots = slots(OP, states, &[channels])?;
    let count = sequences.check(OP, rows)?;
    let y = device.alloc(scan.x.elem_count() * scan.x.dtype.size_in_bytes())?;
    if y.is_empty() {
        return Ok(y);
    }
    let shape = GatedRecurrence {
        rows: OP.narrow("rows", rows, u32::MAX)?,
        slots,
        sequences: count,
        channels: OP.narrow("channels", channels, u32::MAX)?,
    };
    // SAFETY: as in `selective_scan`.
    unsafe {
        recurrence::of(scan.x.dtype)?.launch(
            device,
            LaunchConfig::for_elements(count as usize * channels),
            Ptr::of(&scan.x),
            Ptr::of(&scan.input_gate),
            Ptr::of(&scan.recurrent_gate),
            Ptr::of(&scan.rates),
            Ptr::of(states),
            Ptr::of(&sequences.starts),
            Ptr::of(&sequences.from),
            Ptr::of(&sequences.to),
            Ptr::to(&y),
            shape,
        )?;
    }
    Ok(y)
}

/// Blocks for the channels of a sequence.
fn tiles(op: Op, channels: usize) -> Result<u32> {
    let per_block = (STATE_BLOCK / STATE_LANES * STATE_LINES) as usize;
    op.narrow("channels", channels.div_ceil(per_block), u32::MAX)
}

fn config(sequences: u32, tiles: u32) -> LaunchConfig {
    LaunchConfig {
        grid: sequences.saturating_mul(tiles).min(LaunchConfig::MAX_GRID),
        block: STATE_BLOCK,
        shared_bytes: 0,
    }
}

/// A view of this dtype and shape without gaps.
fn whole(op: Op, view: &View, dtype: DType, dims: &[usize]) -> Result<()> {
    op.has_dtype(view, dtype)?;
    view.check(op.0)?;
    if view.dims != dims || !view.is_contiguous() {
        return Err(op.invalid(format!(
            "a tensor of shape {:?} with strides {:?}; {dims:?} without gaps is needed",
            view.dims, view.strides
        )));
    }
    Ok(())
}
