//! The C ABI of hiprtc over clang, if there is one. Functions have the names and signatures of AMD's library.
#![allow(missing_docs, non_snake_case, clippy::missing_safety_doc)]

use candle_rocm_kernels::{options_for, Clang, CompileError, CompileRequest, Compiler};
use code_object::TargetId;
pub use hip_abi::hiprtc::{hiprtcGetErrorString, hiprtcProgram, hiprtcResult};
use hip_abi::hiprtc::{
    string, strings, version, Built, Programs, COMPILATION, INVALID_INPUT, INVALID_OPTION,
    INVALID_PROGRAM, SUCCESS,
};
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

/// `HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE`: the compiler could not be run.
const BUILTIN_OPERATION_FAILURE: hiprtcResult = 7;
/// `HIPRTC_ERROR_INTERNAL_ERROR`: there is no compiler.
const INTERNAL_ERROR: hiprtcResult = 11;

struct Source {
    name: String,
    text: String,
}

fn programs() -> &'static Programs<Source> {
    static PROGRAMS: OnceLock<Programs<Source>> = OnceLock::new();
    PROGRAMS.get_or_init(Programs::default)
}

/// The arch that options name, and the options that clang gets besides those of every compilation.
fn sorted(options: Vec<String>) -> Result<(String, Vec<String>), String> {
    let mut arch = None;
    let mut rest = Vec::new();
    for option in options {
        let named = ["--offload-arch=", "--gpu-architecture="]
            .iter()
            .find_map(|prefix| option.strip_prefix(prefix));
        match named {
            Some(name) => arch = Some(name.to_string()),
            None => rest.push(option),
        }
    }
    let arch =
        arch.ok_or("no arch is named; pass --offload-arch=, such as --offload-arch=gfx1100")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":+-".contains(c);
    let target = TargetId::parse(&arch).filter(|target| target.to_string() == arch);
    if target.is_none() || !arch.chars().all(is_plain) {
        return Err(format!("{arch} is no arch of an AMD GPU"));
    }
    let of_all: Vec<&str> = options_for(&arch).collect();
    rest.retain(|option| !of_all.contains(&option.as_str()));
    Ok((arch, rest))
}

/// The compiler of this process, or why there is none.
fn clang() -> &'static Result<Clang, String> {
    static CLANG: OnceLock<Result<Clang, String>> = OnceLock::new();
    CLANG.get_or_init(|| Clang::find().map_err(|error| error.to_string()))
}

/// Compiles for the arch that the options name.
fn compile(source: &Source, options: Vec<String>) -> (hiprtcResult, Built) {
    let failed = |status, log: String| (status, Built { log, code: None });
    let (arch, options) = match sorted(options) {
        Ok(sorted) => sorted,
        Err(message) => return failed(INVALID_OPTION, message),
    };
    let clang = match clang() {
        Ok(clang) => clang,
        Err(reason) => {
            let advice = "or use a program with kernels for this GPU built in (CANDLE_ROCM_ARCHS when it is built)";
            return failed(INTERNAL_ERROR, format!("{reason}; {advice}"));
        }
    };
    let request = CompileRequest {
        name: &source.name,
        source: &source.text,
        arch: &arch,
        options: &options,
    };
    match clang.compile(&request) {
        Ok(code) => (
            SUCCESS,
            Built {
                log: String::new(),
                code: Some(code),
            },
        ),
        Err(CompileError::Failed { log, .. }) => failed(COMPILATION, log),
        Err(error) => failed(BUILTIN_OPERATION_FAILURE, error.to_string()),
    }
}

pub unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut hiprtcProgram,
    source: *const c_char,
    name: *const c_char,
    header_count: c_int,
    _headers: *const *const c_char,
    _include_names: *const *const c_char,
) -> hiprtcResult {
    // SAFETY: the caller passes C strings.
    let (source, name) = unsafe { (string(source), string(name)) };
    let Some(text) = source else {
        return INVALID_INPUT;
    };
    if header_count != 0 {
        eprintln!("hip-on-kfd: hiprtcCreateProgram: headers are not supported; put their text into the source");
        return INVALID_INPUT;
    }
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| "CompileSource".to_string());
    // SAFETY: the caller's pointer, as the C interface asks.
    unsafe { programs().create(program, Source { name, text }) }
}

pub unsafe extern "C" fn hiprtcCompileProgram(
    program: hiprtcProgram,
    count: c_int,
    options: *const *const c_char,
) -> hiprtcResult {
    let Some(program) = programs().get(program) else {
        return INVALID_PROGRAM;
    };
    // SAFETY: the caller passes `count` C strings.
    let Some(options) = (unsafe { strings(options, count) }) else {
        return INVALID_INPUT;
    };
    let (result, built) = compile(&program.source, options);
    *program.built() = built;
    result
}

pub unsafe extern "C" fn hiprtcGetProgramLogSize(
    program: hiprtcProgram,
    bytes: *mut usize,
) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().log_size(program, bytes) }
}

pub unsafe extern "C" fn hiprtcGetProgramLog(
    program: hiprtcProgram,
    log: *mut c_char,
) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().log(program, log) }
}

pub unsafe extern "C" fn hiprtcGetCodeSize(
    program: hiprtcProgram,
    bytes: *mut usize,
) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().code_size(program, bytes) }
}

pub unsafe extern "C" fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().code(program, code) }
}

pub unsafe extern "C" fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().destroy(program) }
}

pub unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { version(crate::hip::VERSION, major, minor) }
}

#[cfg(test)]
mod tests {
    use super::sorted;

    #[test]
    fn the_arch_is_an_option_and_must_be_one() {
        let sort = |options: &[&str]| sorted(options.iter().map(|o| o.to_string()).collect());
        let (arch, rest) = sort(&["-O3", "--offload-arch=gfx942:xnack-", "-DA=1"]).unwrap();
        assert_eq!(
            (arch.as_str(), rest),
            ("gfx942:xnack-", vec!["-DA=1".to_string()])
        );
        assert!(sort(&["-O3"]).unwrap_err().contains("--offload-arch="));
        for arch in ["sm_90", "gfx942:fast+", "gfx90a -o /tmp/x", "x-gfx942"] {
            let option = format!("--offload-arch={arch}");
            assert!(sort(&[&option]).unwrap_err().contains(arch), "{arch}");
        }
    }
}
