//! Verification: nothing that could be wrong on the GPU at hand is used before it was compared with the host.
//!
//! * **Instructions** first: what `device.h` and `matrix.h` promise of lanes, shared memory, bytes, loads and matrices.
//!   Where one does not keep it, all kernels are compiled without it for this GPU (`plain.h`).
//! * **Kernels** when each is first asked for: the operation that launches it computes something small, of sizes that
//!   are no multiples of anything and take more than one block. One that is wrong is compiled in its plain form and
//!   compared again; wrong in this form, too, it is switched off. Whoever selects kernels then takes the next, and if
//!   there is none, [`Error::SwitchedOff`](crate::Error::SwitchedOff) says so.
//! * **Libraries**: rocBLAS for each dtype and transposition, Composable Kernel for each instance, and each solver of
//!   MIOpen on the first convolution that it is to compute.
//!
//! What was found is remembered beside the compiled kernels, for this GPU, driver, compiler and version of the sources.
//! `CANDLE_ROCM_VERIFY` says whether it is asked for again. Captures record nothing that has not been verified before.

mod admit;
mod bench;
pub(crate) mod checks;
mod instructions;
mod libraries;
mod notices;
mod plain;
mod product;
mod report;
mod state;
mod store;
mod trial;

pub(crate) use admit::{function, install, Finding, Keep};
#[doc(hidden)] // For tests.
pub use admit::{try_kernel, Tried};
pub(crate) use bench::{difference_of, difference_within};
pub(crate) use libraries::{
    check_composable, compare_with_own, or_reason, product_is_right, refused_product,
};
pub(crate) use notices::warn;
pub use notices::{on_warning, switched_off, SwitchedOff};
pub(crate) use plain::Plain;
pub(crate) use product::Product;
pub use report::Verification;
