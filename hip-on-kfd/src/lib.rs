//! HIP and hiprtc over the kernel driver alone: a shared library with AMD's C ABI, which programs load in place of ROCm.
//!
//! What it does is in `hip-on-kfd-runtime`; here are the C names, and [`install`]. rocBLAS's and MIOpen's functions that
//! come along with `hip-abi` answer that they are not implemented, and no file has their libraries' names.
#![allow(missing_docs, non_snake_case, clippy::missing_safety_doc)]

mod library;

pub mod install;

use hip_abi::error::hipError_t;
use hip_abi::hiprtc::hiprtcResult;
use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! export {
    ($($module:ident { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)* })*) => {
        $($(
            #[no_mangle]
            #[allow(clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
                #[allow(unused_unsafe)] // some are safe
                // SAFETY: the caller's promise.
                unsafe {
                    hip_on_kfd_runtime::$module::$name($($argument),*)
                }
            }
        )*)*
    };
}
hip_on_kfd_runtime::functions!(export);
