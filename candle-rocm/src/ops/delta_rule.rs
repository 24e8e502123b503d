//! The gated delta rule along sequences with states.

use super::check::Op;
use super::sequences::{row_stride, slots, Sequences};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::delta_rule::{
    DeltaRule as Layout, DELTA_BLOCK, DELTA_CHUNK, DELTA_COLUMNS, DELTA_SCRATCH, DELTA_STEPS,
};

/// Rows of a column of the state that a thread of `step` has.
const STEP_ROWS: [u32; 2] = [16, 32];
/// Rows of a state that `chunks` has room for.
const CHUNK_KEYS: [u32; 2] = [128, 256];
/// The largest key.
const MAX_KEY: usize = 256;

kernels! {
    /// Goes along rows one by one.
    step = "delta_rule_step_{rows}_{dtype}" [rows: u32 = STEP_ROWS, dtype: DType = FLOATS] in Family::DeltaRule, part dtype
        => (q: Ptr, k: Ptr, v: Ptr, a: Ptr, b: Ptr, rate: Ptr, bias: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr,
            out: Ptr, layout: Layout);

    /// What chunks of rows have that does not depend on states.
    prepare = "delta_rule_prepare_{dtype}" [dtype: DType = FLOATS] in Family::DeltaRule, part dtype
        => (q: Ptr, k: Ptr, v: Ptr, a: Ptr, b: Ptr, rate: Ptr, bias: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr,
            scratch: Ptr, layout: Layout);

    /// Goes along rows in chunks.
    chunks = "delta_rule_chunks_{keys}_{dtype}" [keys: u32 = CHUNK_KEYS, dtype: DType = FLOATS] in Family::DeltaRule, part dtype
        => (q: Ptr, k: Ptr, v: Ptr, a: Ptr, b: Ptr, rate: Ptr, bias: Ptr, states: Ptr, starts: Ptr, from: Ptr, to: Ptr,
            scratch: Ptr, out: Ptr, layout: Layout);
}

const OP: Op = Op("delta-rule");

/// What the rows of a gated delta rule are made of. All but `rate` and `bias` have rows whose elements lie without
/// gaps, and one dtype (f16, bf16, f32); it is computed in f32.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// Queries, `[rows, key_heads, key_size]`, of any length above 0.
    pub q: View<'a>,
    /// Keys, as queries.
    pub k: View<'a>,
    /// Values, `[rows, value_heads, value_size]`.
    pub v: View<'a>,
    /// What decays are made of, `[rows, value_heads]`.
    pub a: View<'a>,
    /// What rates of learning are the sigmoid of, `[rows, value_heads]`.
    pub b: View<'a>,
    /// f32, `[value_heads]`: a decay is `exp(rate log(1 + exp(a + bias)))`.
    pub rate: View<'a>,
    /// f32, `[value_heads]`.
    pub bias: View<'a>,
    /// Value head h belongs to key head `h % key_heads`; otherwise `value_heads / key_heads` neighbours belong to one.
    pub tiled: bool,
    /// Added to the squared lengths of keys and queries.
    pub epsilon: f32,
}

/// The gated delta rule ("Gated Delta Networks", arXiv 2412.06464) along each of `sequences`: for each row and head, with
/// key k and query q divided by their length and q by the root of the key size, too,
///
/// ```text
/// S = decay S;  S = S + k (sigmoid(b) (v - k S));  out = q S
/// ```
///
/// `states` is f32, `[slots, value_heads, key_size, value_size]` without gaps; the states that are asked for are
/// written there, in place. Gives `[rows, value_heads, value_size]`. Launches and their sizes depend on shapes and
/// [`Sequences::longest`] alone: one launch for short sequences, two for long ones, which are computed in chunks.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView),
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for keys of more than 256 elements and for gaps,
/// [`Error::TooLarge`](crate::Error::TooLarge) for 2^32 rows or tasks of the GPU.
pub fn delta_rule(
    device: &Device,
    rule: &DeltaRule,
    states: &View,
    sequences: &Sequences,
) -> Result<Buffer> {
    let dtype = rule.q.dtype;
    let mut layout = layout(rule, states, sequences)?;
    let (rows, heads, columns) = (rule.v.dims[0], rule.v.dims[1], rule.v.dims[2]);
    let out = device.alloc(rows * heads * columns * dtype.size_in_bytes())?;
    if out.is_empty() || sequences.longest == 0 {
        return Ok(out);
    }
    let tasks = |parts: u32| {
        let lines = (layout.value_heads as usize).saturating_mul(sequences.from.dims[0]);
        OP.narrow(
            "number of tasks",
            lines.saturating_mul(parts as usize),
            u32::MAX,
        )
    };
    let (along, beside) = (tasks(layout.tiles)?, tasks(layout.chunks)?);
    let config = |tasks: u32| LaunchConfig {
        grid: tasks.min(LaunchConfig::MAX_GRID),
        block: DELTA_BLOCK,
        shared_bytes: 0,
    };
    layout.tasks = along;
    let of = |sizes: [u32; 2], per: u32| match layout.key_size <= sizes[0] * per {
        true => sizes[0],
        false => sizes[1],
    };
    // A kernel's first arguments.
    macro_rules! launch {
        ($kernel:expr, $tasks:expr $(, $own:expr)*) => {
            // SAFETY: the views were checked to lie in their buffers and to fit together; the kernels use no row beyond
            // `rows` and no slot beyond `slots`, and scratch memory has room for all rows.
            unsafe {
                $kernel.launch(
                    device,
                    config($tasks),
                    Ptr::of(&rule.q),
                    Ptr::of(&rule.k),
                    Ptr::of(&rule.v),
                    Ptr::of(&rule.a),
                    Ptr::of(&rule.b),
                    Ptr::of(&rule.rate),
                    Ptr::of(&rule.bias),
                    Ptr::of(states),
                    Ptr::of(&sequences.starts),
                    Ptr::of(&sequences.from),
                    Ptr::of(&sequences.to),
                    $($own,)*
                )?
            }
        };
    }
    if sequences.longest <= DELTA_STEPS as usize {
        let rows = of(STEP_ROWS, DELTA_BLOCK / DELTA_COLUMNS);
        launch!(step::of(rows, dtype)?, along, Ptr::to(&out), layout);
        return Ok(out);
    }
    let scratch = device.alloc(rows * heads * DELTA_SCRATCH as usize * size_of::<f32>())?;
    let prepared = Layout {
        tasks: beside,
        ..layout
    };
    launch!(prepare::of(dtype)?, beside, Ptr::to(&scratch), prepared);
    let kernel = chunks::of(of(CHUNK_KEYS, 1), dtype)?;
    launch!(kernel, along, Ptr::to(&scratch), Ptr::to(&out), layout);
    Ok(out)
}

/// All of it but the tasks, checked.
fn layout(rule: &DeltaRule, states: &View, sequences: &Sequences) -> Result<Layout> {
    let (q, v) = (&rule.q, &rule.v);
    OP.float(q.dtype, false)?;
    let (&[rows, key_heads, key_size], &[_, value_heads, value_size]) = (q.dims, v.dims) else {
        return Err(OP.mismatch(q, v));
    };
    if key_size == 0 || key_size > MAX_KEY {
        return Err(OP.invalid(format!(
            "keys of {key_size} elements; 1 to {MAX_KEY} are possible"
        )));
    }
    if key_heads == 0 || !value_heads.is_multiple_of(key_heads) {
        return Err(OP.invalid(format!(
            "{value_heads} heads of values cannot share {key_heads} of keys evenly"
        )));
    }
    let stride = |view: &View, dims: &[usize]| {
        OP.same_dtype(view, q)?;
        match view.dims == dims {
            true => OP.narrow("distance of rows", row_stride(OP, view)? as usize, u32::MAX),
            false => Err(OP.mismatch(view, q)),
        }
    };
    for of_heads in [&rule.rate, &rule.bias] {
        OP.has_dtype(of_heads, DType::F32)?;
        of_heads.check(OP.0)?;
        if of_heads.dims != [value_heads] || !of_heads.is_contiguous() {
            return Err(OP.mismatch(of_heads, v));
        }
    }
    let count = |what, value| OP.narrow(what, value, u32::MAX);
    sequences.check(OP, rows)?;
    Ok(Layout {
        q_stride: stride(q, &[rows, key_heads, key_size])?,
        k_stride: stride(&rule.k, &[rows, key_heads, key_size])?,
        v_stride: stride(v, &[rows, value_heads, value_size])?,
        a_stride: stride(&rule.a, &[rows, value_heads])?,
        b_stride: stride(&rule.b, &[rows, value_heads])?,
        rows: count("number of rows", rows)?,
        // No further than rows go, so that ends of sequences do not overflow.
        longest: sequences.longest.min(rows) as u32,
        slots: slots(OP, states, &[value_heads, key_size, value_size])?,
        key_heads: count("number of heads", key_heads)?,
        value_heads: count("number of heads", value_heads)?,
        key_size: key_size as u32,
        value_size: count("size of values", value_size)?,
        tiled: rule.tiled.into(),
        chunks: count(
            "number of rows",
            sequences.longest.div_ceil(DELTA_CHUNK as usize),
        )?,
        tiles: count(
            "size of values",
            value_size.div_ceil(DELTA_COLUMNS as usize),
        )?,
        tasks: 0,
        scale: 1.0 / (key_size as f32).sqrt(),
        epsilon: rule.epsilon,
    })
}
