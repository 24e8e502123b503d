//! The C ABI of hiprtc. Functions have the names and signatures of AMD's library.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

pub(crate) mod compile;
mod objects;
mod translate;

use crate::arch::Arch;
use crate::sim::sim;
use hip_abi::hiprtc::{
    string, strings, version, Built, Programs, COMPILATION, INVALID_INPUT, INVALID_OPTION,
    INVALID_PROGRAM, SUCCESS,
};
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

pub use hip_abi::hiprtc::{hiprtcGetErrorString, hiprtcProgram, hiprtcResult};

struct Source {
    name: String,
    text: String,
    headers: Vec<(String, String)>,
}

fn programs() -> &'static Programs<Source> {
    static PROGRAMS: OnceLock<Programs<Source>> = OnceLock::new();
    PROGRAMS.get_or_init(Programs::default)
}

/// Sorts options into what the host compiler gets, and the architecture; what only concerns AMD's code generator falls
/// away.
fn parse_options(options: &[String]) -> Result<(Option<String>, Vec<String>), String> {
    const IGNORED: &[&str] = &[
        "-O",
        "-f",
        "-m",
        "-W",
        "-w",
        "-g",
        "--hip-version=",
        "-nogpuinc",
        "-nogpulib",
        "-nohipwrapperinc",
        "-munsafe",
    ];
    let mut arch = None;
    let mut kept = Vec::new();
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        if let Some(name) = option
            .strip_prefix("--offload-arch=")
            .or_else(|| option.strip_prefix("--gpu-architecture="))
        {
            arch = Some(name.to_string());
        } else if matches!(
            option.as_str(),
            "-D" | "-U" | "-I" | "-x" | "-mllvm" | "-Xclang"
        ) {
            let value = rest
                .next()
                .ok_or_else(|| format!("option {option} needs a value"))?;
            if matches!(option.as_str(), "-D" | "-U" | "-I") {
                kept.push(format!("{option}{value}"));
            }
        } else if ["-D", "-U", "-I", "-std="]
            .iter()
            .any(|p| option.starts_with(p))
        {
            kept.push(option.clone());
        } else if let Some(standard) = option.strip_prefix("--std=") {
            kept.push(format!("-std={standard}"));
        } else if option == compile::NO_STRICT_ALIASING {
            kept.push(option.clone());
        } else if !IGNORED.iter().any(|p| option.starts_with(p)) {
            return Err(format!("unknown option {option}"));
        }
    }
    Ok((arch, kept))
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut hiprtcProgram,
    source: *const c_char,
    name: *const c_char,
    header_count: c_int,
    headers: *const *const c_char,
    include_names: *const *const c_char,
) -> hiprtcResult {
    // SAFETY: the caller passes C strings and arrays of them, as the C interface asks.
    let (source, name, texts, names) = unsafe {
        (
            string(source),
            string(name),
            strings(headers, header_count),
            strings(include_names, header_count),
        )
    };
    let (Some(text), Some(texts), Some(names)) = (source, texts, names) else {
        return INVALID_INPUT;
    };
    let name = name
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| "CompileSource".to_string());
    let headers = names.into_iter().zip(texts).collect();
    let source = Source {
        name,
        text,
        headers,
    };
    // SAFETY: the caller's pointer, as the C interface asks.
    unsafe { programs().create(program, source) }
}

#[no_mangle]
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
    let mut built = program.built();
    *built = Built::default();
    let (arch, options) = match parse_options(&options) {
        Ok(parsed) => parsed,
        Err(message) => {
            built.log = format!("error: {message}\n");
            return INVALID_OPTION;
        }
    };
    let sim = sim();
    let arch = match arch {
        Some(name) => Arch::parse(&name),
        None => sim
            .devices
            .get(crate::hip::current_device())
            .map(|d| d.arch.clone()),
    };
    let Some(arch) = arch else {
        built.log = "error: invalid target ID; pass --offload-arch= with an architecture such as gfx942 or gfx1100\n".into();
        return COMPILATION;
    };
    let request = compile::Request {
        name: &program.source.name,
        source: &program.source.text,
        headers: &program.source.headers,
        arch: &arch,
        options: &options,
        check: sim.config.check,
    };
    match compile::compile(&request) {
        Ok(code) => {
            built.code = Some(code);
            SUCCESS
        }
        Err(log) => {
            built.log = log;
            COMPILATION
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetProgramLogSize(
    program: hiprtcProgram,
    bytes: *mut usize,
) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().log_size(program, bytes) }
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetProgramLog(
    program: hiprtcProgram,
    log: *mut c_char,
) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().log(program, log) }
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetCodeSize(
    program: hiprtcProgram,
    bytes: *mut usize,
) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().code_size(program, bytes) }
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().code(program, code) }
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { programs().destroy(program) }
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    // SAFETY: the caller's pointers, as the C interface asks.
    unsafe { version(sim().config.version, major, minor) }
}
