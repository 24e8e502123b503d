//! The simulator's compiler.

use candle_rocm_kernels::{CompileError, CompileRequest, Compiler};
use hip_sim::hiprtc;
use std::ffi::{c_char, c_int, CString};
use std::process::Command;
use std::ptr::null_mut;
use std::time::UNIX_EPOCH;

/// The simulator's compiler.
pub(super) struct SimulatorCompiler {
    id: String,
}

impl SimulatorCompiler {
    /// With the host's C++ compiler. Objects of another build of this program are not taken from the cache.
    pub fn new() -> Self {
        let cxx = std::env::var("HIP_SIM_CXX").unwrap_or_else(|_| "c++".to_string());
        let version = Command::new(&cxx).arg("--version").output();
        let version = version.map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()
                .unwrap_or_default()
                .to_string()
        });
        let program = std::env::current_exe().and_then(std::fs::metadata);
        let state = program.map(|metadata| {
            let time = metadata.modified().ok();
            let age = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            (metadata.len(), age.map_or(0, |age| age.as_nanos()))
        });
        SimulatorCompiler {
            id: format!(
                "hip-sim checked {} {cxx} {} {:?}",
                env!("CARGO_PKG_VERSION"),
                version.unwrap_or_default(),
                state.unwrap_or_default()
            ),
        }
    }
}

impl Compiler for SimulatorCompiler {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn compile(&self, request: &CompileRequest) -> Result<Vec<u8>, CompileError> {
        let failed = |log: String| CompileError::Failed {
            compiler: "hip-sim".to_string(),
            name: request.name.to_string(),
            arch: request.arch.to_string(),
            log,
        };
        let text = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
        let (source, name) = (text(request.source)?, text(request.name)?);
        let mut options = Vec::new();
        for option in request.all_options() {
            options.push(text(option)?);
        }
        options.push(text(&format!("--offload-arch={}", request.arch))?);
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = null_mut();
        // SAFETY: all texts are C strings that live until the end of this function, the buffers have the sizes that were
        // asked for, and the program is destroyed once.
        unsafe {
            hiprtc::hiprtcCreateProgram(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            );
            let status =
                hiprtc::hiprtcCompileProgram(program, options.len() as c_int, options.as_ptr());
            let mut size = 0;
            let result = if status == 0 {
                hiprtc::hiprtcGetCodeSize(program, &mut size);
                let mut code = vec![0u8; size];
                hiprtc::hiprtcGetCode(program, code.as_mut_ptr().cast());
                Ok(code)
            } else {
                hiprtc::hiprtcGetProgramLogSize(program, &mut size);
                let mut log = vec![0u8; size];
                hiprtc::hiprtcGetProgramLog(program, log.as_mut_ptr().cast());
                let log = String::from_utf8_lossy(&log);
                Err(failed(log.trim_end_matches('\0').to_string()))
            };
            hiprtc::hiprtcDestroyProgram(&mut program);
            result
        }
    }
}
