//! What tests of queues share.

#![allow(dead_code)] // each test program uses a part

use candle_kfd::mock::Mock;
use candle_kfd::{ComputeQueue, Displays, Gpu, Kernel, Kfd, Launch, Result};
use std::sync::Arc;
use std::time::Duration;

/// More than anything here takes.
pub const SOON: Duration = Duration::from_secs(20);

/// The mock's first GPU.
pub fn open(mock: &Arc<Mock>) -> Arc<Gpu> {
    let kfd = Kfd::with(mock.clone()).unwrap();
    kfd.gpu(0, Displays::Refuse).unwrap()
}

/// The mock's two GPUs.
pub fn open_all(mock: &Arc<Mock>) -> [Arc<Gpu>; 2] {
    let kfd = Kfd::with(mock.clone()).unwrap();
    [0, 1].map(|at| kfd.gpu(at, Displays::Refuse).unwrap())
}

/// Starts a kernel with a block of one thread behind everything before.
pub fn launch(queue: &ComputeQueue, kernel: &Kernel, arguments: &[u8]) -> Result<()> {
    let launch = Launch {
        kernel,
        blocks: [1, 1, 1],
        block: [1, 1, 1],
        dynamic_lds: 0,
        arguments,
        completion: None,
        barrier: true,
    };
    // SAFETY: kernels of the mock reach memory through its tables only, and tests keep programs until they are done.
    unsafe { queue.launch(&launch) }
}
