//! `HIP_SIM_CHECK=1`: what the checks find, and that correct programs have no findings. One test at a time: findings
//! are global.

mod common;

use common::*;
use hip_sim::hip::*;
use std::sync::MutexGuard;

const ILLEGAL_ADDRESS: i32 = 700;

fn setup() -> MutexGuard<'static, ()> {
    let turn = common::turn();
    std::env::set_var("HIP_SIM_CHECK", "1");
    hipInit(0);
    take_reports();
    turn
}

/// The only finding, which has to contain all of `parts`.
#[track_caller]
fn finding(parts: &[&str]) {
    let reports = take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    for part in parts {
        assert!(
            reports[0].contains(part),
            "{part:?} is not in {:?}",
            reports[0]
        );
    }
}

const SOURCE: &str = r#"
    extern "C" __global__ void copy_shifted(const float* x, float* y, int n, int shift) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i + shift];
    }
    extern "C" __global__ void fill(float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = 1.0f;
    }
    extern "C" __global__ void bytes(unsigned char* y, int at) { y[at] = 1; }
    extern "C" __global__ void shared(float* y, int read, int write) {
        extern __shared__ float s[];
        s[write] = threadIdx.x;
        y[0] = s[read];
    }"#;

#[test]
fn a_correct_kernel_has_no_findings() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let (x, y) = (Buffer::from_slice(&[2f32; 1000]), Buffer::new(4000));
    module.launch(
        "copy_shifted",
        4,
        256,
        0,
        &mut [x.arg(), y.arg(), Arg::I32(1000), Arg::I32(0)],
    );
    assert_eq!(y.to_vec::<f32>(), [2f32; 1000]);
    assert_eq!(take_reports(), Vec::<String>::new());
}

#[test]
fn reads_of_memory_that_was_never_written() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let (x, y) = (Buffer::new(4 * 64), Buffer::new(4 * 64));
    module.launch("fill", 1, 64, 0, &mut [x.arg(), Arg::I32(40)]);
    module.launch(
        "copy_shifted",
        1,
        41,
        0,
        &mut [x.arg(), y.arg(), Arg::I32(41), Arg::I32(0)],
    );
    finding(&[
        "kernel copy_shifted",
        "thread (40,0,0)",
        "never written",
        "byte 160 of an allocation of 256 bytes",
    ]);
    // The calls went on: an uninitialised value is no fault of the memory system.
    assert_eq!(hipDeviceSynchronize(), 0);
}

#[test]
fn reads_past_the_end() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let (x, y) = (Buffer::from_slice(&[1f32; 10]), Buffer::new(40));
    module.launch(
        "copy_shifted",
        1,
        10,
        0,
        &mut [x.arg(), y.arg(), Arg::I32(10), Arg::I32(1)],
    );
    finding(&[
        "kernel copy_shifted",
        "thread (9,0,0)",
        "reads 4 bytes out of bounds",
        "0 bytes past the end of an allocation of 40 bytes",
    ]);
    assert_eq!(
        (hipDeviceSynchronize(), hipDeviceSynchronize()),
        (ILLEGAL_ADDRESS, 0)
    );
}

#[test]
fn writes_past_the_end_are_found_to_the_byte() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let y = Buffer::new(10);
    module.launch("bytes", 1, 1, 0, &mut [y.arg(), Arg::I32(9)]);
    assert_eq!(take_reports(), Vec::<String>::new());
    module.launch("bytes", 1, 1, 0, &mut [y.arg(), Arg::I32(10)]);
    finding(&["kernel bytes", "writes 1 bytes out of bounds"]);
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    // The guard zone was hit too, and says so once.
    assert_eq!(
        (hipDeviceSynchronize(), hipDeviceSynchronize()),
        (ILLEGAL_ADDRESS, 0)
    );
    finding(&["guard zone overwritten at byte 10", "last kernel bytes"]);
}

#[test]
fn freed_memory_is_out_of_bounds() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let y = Buffer::new(40);
    let dangling = y.ptr;
    drop(y);
    module.launch("fill", 1, 1, 0, &mut [Arg::Pointer(dangling), Arg::I32(1)]);
    finding(&["kernel fill", "writes 4 bytes out of bounds"]);
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
}

#[test]
fn dynamic_shared_memory_is_checked_too() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let y = Buffer::new(4);
    module.launch("shared", 1, 1, 64, &mut [y.arg(), Arg::I32(3), Arg::I32(3)]);
    assert_eq!(take_reports(), Vec::<String>::new());
    module.launch("shared", 1, 1, 64, &mut [y.arg(), Arg::I32(4), Arg::I32(3)]);
    finding(&["kernel shared", "never written"]);
    module.launch(
        "shared",
        1,
        1,
        64,
        &mut [y.arg(), Arg::I32(3), Arg::I32(16)],
    );
    let reports = take_reports();
    assert!(
        reports[0].contains("writes 4 bytes out of bounds"),
        "{reports:?}"
    );
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
}

#[test]
fn copies_to_the_host_of_memory_that_was_never_written() {
    let _turn = setup();
    let y = Buffer::new(64);
    ok(unsafe { hipMemset(y.ptr, 0, 60) });
    y.to_vec::<u8>();
    finding(&[
        "copy of 64 bytes",
        "never written",
        "byte 60 of an allocation of 64 bytes",
    ]);
}

#[test]
fn only_the_first_findings_of_a_launch_are_told() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let (x, y) = (Buffer::new(4 * 256), Buffer::new(4 * 256));
    module.launch(
        "copy_shifted",
        1,
        256,
        0,
        &mut [x.arg(), y.arg(), Arg::I32(256), Arg::I32(0)],
    );
    assert_eq!(take_reports().len(), 4);
}

#[test]
fn objects_compiled_without_checks_are_compiled_again() {
    let _turn = setup();
    // The plain object comes from another process, as from a cache on disk.
    let path = std::env::temp_dir().join(format!("hip-sim-unchecked-{}.co", std::process::id()));
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writes_an_unchecked_object", "--include-ignored"])
        .env_remove("HIP_SIM_CHECK")
        .env("HIP_SIM_TEST_OBJECT", &path)
        .output()
        .unwrap();
    assert!(status.status.success());
    let code = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // The second time it comes from the cache.
    let cache = Cache::new();
    for _ in 0..2 {
        checks_a_read_past_the_end(&code);
        assert_eq!(cache.objects(), 1);
    }
}

#[test]
fn archs_share_what_is_the_same_for_them() {
    let _turn = setup();
    let cache = Cache::new();
    let with_an_instruction = "extern \"C\" __global__ void square(float* y, const float* x) {
        typedef short i16x4 __attribute__((vector_size(8)));
        typedef float f32x4 __attribute__((vector_size(16)));
        const f32x4 c = __builtin_amdgcn_mfma_f32_16x16x16f16(*(i16x4*)x, *(i16x4*)x, f32x4(), 0, 0, 0);
        y[threadIdx.x] = c[0];
    }";
    for (source, archs, objects) in [
        (SOURCE, ["gfx942", "gfx90a", "gfx950"], 1),
        // The waves' size is in the text.
        (SOURCE, ["gfx1100", "gfx1201", "gfx1030"], 2),
        (with_an_instruction, ["gfx942", "gfx90a", "gfx950"], 3),
    ] {
        let code = archs.map(|arch| compile(source, arch).unwrap());
        assert_eq!(cache.objects(), objects);
        for (arch, code) in archs.iter().zip(code) {
            assert!(code.windows(arch.len()).any(|w| w == arch.as_bytes()));
        }
    }
}

/// The cache of one test, empty at first.
struct Cache(tempfile::TempDir);

impl Cache {
    fn new() -> Cache {
        let folder = tempfile::tempdir().unwrap();
        std::env::set_var("XDG_CACHE_HOME", folder.path());
        Cache(folder)
    }

    fn objects(&self) -> usize {
        std::fs::read_dir(self.0.path().join("hip-sim"))
            .unwrap()
            .count()
    }
}

fn checks_a_read_past_the_end(code: &[u8]) {
    let mut module = std::ptr::null_mut();
    ok(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) });
    let (x, y) = (Buffer::from_slice(&[1f32; 10]), Buffer::new(40));
    Module(module).launch(
        "copy_shifted",
        1,
        10,
        0,
        &mut [x.arg(), y.arg(), Arg::I32(10), Arg::I32(1)],
    );
    finding(&["kernel copy_shifted", "reads 4 bytes out of bounds"]);
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
}

#[test]
#[ignore = "helper process of the test above"]
fn writes_an_unchecked_object() {
    let Some(path) = std::env::var_os("HIP_SIM_TEST_OBJECT") else {
        return;
    };
    std::fs::write(path, compile(SOURCE, "gfx942").unwrap()).unwrap();
}
