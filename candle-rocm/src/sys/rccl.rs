//! librccl: collectives of several GPUs.

use super::hip::HipStream;
use super::loader::{library, Sonames};
use std::ffi::{c_char, c_int, c_void};

/// `ncclResult_t`.
pub type RcclResult = c_int;
/// `ncclComm_t`.
pub type RcclComm = *mut c_void;

/// `ncclUniqueId`: what the ranks of a group find each other by. Functions take it by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId {
    /// Bytes without a meaning for callers.
    pub internal: [u8; 128],
}

/// `ncclSuccess`.
pub const SUCCESS: RcclResult = 0;
/// `ncclRemoteError`: a rank of another process is gone, or the network to it.
pub const REMOTE_ERROR: RcclResult = 6;
/// `ncclInProgress`: nothing is wrong so far.
pub const IN_PROGRESS: RcclResult = 7;

/// `ncclInt8`.
pub const INT8: c_int = 0;
/// `ncclUint8`.
pub const UINT8: c_int = 1;
/// `ncclInt32`.
pub const INT32: c_int = 2;
/// `ncclUint32`.
pub const UINT32: c_int = 3;
/// `ncclInt64`.
pub const INT64: c_int = 4;
/// `ncclFloat16`.
pub const FLOAT16: c_int = 6;
/// `ncclFloat32`.
pub const FLOAT32: c_int = 7;
/// `ncclFloat64`.
pub const FLOAT64: c_int = 8;
/// `ncclBfloat16`.
pub const BFLOAT16: c_int = 9;

/// `ncclSum`.
pub const SUM: c_int = 0;
/// `ncclMax`.
pub const MAX: c_int = 2;
/// `ncclMin`.
pub const MIN: c_int = 3;

library! {
    /// Functions of RCCL.
    Rccl = Sonames {
        stem: "librccl",
        package: "package rccl; on Debian librccl1",
        is_on_runtime: true,
    };
    required {
        fn ncclGetVersion(version: *mut c_int) -> RcclResult;
        fn ncclGetErrorString(result: RcclResult) -> *const c_char;
        fn ncclGetUniqueId(id: *mut UniqueId) -> RcclResult;
        fn ncclCommInitAll(comms: *mut RcclComm, devices: c_int, ordinals: *const c_int) -> RcclResult;
        fn ncclCommInitRank(comm: *mut RcclComm, ranks: c_int, id: UniqueId, rank: c_int) -> RcclResult;
        fn ncclCommDestroy(comm: RcclComm) -> RcclResult;
        fn ncclCommAbort(comm: RcclComm) -> RcclResult;
        fn ncclCommGetAsyncError(comm: RcclComm, result: *mut RcclResult) -> RcclResult;
        fn ncclCommCount(comm: RcclComm, count: *mut c_int) -> RcclResult;
        fn ncclCommUserRank(comm: RcclComm, rank: *mut c_int) -> RcclResult;
        fn ncclGroupStart() -> RcclResult;
        fn ncclGroupEnd() -> RcclResult;
        fn ncclAllReduce(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, by: c_int,
            comm: RcclComm, stream: HipStream,
        ) -> RcclResult;
        fn ncclAllGather(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, comm: RcclComm, stream: HipStream,
        ) -> RcclResult;
        fn ncclReduceScatter(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, by: c_int,
            comm: RcclComm, stream: HipStream,
        ) -> RcclResult;
        fn ncclBroadcast(
            from: *const c_void, to: *mut c_void, count: usize, data_type: c_int, root: c_int,
            comm: RcclComm, stream: HipStream,
        ) -> RcclResult;
        fn ncclSend(
            from: *const c_void, count: usize, data_type: c_int, peer: c_int, comm: RcclComm, stream: HipStream,
        ) -> RcclResult;
        fn ncclRecv(
            to: *mut c_void, count: usize, data_type: c_int, peer: c_int, comm: RcclComm, stream: HipStream,
        ) -> RcclResult;
    }
    optional {
        fn ncclGetLastError(comm: RcclComm) -> *const c_char;
    }
}

impl Rccl {
    /// RCCL's words for a result, with what it says of the last error of this thread if it does.
    ///
    /// # Safety
    /// `comm` is null, or a communicator that is neither destroyed nor aborted.
    pub unsafe fn describe(&self, result: RcclResult, comm: RcclComm) -> String {
        // SAFETY: RCCL returns static strings for every result, and one of its own for the last error.
        let (name, detail) = unsafe {
            let name = super::text((self.ncclGetErrorString)(result));
            let last = self.ncclGetLastError;
            (
                name,
                last.map_or_else(String::new, |last| super::text(last(comm))),
            )
        };
        match detail.trim() {
            "" => format!("{name} ({result})"),
            detail => format!("{name} ({result}): {detail}"),
        }
    }
}
