//! AMD GPUs with the kernel driver alone: memory, queues, signals, copies and kernels through `/dev/kfd`, without any of
//! ROCm's libraries.
//!
//! **A wrong packet can hang a GPU and the desktop on it.** GPUs that no table here knows are refused, and so is one that
//! drives a display unless the caller says otherwise.
//!
//! The driver is Linux' own. On other systems everything but the mock compiles, and [`Kfd::open`] is refused with
//! [`Error::System`].
//!
//! | Module | Holds |
//! |---|---|
//! | [`uapi`] | the kernel's structures and numbers of ioctls |
//! | [`driver`] | what a process asks of the driver: the kernel's, or another that stands in for it |
//! | [`kfd`](Kfd), [`gpu`](Gpu) | the driver and a GPU, opened: versions, nodes, clocks, doorbells |
//! | [`memory`](Memory) | memory that GPUs see, and the host's view of it |
//! | [`event`](Event), [`fault`](Fault) | interrupts, and what goes wrong on a GPU |
//! | [`generation`] | what differs from one GPU to the next |
//! | [`signal`](Signal), [`timeline`](Timeline) | what queues count and wait for |
//! | [`program`](Program), [`queue`](ComputeQueue) | code objects in memory, and the queues that run their kernels |
//! | [`sdma`] | copies and fills by the GPU's SDMA engines |
//! | [`mock`] | a driver and GPUs in this process, for tests |

pub mod driver;
mod error;
mod event;
mod fault;
pub mod generation;
mod gpu;
mod kfd;
mod memory;
#[cfg(target_os = "linux")]
pub mod mock;
mod program;
mod queue;
mod scratch;
pub mod sdma;
mod signal;
mod system;
mod timeline;
pub mod uapi;

pub use error::{Error, Result};
pub use event::{Event, Wake, Woken};
pub use fault::{Fault, Reasons, Region};
pub use gpu::{Clocks, Displays, Doorbell, Gpu};
pub use gpu_topology::Node;
pub use kfd::{Apertures, Kfd};
pub use memory::{Host, Kind, Memory};
pub use program::{Kernel, Program};
pub use queue::{ComputeQueue, Launch};
pub use signal::Signal;
pub use timeline::Timeline;
