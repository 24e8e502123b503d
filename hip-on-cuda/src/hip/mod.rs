//! The C ABI of the HIP runtime. Functions have the names and signatures of AMD's library.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

mod device;
mod graph;
mod memory;
mod module;
mod peer;
mod stream;
mod unsupported;

pub use device::*;
pub use graph::*;
pub use hip_abi::error::{hipGetErrorName, hipGetErrorString};
pub use memory::*;
pub use module::*;
pub use peer::*;
pub use stream::*;
pub use unsupported::*;

/// Defines functions that CUDA has under another name: handles, flags and statuses are the same.
macro_rules! forward {
    ($(fn $hip:ident($($argument:ident: $type:ty),* $(,)?) = $cuda:ident($($value:expr),* $(,)?);)*) => {
        $(
            #[no_mangle]
            pub unsafe extern "C" fn $hip($($argument: $type),*) -> hip_abi::error::hipError_t {
                // SAFETY: the caller promises what HIP asks for (pointers are writable, handles alive, memory as large
                // as said), and the driver's function, which does the same, asks for no more.
                crate::cuda::call(|driver| unsafe { (driver.$cuda)($($value),*) })
            }
        )*
    };
}
pub(crate) use forward;
