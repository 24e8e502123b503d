//! The simulator seen from a test of a program that loads it as `libamdhip64`: counters, injected failures, findings.
//!
//! ```no_run
//! if let Some(sim) = hip_sim::client::Client::find() {
//!     sim.reset_counters();
//!     // … use the device …
//!     assert_eq!(sim.take_reports(), Vec::<String>::new());
//! }
//! ```

pub use crate::control::Counters;
pub use crate::inject::Failure;
use libloading::os::unix::{Library, RTLD_LAZY};
use std::ffi::{c_char, c_int, CStr};

/// RTLD_NOLOAD of Linux: only finds what is loaded already.
const NO_LOAD: c_int = 4;
const NAMES: &[&str] = &[
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so",
    "libhip_sim.so",
];

/// Access to a simulator that this process has loaded.
#[derive(Debug)]
pub struct Client {
    counters: unsafe extern "C" fn(*mut Counters),
    reset_counters: unsafe extern "C" fn(),
    inject: unsafe extern "C" fn(*const c_char, u64) -> c_int,
    wrong: unsafe extern "C" fn(*const c_char) -> c_int,
    peers: unsafe extern "C" fn(*const c_char) -> c_int,
    take_reports: unsafe extern "C" fn(*mut c_char, usize) -> usize,
    check_guards: unsafe extern "C" fn() -> c_int,
    set_memory_limit: unsafe extern "C" fn(c_int, u64) -> c_int,
    miopen_calls: unsafe extern "C" fn(*const c_char) -> u64,
    miopen_fail: unsafe extern "C" fn(*const c_char, u64, c_int),
    _library: Library,
}

impl Client {
    /// Finds the simulator among the loaded libraries; `None` if there is none, or a real `libamdhip64`. The program
    /// has to have loaded it already: by its soname, by `ROCM_PATH`'s file, or as `HIP_PATH`'s.
    pub fn find() -> Option<Client> {
        let folders = ["ROCM_PATH", "HIP_PATH"]
            .iter()
            .filter_map(std::env::var_os);
        let paths = folders.flat_map(|f| {
            NAMES
                .iter()
                .map(move |n| std::path::Path::new(&f).join("lib").join(n))
        });
        let names = NAMES.iter().map(std::path::PathBuf::from);
        paths.chain(names).find_map(|path| {
            // SAFETY: the library is loaded already, so no code of it runs now.
            let library = unsafe { Library::open(Some(path), NO_LOAD | RTLD_LAZY) }.ok()?;
            // SAFETY: only the simulator has symbols of these names, and their types are those of `control`.
            unsafe {
                Some(Client {
                    counters: *library.get(b"hip_sim_counters\0").ok()?,
                    reset_counters: *library.get(b"hip_sim_reset_counters\0").ok()?,
                    inject: *library.get(b"hip_sim_inject\0").ok()?,
                    wrong: *library.get(b"hip_sim_wrong\0").ok()?,
                    peers: *library.get(b"hip_sim_peers\0").ok()?,
                    take_reports: *library.get(b"hip_sim_take_reports\0").ok()?,
                    check_guards: *library.get(b"hip_sim_check_guards\0").ok()?,
                    set_memory_limit: *library.get(b"hip_sim_set_memory_limit\0").ok()?,
                    miopen_calls: *library.get(b"hip_sim_miopen_calls\0").ok()?,
                    miopen_fail: *library.get(b"hip_sim_miopen_fail\0").ok()?,
                    _library: library,
                })
            }
        })
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: the pointer is valid for the call.
        unsafe { (self.counters)(&mut counters) };
        counters
    }

    /// Sets the counters to zero; live bytes stay.
    pub fn reset_counters(&self) {
        // SAFETY: the function takes no arguments and may be called at any time.
        unsafe { (self.reset_counters)() }
    }

    /// Makes the `nth` call of this kind from now fail; 0 takes that back.
    pub fn inject(&self, failure: Failure, nth: u64) {
        // SAFETY: the name is a C string.
        unsafe { (self.inject)(failure.name().as_ptr(), nth) };
    }

    /// Turns on the wrong results of a comma list, as `HIP_SIM_WRONG` has it, and all others off; false if one is not
    /// known, which changes nothing. Kernels must not run meanwhile.
    pub fn wrong(&self, faults: &CStr) -> bool {
        // SAFETY: the list is a C string.
        unsafe { (self.wrong)(faults.as_ptr()) == 0 }
    }

    /// Changes which device reaches which, as `HIP_SIM_PEERS` has it, and takes back all access that was enabled; false
    /// if the text is not understood, which changes nothing. Kernels must not run meanwhile.
    pub fn peers(&self, links: &CStr) -> bool {
        // SAFETY: the list is a C string.
        unsafe { (self.peers)(links.as_ptr()) == 0 }
    }

    /// Takes the findings so far.
    pub fn take_reports(&self) -> Vec<String> {
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            // SAFETY: the buffer has the length that is passed.
            let needed = unsafe { (self.take_reports)(buffer.as_mut_ptr().cast(), buffer.len()) };
            if needed <= buffer.len() {
                buffer.truncate(needed - 1);
                return String::from_utf8_lossy(&buffer)
                    .lines()
                    .map(str::to_string)
                    .collect();
            }
            buffer = vec![0u8; needed];
        }
    }

    /// Verifies all guard zones; false if one is broken.
    pub fn guards_intact(&self) -> bool {
        // SAFETY: the function takes no arguments and may be called at any time.
        unsafe { (self.check_guards)() == 0 }
    }

    /// Sets the size of a device's memory; false if it cannot be that large.
    pub fn set_memory_limit(&self, device: usize, bytes: u64) -> bool {
        // SAFETY: any values are fine.
        unsafe { (self.set_memory_limit)(device as c_int, bytes) == 0 }
    }

    /// Calls of a function of MIOpen since the counters were reset, for example of
    /// `c"miopenConvolutionForwardImmediate"`.
    pub fn miopen_calls(&self, function: &CStr) -> u64 {
        // SAFETY: the name is a C string.
        unsafe { (self.miopen_calls)(function.as_ptr()) }
    }

    /// Makes the `nth` call of a function of MIOpen from now answer this status; 0 takes that back.
    pub fn fail_miopen(&self, function: &CStr, nth: u64, status: i32) {
        // SAFETY: the name is a C string.
        unsafe { (self.miopen_fail)(function.as_ptr(), nth, status) };
    }
}
