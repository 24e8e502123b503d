//! Gradients of the fused operations: by kernels on ROCm devices, elsewhere by tensor operations in f32, for f64 in f64.
//!
//! With `CANDLE_GRAD_DO_NOT_DETACH` set, candle keeps the graph of gradients, to differentiate them again. Then tensor
//! operations compute them everywhere, whose graphs there are.

use candle::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, D};

mod attention;
#[cfg(feature = "rocm")]
pub(crate) mod rocm;

pub(crate) use attention::sdpa;

/// Whether gradients are to have gradients: candle's own reading of its variable.
pub(crate) fn keeps_graph() -> bool {
    use std::sync::OnceLock;
    static KEEPS: OnceLock<bool> = OnceLock::new();
    *KEEPS.get_or_init(|| {
        std::env::var("CANDLE_GRAD_DO_NOT_DETACH").is_ok_and(|s| !s.is_empty() && s != "0")
    })
}

/// The tensor in the dtype that is computed in, and without its graph unless that is kept.
fn wide(x: &Tensor) -> Result<Tensor> {
    let x = if keeps_graph() { x.clone() } else { x.detach() };
    match x.dtype() {
        DType::F16 | DType::BF16 | DType::F8E4M3 => x.to_dtype(DType::F32),
        _ => Ok(x),
    }
}

/// The sum over all dimensions but the last.
fn sum_of_rows(x: &Tensor) -> Result<Tensor> {
    let columns = x.dim(D::Minus1)?;
    x.reshape((x.elem_count() / columns.max(1), columns))?
        .sum(0)
}

/// Of softmax along the last dimension, out of its result: `y (grad - sum(grad y))`.
pub(crate) fn softmax(y: &Tensor, grad: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "rocm")]
    if let Some(gradient) = rocm::softmax(y, grad)? {
        return Ok(gradient);
    }
    let (wide_y, wide_grad) = (wide(y)?, wide(grad)?);
    let sum = (&wide_y * &wide_grad)?.sum_keepdim(D::Minus1)?;
    (wide_y * wide_grad.broadcast_sub(&sum)?)?.to_dtype(y.dtype())
}

/// Gradients of an input, a weight and a bias, of those that take part in the graph.
pub(crate) type OfNorm = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// Of RMS norm, or of layer norm if `centered`. With `n = (x - mean) scale` and `h = grad weight` the gradient of x is
/// `scale (h - mean(h) - n mean(h n))`, where RMS norm has no means of x and h alone; that of the weight is the sum of
/// `grad n` over all rows, that of the bias the sum of `grad`.
pub(crate) fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    grad: &Tensor,
    eps: f32,
    centered: bool,
) -> Result<OfNorm> {
    #[cfg(feature = "rocm")]
    if let Some(gradients) = rocm::norm(x, weight, bias, grad, eps, centered)? {
        return Ok(gradients);
    }
    let dtype = x.dtype();
    let (wide_x, wide_grad) = (wide(x)?, wide(grad)?);
    let difference = match centered {
        true => wide_x.broadcast_sub(&wide_x.mean_keepdim(D::Minus1)?)?,
        false => wide_x,
    };
    let square = difference.sqr()?.mean_keepdim(D::Minus1)?;
    let scale = (square + f64::from(eps))?.sqrt()?.recip()?;
    let normed = difference.broadcast_mul(&scale)?;
    let of_x = || -> Result<Tensor> {
        let h = wide_grad.broadcast_mul(&wide(weight)?)?;
        let across = (&h * &normed)?.mean_keepdim(D::Minus1)?;
        let mut rest = (&h - normed.broadcast_mul(&across)?)?;
        if centered {
            rest = rest.broadcast_sub(&h.mean_keepdim(D::Minus1)?)?;
        }
        rest.broadcast_mul(&scale)?.to_dtype(dtype)
    };
    let of_weight = || sum_of_rows(&(&wide_grad * &normed)?)?.to_dtype(dtype);
    let of_bias = || sum_of_rows(&wide_grad)?.to_dtype(dtype);
    let with_bias = bias.is_some_and(Tensor::track_op);
    Ok((
        x.track_op().then(of_x).transpose()?,
        weight.track_op().then(of_weight).transpose()?,
        with_bias.then(of_bias).transpose()?,
    ))
}

/// A rotary embedding, for its gradient.
pub(crate) struct Rope {
    /// The operation itself.
    pub turn: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    /// The dimension of the heads of `[batch, .., .., size]`; the other is that of time.
    pub heads: usize,
    /// Whether pairs are neighbours.
    pub interleaved: bool,
}

impl Rope {
    /// The gradients of input and tables: the gradient of the input is that of the result, turned back.
    pub fn backward(
        &self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        grad: &Tensor,
    ) -> Result<OfNorm> {
        let of_x = || -> Result<Tensor> {
            let (cos, sin) = match keeps_graph() {
                true => (cos.clone(), sin.clone()),
                false => (cos.detach(), sin.detach()),
            };
            (self.turn)(&grad.contiguous()?, &cos, &sin.neg()?)
        };
        let of_x = x.track_op().then(of_x).transpose()?;
        if !(cos.track_op() || sin.track_op()) {
            return Ok((of_x, None, None));
        }
        let ([x1, x2], [g1, g2]) = (self.pairs(&wide(x)?)?, self.pairs(&wide(grad)?)?);
        let of_table = |table: &Tensor, products: Tensor| -> Result<Option<Tensor>> {
            if !table.track_op() {
                return Ok(None);
            }
            let mut sum = products.sum(self.heads)?;
            if table.rank() == 2 {
                sum = sum.sum(0)?;
            }
            let time = sum.rank() - 2;
            let rest = table.dim(time)? - sum.dim(time)?;
            let sum = sum.pad_with_zeros(time, 0, rest)?;
            Ok(Some(sum.to_dtype(table.dtype())?))
        };
        let of_cos = of_table(cos, ((&x1 * &g1)? + (&x2 * &g2)?)?)?;
        let of_sin = of_table(sin, ((&x1 * &g2)? - (&x2 * &g1)?)?)?;
        Ok((of_x, of_cos, of_sin))
    }

    /// The first and the second of each pair.
    fn pairs(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let half = x.dim(3)? / 2;
        if self.interleaved {
            let (a, b, c, _) = x.dims4()?;
            let x = x.reshape((a, b, c, half, 2))?;
            return Ok([
                x.narrow(4, 0, 1)?.squeeze(4)?,
                x.narrow(4, 1, 1)?.squeeze(4)?,
            ]);
        }
        Ok([x.narrow(3, 0, half)?, x.narrow(3, half, half)?])
    }
}

/// `result`, which something without a gradient made of three tensors: if one of them takes part in a graph, `backward`
/// through it is an error that has the name of the operation.
pub(crate) fn without(name: &'static str, of: [&Tensor; 3], result: Tensor) -> Result<Tensor> {
    if of.iter().any(|x| x.track_op()) {
        return of[0].apply_op3(of[1], of[2], Without { name, result });
    }
    Ok(result)
}

struct Without {
    name: &'static str,
    result: Tensor,
}

impl CustomOp3 for Without {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        use candle::backend::BackendStorage;
        let result = self.result.contiguous()?;
        let (storage, layout) = result.storage_and_layout();
        match &*storage {
            candle::Storage::Cpu(storage) if layout.start_offset() == 0 => {
                Ok((storage.try_clone(layout)?, layout.shape().clone()))
            }
            _ => candle::bail!("{}: the result is not on the CPU", self.name),
        }
    }

    #[cfg(feature = "rocm")]
    fn rocm_fwd(
        &self,
        _: &candle::RocmStorage,
        _: &Layout,
        _: &candle::RocmStorage,
        _: &Layout,
        _: &candle::RocmStorage,
        _: &Layout,
    ) -> Result<(candle::RocmStorage, Shape)> {
        use candle::backend::BackendStorage;
        let result = self.result.force_contiguous()?;
        let (storage, layout) = result.storage_and_layout();
        let storage = rocm::storage(&storage)?.try_clone(layout)?;
        Ok((storage, layout.shape().clone()))
    }
}
