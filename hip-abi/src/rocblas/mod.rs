//! rocBLAS: statuses, the version, and the entry points of its products, which the [`Library`](crate::Library) carries
//! out.
#![allow(missing_docs, non_camel_case_types, clippy::too_many_arguments)]

mod gemm;
mod status;
mod version;

pub use gemm::*;
pub use status::*;
pub use version::*;

use std::ffi::{c_int, c_void};

pub type rocblas_handle = *mut c_void;
pub type rocblas_int = c_int;
pub type rocblas_stride = i64;
