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
    string, strings, COMPILATION, INVALID_INPUT, INVALID_OPTION, INVALID_PROGRAM, SUCCESS,
};
use hip_abi::Registry;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};

pub use hip_abi::hiprtc::{hiprtcGetErrorString, hiprtcResult};

/// Handle of a program.
#[allow(non_camel_case_types)]
pub type hiprtcProgram = *mut c_void;

struct Program {
    name: String,
    source: String,
    headers: Vec<(String, String)>,
    built: Mutex<Built>,
}

#[derive(Default)]
struct Built {
    log: String,
    code: Option<Vec<u8>>,
}

fn programs() -> &'static Registry<Program> {
    static PROGRAMS: OnceLock<Registry<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(Registry::default)
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
    let (Some(source), Some(texts), Some(names), false) = (source, texts, names, program.is_null())
    else {
        return INVALID_INPUT;
    };
    let name = name
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| "CompileSource".to_string());
    let headers = names.into_iter().zip(texts).collect();
    let handle = programs().insert(Arc::new(Program {
        name,
        source,
        headers,
        built: Mutex::default(),
    }));
    // SAFETY: not null; the caller's pointer is writable.
    unsafe { *program = handle };
    SUCCESS
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
    let mut built = program.built.lock().unwrap_or_else(|e| e.into_inner());
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
        name: &program.name,
        source: &program.source,
        headers: &program.headers,
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

/// Runs `f` on what a program's compilation left, if the handle and the result pointer are good.
fn with_built<T>(
    program: hiprtcProgram,
    out: *mut T,
    f: impl FnOnce(&Built) -> hiprtcResult,
) -> hiprtcResult {
    let Some(program) = programs().get(program) else {
        return INVALID_PROGRAM;
    };
    if out.is_null() {
        return INVALID_INPUT;
    }
    let built = program.built.lock().unwrap_or_else(|e| e.into_inner());
    f(&built)
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetCodeSize(
    program: hiprtcProgram,
    size: *mut usize,
) -> hiprtcResult {
    with_built(program, size, |built| match &built.code {
        Some(code) => {
            // SAFETY: not null; the caller's pointer is writable.
            unsafe { *size = code.len() };
            SUCCESS
        }
        None => INVALID_PROGRAM,
    })
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult {
    with_built(program, code, |built| match &built.code {
        Some(bytes) => {
            // SAFETY: the caller's buffer has the size that hiprtcGetCodeSize told.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), code.cast(), bytes.len()) };
            SUCCESS
        }
        None => INVALID_PROGRAM,
    })
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetProgramLogSize(
    program: hiprtcProgram,
    size: *mut usize,
) -> hiprtcResult {
    with_built(program, size, |built| {
        let terminated = if built.log.is_empty() {
            0
        } else {
            built.log.len() + 1
        };
        // SAFETY: not null; the caller's pointer is writable.
        unsafe { *size = terminated };
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcGetProgramLog(
    program: hiprtcProgram,
    log: *mut c_char,
) -> hiprtcResult {
    with_built(program, log, |built| {
        if !built.log.is_empty() {
            // SAFETY: the caller's buffer has the size that hiprtcGetProgramLogSize told: the text and a zero.
            unsafe {
                std::ptr::copy_nonoverlapping(built.log.as_ptr(), log.cast(), built.log.len());
                *log.add(built.log.len()) = 0;
            }
        }
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult {
    if program.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: not null; the caller's pointer is valid.
    let handle = unsafe { std::mem::replace(&mut *program, std::ptr::null_mut()) };
    match programs().remove(handle) {
        Some(_) => SUCCESS,
        None => INVALID_PROGRAM,
    }
}

#[no_mangle]
pub unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    if major.is_null() || minor.is_null() {
        return INVALID_INPUT;
    }
    let version = sim().config.version;
    // SAFETY: not null; the caller's pointers are writable.
    unsafe {
        *major = version / 10_000_000;
        *minor = version / 100_000 % 100;
    }
    SUCCESS
}
