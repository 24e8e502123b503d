//! RCCL over NCCL, which has the same ABI: types, numbers and the passing of ids. Without NCCL, every call answers
//! system error, and a line on stderr says why.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

pub use hip_abi::rccl::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};

use crate::cuda::lent;
use crate::table::table;
use hip_abi::rccl::{text, Failure};
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const SONAME: &str = "libnccl.so.2";
/// Where PyTorch's package of it lies among a Python's packages.
const PACKAGE: &str = "nvidia/nccl/lib";

table! {
    /// Functions of NCCL.
    Nccl {
        fn ncclGetVersion(version: *mut c_int);
        fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
        fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
        fn ncclGetUniqueId(id: *mut ncclUniqueId);
        fn ncclCommInitRank(comm: *mut ncclComm_t, size: c_int, id: ncclUniqueId, rank: c_int);
        fn ncclCommInitAll(comms: *mut ncclComm_t, count: c_int, devices: *const c_int);
        fn ncclCommDestroy(comm: ncclComm_t);
        fn ncclCommAbort(comm: ncclComm_t);
        fn ncclCommGetAsyncError(comm: ncclComm_t, result: *mut ncclResult_t);
        fn ncclCommCount(comm: ncclComm_t, count: *mut c_int);
        fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int);
        fn ncclGroupStart();
        fn ncclGroupEnd();
        fn ncclAllReduce(
            send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: *mut c_void,
        );
        fn ncclAllGather(
            send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, comm: ncclComm_t,
            stream: *mut c_void,
        );
        fn ncclReduceScatter(
            send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
            comm: ncclComm_t, stream: *mut c_void,
        );
        fn ncclBroadcast(
            send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int,
            comm: ncclComm_t, stream: *mut c_void,
        );
        fn ncclSend(
            send: *const c_void, count: usize, dtype: ncclDataType_t, to: c_int, comm: ncclComm_t,
            stream: *mut c_void,
        );
        fn ncclRecv(
            recv: *mut c_void, count: usize, dtype: ncclDataType_t, from: c_int, comm: ncclComm_t,
            stream: *mut c_void,
        );
    }
}

/// NCCL, opened by the first call: the file that `HIP_ON_CUDA_NCCL` names and no other, or where the dynamic loader and
/// CUDA have it, or where the Pythons of this environment do.
fn nccl() -> Option<&'static Nccl> {
    static NCCL: OnceLock<Option<Nccl>> = OnceLock::new();
    let open = || {
        let files: Vec<PathBuf> = match std::env::var_os("HIP_ON_CUDA_NCCL") {
            Some(file) => vec![file.into()],
            None => {
                let packages = pythons()
                    .into_iter()
                    .flat_map(|python| packages_of(&python));
                std::iter::once(SONAME.into()).chain(packages).collect()
            }
        };
        let names: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
        match Nccl::open(&names) {
            Ok(nccl) => Some(nccl),
            Err(message) => {
                eprintln!("hip-on-cuda: there is no RCCL without NCCL; HIP_ON_CUDA_NCCL names its file. {message}");
                None
            }
        }
    };
    NCCL.get_or_init(open).as_ref()
}

/// Folders in which a Python may be installed: of the virtual environment, of the programs on the path, the user's own.
fn pythons() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = std::env::split_paths(&path).collect::<Vec<_>>();
    let parents = programs.iter().filter_map(|folder| folder.parent());
    (variable("VIRTUAL_ENV").into_iter())
        .chain(variable("CONDA_PREFIX"))
        .chain(parents.map(Path::to_path_buf))
        .chain(variable("HOME").map(|home| home.join(".local")))
        .collect()
}

/// Files of NCCL among the packages of the Pythons that are installed in a folder.
fn packages_of(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root.join("lib")) else {
        return Vec::new();
    };
    let is_python = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("python"))
    };
    let pythons = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_python);
    let mut files: Vec<PathBuf> = pythons
        .flat_map(|python| ["site-packages", "dist-packages"].map(|folder| python.join(folder)))
        .map(|packages| packages.join(PACKAGE).join(SONAME))
        .filter(|file| file.exists())
        .collect();
    files.sort();
    files
}

/// Runs a call of NCCL in the thread's context: it belongs to the device that was set last.
fn call(call: impl FnOnce(&Nccl) -> ncclResult_t) -> ncclResult_t {
    match nccl() {
        Some(nccl) => lent(|| call(nccl)).unwrap_or(Failure::UnhandledCudaError as ncclResult_t),
        None => Failure::SystemError as ncclResult_t,
    }
}

/// Defines functions that are NCCL's own.
macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            #[no_mangle]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> ncclResult_t {
                // SAFETY: the caller promises what RCCL asks for (pointers are writable, memory as large as said,
                // handles alive), and NCCL's function, which does the same, asks for no more.
                call(|nccl| unsafe { (nccl.$name)($($argument),*) })
            }
        )*
    };
}

forward! {
    fn ncclCommInitRank(comm: *mut ncclComm_t, size: c_int, id: ncclUniqueId, rank: c_int);
    fn ncclCommInitAll(comms: *mut ncclComm_t, count: c_int, devices: *const c_int);
    fn ncclCommDestroy(comm: ncclComm_t);
    fn ncclCommAbort(comm: ncclComm_t);
    fn ncclCommGetAsyncError(comm: ncclComm_t, result: *mut ncclResult_t);
    fn ncclCommCount(comm: ncclComm_t, count: *mut c_int);
    fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int);
    fn ncclGroupStart();
    fn ncclGroupEnd();
    fn ncclAllReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: *mut c_void,
    );
    fn ncclAllGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, comm: ncclComm_t,
        stream: *mut c_void,
    );
    fn ncclReduceScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: *mut c_void,
    );
    fn ncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: *mut c_void,
    );
    fn ncclSend(
        send: *const c_void, count: usize, dtype: ncclDataType_t, to: c_int, comm: ncclComm_t,
        stream: *mut c_void,
    );
    fn ncclRecv(
        recv: *mut c_void, count: usize, dtype: ncclDataType_t, from: c_int, comm: ncclComm_t,
        stream: *mut c_void,
    );
}

/// Needs no device.
#[no_mangle]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    let Some(nccl) = nccl() else {
        return Failure::SystemError as ncclResult_t;
    };
    // SAFETY: the caller's pointer.
    unsafe { (nccl.ncclGetVersion)(version) }
}

/// Needs no device.
#[no_mangle]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t {
    let Some(nccl) = nccl() else {
        return Failure::SystemError as ncclResult_t;
    };
    // SAFETY: the caller's pointer.
    unsafe { (nccl.ncclGetUniqueId)(id) }
}

#[no_mangle]
pub extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    // SAFETY: any number is fine.
    nccl().map_or_else(
        || text(result),
        |nccl| unsafe { (nccl.ncclGetErrorString)(result) },
    )
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    // SAFETY: the communicator is null or alive.
    nccl().map_or(c"".as_ptr(), |nccl| unsafe {
        (nccl.ncclGetLastError)(comm)
    })
}

#[cfg(test)]
mod tests {
    use super::{packages_of, PACKAGE, SONAME};

    #[test]
    fn nccl_is_found_among_a_pythons_packages() {
        let root = std::env::temp_dir().join(format!("hip-on-cuda-{}", std::process::id()));
        let folder = root.join("lib/python3.12/site-packages").join(PACKAGE);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(root.join("lib/other/site-packages").join(PACKAGE)).unwrap();
        std::fs::write(folder.join(SONAME), "").unwrap();
        let found = packages_of(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [folder.join(SONAME)]);
    }
}
