//! The list of functions.

use std::ffi::c_void;

/// Hands the signature of every function to a macro: `hip { … } hiprtc { … }`.
#[macro_export]
macro_rules! functions {
    ($with:path) => {
        $with! {
            hip {
                fn hipInit(flags: c_uint) -> hipError_t;
                fn hipRuntimeGetVersion(version: *mut c_int) -> hipError_t;
                fn hipDriverGetVersion(version: *mut c_int) -> hipError_t;
                fn hipGetLastError() -> hipError_t;
                fn hipGetDeviceCount(count: *mut c_int) -> hipError_t;
                fn hipGetDevice(device: *mut c_int) -> hipError_t;
                fn hipSetDevice(device: c_int) -> hipError_t;
                fn hipDeviceSynchronize() -> hipError_t;
                fn hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int) -> hipError_t;
                fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> hipError_t;
                fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> hipError_t;
                fn hipMalloc(pointer: *mut *mut c_void, bytes: usize) -> hipError_t;
                fn hipExtMallocWithFlags(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) -> hipError_t;
                fn hipFree(pointer: *mut c_void) -> hipError_t;
                fn hipHostMalloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) -> hipError_t;
                fn hipHostFree(pointer: *mut c_void) -> hipError_t;
                fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t;
                fn hipMemcpyAsync(
                    to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int, stream: *mut c_void,
                ) -> hipError_t;
                fn hipMemcpyPeerAsync(
                    to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, bytes: usize,
                    stream: *mut c_void,
                ) -> hipError_t;
                fn hipMemsetAsync(pointer: *mut c_void, value: c_int, bytes: usize, stream: *mut c_void) -> hipError_t;
                fn hipStreamCreateWithFlags(stream: *mut *mut c_void, flags: c_uint) -> hipError_t;
                fn hipStreamDestroy(stream: *mut c_void) -> hipError_t;
                fn hipStreamSynchronize(stream: *mut c_void) -> hipError_t;
                fn hipStreamQuery(stream: *mut c_void) -> hipError_t;
                fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) -> hipError_t;
                fn hipEventCreateWithFlags(event: *mut *mut c_void, flags: c_uint) -> hipError_t;
                fn hipEventDestroy(event: *mut c_void) -> hipError_t;
                fn hipEventRecord(event: *mut c_void, stream: *mut c_void) -> hipError_t;
                fn hipEventQuery(event: *mut c_void) -> hipError_t;
                fn hipEventSynchronize(event: *mut c_void) -> hipError_t;
                fn hipEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, stop: *mut c_void) -> hipError_t;
                fn hipModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> hipError_t;
                fn hipModuleUnload(module: *mut c_void) -> hipError_t;
                fn hipModuleGetFunction(
                    function: *mut *mut c_void, module: *mut c_void, name: *const c_char,
                ) -> hipError_t;
                fn hipModuleLaunchKernel(
                    function: *mut c_void,
                    grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
                    block_x: c_uint, block_y: c_uint, block_z: c_uint,
                    shared_bytes: c_uint, stream: *mut c_void,
                    params: *mut *mut c_void, extra: *mut *mut c_void,
                ) -> hipError_t;
                fn hipStreamBeginCapture(stream: *mut c_void, mode: c_int) -> hipError_t;
                fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> hipError_t;
                fn hipGraphInstantiate(
                    exec: *mut *mut c_void, graph: *mut c_void, error_node: *mut *mut c_void,
                    log: *mut c_char, log_bytes: usize,
                ) -> hipError_t;
                fn hipGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> hipError_t;
                fn hipGraphDestroy(graph: *mut c_void) -> hipError_t;
                fn hipGraphExecDestroy(exec: *mut c_void) -> hipError_t;
            }
            hiprtc {
                fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult;
                fn hiprtcCreateProgram(
                    program: *mut *mut c_void, source: *const c_char, name: *const c_char,
                    header_count: c_int, headers: *const *const c_char, include_names: *const *const c_char,
                ) -> hiprtcResult;
                fn hiprtcCompileProgram(
                    program: *mut c_void, count: c_int, options: *const *const c_char,
                ) -> hiprtcResult;
                fn hiprtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize) -> hiprtcResult;
                fn hiprtcGetProgramLog(program: *mut c_void, log: *mut c_char) -> hiprtcResult;
                fn hiprtcGetCodeSize(program: *mut c_void, bytes: *mut usize) -> hiprtcResult;
                fn hiprtcGetCode(program: *mut c_void, code: *mut c_char) -> hiprtcResult;
                fn hiprtcDestroyProgram(program: *mut *mut c_void) -> hiprtcResult;
            }
        }
    };
}

/// Functions that `hip-abi` exports for every such library.
const SHARED: [(&str, *const ()); 3] = [
    (
        "hipGetErrorName",
        hip_abi::error::hipGetErrorName as *const (),
    ),
    (
        "hipGetErrorString",
        hip_abi::error::hipGetErrorString as *const (),
    ),
    (
        "hiprtcGetErrorString",
        hip_abi::hiprtc::hiprtcGetErrorString as *const (),
    ),
];

macro_rules! table {
    ($($module:ident { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)* })*) => {
        /// The function of that C name: of the HIP runtime or of hiprtc.
        pub fn symbol(name: &str) -> Option<*const c_void> {
            let own = match name {
                $($(stringify!($name) => Some($crate::$module::$name as *const c_void),)*)*
                _ => None,
            };
            let shared = || SHARED.iter().find(|(shared, _)| *shared == name);
            own.or_else(|| Some(shared()?.1.cast()))
        }
    };
}
functions!(table);

#[cfg(test)]
mod tests {
    use super::symbol;

    #[test]
    fn everything_that_candle_rocm_calls_is_there() {
        let tables = [
            include_str!("../../../candle-rocm/src/sys/hip.rs"),
            include_str!("../../../candle-rocm/src/sys/hiprtc.rs"),
        ];
        let lines = tables.iter().flat_map(|table| table.lines());
        let names: Vec<&str> = lines
            .filter_map(|line| line.trim().strip_prefix("fn hip"))
            .filter_map(|rest| rest.split('(').next())
            .collect();
        assert!(names.len() > 40, "{names:?}");
        for name in names {
            assert!(symbol(&format!("hip{name}")).is_some(), "hip{name}");
        }
        assert!(symbol("hipMemcpy2D").is_none());
    }
}
