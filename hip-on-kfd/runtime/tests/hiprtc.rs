//! hiprtc's functions, by clang where there is one.

use hip_on_kfd_runtime::hiprtc::*;
use std::ffi::{c_char, CStr, CString};
use std::ptr::{null, null_mut};

const SOURCE: &CStr = c"extern \"C\" __attribute__((global)) void nothing() {}";

fn create(source: &CStr) -> hiprtcProgram {
    let mut program = null_mut();
    // SAFETY: C strings, and a result that is written.
    let created = unsafe {
        hiprtcCreateProgram(
            &mut program,
            source.as_ptr(),
            c"unit".as_ptr(),
            0,
            null(),
            null(),
        )
    };
    assert_eq!(created, 0);
    program
}

fn compile(program: hiprtcProgram, options: &[&str]) -> hiprtcResult {
    let options: Vec<CString> = options.iter().map(|o| CString::new(*o).unwrap()).collect();
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: as many C strings as said.
    unsafe { hiprtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr()) }
}

fn log(program: hiprtcProgram) -> String {
    let mut bytes = 0;
    // SAFETY: the size is written.
    assert_eq!(unsafe { hiprtcGetProgramLogSize(program, &mut bytes) }, 0);
    let mut log = vec![0u8; bytes];
    // SAFETY: the buffer has the size that was told.
    assert_eq!(
        unsafe { hiprtcGetProgramLog(program, log.as_mut_ptr().cast()) },
        0
    );
    log.pop();
    String::from_utf8(log).unwrap()
}

#[test]
fn source_becomes_an_object_or_a_log_that_says_why_not() {
    let mut program = create(SOURCE);
    let result = compile(program, &["-O3", "--offload-arch=gfx1100"]);
    if candle_rocm_kernels::Clang::find().is_err() {
        let log = log(program);
        assert_ne!(result, 0);
        assert!(
            log.contains("CANDLE_ROCM_CLANG") && log.contains("CANDLE_ROCM_ARCHS"),
            "{log}"
        );
        return;
    }
    assert_eq!((result, log(program)), (0, String::new()));
    let mut bytes = 0;
    // SAFETY: the size is written.
    assert_eq!(unsafe { hiprtcGetCodeSize(program, &mut bytes) }, 0);
    let mut code = vec![0u8; bytes];
    // SAFETY: the buffer has the size that was told.
    assert_eq!(
        unsafe { hiprtcGetCode(program, code.as_mut_ptr().cast()) },
        0
    );
    let object = code_object::CodeObject::parse(&code).unwrap();
    assert_eq!(object.target.processor(), "gfx1100");
    assert!(object.kernel("nothing").is_some());
    // SAFETY: the handle is the caller's.
    unsafe {
        assert_eq!(hiprtcDestroyProgram(&mut program), 0);
        assert!(program.is_null());
        assert_eq!(hiprtcDestroyProgram(&mut program), 4);
    }
    let wrong = create(c"this is no program");
    assert_eq!(compile(wrong, &["--offload-arch=gfx1100"]), 6);
    assert!(log(wrong).contains("error:"), "{}", log(wrong));
}

#[test]
fn mistakes_are_refused_before_a_compiler_runs() {
    let program = create(SOURCE);
    assert_eq!(compile(program, &["--offload-arch=sm_90"]), 5);
    assert!(log(program).contains("sm_90"));
    assert_eq!(compile(null_mut(), &[]), 4);
    let mut bytes = 0;
    // SAFETY: the size is not written.
    assert_eq!(unsafe { hiprtcGetCodeSize(program, &mut bytes) }, 4);
    // SAFETY: null is refused.
    unsafe {
        assert_eq!(
            hiprtcCreateProgram(null_mut(), SOURCE.as_ptr(), null(), 0, null(), null()),
            3
        );
        assert_eq!(
            hiprtcCreateProgram(&mut null_mut(), null(), null(), 0, null(), null()),
            3
        );
    }
}
