//! Products of f8e4m3 tensors with scales, as PyTorch's `torch._scaled_mm` makes them, and the quantization before them.
//!
//! A scale is a number in f32 that elements are to be multiplied with. It belongs to a whole tensor, to a row of what is
//! summed over, or to blocks of [`BLOCK`] of that:
//!
//! ```no_run
//! # use candle::{DType, Result, Tensor};
//! # fn layer(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
//! use candle_nn::float8::{quantize, scaled_matmul, Scaling};
//! // Once: `[out, in]`, a scale for each row. What FP8 checkpoints hold can be used as it is.
//! let (weight, weight_scale) = quantize(weight, Scaling::Row)?;
//! // For each input `[.., in]`: a scale for each token.
//! let (x, x_scale) = quantize(x, Scaling::Row)?;
//! scaled_matmul(&x, &weight.t()?, &x_scale, &weight_scale.t()?, None, DType::BF16)
//! # }
//! ```
//!
//! On AMD GPUs a product is one kernel. Everywhere else it is made of candle's plain operations in f32, from which
//! results may differ in the last bits of f32. There are no gradients: `backward` through these functions is an error.

use candle::{DType, Result, Shape, Tensor, D};

use crate::gradients::without;

#[cfg(feature = "rocm")]
mod rocm;

/// Neighbours along the dimension that is summed over which share a scale, where scales belong to blocks.
pub const BLOCK: usize = 128;

/// The largest number of f8e4m3.
const LARGEST: f64 = 448.;

/// Which elements of `[.., rows, columns]` share a scale; sums go over the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// All: one scale, of shape `[]`.
    Tensor,
    /// Those of a row: scales `[.., rows, 1]`.
    Row,
    /// [`BLOCK`] neighbours of a row: scales `[.., rows, columns / BLOCK]`, rounded up. For activations.
    RowBlock,
    /// Squares of [`BLOCK`] rows and columns: scales `[.., rows / BLOCK, columns / BLOCK]`, rounded up. For weights.
    Square,
}

impl Scaling {
    /// Rows and columns that share a scale, of a matrix of so many; none for a whole tensor.
    fn block(self, columns: usize) -> Option<[usize; 2]> {
        match self {
            Scaling::Tensor => None,
            Scaling::Row => Some([1, columns.max(1)]),
            Scaling::RowBlock => Some([1, BLOCK]),
            Scaling::Square => Some([BLOCK, BLOCK]),
        }
    }
}

/// `x`, `[.., rows, columns]` of any float dtype, as f8e4m3 and the scales to multiply that with: the largest magnitude
/// among those that share a scale becomes 448. NaN and infinities make all elements with their scale NaN or 0.
///
/// # Errors
/// For integers, and for fewer than two dimensions unless there is one scale for all.
pub fn quantize(x: &Tensor, scaling: Scaling) -> Result<(Tensor, Tensor)> {
    const OP: &str = "quantize to f8e4m3";
    if !x.dtype().is_float() {
        return Err(candle::Error::UnsupportedDTypeForOp(x.dtype(), OP).bt());
    }
    let wide = x.detach().to_dtype(DType::F32)?;
    let (numbers, scales) = match scaling {
        Scaling::Tensor => with_one_scale(&wide)?,
        _ => with_scales(&wide, scaling)?,
    };
    Ok((
        without(OP, [x, x, x], numbers)?,
        without(OP, [x, x, x], scales)?,
    ))
}

/// The scale that makes a magnitude the largest number. Where all is 0, any scale does that is not.
fn scale_of(magnitude: Tensor) -> Result<Tensor> {
    (magnitude / LARGEST)?.maximum(f64::from(f32::MIN_POSITIVE))
}

fn with_one_scale(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let magnitude = match x.elem_count() {
        0 => Tensor::zeros((), DType::F32, x.device())?,
        _ => x.abs()?.max_all()?,
    };
    let scale = scale_of(magnitude)?;
    let numbers = x.broadcast_div(&scale)?.to_dtype(DType::F8E4M3)?;
    Ok((numbers, scale))
}

fn with_scales(x: &Tensor, scaling: Scaling) -> Result<(Tensor, Tensor)> {
    let [batch @ .., rows, columns] = x.dims() else {
        candle::bail!(
            "float8::quantize: {:?} has no rows and columns to scale apart",
            x.dims()
        )
    };
    let (rows, columns) = (*rows, *columns);
    let [high, wide] = scaling.block(columns).unwrap_or([rows, columns]);
    let (down, across) = (rows.div_ceil(high), columns.div_ceil(wide).max(1));
    if x.elem_count() == 0 {
        let numbers = Tensor::zeros(x.shape(), DType::F8E4M3, x.device())?;
        let scales = [batch, &[down, across]].concat();
        return Ok((numbers, Tensor::ones(scales, DType::F32, x.device())?));
    }
    let matrices: usize = batch.iter().product();
    // Blocks at the edges are filled up with zeros, which change no largest magnitude.
    let blocks = x
        .reshape((matrices, rows, columns))?
        .pad_with_zeros(1, 0, down * high - rows)?
        .pad_with_zeros(2, 0, across * wide - columns)?
        .reshape(Shape::from(vec![matrices, down, high, across, wide]))?;
    let magnitude = blocks.abs()?.max_keepdim(4)?.max_keepdim(2)?;
    let scale = scale_of(magnitude)?;
    let numbers = blocks
        .broadcast_div(&scale)?
        .reshape((matrices, down * high, across * wide))?
        .narrow(1, 0, rows)?
        .narrow(2, 0, columns)?
        .to_dtype(DType::F8E4M3)?
        .reshape(x.shape())?;
    let scales = scale.reshape([batch, &[down, across]].concat())?;
    Ok((numbers, scales))
}

/// The product of `a`, `[.., m, k]`, and `b`, `[.., k, n]`, both f8e4m3, of the numbers that they stand for with their
/// scales, and `bias`, `[n]`, added to each row: `[.., m, n]` of `out_dtype` (f32, f16, bf16 or f8e4m3). Sums are made in
/// f32 and rounded once.
///
/// `b` is one matrix or has a batch like `a`'s, and is read fastest as the transposed view of the rows of its columns,
/// as a layer's weight is. Each of the scales, f32, is one number for the tensor, or has the tensor's batch and
///
/// | | for `a` | for `b` |
/// |---|---|---|
/// | a row of what is summed | `[m, 1]` | `[1, n]` |
/// | blocks of 128 of k | `[m, k / 128]` | `[k / 128, n / 128]` |
///
/// rounded up: those of [`quantize`] for `a`, and their transposes for `b`.
///
/// # Errors
/// For other dtypes and shapes.
pub fn scaled_matmul(
    a: &Tensor,
    b: &Tensor,
    scale_a: &Tensor,
    scale_b: &Tensor,
    bias: Option<&Tensor>,
    out_dtype: DType,
) -> Result<Tensor> {
    let problem = Problem::new(a, b, scale_a, scale_b, bias, out_dtype)?;
    let result = problem.solve()?;
    // Whoever takes part in a graph is named among the three.
    let tracked = [Some(a), Some(b), Some(scale_a), Some(scale_b), bias];
    let tracked = tracked.into_iter().flatten().find(|t| t.track_op());
    without("scaled_matmul", [tracked.unwrap_or(a); 3], result)
}

/// What shares a scale, as its shape tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tensor,
    Row,
    Block,
}

/// A scale and what it belongs to.
struct Scale {
    kind: Kind,
    /// Outside of any graph: `[]`, or with the dimensions that [`scaled_matmul`] tells.
    factors: Tensor,
}

impl Scale {
    /// `row` and `block` are the last two dimensions that it may have behind the batch.
    fn new(
        name: &str,
        factors: &Tensor,
        batch: &[usize],
        row: [usize; 2],
        block: [usize; 2],
    ) -> Result<Self> {
        if factors.dtype() != DType::F32 {
            candle::bail!(
                "scaled_matmul: {name} is {:?} instead of F32",
                factors.dtype()
            )
        }
        let factors = factors.detach();
        let is = |last: [usize; 2]| *factors.dims() == [batch, &last].concat()[..];
        let kind = if factors.elem_count() == 1 {
            Kind::Tensor
        } else if is(row) {
            Kind::Row
        } else if is(block) {
            Kind::Block
        } else {
            candle::bail!(
                "scaled_matmul: {name} is {:?}; it may be one number, {row:?} for rows or {block:?} for blocks of \
                 {BLOCK}, behind a batch of {batch:?}",
                factors.dims()
            )
        };
        let factors = match kind {
            Kind::Tensor => factors.reshape(())?,
            _ => factors,
        };
        Ok(Scale { kind, factors })
    }
}

/// A product whose operands fit together.
struct Problem<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    scale_a: Scale,
    scale_b: Scale,
    bias: Option<&'a Tensor>,
    out_dtype: DType,
    k: usize,
    n: usize,
    /// The result's.
    dims: Vec<usize>,
}

impl<'a> Problem<'a> {
    fn new(
        a: &'a Tensor,
        b: &'a Tensor,
        scale_a: &Tensor,
        scale_b: &Tensor,
        bias: Option<&'a Tensor>,
        out_dtype: DType,
    ) -> Result<Self> {
        const OP: &str = "scaled_matmul";
        for operand in [a, b] {
            if operand.dtype() != DType::F8E4M3 {
                return Err(candle::Error::UnsupportedDTypeForOp(operand.dtype(), OP).bt());
            }
        }
        if !matches!(
            out_dtype,
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3
        ) {
            return Err(candle::Error::UnsupportedDTypeForOp(out_dtype, OP).bt());
        }
        let mismatch = || candle::Error::ShapeMismatchBinaryOp {
            lhs: a.shape().clone(),
            rhs: b.shape().clone(),
            op: OP,
        };
        let ([batch @ .., m, k], [batch_b @ .., k_b, n]) = (a.dims(), b.dims()) else {
            return Err(mismatch().bt());
        };
        if k != k_b || !(batch_b.is_empty() || batch == batch_b) {
            return Err(mismatch().bt());
        }
        if let Some(bias) = bias {
            if bias.dims() != [*n] || !bias.dtype().is_float() {
                candle::bail!(
                    "{OP}: the bias is {:?} {:?} instead of [{n}] floats",
                    bias.dtype(),
                    bias.dims()
                )
            }
        }
        for other in [Some(b), Some(scale_a), Some(scale_b), bias]
            .into_iter()
            .flatten()
        {
            if !other.device().same_device(a.device()) {
                return Err(candle::Error::DeviceMismatchBinaryOp {
                    lhs: a.device().location(),
                    rhs: other.device().location(),
                    op: OP,
                }
                .bt());
            }
        }
        let across = k.div_ceil(BLOCK);
        Ok(Problem {
            a,
            b,
            scale_a: Scale::new("scale_a", scale_a, batch, [*m, 1], [*m, across])?,
            scale_b: Scale::new(
                "scale_b",
                scale_b,
                batch_b,
                [1, *n],
                [across, n.div_ceil(BLOCK)],
            )?,
            bias,
            out_dtype,
            k: *k,
            n: *n,
            dims: [batch, &[*m, *n]].concat(),
        })
    }

    fn solve(&self) -> Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(result) = rocm::scaled_matmul(self)? {
            return Ok(result);
        }
        self.solve_plainly()
    }

    /// By candle's operations in f32, on any device: products of two f8e4m3 are exact there.
    fn solve_plainly(&self) -> Result<Tensor> {
        let wide = |x: &Tensor| x.detach().to_dtype(DType::F32);
        let (a, b) = (wide(self.a)?, wide(self.b)?);
        let has_blocks = [&self.scale_a, &self.scale_b].map(|scale| scale.kind == Kind::Block);
        let sums = match has_blocks.contains(&true) {
            false => self.scaled(&a.broadcast_matmul(&b)?, 0)?,
            true => {
                let mut sums = Tensor::zeros(&self.dims[..], DType::F32, a.device())?;
                for block in 0..self.k.div_ceil(BLOCK) {
                    let start = block * BLOCK;
                    let length = BLOCK.min(self.k - start);
                    let a = a.narrow(D::Minus1, start, length)?;
                    let b = b.narrow(D::Minus2, start, length)?;
                    sums = (sums + self.scaled(&a.broadcast_matmul(&b)?, block)?)?;
                }
                sums
            }
        };
        let sums = match self.bias {
            Some(bias) => sums.broadcast_add(&wide(bias)?)?,
            None => sums,
        };
        sums.to_dtype(self.out_dtype)
    }

    /// Sums over a block of k, with its scales.
    fn scaled(&self, sums: &Tensor, block: usize) -> Result<Tensor> {
        let scale_a = match self.scale_a.kind {
            Kind::Block => self.scale_a.factors.narrow(D::Minus1, block, 1)?,
            _ => self.scale_a.factors.clone(),
        };
        let scale_b = match self.scale_b.kind {
            Kind::Block => self.repeated(&self.scale_b.factors.narrow(D::Minus2, block, 1)?)?,
            _ => self.scale_b.factors.clone(),
        };
        sums.broadcast_mul(&scale_a)?.broadcast_mul(&scale_b)
    }

    /// `[.., 1, n / 128]` factors as those of each of the n columns.
    fn repeated(&self, factors: &Tensor) -> Result<Tensor> {
        let mut dims = factors.dims().to_vec();
        let blocks = dims.last().copied().unwrap_or(1);
        dims.push(BLOCK);
        let all = factors.unsqueeze(D::Minus1)?.broadcast_as(dims.clone())?;
        dims.truncate(dims.len() - 2);
        dims.push(blocks * BLOCK);
        all.reshape(dims)?.narrow(D::Minus1, 0, self.n)
    }
}
