//! The C ABI of rocBLAS: handles, and what computes the products. Functions have the names and signatures of AMD's
//! library; the entry points of the products are in `hip-abi`.
#![allow(
    missing_docs,
    non_snake_case,
    non_camel_case_types,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

mod call;
mod gemm;
mod handle;

pub(crate) use call::submit;
pub use handle::*;
pub use hip_abi::rocblas::*;
