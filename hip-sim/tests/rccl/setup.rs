//! Ranks as a program makes them: a thread each, with a device, a stream and a communicator.

use crate::common::*;
use hip_sim::hip::*;
use hip_sim::rccl::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::MutexGuard;

pub const INT32: c_int = 2;
pub const FLOAT16: c_int = 6;
pub const FLOAT32: c_int = 7;
pub const SUM: c_int = 0;

/// Four devices. `HIP_SIM_SPIN_LIMIT` keeps tests from hanging.
pub fn setup() -> MutexGuard<'static, ()> {
    let turn = turn();
    std::env::set_var("HIP_SIM_ARCH", "gfx942,gfx1100,gfx942,gfx942");
    std::env::set_var("HIP_SIM_MEMORY", "64M");
    if std::env::var_os("HIP_SIM_SPIN_LIMIT").is_none() {
        std::env::set_var("HIP_SIM_SPIN_LIMIT", "20");
    }
    ok(hipSetDevice(0));
    take_reports();
    turn
}

/// A rank's communicator with its stream.
pub struct Rank {
    pub comm: ncclComm_t,
    pub rank: usize,
    pub stream: hipStream_t,
}

// SAFETY: handles are numbers.
unsafe impl Send for Rank {}
// SAFETY: as above.
unsafe impl Sync for Rank {}

impl Rank {
    /// With a communicator on a device, which becomes the thread's.
    pub fn new(comm: ncclComm_t, rank: usize) -> Rank {
        ok(hipSetDevice(rank as c_int));
        let mut stream = null_mut();
        ok(unsafe { hipStreamCreateWithFlags(&mut stream, 1) });
        Rank { comm, rank, stream }
    }

    /// By an id, on the device of the same number.
    pub fn init(id: ncclUniqueId, rank: usize, size: usize) -> Result<Rank, ncclResult_t> {
        ok(hipSetDevice(rank as c_int));
        let mut comm = null_mut();
        match unsafe { ncclCommInitRank(&mut comm, size as c_int, id, rank as c_int) } {
            0 => Ok(Rank::new(comm, rank)),
            status => Err(status),
        }
    }

    pub fn all_reduce(
        &self,
        send: &Buffer,
        recv: &Buffer,
        count: usize,
        dtype: c_int,
        op: c_int,
    ) -> ncclResult_t {
        unsafe { ncclAllReduce(send.ptr, recv.ptr, count, dtype, op, self.comm, self.stream) }
    }

    /// The sum of a number over all ranks.
    pub fn sum(&self, value: f32) -> Result<f32, ncclResult_t> {
        let buffer = Buffer::from_slice(&[value]);
        match self.all_reduce(&buffer, &buffer, 1, FLOAT32, SUM) {
            0 => Ok(buffer.to_vec::<f32>()[0]),
            status => Err(status),
        }
    }

    pub fn send(&self, buffer: &Buffer, count: usize, to: usize) -> ncclResult_t {
        unsafe {
            ncclSend(
                buffer.ptr,
                count,
                FLOAT32,
                to as c_int,
                self.comm,
                self.stream,
            )
        }
    }

    pub fn recv(&self, buffer: &Buffer, count: usize, from: usize) -> ncclResult_t {
        unsafe {
            ncclRecv(
                buffer.ptr,
                count,
                FLOAT32,
                from as c_int,
                self.comm,
                self.stream,
            )
        }
    }

    pub fn async_error(&self) -> ncclResult_t {
        let mut error = -1;
        assert_eq!(unsafe { ncclCommGetAsyncError(self.comm, &mut error) }, 0);
        error
    }

    pub fn destroy(self) {
        assert_eq!(ncclCommDestroy(self.comm), 0);
        ok(hipStreamDestroy(self.stream));
    }
}

pub fn unique_id() -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; 128] };
    assert_eq!(unsafe { ncclGetUniqueId(&mut id) }, 0);
    id
}

/// Communicators of one process for devices from 0 on.
pub fn init_all(size: usize) -> Vec<Rank> {
    let mut comms = vec![null_mut(); size];
    assert_eq!(
        unsafe { ncclCommInitAll(comms.as_mut_ptr(), size as c_int, std::ptr::null()) },
        0
    );
    let ranks = comms
        .into_iter()
        .enumerate()
        .map(|(rank, comm)| Rank::new(comm, rank));
    let ranks = ranks.collect();
    ok(hipSetDevice(0));
    ranks
}

/// Runs every rank on a thread of its own, with its device, and destroys its communicator; what they return, in order.
pub fn on_threads<T: Send>(ranks: Vec<Rank>, work: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                let work = &work;
                scope.spawn(move || {
                    ok(hipSetDevice(rank.rank as c_int));
                    let result = work(&rank);
                    rank.destroy();
                    result
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// `n` numbers that differ from rank to rank.
pub fn numbers(rank: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 10 + rank) as f32).collect()
}

/// An address inside a buffer.
pub fn at(buffer: &Buffer, bytes: usize) -> *mut c_void {
    buffer.ptr.wrapping_byte_add(bytes)
}
