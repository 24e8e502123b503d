//! A small host program on the simulator: a unit for each of its devices, launches from slices to vectors.

use candle_rocm_kernels::translation_unit;
use hip_sim::control::hip_sim_take_reports;
use hip_sim::hip::*;
use hip_sim::hiprtc::*;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CString};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, Once, OnceLock};

/// Waves of 64 by shuffles, waves of 32 by shuffles, and the two kinds of WMMA.
pub const ARCHS: [&str; 4] = ["gfx942", "gfx1030", "gfx1100", "gfx1201"];

/// Its order of threads; set in the process that `order` starts.
pub const SEED: &str = "HIP_SIM_SEED";

/// Whether everything runs that takes long, with `FULL=1`: else fewer GPUs, and fewer units in another order.
pub fn full() -> bool {
    std::env::var("FULL").is_ok_and(|value| value == "1")
}

fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        std::env::set_var("HIP_SIM_ARCH", ARCHS.join(","));
        std::env::set_var("HIP_SIM_CHECK", "1");
        ok(hipInit(0));
    });
}

#[track_caller]
fn ok(status: c_int) {
    assert_eq!(status, 0, "HIP status {status}: {}", reports());
}

/// What the simulator has found.
fn reports() -> String {
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the buffer is as long as said.
    let length = unsafe { hip_sim_take_reports(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..length.saturating_sub(1)]).into_owned()
}

/// The unit as one text, with its headers.
pub fn unit(name: &str, source: &str) -> String {
    translation_unit(name, source).expect("every header is there")
}

/// A unit that is loaded on one of the simulator's devices.
pub struct Loaded {
    /// The device's architecture.
    pub arch: &'static str,
    module: hipModule_t,
}

/// Calls `test` with the unit on each device of `archs`.
pub fn on(archs: &[&'static str], name: &str, source: &str, test: impl Fn(&Loaded)) {
    start();
    let text = unit(name, source);
    for &arch in archs {
        let ordinal = ARCHS.iter().position(|known| *known == arch);
        ok(hipSetDevice(
            ordinal.expect("a device for the arch") as c_int
        ));
        let code = compiled(name, &text, arch);
        let mut module = null_mut();
        // SAFETY: the code is whole, and the handle a place for the answer.
        ok(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) });
        test(&Loaded { arch, module });
        ok(hipModuleUnload(module));
    }
}

/// In waves of 64 and of 32; in another order, unless all is wanted, in those of 64 alone.
pub fn both_waves(name: &str, source: &str, test: impl Fn(&Loaded)) {
    let both = std::env::var_os(SEED).is_none() || full();
    on(
        &["gfx942", "gfx1100"][..1 + both as usize],
        name,
        source,
        test,
    );
}

/// The unit's code object: compiled by the first test that wants it.
fn compiled(name: &str, text: &str, arch: &'static str) -> Vec<u8> {
    type Objects = Mutex<HashMap<(String, &'static str), Arc<OnceLock<Vec<u8>>>>>;
    static OBJECTS: OnceLock<Objects> = OnceLock::new();
    let mut objects = OBJECTS.get_or_init(Mutex::default).lock().unwrap();
    let object = Arc::clone(objects.entry((name.to_string(), arch)).or_default());
    drop(objects);
    object.get_or_init(|| compile(text, arch)).clone()
}

fn compile(source: &str, arch: &str) -> Vec<u8> {
    let source = CString::new(source).expect("no zero in it");
    let option = CString::new(format!("--offload-arch={arch}")).expect("no zero in it");
    let mut program = null_mut();
    // SAFETY: all strings and buffers live until the calls return, and are as long as said.
    unsafe {
        let (source, name) = (source.as_ptr(), c"library.hip".as_ptr());
        ok(hiprtcCreateProgram(
            &mut program,
            source,
            name,
            0,
            null_mut(),
            null_mut(),
        ));
        let options: [*const c_char; 1] = [option.as_ptr()];
        let status = hiprtcCompileProgram(program, 1, options.as_ptr());
        let mut size = 0;
        if status != 0 {
            ok(hiprtcGetProgramLogSize(program, &mut size));
            let mut log = vec![0u8; size];
            ok(hiprtcGetProgramLog(program, log.as_mut_ptr().cast()));
            panic!("{}", String::from_utf8_lossy(&log));
        }
        ok(hiprtcGetCodeSize(program, &mut size));
        let mut code = vec![0u8; size];
        ok(hiprtcGetCode(program, code.as_mut_ptr().cast()));
        ok(hiprtcDestroyProgram(&mut program));
        code
    }
}

/// Device memory.
struct Buffer(*mut c_void);

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        let mut at = null_mut();
        // SAFETY: a place for the answer.
        ok(unsafe { hipMalloc(&mut at, bytes) });
        Buffer(at)
    }

    fn of<T: Copy>(data: &[T]) -> Buffer {
        let buffer = Buffer::new(size_of_val(data));
        // SAFETY: both are that long; 1 is the way to the device.
        ok(unsafe { hipMemcpy(buffer.0, data.as_ptr().cast(), size_of_val(data), 1) });
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        hipFree(self.0);
    }
}

impl Loaded {
    /// Launches one block on inputs, each a slice, and gives `count` elements that the kernel has written: its last
    /// argument.
    #[track_caller]
    pub fn block<T: Copy, O: Copy + Default>(
        &self,
        kernel: &str,
        block: [u32; 3],
        inputs: &[&[T]],
        count: usize,
    ) -> Vec<O> {
        let buffers = inputs.iter().map(|input| Buffer::of(input)).collect();
        self.launch(kernel, block, buffers, count)
    }

    /// The same with one input and numbers of another type.
    #[track_caller]
    pub fn block_with<T: Copy, N: Copy, O: Copy + Default>(
        &self,
        kernel: &str,
        block: [u32; 3],
        input: &[T],
        numbers: &[N],
        count: usize,
    ) -> Vec<O> {
        let buffers = vec![Buffer::of(input), Buffer::of(numbers)];
        self.launch(kernel, block, buffers, count)
    }

    /// The same with two inputs of one type and one of the result's.
    #[track_caller]
    pub fn product<T: Copy, O: Copy + Default>(
        &self,
        kernel: &str,
        block: [u32; 3],
        factors: [&[T]; 2],
        sums: &[O],
        count: usize,
    ) -> Vec<O> {
        let [a, b] = factors.map(Buffer::of);
        self.launch(kernel, block, vec![a, b, Buffer::of(sums)], count)
    }

    #[track_caller]
    fn launch<O: Copy + Default>(
        &self,
        kernel: &str,
        block: [u32; 3],
        buffers: Vec<Buffer>,
        count: usize,
    ) -> Vec<O> {
        let bytes = count * size_of::<O>();
        let out = Buffer::new(bytes);
        let name = CString::new(kernel).expect("no zero in it");
        let mut function = null_mut();
        let mut result = vec![O::default(); count];
        let mut addresses: Vec<*mut c_void> = buffers.iter().map(|b| b.0).collect();
        addresses.push(out.0);
        let mut arguments: Vec<*mut c_void> = addresses
            .iter_mut()
            .map(|address| (&raw mut *address).cast())
            .collect();
        let [x, y, z] = block;
        let (arguments, no) = (arguments.as_mut_ptr(), null_mut());
        // SAFETY: the kernels of these tests take as many pointers, and the simulator checks what they do with them; the
        // result has as many bytes as are copied. 2 is the way to the host.
        unsafe {
            ok(hipModuleGetFunction(
                &mut function,
                self.module,
                name.as_ptr(),
            ));
            ok(hipModuleLaunchKernel(
                function,
                1,
                1,
                1,
                x,
                y,
                z,
                0,
                no,
                arguments,
                null_mut(),
            ));
            ok(hipMemcpy(result.as_mut_ptr().cast(), out.0, bytes, 2));
        }
        result
    }
}

/// Numbers that look random, the same in every run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next one (xorshift64*).
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.bits() >> 33) % end
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }
}
