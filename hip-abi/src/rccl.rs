//! RCCL's types and numbers, which are NCCL's
//! (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html>), and names of its statuses.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_void, CStr};

/// Handle of a communicator.
pub type ncclComm_t = *mut c_void;
/// Status of a call.
pub type ncclResult_t = c_int;
/// Element type of a call, one of [`DataType`].
pub type ncclDataType_t = c_int;
/// Reduction of a call, one of [`Op`].
pub type ncclRedOp_t = c_int;

/// What the ranks of a communicator are told to find each other. Passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclUniqueId {
    pub internal: [u8; UNIQUE_ID_BYTES],
}

pub const UNIQUE_ID_BYTES: usize = 128;

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Failure {
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
}

pub const SUCCESS: ncclResult_t = 0;

/// What a call answers.
pub type Outcome<T = ()> = Result<T, Failure>;

/// The C status of an outcome.
pub fn status(outcome: Outcome) -> ncclResult_t {
    outcome.map_or_else(|failure| failure as ncclResult_t, |()| SUCCESS)
}

const TEXTS: &[&CStr] = &[
    c"no error",
    c"unhandled HIP error",
    c"unhandled system error",
    c"internal error",
    c"invalid argument",
    c"invalid usage",
    c"remote process exited or there was a network error",
    c"operation in progress",
];

/// Description of a status.
pub fn text(status: ncclResult_t) -> *const c_char {
    let known = usize::try_from(status).ok().and_then(|i| TEXTS.get(i));
    known.unwrap_or(&c"unknown result code").as_ptr()
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DataType {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
    Float8e4m3,
    Float8e5m2,
}

impl DataType {
    const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8e4m3,
        DataType::Float8e5m2,
    ];

    /// By its number.
    pub fn from_code(code: ncclDataType_t) -> Option<DataType> {
        DataType::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        use DataType::*;
        match self {
            Int8 | Uint8 | Float8e4m3 | Float8e5m2 => 1,
            Float16 | Bfloat16 => 2,
            Int32 | Uint32 | Float32 => 4,
            Int64 | Uint64 | Float64 => 8,
        }
    }

    /// Whether it is reduced everywhere: what 8-bit floats mean differs from GPU to GPU.
    pub fn is_reducible(self) -> bool {
        !matches!(self, DataType::Float8e4m3 | DataType::Float8e5m2)
    }
}

/// Reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    Sum,
    Prod,
    Max,
    Min,
}

impl Op {
    /// By its number; none for means and those that a program makes.
    pub fn from_code(code: ncclRedOp_t) -> Option<Op> {
        let all = [Op::Sum, Op::Prod, Op::Max, Op::Min];
        all.get(usize::try_from(code).ok()?).copied()
    }
}
