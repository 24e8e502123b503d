//! What a compiled code object and the simulator share: the C structs of `hiprtc/prelude.hpp`.

use super::matrix::Operands;
use std::cell::Cell;
use std::ffi::{c_char, c_void};

/// Changes whenever what a struct below has already changes, so that a cached object of an older simulator is refused.
/// Fields may be added at the end of those that device code is given.
pub(crate) const ABI_VERSION: u32 = 3;

/// Name of the exported [`ModuleInfo`].
pub(crate) const MODULE_SYMBOL: &[u8] = b"hip_sim_module\0";

/// Three unsigned dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dim3 {
    /// Fastest dimension.
    pub x: u32,
    /// Middle dimension.
    pub y: u32,
    /// Slowest dimension.
    pub z: u32,
}

impl Dim3 {
    /// Product of the dimensions.
    pub fn count(self) -> u64 {
        self.x as u64 * self.y as u64 * self.z as u64
    }

    /// The coordinates of the `index`-th element, `x` fastest.
    pub fn at(self, index: u64) -> Dim3 {
        let (x, y) = (self.x as u64, self.y as u64);
        Dim3 {
            x: (index % x) as u32,
            y: (index / x % y) as u32,
            z: (index / x / y) as u32,
        }
    }
}

/// A thread of a block: its coordinates and its number, `x` fastest.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Thread {
    pub index: Dim3,
    pub linear: u32,
}

/// The block that an OS thread is running. The entry runs `threads[next..end]`, counting `next` up.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Block {
    pub threads: *const Thread,
    pub next: Cell<u32>,
    pub end: Cell<u32>,
    pub block_idx: Dim3,
    pub block_dim: Dim3,
    pub grid_dim: Dim3,
    pub shared: *mut c_void,
}

/// Runs threads of a block with the given argument addresses.
pub(crate) type Entry = unsafe extern "C" fn(*const Block, *const *const c_void);

/// One kernel of a module.
#[repr(C)]
pub(crate) struct KernelInfo {
    pub name: *const c_char,
    pub entry: Entry,
    pub args: u32,
    /// First argument of `__launch_bounds__`, 0 without.
    pub max_threads: u32,
    pub sizes: *const u32,
    pub aligns: *const u32,
}

/// The table that every code object exports.
#[repr(C)]
pub(crate) struct ModuleInfo {
    pub magic: [u8; 8],
    pub abi: u32,
    pub wave: u32,
    /// 1 if compiled with checks.
    pub checked: u32,
    pub kernels: u32,
    pub arch: *const c_char,
    pub table: *const KernelInfo,
    /// The translated source, for compiling it again with checks.
    pub source: *const u8,
    pub source_end: *const u8,
    /// Where the loader puts the address of its [`Runtime`].
    pub runtime: *mut *const Runtime,
}

/// What device code may call.
#[repr(C)]
pub(crate) struct Runtime {
    pub barrier: unsafe extern "C" fn(line: u32),
    pub exchange: unsafe extern "C" fn(linear: u32, value: u64) -> *const u64,
    pub mask: unsafe extern "C" fn(linear: u32) -> u64,
    /// Executes a matrix instruction with the lanes of the thread's wave.
    pub matrix: unsafe extern "C" fn(linear: u32, operands: *const Operands),
    /// An access to an address in the reserved range whose shadow does not allow it: 0 read, 1 write.
    pub fault:
        unsafe extern "C" fn(address: usize, bytes: usize, write: u32, thread: *const Thread),
    pub memory: usize,
    pub memory_bytes: usize,
    /// 0 without checking.
    pub shadow: usize,
    /// Address of the flags of injected wrong results.
    pub wrong: usize,
    /// Suspends the running thread for a moment.
    pub sleep: unsafe extern "C" fn(),
    /// Nanoseconds since some moment of the process.
    pub clock: unsafe extern "C" fn() -> u64,
    /// Spoils a value that was loaded from an address over a bad link.
    pub link: unsafe extern "C" fn(address: usize, value: *mut u8, bytes: usize),
}
