//! The HIP runtime that a worker uses: the simulator that is linked into this program, or the ROCm of the machine.
//!
//! The functions and their types are HIP's, so one table serves both.

use super::wire::{Address, Launch, Passed, Room};
use candle_rocm::sys::hip::{
    DeviceProp, Hip, HipFunction, HipModule, MEMCPY_DEVICE_TO_HOST, MEMCPY_HOST_TO_DEVICE,
};
use hip_sim::hip;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::ptr::null_mut;

/// `hipModuleLaunchKernel`.
type LaunchKernel = unsafe extern "C" fn(
    HipFunction,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// Functions of HIP, with a device that is in use.
pub(super) struct Runtime {
    describe: unsafe extern "C" fn(c_int) -> *const c_char,
    malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    free: unsafe extern "C" fn(*mut c_void) -> c_int,
    copy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, *mut c_void) -> c_int,
    synchronize: unsafe extern "C" fn(*mut c_void) -> c_int,
    load: unsafe extern "C" fn(*mut HipModule, *const c_void) -> c_int,
    function: unsafe extern "C" fn(*mut HipFunction, HipModule, *const c_char) -> c_int,
    launch: LaunchKernel,
    /// What the device is.
    pub arch: String,
    /// Bytes before and behind each buffer that nothing may write; the simulator has its own.
    guard: usize,
    is_simulated: bool,
}

/// A loaded code object, which stays loaded.
#[derive(Clone, Copy)]
pub(super) struct Loaded(HipModule);

// SAFETY: HIP's handles belong to the process, not to a thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// What guards are filled with.
const GUARD: u8 = 0xa5;
/// Keys of the list that hands arguments over in one buffer.
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;
const BUFFER_END: usize = 3;

/// Device memory of a buffer with its guards; freed when dropped.
struct Memory<'a> {
    runtime: &'a Runtime,
    start: *mut c_void,
    bytes: usize,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by hipMalloc, and nobody else's. An error here was told by the launch before.
        unsafe { (self.runtime.free)(self.start) };
    }
}

impl Memory<'_> {
    fn address(&self) -> *mut c_void {
        match self.start.is_null() {
            true => null_mut(),
            false => self.start.wrapping_byte_add(self.runtime.guard),
        }
    }
}

impl Runtime {
    /// The simulator, set up by this process's environment.
    pub fn simulated() -> Result<Self, String> {
        let runtime = Runtime {
            describe: hip::hipGetErrorString,
            malloc: hip::hipMalloc,
            free: hip_free,
            copy: hip::hipMemcpyAsync,
            synchronize: hip_synchronize,
            load: hip::hipModuleLoadData,
            function: hip::hipModuleGetFunction,
            launch: hip::hipModuleLaunchKernel,
            arch: std::env::var("HIP_SIM_ARCH").unwrap_or_default(),
            guard: 0,
            is_simulated: true,
        };
        runtime.asks(hip::hipInit(0), "hipInit")?;
        Ok(runtime)
    }

    /// The first GPU of the machine's ROCm.
    pub fn of_machine() -> Result<Self, String> {
        let hip = &Hip::get().map_err(|error| error.to_string())?.functions;
        let mut runtime = Runtime {
            describe: hip.hipGetErrorString,
            malloc: hip.hipMalloc,
            free: hip.hipFree,
            copy: hip.hipMemcpyAsync,
            synchronize: hip.hipStreamSynchronize,
            load: hip.hipModuleLoadData,
            function: hip.hipModuleGetFunction,
            launch: hip.hipModuleLaunchKernel,
            arch: String::new(),
            guard: 256,
            is_simulated: false,
        };
        let mut properties = Box::new(DeviceProp::zeroed());
        // SAFETY: the properties have room for what HIP writes.
        unsafe {
            runtime.asks((hip.hipInit)(0), "hipInit")?;
            runtime.asks((hip.hipSetDevice)(0), "hipSetDevice")?;
            let status = (hip.hipGetDevicePropertiesR0600)(&mut *properties, 0);
            runtime.asks(status, "hipGetDeviceProperties")?;
        }
        runtime.arch = properties.string(DeviceProp::GCN_ARCH_NAME);
        Ok(runtime)
    }

    fn asks(&self, status: c_int, what: &str) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: HIP answers a constant text for every number.
        let text = unsafe { CStr::from_ptr((self.describe)(status)) };
        Err(format!("{what}: {} ({status})", text.to_string_lossy()))
    }

    /// Loads a code object.
    pub fn load(&self, object: &[u8]) -> Result<Loaded, String> {
        let mut module = null_mut();
        // SAFETY: the object is whole: a compiler or the cache, which has its checksum, gave it.
        let status = unsafe { (self.load)(&mut module, object.as_ptr().cast()) };
        self.asks(status, "hipModuleLoadData")
            .map(|()| Loaded(module))
    }

    fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: c_int,
    ) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both sides have so many bytes.
        let status = unsafe { (self.copy)(to, from, bytes, kind, null_mut()) };
        self.asks(status, "hipMemcpyAsync")?;
        self.wait()
    }

    fn wait(&self) -> Result<(), String> {
        // SAFETY: the null stream is always there.
        let status = unsafe { (self.synchronize)(null_mut()) };
        self.asks(status, "hipStreamSynchronize")
    }

    fn allocate(&self, bytes: usize, contents: Option<&[u8]>) -> Result<Memory<'_>, String> {
        let mut memory = Memory {
            runtime: self,
            start: null_mut(),
            bytes,
        };
        if bytes == 0 {
            return Ok(memory);
        }
        // SAFETY: the pointer is written.
        let status = unsafe { (self.malloc)(&mut memory.start, bytes + 2 * self.guard) };
        self.asks(status, "hipMalloc")?;
        if self.guard > 0 {
            let guards = vec![GUARD; bytes + 2 * self.guard];
            self.copy(
                memory.start,
                guards.as_ptr().cast(),
                guards.len(),
                MEMCPY_HOST_TO_DEVICE,
            )?;
        }
        if let Some(contents) = contents.filter(|contents| contents.len() == bytes) {
            self.copy(
                memory.address(),
                contents.as_ptr().cast(),
                bytes,
                MEMCPY_HOST_TO_DEVICE,
            )?;
        }
        Ok(memory)
    }

    fn read(&self, memory: &Memory) -> Result<Vec<u8>, String> {
        if memory.start.is_null() {
            return Ok(Vec::new());
        }
        let mut all = vec![0u8; memory.bytes + 2 * self.guard];
        self.copy(
            all.as_mut_ptr().cast(),
            memory.start,
            all.len(),
            MEMCPY_DEVICE_TO_HOST,
        )?;
        Ok(all)
    }

    /// Runs a kernel on buffers with these contents (none for what was never written), and answers what is in them then.
    pub fn run(
        &self,
        Loaded(module): Loaded,
        launch: &Launch,
        contents: &[Option<Vec<u8>>],
    ) -> Result<Vec<Vec<u8>>, String> {
        let name = CString::new(launch.kernel.as_str()).map_err(|error| error.to_string())?;
        let mut function = null_mut();
        // SAFETY: the module is loaded, and the name a C string.
        let status = unsafe { (self.function)(&mut function, module, name.as_ptr()) };
        self.asks(status, &format!("kernel {}", launch.kernel))?;
        let allocate = |(room, contents): (&Room, &Option<Vec<u8>>)| {
            self.allocate(room.bytes, contents.as_deref())
        };
        let memories = launch.rooms.iter().zip(contents).map(allocate);
        let memories = memories.collect::<Result<Vec<_>, _>>()?;
        // Addresses are known now.
        let insert = |bytes: &[u8], addresses: &[Address]| -> Result<Vec<u8>, String> {
            let mut bytes = bytes.to_vec();
            for Address { at, index } in addresses {
                let memory = memories.get(*index).ok_or("a buffer that is not there")?;
                let place = bytes
                    .get_mut(*at..at + 8)
                    .ok_or("an address outside of its bytes")?;
                place.copy_from_slice(&(memory.address() as u64).to_le_bytes());
            }
            Ok(bytes)
        };
        for ((room, contents), memory) in launch.rooms.iter().zip(contents).zip(&memories) {
            if let Some(contents) = contents.as_ref().filter(|_| !room.addresses.is_empty()) {
                let bytes = insert(contents, &room.addresses)?;
                self.copy(
                    memory.address(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    MEMCPY_HOST_TO_DEVICE,
                )?;
            }
        }
        let mut block = Block::default();
        for argument in &launch.arguments {
            match argument {
                Passed::Value {
                    bytes,
                    align,
                    addresses,
                } => block.push(&insert(bytes, addresses)?, *align),
                Passed::Null => block.push(&[0; 8], 8),
                Passed::Buffer { index, offset } => {
                    let memory = memories.get(*index).ok_or("a buffer that is not there")?;
                    let address = memory.address().wrapping_byte_add(*offset);
                    block.push(&(address as u64).to_le_bytes(), 8);
                }
            }
        }
        if launch.blocks() > 0 && launch.threads() > 0 {
            self.start(function, launch, &mut block)?;
            self.wait()?;
        }
        let mut outputs = Vec::new();
        for (index, memory) in memories.iter().enumerate() {
            let mut all = self.read(memory)?;
            if !all.is_empty() && self.guard > 0 {
                let (front, back) = (self.guard, self.guard + memory.bytes);
                if all[..front]
                    .iter()
                    .chain(&all[back..])
                    .any(|&byte| byte != GUARD)
                {
                    return Err(format!("guard zone overwritten beside buffer {index}"));
                }
                all.truncate(back);
                all.drain(..front);
            }
            outputs.push(all);
        }
        Ok(outputs)
    }

    fn start(
        &self,
        function: HipFunction,
        launch: &Launch,
        block: &mut Block,
    ) -> Result<(), String> {
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let base = block.words.as_mut_ptr().cast::<u8>();
        // The simulator compares the size of one buffer with what the kernel takes. HIP does not, and NVIDIA's driver
        // wants it exact, so those get an address for each argument.
        let mut size = block.bytes;
        let mut extra = [
            BUFFER_POINTER as *mut c_void,
            base.cast(),
            BUFFER_SIZE as *mut c_void,
            (&raw mut size).cast(),
            BUFFER_END as *mut c_void,
        ];
        let offsets = block.offsets.iter();
        let mut each: Vec<*mut c_void> = offsets
            .map(|&offset| base.wrapping_add(offset).cast())
            .collect();
        let (params, extra) = match self.is_simulated {
            true => (null_mut(), extra.as_mut_ptr()),
            false => (each.as_mut_ptr(), null_mut()),
        };
        let shared = launch.shared;
        // SAFETY: the arguments are laid out as C does, and copied before the call returns. Whether they are the
        // kernel's nobody can know: a wild kernel takes this process with it, which was started for that.
        let status = unsafe {
            (self.launch)(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared,
                null_mut(),
                params,
                extra,
            )
        };
        self.asks(status, "hipModuleLaunchKernel")
    }

    /// What the simulator has found since the last call.
    pub fn reports(&self) -> Vec<String> {
        if !self.is_simulated {
            return Vec::new();
        }
        let mut buffer: Vec<u8> = vec![0; 1 << 16];
        loop {
            // SAFETY: the buffer has the length that is passed.
            let needed = unsafe {
                hip_sim::control::hip_sim_take_reports(buffer.as_mut_ptr().cast(), buffer.len())
            };
            if needed <= buffer.len() {
                buffer.truncate(needed.saturating_sub(1));
                let text = String::from_utf8_lossy(&buffer);
                return text.lines().map(str::to_string).collect();
            }
            buffer = vec![0; needed];
        }
    }
}

extern "C" fn hip_synchronize(stream: *mut c_void) -> c_int {
    hip::hipStreamSynchronize(stream)
}

extern "C" fn hip_free(pointer: *mut c_void) -> c_int {
    hip::hipFree(pointer)
}

/// Arguments as C lays them out in a structure.
#[derive(Default)]
struct Block {
    /// Aligned to 64 bytes would be more than any argument needs; words of 16 are what the simulator copies.
    words: Vec<u128>,
    bytes: usize,
    offsets: Vec<usize>,
}

impl Block {
    fn push(&mut self, value: &[u8], align: usize) {
        let start = self.bytes.next_multiple_of(align.max(1));
        self.bytes = start + value.len();
        self.offsets.push(start);
        // A word more: a kernel whose parameter is wider than the value reads zeros, not another's memory.
        self.words.resize(self.bytes.div_ceil(16) + 4, 0);
        for (at, byte) in value.iter().enumerate() {
            let (word, shift) = ((start + at) / 16, (start + at) % 16 * 8);
            self.words[word] |= u128::from(*byte) << shift;
        }
    }
}
