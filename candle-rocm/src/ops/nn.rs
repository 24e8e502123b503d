//! Softmax, norms and rotary embeddings, fused.

use super::collapse;
use super::copy::{check_count, contiguous};
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Softmax along the last dimension, of f16, bf16, f32 or f64.
///
/// # Errors
/// [`Error::UnsupportedDType`]; [`Error::InvalidArgument`] for a tensor without dimensions; [`Error::InvalidView`].
pub fn softmax_last_dim(device: &Device, x: &View) -> Result<Buffer> {
    const OP: &str = "softmax-last-dim";
    check_float(OP, x.dtype, true)?;
    let rows = Rows::new(device, OP, x)?;
    rows.launch(device, "softmax", |args| args, |args| args)
}

/// `x / sqrt(mean(x²) + eps) * weight` along the last dimension, of f16, bf16 or f32. `weight` is one-dimensional and has the dtype and
/// last size of `x`.
///
/// # Errors
/// Those of [`softmax_last_dim`], [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`].
pub fn rms_norm(device: &Device, x: &View, weight: &View, eps: f32) -> Result<Buffer> {
    const OP: &str = "rms-norm";
    check_float(OP, x.dtype, false)?;
    let rows = Rows::new(device, OP, x)?;
    let weight = rows.parameter(device, OP, x, weight)?;
    rows.launch(
        device,
        "rms_norm",
        |args| weight.push(args),
        |args| args.f32(eps),
    )
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` along the last dimension, of f16, bf16 or f32. `weight` and `bias` are
/// one-dimensional and have the dtype and last size of `x`.
///
/// # Errors
/// Those of [`rms_norm`].
pub fn layer_norm(
    device: &Device,
    x: &View,
    weight: &View,
    bias: Option<&View>,
    eps: f32,
) -> Result<Buffer> {
    const OP: &str = "layer-norm";
    check_float(OP, x.dtype, false)?;
    let rows = Rows::new(device, OP, x)?;
    let weight = rows.parameter(device, OP, x, weight)?;
    let bias = bias
        .map(|bias| rows.parameter(device, OP, x, bias))
        .transpose()?;
    let parameters = |args: Args| match &bias {
        Some(bias) => bias.push(weight.push(args)),
        None => weight.push(args).u64(0),
    };
    rows.launch(device, "layer_norm", parameters, |args| args.f32(eps))
}

/// Rotary embedding of `x`, `[batch, heads, time, 2 half]`: the pair (i, i + half) turns by the angle whose cosine and sine the tables
/// give, `[time, half]` or `[batch, time, half]`; the tables may be longer in time. All of one dtype: f16, bf16, f32 or f64.
///
/// # Errors
/// [`Error::UnsupportedDType`], [`Error::DTypeMismatch`], [`Error::ShapeMismatch`], [`Error::InvalidView`], [`Error::TooLarge`] for 2^32
/// pairs or more.
pub fn rope(device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
    rotate(device, "rope", x, cos, sin, Order::HeadsTime, false)
}

/// As [`rope`], of the pairs (2i, 2i + 1).
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i(device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
    rotate(device, "rope-i", x, cos, sin, Order::HeadsTime, true)
}

/// As [`rope`], of `x` as `[batch, time, heads, 2 half]`.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_thd(device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
    rotate(device, "rope-thd", x, cos, sin, Order::TimeHeads, false)
}

/// An operand that the kernels can read: as it is, or a contiguous copy.
struct Operand<'a> {
    copy: Option<Buffer>,
    view: &'a View<'a>,
}

impl<'a> Operand<'a> {
    fn in_place(view: &'a View<'a>) -> Self {
        Operand { copy: None, view }
    }

    fn contiguous(device: &Device, view: &'a View<'a>) -> Result<Self> {
        let copy = if view.is_contiguous() {
            None
        } else {
            Some(contiguous(device, view)?)
        };
        Ok(Operand { copy, view })
    }

    fn push(&self, args: Args) -> Args {
        match &self.copy {
            Some(copy) => args.ptr(copy, 0),
            None => args.ptr(
                self.view.buffer,
                self.view.offset * self.view.dtype.size_in_bytes(),
            ),
        }
    }
}

/// Elements of a row that one thread keeps in registers, as in `nn.hip`.
const ITEMS: usize = 8;
/// Threads of a block in which each wave has its own row.
const WAVES_BLOCK: u32 = 256;
/// Threads of the largest block.
const MAX_BLOCK: usize = 1024;

/// A tensor seen as rows along its last dimension.
struct Rows<'a> {
    operand: Operand<'a>,
    rows: usize,
    columns: usize,
    /// Elements between the starts of rows.
    stride: usize,
}

impl<'a> Rows<'a> {
    fn new(device: &Device, op: &'static str, x: &'a View<'a>) -> Result<Self> {
        x.check(op)?;
        let Some((&columns, outer)) = x.dims.split_last() else {
            return Err(Error::InvalidArgument {
                op,
                reason: "a tensor without dimensions has no last one".into(),
            });
        };
        check_count(op, columns)?;
        let rows = outer.iter().product();
        let packed = |operand| Rows {
            operand,
            rows,
            columns,
            stride: columns,
        };
        if x.is_contiguous() {
            return Ok(packed(Operand::in_place(x)));
        }
        if x.strides[outer.len()] == 1 {
            let layout = collapse(op, outer, [&x.strides[..outer.len()]])?;
            if layout.dims.rank <= 1 {
                let stride = layout.strides[0].s[0] as usize;
                return Ok(Rows {
                    operand: Operand::in_place(x),
                    rows,
                    columns,
                    stride,
                });
            }
        }
        Ok(packed(Operand::contiguous(device, x)?))
    }

    /// A vector that goes along with the rows.
    fn parameter<'p>(
        &self,
        device: &Device,
        op: &'static str,
        x: &View,
        parameter: &'p View<'p>,
    ) -> Result<Operand<'p>> {
        check_same_dtype(op, x, parameter)?;
        parameter.check(op)?;
        if *parameter.dims != [self.columns] {
            return Err(shape_mismatch(op, x, parameter));
        }
        Operand::contiguous(device, parameter)
    }

    /// Launches `name` on rows; `vectors` come after the input, `scalars` last.
    fn launch(
        &self,
        device: &Device,
        name: &str,
        vectors: impl FnOnce(Args) -> Args,
        scalars: impl FnOnce(Args) -> Args,
    ) -> Result<Buffer> {
        let dtype = self.operand.view.dtype;
        let dst = device.alloc((self.rows * self.columns).saturating_mul(dtype.size_in_bytes()))?;
        if dst.is_empty() {
            return Ok(dst);
        }
        let wave = device.properties().wave_size as usize;
        let (name, blocks, block) = if self.columns <= wave * ITEMS {
            let rows_per_block = WAVES_BLOCK as usize / wave;
            (
                format!("{name}_wave_{dtype}"),
                self.rows.div_ceil(rows_per_block),
                WAVES_BLOCK,
            )
        } else {
            let threads = self
                .columns
                .div_ceil(ITEMS)
                .next_multiple_of(wave)
                .min(MAX_BLOCK);
            (format!("{name}_{dtype}"), self.rows, threads as u32)
        };
        let args = vectors(self.operand.push(Args::new()))
            .ptr(&dst, 0)
            .u64(self.rows as u64)
            .u32(self.columns as u32)
            .u64(self.stride as u64);
        let config = LaunchConfig {
            grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
            block,
            shared_bytes: 0,
        };
        device
            .kernel(Family::Nn, &name)?
            .launch(config, &scalars(args))?;
        Ok(dst)
    }
}

/// Order of the middle dimensions of a rotary embedding's input.
#[derive(Clone, Copy)]
enum Order {
    HeadsTime,
    TimeHeads,
}

/// The fields are those of `Rope` in `nn.hip`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Rope {
    pairs: u32,
    half: u32,
    time: u32,
    rows_per_time: u32,
    rows_per_batch: u32,
    cos_batch: u32,
    sin_batch: u32,
    interleaved: u32,
}

fn rotate(
    device: &Device,
    op: &'static str,
    x: &View,
    cos: &View,
    sin: &View,
    order: Order,
    interleaved: bool,
) -> Result<Buffer> {
    check_float(op, x.dtype, true)?;
    let [batch, second, third, size] = *x.dims else {
        return Err(Error::InvalidArgument {
            op,
            reason: format!(
                "the input must have four dimensions, not the shape {:?}",
                x.dims
            ),
        });
    };
    let (heads, time) = match order {
        Order::HeadsTime => (second, third),
        Order::TimeHeads => (third, second),
    };
    x.check(op)?;
    // Elements between batches of a table.
    let table = |table: &View| -> Result<usize> {
        check_same_dtype(op, x, table)?;
        table.check(op)?;
        match *table.dims {
            [t, half] if t >= time && 2 * half == size => Ok(0),
            [b, t, half] if b == batch && t >= time && 2 * half == size => Ok(t * half),
            _ => Err(shape_mismatch(op, x, table)),
        }
    };
    let (cos_batch, sin_batch) = (table(cos)?, table(sin)?);
    let dst = device.alloc(x.elem_count() * x.dtype.size_in_bytes())?;
    let pairs = x.elem_count() / 2;
    if pairs == 0 {
        return Ok(dst);
    }
    for count in [pairs, cos.elem_count(), sin.elem_count()] {
        check_count(op, count)?;
    }
    let layout = Rope {
        pairs: pairs as u32,
        half: (size / 2) as u32,
        time: time as u32,
        rows_per_time: match order {
            Order::HeadsTime => 1,
            Order::TimeHeads => heads as u32,
        },
        rows_per_batch: (heads * time) as u32,
        cos_batch: cos_batch as u32,
        sin_batch: sin_batch as u32,
        interleaved: interleaved.into(),
    };
    let x_dense = Operand::contiguous(device, x)?;
    let cos = Operand::contiguous(device, cos)?;
    let sin = Operand::contiguous(device, sin)?;
    let args = sin.push(cos.push(x_dense.push(Args::new())));
    device
        .kernel(Family::Nn, &format!("rope_{}", x.dtype))?
        .launch(
            LaunchConfig::for_elements(pairs),
            &args.ptr(&dst, 0).value(&layout),
        )?;
    Ok(dst)
}

fn check_float(op: &'static str, dtype: DType, with_f64: bool) -> Result<()> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 => Ok(()),
        DType::F64 if with_f64 => Ok(()),
        _ => Err(Error::UnsupportedDType { op, dtype }),
    }
}

fn check_same_dtype(op: &'static str, lhs: &View, rhs: &View) -> Result<()> {
    if lhs.dtype == rhs.dtype {
        return Ok(());
    }
    Err(Error::DTypeMismatch {
        op,
        lhs: lhs.dtype,
        rhs: rhs.dtype,
    })
}

fn shape_mismatch(op: &'static str, lhs: &View, rhs: &View) -> Error {
    Error::ShapeMismatch {
        op,
        lhs: lhs.dims.to_vec(),
        rhs: rhs.dims.to_vec(),
    }
}
