//! Copies and fills by the GPU's SDMA engines.
//!
//! [`Packets`] is a batch of packets for an engine, [`SdmaQueue`] hands it over. Copies and fills of [`Memory`] are safe
//! calls that wait; whoever wants more under way at once submits batches and waits for their tickets.
//!
//! ```
//! use candle_kfd::sdma::{Engine, SdmaQueue};
//! use candle_kfd::{mock::Mock, Displays, Kfd, Kind};
//! use std::time::Duration;
//!
//! # fn main() -> candle_kfd::Result<()> {
//! let kfd = Kfd::with(Mock::new(&["gfx1100"]))?;
//! let gpu = kfd.gpu(0, Displays::Refuse)?;
//! let queue = SdmaQueue::new(&gpu, Engine::Any)?;
//! let (device, host) = (gpu.allocate(4096, Kind::Vram)?, gpu.allocate(4096, Kind::Gtt)?);
//! let timeout = Duration::from_secs(5);
//! queue.fill((&device, 0), 0x01020304, 1024, timeout)?;
//! queue.copy((&host, 0), (&device, 0), 4096, timeout)?;
//! let mut last = [0; 2];
//! host.host().unwrap().read(4094, &mut last)?;
//! assert_eq!(last, [2, 1]);
//! # Ok(())
//! # }
//! ```
//!
//! [`Memory`]: crate::Memory

mod packets;
mod queue;
mod ring;

pub use packets::{Compare, Packets, COPY_BYTES, FILL_BYTES, TIMESTAMP_ALIGNMENT};
pub use queue::{Engine, SdmaQueue, Ticket};
