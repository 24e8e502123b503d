//! hiprtc over nvrtc: the same calls, other options, and a prelude in front of the source.
#![allow(non_snake_case, clippy::too_many_arguments)]

use super::library::table;
use super::Cuda;
use crate::hiprtc::hiprtcResult;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::OnceLock;

const PRELUDE: &str = include_str!("prelude.hpp");
/// `HIPRTC_ERROR_INVALID_INPUT` and `HIPRTC_ERROR_INTERNAL_ERROR`.
const INVALID_INPUT: hiprtcResult = 3;
const INTERNAL_ERROR: hiprtcResult = 11;
table! {
    /// Functions of nvrtc.
    Nvrtc {
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int);
        fn nvrtcCreateProgram(
            program: *mut *mut c_void, source: *const c_char, name: *const c_char,
            header_count: c_int, headers: *const *const c_char, include_names: *const *const c_char,
        );
        fn nvrtcCompileProgram(program: *mut c_void, option_count: c_int, options: *const *const c_char);
        fn nvrtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize);
        fn nvrtcGetProgramLog(program: *mut c_void, log: *mut c_char);
        fn nvrtcGetCUBINSize(program: *mut c_void, bytes: *mut usize);
        fn nvrtcGetCUBIN(program: *mut c_void, code: *mut c_char);
        fn nvrtcDestroyProgram(program: *mut *mut c_void);
    }
}

/// nvrtc, opened by the first call.
fn nvrtc() -> Option<&'static Nvrtc> {
    static NVRTC: OnceLock<Option<Nvrtc>> = OnceLock::new();
    NVRTC
        .get_or_init(
            || match Nvrtc::open(&["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]) {
                Ok(nvrtc) => Some(nvrtc),
                Err(message) => {
                    eprintln!("hip-sim: {message}");
                    None
                }
            },
        )
        .as_ref()
}

fn call(call: impl FnOnce(&Nvrtc) -> c_int) -> hiprtcResult {
    nvrtc().map_or(INTERNAL_ERROR, call)
}

/// nvrtc's options for those of a HIP compiler: definitions and the standard stay, what speaks to AMD's code generator falls away.
fn translate(options: &[String], capability: [c_int; 2]) -> Vec<String> {
    let [major, minor] = capability;
    let mut translated = vec![
        format!("--gpu-architecture=sm_{major}{minor}"),
        "--device-as-default-execution-space".to_string(),
        "--device-int128".to_string(),
        "--disable-warnings".to_string(),
        // Of a kernel without launch bounds, which go before: a block of 1024 threads has 64 registers for each.
        "--maxrregcount=64".to_string(),
    ];
    if options.iter().any(|option| option == "-ffp-contract=off") {
        translated.push("--fmad=false".to_string());
    }
    let kept = |option: &&String| {
        ["-D", "-U", "-std="]
            .iter()
            .any(|prefix| option.starts_with(prefix))
    };
    translated.extend(options.iter().filter(kept).cloned());
    translated
}

/// Marks the parameters of kernels that are structures: an index that is not constant into one is an index into the arguments then, as on AMD
/// GPUs, and not into a copy that every thread makes in its local memory.
fn read_in_place(source: &str) -> String {
    let mut marked = String::with_capacity(source.len() + source.len() / 64);
    let mut rest = source;
    while let Some(at) = rest.find("__global__") {
        let (before, kernel) = rest.split_at(at);
        marked.push_str(before);
        match parameters(kernel) {
            Some((open, close)) => {
                marked.push_str(&kernel[..open]);
                let list = kernel[open..close].split(',').map(mark);
                marked.push_str(&list.collect::<Vec<_>>().join(","));
                rest = &kernel[close..];
            }
            None => {
                let (word, after) = kernel.split_at("__global__".len());
                marked.push_str(word);
                rest = after;
            }
        }
    }
    marked.push_str(rest);
    marked
}

/// Start and end of a kernel's parameters: what stands between the parentheses before its body.
fn parameters(kernel: &str) -> Option<(usize, usize)> {
    let body = kernel.find('{')?;
    let close = kernel[..body].rfind(')')?;
    let is_gap = |c: char| c.is_whitespace() || c == '\\';
    if !kernel[close + 1..body].chars().all(is_gap) {
        return None;
    }
    let open = kernel[..close].rfind('(')? + 1;
    Some((open, close))
}

/// A parameter whose type is one capitalised word of several letters is a structure by value.
fn mark(parameter: &str) -> String {
    let start = parameter
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(parameter.len());
    let (gap, declaration) = parameter.split_at(start);
    let mut words = declaration.split_whitespace();
    let is_structure = |word: &str| {
        word.len() > 1
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric())
            && word.chars().any(|c| c.is_ascii_lowercase())
    };
    match (words.next(), words.next(), words.next()) {
        (Some(kind), Some(_), None) if is_structure(kind) => {
            format!("{gap}const __grid_constant__ {declaration}")
        }
        _ => parameter.to_string(),
    }
}

// SAFETY: as the functions of hiprtc of these names ask.
impl Cuda {
    pub unsafe fn hiprtcVersion(&self, major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
        call(|rtc| unsafe { (rtc.nvrtcVersion)(major, minor) })
    }

    pub unsafe fn hiprtcCreateProgram(
        &self,
        program: *mut *mut c_void,
        source: *const c_char,
        name: *const c_char,
        header_count: c_int,
        headers: *const *const c_char,
        include_names: *const *const c_char,
    ) -> hiprtcResult {
        if source.is_null() {
            return INVALID_INPUT;
        }
        // SAFETY: not null; a C string.
        let source = unsafe { CStr::from_ptr(source) };
        let Ok(whole) = source
            .to_str()
            .map(|source| CString::new(PRELUDE.to_string() + &read_in_place(source)))
        else {
            return INVALID_INPUT;
        };
        let Ok(whole) = whole else {
            return INVALID_INPUT;
        };
        call(|rtc| unsafe {
            (rtc.nvrtcCreateProgram)(
                program,
                whole.as_ptr(),
                name,
                header_count,
                headers,
                include_names,
            )
        })
    }

    pub unsafe fn hiprtcCompileProgram(
        &self,
        program: *mut c_void,
        option_count: c_int,
        options: *const *const c_char,
    ) -> hiprtcResult {
        // SAFETY: as many C strings as said.
        let Some(options) = (unsafe { crate::hiprtc::strings(options, option_count) }) else {
            return INVALID_INPUT;
        };
        let translated: Vec<CString> = translate(&options, self.capability(&self.contexts[0]))
            .into_iter()
            .filter_map(|option| CString::new(option).ok())
            .collect();
        let pointers: Vec<*const c_char> =
            translated.iter().map(|option| option.as_ptr()).collect();
        call(|rtc| unsafe {
            (rtc.nvrtcCompileProgram)(program, pointers.len() as c_int, pointers.as_ptr())
        })
    }

    pub unsafe fn hiprtcGetProgramLogSize(
        &self,
        program: *mut c_void,
        bytes: *mut usize,
    ) -> hiprtcResult {
        call(|rtc| unsafe { (rtc.nvrtcGetProgramLogSize)(program, bytes) })
    }

    pub unsafe fn hiprtcGetProgramLog(
        &self,
        program: *mut c_void,
        log: *mut c_char,
    ) -> hiprtcResult {
        call(|rtc| unsafe { (rtc.nvrtcGetProgramLog)(program, log) })
    }

    pub unsafe fn hiprtcGetCodeSize(
        &self,
        program: *mut c_void,
        bytes: *mut usize,
    ) -> hiprtcResult {
        call(|rtc| unsafe { (rtc.nvrtcGetCUBINSize)(program, bytes) })
    }

    pub unsafe fn hiprtcGetCode(&self, program: *mut c_void, code: *mut c_char) -> hiprtcResult {
        call(|rtc| unsafe { (rtc.nvrtcGetCUBIN)(program, code) })
    }

    pub unsafe fn hiprtcDestroyProgram(&self, program: *mut *mut c_void) -> hiprtcResult {
        call(|rtc| unsafe { (rtc.nvrtcDestroyProgram)(program) })
    }
}

#[cfg(test)]
mod tests {
    use super::{read_in_place, translate};

    #[test]
    fn structures_are_read_in_place() {
        let source = "#define K(T) \\\n extern \"C\" __global__ MAX_BLOCK(256) void k_##T(u64 n, Dims dims, \\\n  Strides xs, const T* x, T v, const Dims& d) { \\\n f(n); }";
        let marked = read_in_place(source);
        assert!(marked.contains("(u64 n, const __grid_constant__ Dims dims, \\\n  const __grid_constant__ Strides xs, const T* x, T v, const Dims& d) {"));
        assert_eq!(marked.matches("__grid_constant__").count(), 2);
        assert_eq!(read_in_place("no kernel"), "no kernel");
    }

    #[test]
    fn options_of_amd_fall_away() {
        let options = [
            "-O3",
            "-std=c++17",
            "-ffp-contract=off",
            "--offload-arch=gfx1030",
            "-DN=1",
        ]
        .map(String::from);
        let translated = translate(&options, [9, 0]);
        for kept in [
            "--gpu-architecture=sm_90",
            "-std=c++17",
            "--fmad=false",
            "-DN=1",
        ] {
            assert!(translated.iter().any(|option| option == kept), "{kept}");
        }
        assert!(!translated
            .iter()
            .any(|option| option.contains("gfx") || option == "-O3"));
        assert!(!translate(&options[..2], [9, 0]).contains(&"--fmad=false".to_string()));
    }
}
