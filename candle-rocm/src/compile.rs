//! hiprtc as the compiler of kernels.

use crate::gpu::text;
use crate::properties::NVPTX;
use crate::sys::hip::Hip;
use crate::sys::hiprtc::{self, Hiprtc, HiprtcProgram, HiprtcResult};
use crate::sys::loader::{mapped_file, Loaded};
use candle_rocm_kernels::{CompileError, CompileRequest, Compiler, OPTIONS};
use std::ffi::{c_char, c_int, CString};
use std::ptr;
use std::time::UNIX_EPOCH;

/// The run-time compiler of the ROCm installation in use.
///
/// Up to ROCm 6.4, hiprtc ends the process when it is handed an arch that it does not know, so what is no arch at all is refused here. The arch
/// of a GPU that HIP lists is known to the hiprtc of the same release.
#[derive(Debug)]
pub struct HiprtcCompiler {
    hiprtc: &'static Loaded<Hiprtc>,
    id: String,
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
        // A library may be rebuilt without a new version, also one that the dynamic loader finds by name.
        let path = mapped_file(hiprtc.functions.hiprtcVersion as usize);
        let path = path.as_ref().unwrap_or(&hiprtc.path);
        let file = std::fs::metadata(path).ok().map(|metadata| {
            let modified = metadata.modified().ok();
            let age = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            (metadata.len(), age.map_or(0, |age| age.as_nanos()))
        });
        let (bytes, modified) = file.unwrap_or_default();
        Ok(HiprtcCompiler {
            hiprtc,
            id: format!("hiprtc {major}.{minor} hip {runtime} file {bytes} {modified}"),
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
        let options: Vec<CString> = OPTIONS
            .iter()
            .copied()
            .chain([arch.as_str()])
            .chain(request.options.iter().map(String::as_str))
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

/// Whether this is the name of an arch: `gfx` and a number whose last digits are hexadecimal, or a generic one, with features behind colons; or
/// what hip-sim calls an NVIDIA GPU, `sm_90`.
fn is_arch(name: &str) -> bool {
    if let Some(capability) = name.strip_prefix(NVPTX) {
        return matches!(capability.len(), 2 | 3) && capability.bytes().all(|b| b.is_ascii_digit());
    }
    let mut parts = name.split(':');
    let number = parts.next().and_then(|arch| arch.strip_prefix("gfx"));
    let is_number = |number: &str| {
        let (version, step) = number
            .split_at_checked(number.len().wrapping_sub(2))
            .unwrap_or(("", ""));
        matches!(version.len(), 1 | 2)
            && version.bytes().all(|b| b.is_ascii_digit())
            && step.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_generic = |number: &str| {
        let family = number.strip_suffix("-generic").unwrap_or_default();
        let mut digits = family.bytes();
        digits.next().is_some_and(|b| b.is_ascii_digit())
            && digits.all(|b| b.is_ascii_digit() || b == b'-')
    };
    number.is_some_and(|number| is_number(number) || is_generic(number))
        && parts.all(|feature| matches!(feature, "xnack+" | "xnack-" | "sramecc+" | "sramecc-"))
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
        if !is_arch(request.arch) {
            let reason = "this is no arch of an AMD GPU, which are called gfx1100, gfx90a:xnack- or gfx11-generic";
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

#[cfg(test)]
mod tests {
    use super::is_arch;

    #[test]
    fn archs_have_a_form() {
        for arch in [
            "gfx906",
            "gfx90a",
            "gfx942",
            "gfx1030",
            "gfx1151",
            "gfx90a:sramecc+:xnack-",
            "gfx9-generic",
            "gfx10-3-generic",
            "gfx9-4-generic",
            "sm_90",
        ] {
            assert!(is_arch(arch), "{arch}");
        }
        for name in [
            "",
            "gfx",
            "gfx9",
            "sm_",
            "sm_9a",
            "gfx11000",
            "gfx9zz",
            "gfx942:fast",
            "gfx1100 ",
            "-generic",
            "gfx-generic",
        ] {
            assert!(!is_arch(name), "{name}");
        }
    }
}
