//! A small host program in place of a HIP application: compile, allocate, copy, launch.
#![allow(dead_code)]

use hip_sim::control::{hip_sim_check_guards, hip_sim_counters, hip_sim_take_reports, Counters};
use hip_sim::hip::*;
use hip_sim::hiprtc::*;
use std::ffi::{c_char, c_int, c_void, CString};
use std::ptr::null_mut;

/// One test at a time, for tests that make the process-wide simulator report faults.
pub fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Panics unless a status is success.
#[track_caller]
pub fn ok(status: c_int) {
    assert_eq!(
        status,
        0,
        "HIP status {status}; findings: {:?}",
        take_reports()
    );
}

/// Compiles for an architecture; the log on failure.
pub fn compile(source: &str, arch: &str) -> Result<Vec<u8>, String> {
    let source = CString::new(source).unwrap();
    let arch = CString::new(format!("--offload-arch={arch}")).unwrap();
    let mut program = null_mut();
    unsafe {
        ok(hiprtcCreateProgram(
            &mut program,
            source.as_ptr(),
            c"test.hip".as_ptr(),
            0,
            null_mut(),
            null_mut(),
        ));
        let options: [*const c_char; 2] = [arch.as_ptr(), c"-O3".as_ptr()];
        let status = hiprtcCompileProgram(program, 2, options.as_ptr());
        let mut size = 0;
        let result = if status == 0 {
            ok(hiprtcGetCodeSize(program, &mut size));
            let mut code = vec![0u8; size];
            ok(hiprtcGetCode(program, code.as_mut_ptr().cast()));
            Ok(code)
        } else {
            ok(hiprtcGetProgramLogSize(program, &mut size));
            let mut log = vec![0u8; size];
            ok(hiprtcGetProgramLog(program, log.as_mut_ptr().cast()));
            log.pop();
            Err(String::from_utf8(log).unwrap())
        };
        ok(hiprtcDestroyProgram(&mut program));
        result
    }
}

/// A loaded module.
pub struct Module(pub hipModule_t);

impl Module {
    /// Compiles for the calling thread's device and loads.
    pub fn new(source: &str) -> Module {
        let code = compile(source, &arch()).unwrap_or_else(|log| panic!("{log}"));
        let mut module = null_mut();
        ok(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) });
        Module(module)
    }

    pub fn function(&self, name: &str) -> hipFunction_t {
        let name = CString::new(name).unwrap();
        let mut function = null_mut();
        ok(unsafe { hipModuleGetFunction(&mut function, self.0, name.as_ptr()) });
        function
    }

    /// Launches and returns the status.
    pub fn try_launch(
        &self,
        name: &str,
        grid: u32,
        block: u32,
        shared: u32,
        args: &mut [Arg],
    ) -> c_int {
        launch_on(
            self.function(name),
            [grid, 1, 1],
            [block, 1, 1],
            shared,
            null_mut(),
            args,
        )
    }

    #[track_caller]
    pub fn launch(&self, name: &str, grid: u32, block: u32, shared: u32, args: &mut [Arg]) {
        ok(self.try_launch(name, grid, block, shared, args));
    }
}

/// A kernel argument.
pub enum Arg {
    Pointer(*mut c_void),
    I32(i32),
    F32(f32),
    Bytes(Vec<u8>),
}

pub fn launch_on(
    f: hipFunction_t,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: hipStream_t,
    args: &mut [Arg],
) -> c_int {
    let address = |arg: &mut Arg| -> *mut c_void {
        match arg {
            Arg::Pointer(p) => (&raw mut *p).cast(),
            Arg::I32(v) => (&raw mut *v).cast(),
            Arg::F32(v) => (&raw mut *v).cast(),
            Arg::Bytes(b) => b.as_mut_ptr().cast(),
        }
    };
    let mut params: Vec<*mut c_void> = args.iter_mut().map(address).collect();
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    unsafe {
        hipModuleLaunchKernel(
            f,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            shared,
            stream,
            params.as_mut_ptr(),
            null_mut(),
        )
    }
}

/// Device memory.
pub struct Buffer {
    pub ptr: *mut c_void,
    pub bytes: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Buffer {
        let mut ptr = null_mut();
        ok(unsafe { hipMalloc(&mut ptr, bytes) });
        Buffer { ptr, bytes }
    }

    pub fn from_slice<T: Copy>(data: &[T]) -> Buffer {
        let buffer = Buffer::new(size_of_val(data));
        ok(unsafe { hipMemcpy(buffer.ptr, data.as_ptr().cast(), buffer.bytes, 1) });
        buffer
    }

    pub fn to_vec<T: Copy + Default>(&self) -> Vec<T> {
        let mut out = vec![T::default(); self.bytes / size_of::<T>()];
        ok(unsafe { hipMemcpy(out.as_mut_ptr().cast(), self.ptr, self.bytes, 2) });
        out
    }

    pub fn arg(&self) -> Arg {
        Arg::Pointer(self.ptr)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        hipFree(self.ptr);
    }
}

/// Architecture of the calling thread's device.
pub fn arch() -> String {
    let mut ordinal = 0;
    ok(unsafe { hipGetDevice(&mut ordinal) });
    let mut properties = [0u8; 1472];
    ok(unsafe { hipGetDevicePropertiesR0600(properties.as_mut_ptr().cast(), ordinal) });
    let name = &properties[1160..];
    let end = name.iter().position(|b| *b == 0).unwrap();
    String::from_utf8(name[..end].to_vec()).unwrap()
}

/// Takes the findings.
pub fn take_reports() -> Vec<String> {
    let mut buffer = vec![0u8; 1 << 20];
    let length = unsafe { hip_sim_take_reports(buffer.as_mut_ptr().cast(), buffer.len()) };
    String::from_utf8(buffer[..length - 1].to_vec())
        .unwrap()
        .lines()
        .map(str::to_string)
        .collect()
}

pub fn counters() -> Counters {
    let mut counters = Counters::default();
    unsafe { hip_sim_counters(&mut counters) };
    counters
}

#[track_caller]
pub fn guards_intact() {
    assert_eq!(hip_sim_check_guards(), 0, "{:?}", take_reports());
}
