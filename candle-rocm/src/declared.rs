//! What is declared of a kernel: what there is to find and to check.

use crate::Family;
use candle_rocm_kernels::shared::Shared;

/// A kernel as it is declared beside its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredKernel {
    /// The family, whose device file has it.
    pub family: Family,
    /// Its name there.
    pub name: String,
    /// The part of the family that has it; `None` if every part has it, or there are none.
    pub part: Option<String>,
    /// The only GPUs that have it; `None` if all have.
    pub only: Option<Only>,
    /// What it takes, in order.
    pub arguments: Vec<ArgumentType>,
}

/// GPUs that have kernels of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// Those with waves of 32.
    Wave32,
    /// Those with matrix instructions: MFMA, WMMA, mma.sync.
    Matrix,
    /// Those with matrix instructions on 8-bit floats: [`Arch::has_float8`](crate::Arch::has_float8).
    Float8,
    /// Those with matrix instructions on 8-bit and 4-bit floats with MX scales: [`Arch::has_mx`](crate::Arch::has_mx).
    Mx,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentType {
    /// Its name in device code; `*` for an address of any type.
    pub name: &'static str,
    /// Its size.
    pub bytes: usize,
}

impl ArgumentType {
    pub(crate) fn of<T: Shared>() -> Self {
        ArgumentType {
            name: T::NAME,
            bytes: size_of::<T>(),
        }
    }
}
