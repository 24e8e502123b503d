//! AMD GPUs with the kernel driver alone: memory, queues, signals, copies and kernels through `/dev/kfd`, without any of
//! ROCm's libraries.
//!
//! **A wrong packet can hang a GPU and the desktop on it.** GPUs that no table here knows are refused, and so is one that
//! drives a display unless the caller says otherwise.
//!
//! | Module | Holds |
//! |---|---|
//! | [`uapi`] | the kernel's structures and numbers of ioctls |
//! | [`driver`] | what a process asks of the driver: the kernel's, or another that stands in for it |
//! | [`generation`] | what differs from one GPU to the next |
//! | [`sdma`] | copies and fills by the GPU's SDMA engines |
//! | [`mock`] | a driver and GPUs in this process, for tests |

pub mod driver;
mod error;
pub mod generation;
pub mod mock;
pub mod sdma;
pub mod uapi;

pub use error::{Error, Result};
