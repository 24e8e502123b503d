//! Loading of code objects: shared objects that `hiprtc` made.

use super::abi::{KernelInfo, ModuleInfo, Runtime, ABI_VERSION, MODULE_SYMBOL};
use super::{block, fault};
use crate::arch::Arch;
use crate::error::{HipError, HipResult};
use crate::hiprtc::compile;
use crate::memory::Extent;
use crate::sim::{sim, Sim};
use std::ffi::{c_char, c_void, CStr, CString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Objects loaded by this process so far.
static OBJECTS: AtomicUsize = AtomicUsize::new(0);

/// A loaded code object.
pub(crate) struct Module {
    library: Library,
    pub device: usize,
    variables: Mutex<Vec<usize>>,
}

/// A kernel of a loaded module.
pub(crate) struct Function {
    pub module: Arc<Module>,
    pub name: String,
    info: *const KernelInfo,
}

// SAFETY: the info is constant data of the module, which the function keeps loaded.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A `dlopen`ed shared object.
struct Library {
    handle: *mut c_void,
}

// SAFETY: the handle is only used with the thread-safe dlsym and dlclose.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn open(bytes: &[u8]) -> HipResult<Library> {
        // The dynamic linker may keep a library that was closed (one with unique symbols, as templates have) and knows
        // it by its name: no two objects may ever have the same, so this is a file and not a descriptor's number in
        // /proc.
        let mut file = tempfile::Builder::new()
            .prefix(&format!(
                "hip-sim-{}-",
                OBJECTS.fetch_add(1, Ordering::Relaxed)
            ))
            .suffix(".so")
            .tempfile()
            .map_err(|_| HipError::OutOfMemory)?;
        file.write_all(bytes).map_err(|_| HipError::OutOfMemory)?;
        let path =
            CString::new(file.path().as_os_str().as_bytes()).map_err(|_| HipError::InvalidImage)?;
        // SAFETY: loading runs the constructors of compiled device code, as its author asked for.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlerror returns a C string after a failure.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            sim().reports.add(format!(
                "a code object cannot be loaded: {}",
                why.to_string_lossy()
            ));
            return Err(HipError::InvalidImage);
        }
        Ok(Library { handle })
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open and the name a C string.
        unsafe { libc::dlsym(self.handle, name.as_ptr()) }
    }

    fn info(&self) -> HipResult<&ModuleInfo> {
        let name = CStr::from_bytes_with_nul(MODULE_SYMBOL).map_err(|_| HipError::InvalidImage)?;
        let info: *const ModuleInfo = self.symbol(name).cast();
        // SAFETY: only objects of the simulator export this symbol, and magic and version say that the layout is ours.
        let info = unsafe { info.as_ref() }.ok_or(HipError::InvalidImage)?;
        match info.magic == *b"HIPSIM\0\0" && info.abi == ABI_VERSION {
            true => Ok(info),
            false => Err(HipError::InvalidImage),
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: every function and variable of the library is gone with the module that owned it.
        unsafe { libc::dlclose(self.handle) };
    }
}

impl Module {
    /// Loads a code object for a device. With checking on, an object that was compiled without checks is compiled
    /// again.
    ///
    /// # Safety
    /// `image` points to a whole ELF file.
    pub unsafe fn load(
        sim: &'static Sim,
        device: usize,
        image: *const c_void,
    ) -> HipResult<Module> {
        // SAFETY: passed on to the caller.
        let bytes = unsafe { elf_bytes(image)? };
        let mut library = Library::open(bytes)?;
        let info = library.info()?;
        // SAFETY: the table's strings are constants of the library.
        let arch = unsafe { CStr::from_ptr(info.arch) }
            .to_str()
            .map_err(|_| HipError::InvalidImage)?;
        if !Arch::parse(arch).is_some_and(|a| a.runs_on(&sim.devices[device].arch)) {
            return Err(HipError::NoBinaryForGpu);
        }
        if sim.config.check && info.checked == 0 {
            // SAFETY: both pointers delimit the source that the library carries.
            let source = unsafe {
                std::slice::from_raw_parts(
                    info.source,
                    info.source_end.offset_from(info.source) as usize,
                )
            };
            let object = compile::with_checks(source, arch).map_err(|log| {
                sim.reports.add(format!(
                    "a code object cannot be compiled again with checks: {log}"
                ));
                HipError::InvalidImage
            })?;
            library = Library::open(&object)?;
        }
        let info = library.info()?;
        // SAFETY: the slot is a writable variable of the library; nothing of it runs before the module is loaded.
        unsafe { *info.runtime = runtime(sim, device) };
        Ok(Module {
            library,
            device,
            variables: Mutex::default(),
        })
    }

    fn kernels(&self) -> &[KernelInfo] {
        match self.library.info() {
            // SAFETY: the table has as many entries as it says and lives as long as the library.
            Ok(info) if info.kernels > 0 => unsafe {
                std::slice::from_raw_parts(info.table, info.kernels as usize)
            },
            _ => &[],
        }
    }

    /// Lanes per wave that the kernels were compiled for.
    pub fn wave(&self) -> u32 {
        self.library.info().map_or(0, |info| info.wave)
    }

    /// A kernel by name.
    pub fn function(self: &Arc<Module>, name: &CStr) -> HipResult<Function> {
        // SAFETY: the names are C strings of the library.
        let named = |k: &&KernelInfo| unsafe { CStr::from_ptr(k.name) } == name;
        let info = self
            .kernels()
            .iter()
            .find(named)
            .ok_or(HipError::NotFound)?;
        Ok(Function {
            module: self.clone(),
            name: name.to_string_lossy().into_owned(),
            info,
        })
    }

    /// Address and size of a `__device__` or `__constant__` variable, which becomes known as device memory.
    pub fn variable(&self, sim: &Sim, name: &CStr) -> HipResult<Extent> {
        let address = self.library.symbol(name);
        let mut info: libc::Dl_info = unsafe_zeroed();
        let mut symbol: *mut c_void = std::ptr::null_mut();
        // SAFETY: all pointers are valid; flag 1 (RTLD_DL_SYMENT) asks for the ELF symbol.
        let found = !address.is_null()
            && unsafe { dladdr1(address, &mut info, &mut symbol, 1) } != 0
            && !symbol.is_null();
        if !found {
            return Err(HipError::NotFound);
        }
        // SAFETY: with that flag the result is an ELF symbol of the loaded library.
        let len = unsafe { (*symbol.cast::<libc::Elf64_Sym>()).st_size as usize };
        let extent = Extent {
            start: address as usize,
            len,
            device: self.device,
        };
        sim.memory.add_variable(extent);
        self.variables
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(extent.start);
        Ok(extent)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        for start in self
            .variables
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .drain(..)
        {
            sim().memory.remove_variable(start);
        }
    }
}

impl Function {
    /// The kernel's entry in its module's table.
    pub fn info(&self) -> &KernelInfo {
        // SAFETY: the module is loaded for as long as the function exists.
        unsafe { &*self.info }
    }

    /// Size and alignment of each argument, in bytes.
    pub fn args(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let info = self.info();
        // SAFETY: both arrays have `args` elements.
        (0..info.args as usize)
            .map(|i| unsafe { (*info.sizes.add(i) as usize, *info.aligns.add(i) as usize) })
    }
}

extern "C" {
    /// glibc's `dladdr` with extra information; the libc crate does not declare it.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: i32,
    ) -> i32;
}

fn unsafe_zeroed() -> libc::Dl_info {
    let null = std::ptr::null::<c_char>();
    libc::Dl_info {
        dli_fname: null,
        dli_fbase: std::ptr::null_mut(),
        dli_sname: null,
        dli_saddr: std::ptr::null_mut(),
    }
}

/// The callbacks for all modules of a device.
fn runtime(sim: &'static Sim, device: usize) -> *const Runtime {
    static RUNTIMES: OnceLock<Vec<Runtime>> = OnceLock::new();
    let (memory, memory_bytes) = sim.memory.range();
    let make = |device| Runtime {
        barrier: block::barrier,
        exchange: block::exchange,
        mask: block::mask,
        matrix: block::matrix,
        fault: fault::on_fault,
        memory,
        memory_bytes,
        shadow: sim.memory.shadow(device),
        wrong: sim.config.wrong.flags_address(),
        sleep: block::sleep,
        clock: block::clock,
        link: fault::on_link,
    };
    &RUNTIMES.get_or_init(|| (0..sim.devices.len()).map(make).collect())[device]
}

/// The bytes of an ELF file of this machine, whose length its header tells.
///
/// # Safety
/// `image` points to a whole ELF file, or to something that is no ELF file in its first bytes.
unsafe fn elf_bytes<'a>(image: *const c_void) -> HipResult<&'a [u8]> {
    const HEADER_BYTES: usize = 64;
    if image.is_null() {
        return Err(HipError::InvalidValue);
    }
    // SAFETY: the caller's promise covers the magic, and the header if the magic is right.
    let header = unsafe {
        if std::slice::from_raw_parts(image.cast::<u8>(), ELF_MAGIC.len()) != ELF_MAGIC {
            return Err(HipError::InvalidImage);
        }
        std::slice::from_raw_parts(image.cast::<u8>(), HEADER_BYTES)
    };
    let field = |at: usize, bytes: usize| {
        header[at..at + bytes]
            .iter()
            .rev()
            .fold(0u64, |v, b| v << 8 | *b as u64)
    };
    const EM_AMDGPU: u64 = 224;
    if field(18, 2) == EM_AMDGPU {
        sim().reports.add("a code object for a real GPU was loaded; the simulator runs only what its own hiprtc compiled".into());
        return Err(HipError::NoBinaryForGpu);
    }
    let (sections, entry_bytes, entries) = (field(40, 8), field(58, 2), field(60, 2));
    let length = sections
        .checked_add(entry_bytes * entries)
        .ok_or(HipError::InvalidImage)?;
    // SAFETY: the section headers are the last part of the objects that the linker writes.
    Ok(unsafe { std::slice::from_raw_parts(image.cast(), length as usize) })
}
