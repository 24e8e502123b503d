//! The same calls of HIP on the simulator and over the driver's mock: statuses and results are the same, but for what is
//! listed with its reason.

#[path = "../common/mod.rs"]
mod common;
mod graphs;
mod memory;
mod modules;
mod streams;

use hip_abi::error::hipError_t;
use hip_on_kfd_runtime::functions;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void, CString};
use std::fmt::Debug;
use std::ptr::null_mut;

/// Declares the table of HIP's functions, and fills it from two libraries.
macro_rules! table {
    (
        hip { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)* }
        hiprtc { $($rest:tt)* }
    ) => {
        #[allow(non_snake_case)]
        struct Hip {
            $($name: unsafe extern "C" fn($($type),*) -> $answer,)*
        }
        const SIM: Hip = Hip { $($name: hip_sim::hip::$name,)* };
        const KFD: Hip = Hip { $($name: hip_on_kfd_runtime::hip::$name,)* };
    };
}
functions!(table);

const DEVICE: c_int = 1;
const HOST: c_int = 2;
const WITHIN: c_int = 3;
const NON_BLOCKING: c_uint = 1;
const UNTIMED: c_uint = 2;
const RELAXED: c_int = 2;

/// One of the two libraries, with what its calls answered.
struct Side<'a> {
    hip: &'a Hip,
    /// An object with the kernels of code-object's fixture.
    object: &'a [u8],
    case: RefCell<&'static str>,
    said: RefCell<Vec<(String, String)>>,
}

impl Side<'_> {
    fn case(&self, case: &'static str) {
        *self.case.borrow_mut() = case;
    }

    /// Notes an answer.
    fn note(&self, what: &str, answer: impl Debug) {
        let what = format!("{}: {what}", self.case.borrow());
        self.said.borrow_mut().push((what, format!("{answer:?}")));
    }

    /// Notes a status by its name.
    fn says(&self, what: &str, status: hipError_t) -> hipError_t {
        self.note(what, common::name(status));
        status
    }

    /// What a call makes, which both can.
    fn made(&self, make: impl FnOnce(*mut *mut c_void) -> hipError_t) -> *mut c_void {
        common::made(make)
    }

    fn malloc(&self, bytes: usize) -> *mut c_void {
        // SAFETY: the result is written.
        self.made(|out| unsafe { (self.hip.hipMalloc)(out, bytes) })
    }

    fn stream(&self, flags: c_uint) -> *mut c_void {
        // SAFETY: the result is written.
        self.made(|out| unsafe { (self.hip.hipStreamCreateWithFlags)(out, flags) })
    }

    fn event(&self, flags: c_uint) -> *mut c_void {
        // SAFETY: the result is written.
        self.made(|out| unsafe { (self.hip.hipEventCreateWithFlags)(out, flags) })
    }

    /// What is in memory of a device.
    fn words(&self, from: *mut c_void, count: usize, stream: *mut c_void) -> Vec<u32> {
        let mut bytes = vec![0u8; 4 * count];
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: callers have allocated as many words.
        unsafe {
            common::ok((self.hip.hipMemcpyAsync)(
                to,
                from,
                bytes.len(),
                HOST,
                stream,
            ));
            common::ok((self.hip.hipStreamSynchronize)(stream));
        }
        common::words(&bytes)
    }

    fn function(&self, module: *mut c_void, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the result is written, the name a C string.
        self.made(|out| unsafe { (self.hip.hipModuleGetFunction)(out, module, name.as_ptr()) })
    }

    fn module(&self) -> *mut c_void {
        // SAFETY: the object is whole.
        self.made(|out| unsafe { (self.hip.hipModuleLoadData)(out, self.object.as_ptr().cast()) })
    }

    /// Launches `numbers[..threads] += by`.
    fn add(
        &self,
        function: *mut c_void,
        mut numbers: *mut c_void,
        threads: u32,
        mut by: u32,
        stream: *mut c_void,
    ) -> hipError_t {
        let mut params: [*mut c_void; 2] = [(&raw mut numbers).cast(), (&raw mut by).cast()];
        self.launch(
            function,
            [1, 1, 1],
            [threads, 1, 1],
            0,
            stream,
            params.as_mut_ptr(),
        )
    }

    fn launch(
        &self,
        function: *mut c_void,
        [x, y, z]: [u32; 3],
        [width, height, depth]: [u32; 3],
        lds: u32,
        stream: *mut c_void,
        params: *mut *mut c_void,
    ) -> hipError_t {
        // SAFETY: callers pass what the kernel takes, or what is refused.
        unsafe {
            (self.hip.hipModuleLaunchKernel)(
                function,
                x,
                y,
                z,
                width,
                height,
                depth,
                lds,
                stream,
                params,
                null_mut(),
            )
        }
    }
}

/// An address that is nobody's handle.
const NOBODY: *mut c_void = 0x5000 as *mut c_void;

/// The source of the fixture's kernels that are launched here.
const SOURCE: &str = r#"
extern "C" __global__ void __launch_bounds__(64) nothing() {}
extern "C" __global__ void scramble(unsigned* numbers, unsigned by) { numbers[threadIdx.x] += by; }
"#;

/// What is otherwise, what the simulator says and what hip-on-kfd does, and why that is right.
const OTHERWISE: &[(&str, &str, &str, &str)] = &[
    (
        "memory: flags 4",
        "hipSuccess",
        "hipErrorNotSupported",
        "the driver is not asked for contiguous memory, and hip-on-kfd says so",
    ),
    (
        "copies: peer that has it not",
        "hipErrorInvalidValue",
        "hipSuccess",
        "addresses say where memory is; the simulator finds programs that are wrong about it",
    ),
    (
        "copies: from a peer that has it not",
        "hipErrorInvalidValue",
        "hipSuccess",
        "likewise",
    ),
    (
        "copies: no peer",
        "hipErrorInvalidValue",
        "hipErrorInvalidDevice",
        "HIP names the device first; the simulator looks at memory alone",
    ),
    (
        "events: flags 0x4",
        "hipSuccess",
        "hipErrorInvalidValue",
        "by HIP, an event of several processes has no time; the simulator takes it all the same",
    ),
    (
        "events: flags 0x6",
        "hipSuccess",
        "hipErrorNotSupported",
        "there are no events of several processes, and hip-on-kfd says so",
    ),
    (
        "events: flags 0x20000000",
        "hipErrorInvalidValue",
        "hipSuccess",
        "hipEventDisableSystemFence, which the simulator does not know",
    ),
    (
        "captures: end of the default stream",
        "hipErrorInvalidHandle",
        "hipErrorIllegalState",
        "no capture is under way in it, as in any other stream",
    ),
];

/// What a library says to all calls.
fn answers(hip: &Hip, object: &[u8]) -> Vec<(String, String)> {
    let side = Side {
        hip,
        object,
        case: RefCell::new(""),
        said: RefCell::default(),
    };
    for calls in [
        memory::devices,
        memory::memory,
        memory::copies,
        streams::streams_and_events,
        modules::modules,
        graphs::graphs,
    ] {
        calls(&side);
    }
    side.said.into_inner()
}

#[test]
fn both_answer_alike() {
    std::env::set_var("HIP_SIM_ARCH", "gfx1100,gfx1100");
    std::env::set_var("HIP_SIM_MEMORY", "64M");
    common::mock();
    let object = compiled();
    let sim = answers(&SIM, &object);
    let kfd = answers(&KFD, common::OBJECT);
    assert_eq!(sim.len(), kfd.len());
    let mut wrong = Vec::new();
    let mut listed = 0;
    for ((call, sim), (other, kfd)) in sim.iter().zip(&kfd) {
        assert_eq!(call, other);
        let known = OTHERWISE.iter().find(|(known, ..)| known == call);
        match known {
            Some((_, of_sim, of_kfd, _)) => {
                listed += 1;
                let is = (sim.trim_matches('"'), kfd.trim_matches('"'));
                if is != (*of_sim, *of_kfd) {
                    wrong.push(format!(
                        "{call}: {sim} and {kfd}, which is not what is listed"
                    ));
                }
            }
            None if sim != kfd => wrong.push(format!("{call}: {sim}, hip-on-kfd: {kfd}")),
            None => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(listed, OTHERWISE.len(), "a listed call is not made");
    assert!(sim.len() > 250, "{}", sim.len());
}

/// The simulator's own object of the kernels.
fn compiled() -> Vec<u8> {
    use hip_sim::hiprtc::*;
    let source = CString::new(SOURCE).unwrap();
    let mut program = null_mut();
    let name = c"kernels.hip".as_ptr();
    let options = [c"--offload-arch=gfx1100".as_ptr()];
    // SAFETY: strings end with a zero, results are written, and the code has as many bytes as is said.
    unsafe {
        let made = hiprtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name,
            0,
            null_mut(),
            null_mut(),
        );
        assert_eq!(made, 0);
        assert_eq!(hiprtcCompileProgram(program, 1, options.as_ptr()), 0);
        let mut bytes = 0;
        assert_eq!(hiprtcGetCodeSize(program, &mut bytes), 0);
        let mut code = vec![0u8; bytes];
        assert_eq!(hiprtcGetCode(program, code.as_mut_ptr().cast()), 0);
        hiprtcDestroyProgram(&mut program);
        code
    }
}
