//! The C ABI of rocBLAS: handles and matrix products. Functions have the names and signatures of AMD's library.
#![allow(
    missing_docs,
    non_snake_case,
    non_camel_case_types,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

mod call;
mod entry;
mod gemm;
mod handle;
mod status;
mod version;

pub use entry::*;
pub use handle::*;
pub use status::{rocblas_status, rocblas_status_to_string};
pub use version::*;

use std::ffi::c_int;

pub type rocblas_int = c_int;
pub type rocblas_stride = i64;
