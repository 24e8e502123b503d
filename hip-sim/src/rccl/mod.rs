//! The C ABI of RCCL. Functions have the names and signatures of AMD's library.
//!
//! A call is done when it returns, as all of the simulator's: ranks meet inside of it, so those of one process need an
//! OS thread each, or a group. Ranks of other processes meet in the process that made the id.
//!
//! | Module | Holds |
//! |---|---|
//! | `call` | what is asked for |
//! | `group` | groups, streams and graphs |
//! | `comm` | a rank's end |
//! | `hub`, `state` | where ranks meet, and what they have asked for there |
//! | `reduce` | sums, products, largest and smallest |
//! | `wire`, `interface` | ids and other processes |
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

mod call;
mod comm;
mod error;
mod group;
mod hub;
mod interface;
mod reduce;
mod state;
mod wire;

pub use hip_abi::rccl::*;

use crate::hip::current_device;
use crate::hip::stream::{hipStream_t, stream};
use crate::inject::Failure as Injected;
use crate::sim::sim;
use call::{Call, Kind};
use comm::{comms, Comm};
use group::Operation;
use hub::{Error, Hub, Place};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use wire::Link;

/// The release that it says it is, that of ROCm 7.2: 2.27.7.
const VERSION: c_int = 22_707;

/// Notes wrong use that the real library refuses, too.
fn misused(message: String) -> Failure {
    error::set(&message);
    sim().reports.add(message);
    Failure::InvalidArgument
}

fn comm(function: &str, handle: ncclComm_t) -> Outcome<Arc<Comm>> {
    let known = comms().get(handle);
    known.ok_or_else(|| misused(format!("{function}: there is no such communicator")))
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `pointer` is null or writable.
unsafe fn put<T>(function: &str, pointer: *mut T, value: T) -> Outcome {
    if pointer.is_null() {
        return Err(misused(format!("{function}: a pointer is null")));
    }
    // SAFETY: not null; the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller's pointer.
    status(unsafe { put("ncclGetVersion", version, VERSION) })
}

#[no_mangle]
pub extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    text(result)
}

/// The last message of the process, whatever the communicator.
#[no_mangle]
pub extern "C" fn ncclGetLastError(_comm: ncclComm_t) -> *const c_char {
    error::get()
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t {
    let made = wire::unique_id().map_err(|e| {
        error::set(&format!("ncclGetUniqueId: {e}"));
        Failure::SystemError
    });
    // SAFETY: the caller's pointer.
    status(made.and_then(|made| unsafe { put("ncclGetUniqueId", id, made) }))
}

/// What every initialisation checks first.
fn init_gate() -> Outcome {
    let sim = sim();
    sim.gate().map_err(|_| Failure::UnhandledCudaError)?;
    (sim.config.failures.check(Injected::RcclInit)).map_err(|_| {
        error::set("initialisation fails (injected by hip-sim)");
        Failure::SystemError
    })
}

#[no_mangle]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    size: c_int,
    id: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    let init = || {
        init_gate()?;
        if size < 1 || rank < 0 || rank >= size || comm.is_null() {
            return Err(misused(format!(
                "ncclCommInitRank: rank {rank} of {size}, or no room for it"
            )));
        }
        let (rank, size, device) = (rank as usize, size as usize, current_device());
        let link = Link::join(&id, rank, size, device).map_err(|e: Error| {
            error::set(&e.message);
            e.status
        })?;
        let made = Comm::new(rank, size, device, link);
        let handle = comms().insert(made.clone());
        // SAFETY: not null; the caller's pointer.
        unsafe { comm.write(handle) };
        group::join(made).inspect_err(|_| {
            comms().remove(handle);
        })
    };
    status(group::refuse(init()))
}

/// One rank for each of the devices, all in this process.
#[no_mangle]
pub unsafe extern "C" fn ncclCommInitAll(
    comm_list: *mut ncclComm_t,
    count: c_int,
    devices: *const c_int,
) -> ncclResult_t {
    let init = || {
        init_gate()?;
        if count < 1 || comm_list.is_null() {
            return Err(misused(format!(
                "ncclCommInitAll: {count} devices, or no room for them"
            )));
        }
        let (hub, size) = (Arc::new(Hub::default()), count as usize);
        let device = |rank: usize| match devices.is_null() {
            true => rank as c_int,
            // SAFETY: the caller passes as many devices as said.
            false => unsafe { *devices.add(rank) },
        };
        let list: Vec<usize> = (0..size).map(|rank| device(rank) as usize).collect();
        if let Some(device) = list.iter().find(|device| **device >= sim().devices.len()) {
            return Err(misused(format!(
                "ncclCommInitAll: there is no device {}",
                *device as c_int
            )));
        }
        for (rank, device) in list.iter().enumerate() {
            hub.join(rank, size, Place::Here(*device)).map_err(|e| {
                error::set(&e.message);
                e.status
            })?;
        }
        for (rank, device) in list.into_iter().enumerate() {
            let made = Comm::new(rank, size, device, Link::Here(hub.clone()));
            // SAFETY: the caller's list has room for as many as said.
            unsafe { comm_list.add(rank).write(comms().insert(made)) };
        }
        Ok(())
    };
    status(group::refuse(init()))
}

#[no_mangle]
pub extern "C" fn ncclCommDestroy(handle: ncclComm_t) -> ncclResult_t {
    status(comm("ncclCommDestroy", handle).map(|comm| {
        comms().remove(handle);
        comm.leave();
    }))
}

/// May be called while another thread waits in a call of the communicator, which then fails.
#[no_mangle]
pub extern "C" fn ncclCommAbort(handle: ncclComm_t) -> ncclResult_t {
    status(comm("ncclCommAbort", handle).map(|comm| {
        comms().remove(handle);
        comm.abort();
    }))
}

#[no_mangle]
pub unsafe extern "C" fn ncclCommGetAsyncError(
    handle: ncclComm_t,
    result: *mut ncclResult_t,
) -> ncclResult_t {
    let name = "ncclCommGetAsyncError";
    status(comm(name, handle).and_then(|comm| {
        let error = comm
            .async_error()
            .map_or(SUCCESS, |failure| failure as ncclResult_t);
        // SAFETY: the caller's pointer.
        unsafe { put(name, result, error) }
    }))
}

#[no_mangle]
pub unsafe extern "C" fn ncclCommCount(handle: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    let name = "ncclCommCount";
    // SAFETY: the caller's pointer.
    status(comm(name, handle).and_then(|comm| unsafe { put(name, count, comm.size as c_int) }))
}

#[no_mangle]
pub unsafe extern "C" fn ncclCommUserRank(handle: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    let name = "ncclCommUserRank";
    // SAFETY: the caller's pointer.
    status(comm(name, handle).and_then(|comm| unsafe { put(name, rank, comm.rank as c_int) }))
}

#[no_mangle]
pub extern "C" fn ncclGroupStart() -> ncclResult_t {
    group::start();
    SUCCESS
}

#[no_mangle]
pub extern "C" fn ncclGroupEnd() -> ncclResult_t {
    status(group::end())
}

/// A call's arguments as they come from C.
struct Arguments {
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    comm: ncclComm_t,
    stream: hipStream_t,
}

/// Checks a call and makes it.
fn call(function: &'static str, kind: Outcome<Kind>, arguments: Arguments) -> ncclResult_t {
    status(group::refuse(checked(function, kind, arguments).and_then(
        |operation| match operation {
            Some(operation) => group::submit(operation),
            None => Ok(()),
        },
    )))
}

/// The operation that arguments ask for; none if it moves nothing.
fn checked(
    function: &'static str,
    kind: Outcome<Kind>,
    arguments: Arguments,
) -> Outcome<Option<Operation>> {
    let sim = sim();
    sim.gate().map_err(|_| Failure::UnhandledCudaError)?;
    let wrong = |what: String| misused(format!("{function}: {what}"));
    let comm = comm(function, arguments.comm)?;
    let kind = kind.map_err(|_| wrong("there is no such reduction, or rank".into()))?;
    let dtype = DataType::from_code(arguments.dtype)
        .ok_or_else(|| wrong(format!("there is no data type {}", arguments.dtype)))?;
    if !dtype.is_reducible() && matches!(kind, Kind::AllReduce(_) | Kind::ReduceScatter(_)) {
        return Err(wrong(format!(
            "{dtype:?} differs from GPU to GPU and is not reduced here"
        )));
    }
    let count = arguments.count;
    let call = Call { kind, dtype, count };
    if call.partner() >= comm.size {
        return Err(wrong(format!(
            "there is no rank {} among {}",
            call.partner(),
            comm.size
        )));
    }
    let stream =
        stream(sim, arguments.stream).map_err(|_| wrong("there is no such stream".into()))?;
    if stream.device != comm.device {
        let (ours, theirs) = (comm.device, stream.device);
        return Err(wrong(format!(
            "the communicator is of device {ours}, the stream of device {theirs}"
        )));
    }
    let sizes = (call.send_bytes(comm.rank, comm.size)).zip(call.recv_bytes(comm.size));
    let (sends, receives) = sizes.ok_or_else(|| wrong(format!("{count} elements")))?;
    let operation = Operation {
        comm,
        call,
        send: arguments.send as usize,
        recv: arguments.recv as usize,
        stream,
    };
    for (address, bytes) in [(operation.send, sends), (operation.recv, receives)] {
        if bytes > 0 && address == 0 {
            return Err(wrong("a buffer is null".into()));
        }
        (operation.check(sim, address, bytes)).map_err(|_| Failure::InvalidArgument)?;
    }
    let in_place = operation
        .send
        .wrapping_add_signed(call.in_place(operation.comm.rank));
    let overlap =
        operation.send < operation.recv + receives && operation.recv < operation.send + sends;
    if overlap && operation.recv != in_place {
        return Err(wrong(
            "the buffers overlap, but not as in a call in place".into(),
        ));
    }
    Ok(Some(operation).filter(|_| count > 0))
}

fn reduction(op: ncclRedOp_t) -> Outcome<Op> {
    Op::from_code(op).ok_or(Failure::InvalidArgument)
}

fn peer(rank: c_int) -> Outcome<usize> {
    usize::try_from(rank).map_err(|_| Failure::InvalidArgument)
}

#[no_mangle]
pub unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let arguments = Arguments {
        send,
        recv,
        count,
        dtype,
        comm,
        stream,
    };
    call(
        "ncclAllReduce",
        reduction(op).map(Kind::AllReduce),
        arguments,
    )
}

#[no_mangle]
pub unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let arguments = Arguments {
        send,
        recv,
        count,
        dtype,
        comm,
        stream,
    };
    call("ncclAllGather", Ok(Kind::AllGather), arguments)
}

#[no_mangle]
pub unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let arguments = Arguments {
        send,
        recv,
        count,
        dtype,
        comm,
        stream,
    };
    call(
        "ncclReduceScatter",
        reduction(op).map(Kind::ReduceScatter),
        arguments,
    )
}

#[no_mangle]
pub unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let arguments = Arguments {
        send,
        recv,
        count,
        dtype,
        comm,
        stream,
    };
    call(
        "ncclBroadcast",
        peer(root).map(|root| Kind::Broadcast { root }),
        arguments,
    )
}

#[no_mangle]
pub unsafe extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    dtype: ncclDataType_t,
    to: c_int,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let recv = std::ptr::null_mut();
    let arguments = Arguments {
        send,
        recv,
        count,
        dtype,
        comm,
        stream,
    };
    call("ncclSend", peer(to).map(Kind::Send), arguments)
}

#[no_mangle]
pub unsafe extern "C" fn ncclRecv(
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    from: c_int,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let send = std::ptr::null();
    let arguments = Arguments {
        send,
        recv,
        count,
        dtype,
        comm,
        stream,
    };
    call("ncclRecv", peer(from).map(Kind::Recv), arguments)
}
