//! The C ABI of the HIP runtime. Functions have the names and signatures of AMD's library.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

mod device;
mod event;
mod graph;
mod memory;
mod module;
mod peer;
mod properties;
mod stream;

pub use device::*;
pub use event::*;
pub use graph::*;
pub use hip_abi::error::{hipGetErrorName, hipGetErrorString};
pub use memory::*;
pub use module::*;
pub use peer::*;
pub use stream::*;
