//! Values between two bounds.

use crate::scalar::{TensorOrScalar, TensorScalar};
use crate::{Result, Tensor};

/// `x`, but not below `min` nor above `max`, and where these cross, `max`; NaN if one of the three is. The gradient at a
/// bound is that of `x`, as in PyTorch.
pub(crate) fn clamp<A, B>(x: &Tensor, min: A, max: B) -> Result<Tensor>
where
    A: TensorOrScalar,
    B: TensorOrScalar,
{
    let (min, max) = (bound(x, min)?, bound(x, max)?);
    if ![x, &min, &max].iter().any(|t| t.track_op()) {
        return x.maximum(&min)?.minimum(&max);
    }
    // Of equal operands, a maximum shares the gradient.
    let raised = x.ge(&min)?.where_cond(x, &x.maximum(&min)?)?;
    raised.le(&max)?.where_cond(&raised, &raised.minimum(&max)?)
}

/// A bound as a tensor of `x`'s shape.
fn bound(x: &Tensor, bound: impl TensorOrScalar) -> Result<Tensor> {
    match bound.to_tensor_scalar()? {
        TensorScalar::Tensor(bound) => Ok(bound),
        TensorScalar::Scalar(bound) => bound
            .to_dtype(x.dtype())?
            .to_device(x.device())?
            .broadcast_as(x.shape()),
    }
}
