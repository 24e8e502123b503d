//! hiprtc as the compiler of kernels.

use crate::sys::hip::Hip;
use crate::sys::hiprtc::{self, Hiprtc, HiprtcProgram, HiprtcResult};
use crate::sys::loader::{mapped_file, mapped_files, Loaded};
use crate::sys::text;
use crate::Arch;
use candle_rocm_kernels::{CompileError, CompileRequest, Compiler};
use std::ffi::{c_char, c_int, CString};
use std::path::Path;
use std::ptr;
use std::time::UNIX_EPOCH;

/// The run-time compiler of the ROCm installation in use.
///
/// Up to ROCm 6.4, hiprtc ends the process when it is handed an arch that it does not know, so what is no arch at all
/// is refused here. The arch of a GPU that HIP lists is known to the hiprtc of the same release.
#[derive(Debug)]
pub struct HiprtcCompiler {
    hiprtc: &'static Loaded<Hiprtc>,
    id: String,
}

/// The libraries in which hiprtc has its compiler, if not in itself.
const COMPILER_LIBRARIES: [&str; 3] = ["libamd_comgr", "libclang-cpp", "libLLVM"];

/// Size and time of a file, by which two builds differ.
fn state(file: &Path) -> String {
    let metadata = std::fs::metadata(file).ok();
    let bytes = metadata.as_ref().map_or(0, |metadata| metadata.len());
    let modified = metadata.and_then(|metadata| metadata.modified().ok());
    let age = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!(" {bytes} {}", age.map_or(0, |age| age.as_nanos()))
}

impl HiprtcCompiler {
    /// Loads hiprtc.
    ///
    /// # Errors
    /// [`CompileError::Unavailable`] if it is not there.
    pub fn new() -> Result<Self, CompileError> {
        let hiprtc = Hiprtc::get().map_err(|error| CompileError::Unavailable {
            compiler: "hiprtc".to_string(),
            reason: error.to_string(),
        })?;
        let (mut major, mut minor, mut runtime) = (0, 0, 0);
        // SAFETY: each call writes the integers it is handed. A failing call leaves zeros, which only
        // make the id less precise.
        unsafe {
            (hiprtc.functions.hiprtcVersion)(&mut major, &mut minor);
            if let Ok(hip) = Hip::get() {
                (hip.functions.hipRuntimeGetVersion)(&mut runtime);
            }
        }
        // A library may be rebuilt without a new version, also one that the dynamic loader finds by name. What makes
        // the code is in libraries of its own, which distributions package and update by themselves.
        let path = mapped_file(hiprtc.functions.hiprtcVersion as usize);
        let files = [path.unwrap_or_else(|| hiprtc.path.clone())]
            .into_iter()
            .chain(COMPILER_LIBRARIES.into_iter().flat_map(mapped_files));
        let files: String = files.map(|file| state(&file)).collect();
        Ok(HiprtcCompiler {
            hiprtc,
            id: format!("hiprtc {major}.{minor} hip {runtime} file{files}"),
        })
    }

    fn failed(&self, request: &CompileRequest, log: String) -> CompileError {
        CompileError::Failed {
            compiler: self.id.clone(),
            name: request.name.to_string(),
            arch: request.arch.to_string(),
            log,
        }
    }

    fn check(
        &self,
        request: &CompileRequest,
        call: &str,
        result: HiprtcResult,
    ) -> Result<(), CompileError> {
        if result == hiprtc::SUCCESS {
            return Ok(());
        }
        // SAFETY: hiprtc returns static strings.
        let description = unsafe { text((self.hiprtc.functions.hiprtcGetErrorString)(result)) };
        Err(self.failed(request, format!("{call}: {description} ({result})")))
    }

    fn log(&self, program: HiprtcProgram) -> String {
        let functions = &self.hiprtc.functions;
        let mut bytes = 0;
        // SAFETY: the program is alive, and the buffer has the size that hiprtc asked for.
        unsafe {
            if (functions.hiprtcGetProgramLogSize)(program, &mut bytes) != hiprtc::SUCCESS {
                return String::new();
            }
            let mut log = vec![0u8; bytes];
            (functions.hiprtcGetProgramLog)(program, log.as_mut_ptr().cast());
            let end = log.iter().position(|&b| b == 0).unwrap_or(bytes);
            String::from_utf8_lossy(&log[..end]).into_owned()
        }
    }

    fn compile_program(
        &self,
        request: &CompileRequest,
        program: HiprtcProgram,
    ) -> Result<Vec<u8>, CompileError> {
        let functions = &self.hiprtc.functions;
        let arch = format!("--offload-arch={}", request.arch);
        let options: Vec<CString> = request
            .all_options()
            .into_iter()
            .chain([arch.as_str()])
            .map(|option| c_string(self, request, option))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, the strings outlive the call.
        let result = unsafe {
            (functions.hiprtcCompileProgram)(program, pointers.len() as c_int, pointers.as_ptr())
        };
        if result != hiprtc::SUCCESS {
            let log = self.log(program);
            self.check(request, "hiprtcCompileProgram", result)
                .map_err(|error| match error {
                    CompileError::Failed { log: status, .. } => {
                        self.failed(request, format!("{status}\n{log}"))
                    }
                    other => other,
                })?;
        }
        let mut bytes = 0;
        // SAFETY: the program is alive; `bytes` receives the size.
        let result = unsafe { (functions.hiprtcGetCodeSize)(program, &mut bytes) };
        self.check(request, "hiprtcGetCodeSize", result)?;
        let mut code = vec![0u8; bytes];
        // SAFETY: `code` has the size that hiprtc asked for.
        let result = unsafe { (functions.hiprtcGetCode)(program, code.as_mut_ptr().cast()) };
        self.check(request, "hiprtcGetCode", result)?;
        Ok(code)
    }
}

fn c_string(
    compiler: &HiprtcCompiler,
    request: &CompileRequest,
    text: &str,
) -> Result<CString, CompileError> {
    CString::new(text)
        .map_err(|_| compiler.failed(request, "the source or an option holds a zero byte".into()))
}

impl Compiler for HiprtcCompiler {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn compile(&self, request: &CompileRequest) -> Result<Vec<u8>, CompileError> {
        let functions = &self.hiprtc.functions;
        if Arch::parse(request.arch).is_none() {
            let reason = "this is not an arch of an AMD GPU, which are called gfx1100, gfx90a:xnack- or gfx11-generic";
            return Err(self.failed(request, reason.into()));
        }
        let source = c_string(self, request, request.source)?;
        let name = c_string(self, request, request.name)?;
        let mut program = ptr::null_mut();
        // SAFETY: `program` receives the handle; there are no headers.
        let result = unsafe {
            (functions.hiprtcCreateProgram)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        self.check(request, "hiprtcCreateProgram", result)?;
        let code = self.compile_program(request, program);
        // SAFETY: the program is ours and not used after this. A failure to destroy it only leaks it.
        unsafe { (functions.hiprtcDestroyProgram)(&mut program) };
        code
    }
}
