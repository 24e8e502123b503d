//! Functions of one operand.

use super::cast::cast;
use super::elementwise::Elementwise;
use super::{Dims, Strides};
use crate::dtype::{ALL_FLOATS, SIGNED, UNSIGNED};
use crate::kernels::{kernels, Axis, Ptr};
use crate::{Buffer, DType, Device, Error, Family, Result, View};

kernels! {
    /// Functions of floats.
    of_floats = "{op}_{dtype}" [op: UnaryOp = UnaryOp::ALL, dtype: DType = ALL_FLOATS] in Family::Unary, part dtype
        => (n: u64, dims: Dims, xs: Strides, x: Ptr, out: Ptr);

    /// Those that mean something for signed integers and are not the identity.
    of_signed = "{op}_{dtype}" [op: UnaryOp = [UnaryOp::Abs, UnaryOp::Relu, UnaryOp::Sign], dtype: DType = SIGNED]
        in Family::Unary, part dtype => (n: u64, dims: Dims, xs: Strides, x: Ptr, out: Ptr);

    /// The same of unsigned ones.
    of_unsigned = "{op}_{dtype}" [op: UnaryOp = [UnaryOp::Sign], dtype: DType = UNSIGNED]
        in Family::Unary, part dtype => (n: u64, dims: Dims, xs: Strides, x: Ptr, out: Ptr);
}

/// A function of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// e^x
    Exp,
    /// Natural logarithm.
    Log,
    /// Sine, for arguments of any size.
    Sin,
    /// Cosine, for arguments of any size.
    Cos,
    /// Magnitude.
    Abs,
    /// -x
    Neg,
    /// 1 / x
    Recip,
    /// x²
    Sqr,
    /// Square root.
    Sqrt,
    /// Gaussian error linear unit, by its approximation with tanh.
    Gelu,
    /// Gaussian error linear unit, x (1 + erf(x / √2)) / 2.
    GeluErf,
    /// Error function.
    Erf,
    /// max(x, 0); NaN stays.
    Relu,
    /// x / (1 + e^-x)
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// Largest integer that is not above.
    Floor,
    /// Smallest integer that is not below.
    Ceil,
    /// Nearest integer, halfway cases away from zero.
    Round,
    /// -1, 0 or 1; 0 for NaN.
    Sign,
    /// 1 / (1 + e^-x)
    Sigmoid,
}

impl UnaryOp {
    /// Every function.
    pub const ALL: [UnaryOp; 20] = [
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Sin,
        UnaryOp::Cos,
        UnaryOp::Abs,
        UnaryOp::Neg,
        UnaryOp::Recip,
        UnaryOp::Sqr,
        UnaryOp::Sqrt,
        UnaryOp::Gelu,
        UnaryOp::GeluErf,
        UnaryOp::Erf,
        UnaryOp::Relu,
        UnaryOp::Silu,
        UnaryOp::Tanh,
        UnaryOp::Floor,
        UnaryOp::Ceil,
        UnaryOp::Round,
        UnaryOp::Sign,
        UnaryOp::Sigmoid,
    ];

    /// The name, as kernel names begin.
    pub const fn as_str(self) -> &'static str {
        match self {
            UnaryOp::Exp => "exp",
            UnaryOp::Log => "log",
            UnaryOp::Sin => "sin",
            UnaryOp::Cos => "cos",
            UnaryOp::Abs => "abs",
            UnaryOp::Neg => "neg",
            UnaryOp::Recip => "recip",
            UnaryOp::Sqr => "sqr",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::Gelu => "gelu",
            UnaryOp::GeluErf => "gelu_erf",
            UnaryOp::Erf => "erf",
            UnaryOp::Relu => "relu",
            UnaryOp::Silu => "silu",
            UnaryOp::Tanh => "tanh",
            UnaryOp::Floor => "floor",
            UnaryOp::Ceil => "ceil",
            UnaryOp::Round => "round",
            UnaryOp::Sign => "sign",
            UnaryOp::Sigmoid => "sigmoid",
        }
    }
}

impl std::fmt::Display for UnaryOp {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Axis for UnaryOp {}

/// What a function is for an integer type.
enum OnIntegers {
    Kernel,
    Identity,
    Zero,
    Unsupported,
}

impl OnIntegers {
    /// As candle defines it on the CPU: rounding changes nothing, and the activations and erf give 0.
    fn of(op: UnaryOp, dtype: DType) -> Self {
        let signed = SIGNED.contains(&dtype);
        match op {
            UnaryOp::Sign => OnIntegers::Kernel,
            UnaryOp::Abs | UnaryOp::Relu if signed => OnIntegers::Kernel,
            UnaryOp::Abs | UnaryOp::Relu | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => {
                OnIntegers::Identity
            }
            UnaryOp::Gelu | UnaryOp::GeluErf | UnaryOp::Erf | UnaryOp::Silu => OnIntegers::Zero,
            UnaryOp::Exp
            | UnaryOp::Log
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Neg
            | UnaryOp::Recip
            | UnaryOp::Sqr
            | UnaryOp::Sqrt
            | UnaryOp::Tanh
            | UnaryOp::Sigmoid => OnIntegers::Unsupported,
        }
    }
}

/// `op` of every element. Small floats are rounded after each elementary step, as on the CPU.
///
/// # Errors
/// [`Error::UnsupportedDType`] for functions that integers do not have, [`Error::InvalidView`], [`Error::TooLarge`].
pub fn unary(device: &Device, op: UnaryOp, x: &View) -> Result<Buffer> {
    let dtype = x.dtype;
    let name = op.as_str();
    let kernel = Elementwise::new(name, [x], dtype)?;
    if !dtype.is_float() {
        match OnIntegers::of(op, dtype) {
            OnIntegers::Kernel => {}
            OnIntegers::Identity => return cast(device, x, dtype),
            OnIntegers::Zero => return device.alloc_zeroed(x.elem_count() * dtype.size_in_bytes()),
            OnIntegers::Unsupported => return Err(Error::UnsupportedDType { op: name, dtype }),
        }
    }
    kernel.run(device, [x], dtype, |work| {
        let (config, n, dims, out) = (work.config, work.count, work.dims, work.output);
        let ([xs], [x]) = (work.strides, work.inputs);
        // SAFETY: the operands are those of `Work`.
        unsafe {
            if dtype.is_float() {
                of_floats::of(op, dtype)?.launch(device, config, n, dims, xs, x, out)
            } else if UNSIGNED.contains(&dtype) {
                of_unsigned::of(op, dtype)?.launch(device, config, n, dims, xs, x, out)
            } else {
                of_signed::of(op, dtype)?.launch(device, config, n, dims, xs, x, out)
            }
        }
    })
}
