//! Kernels by name, kernels of the user's own, and their arguments.

mod common;

use candle_rocm::{Args, DeclaredKernel, Device, Error, Family, Kernel, LaunchConfig};
use common::{device, download};

const ONE: LaunchConfig = LaunchConfig {
    grid: 1,
    block: 1,
    shared_bytes: 0,
};

fn kernel(device: &Device, source: &str, name: &str) -> Kernel {
    device.custom_kernel(source, name).unwrap()
}

#[test]
fn a_kernel_that_a_family_lacks_is_named_with_the_arch() {
    let device = device();
    let error = device
        .kernel(&DeclaredKernel {
            family: Family::Affine,
            name: "no_such_kernel".to_string(),
            part: None,
            only: None,
            arguments: Vec::new(),
        })
        .unwrap_err();
    let Error::Compile { kernel, arch, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (kernel.as_str(), arch),
        ("no_such_kernel", &device.properties().full_arch)
    );
}

#[test]
fn a_kernel_of_the_user_runs_in_blocks_and_may_use_device_h() {
    let device = device();
    let source = r#"
        #include "device.h"
        extern "C" __global__ void numbers(u32* out, u64 n) {
            for (u64 i = global_index(); i < n; i += global_size()) out[i] = (u32)(3 * i);
        }"#;
    let out = device.alloc(4 * 10_000).unwrap();
    let args = Args::new().ptr(&out, 0).u64(10_000);
    let numbers = kernel(&device, source, "numbers");
    assert_eq!(numbers.name(), "numbers");
    for config in [ONE, LaunchConfig::for_elements(10_000)] {
        // SAFETY: there is room for 10,000 numbers.
        unsafe { numbers.launch(config, &args) }.unwrap();
        let expected: Vec<u32> = (0..10_000).map(|i| 3 * i).collect();
        assert_eq!(download::<u32>(&device, &out), expected);
    }
}

#[test]
fn blocks_and_threads_have_three_dimensions() {
    let device = device();
    let source = r#"
        extern "C" __global__ void place(unsigned* out) {
            unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
            unsigned threads = blockDim.x * blockDim.y * blockDim.z;
            out[block * threads + thread] = block * 1000 + thread;
        }"#;
    let place = kernel(&device, source, "place");
    let (blocks, threads) = (2 * 3 * 4, 5 * 4 * 3);
    let out = device.alloc(4 * blocks * threads).unwrap();
    let args = Args::new().ptr(&out, 0);
    // SAFETY: there is room for a number of each thread, and a grid of 0 writes nothing.
    unsafe {
        place.launch_dims([2, 3, 4], [5, 4, 3], 0, &args).unwrap();
        place
            .launch_dims([1, 0, 1], [1024, 1, 1], 0, &args)
            .unwrap();
    }
    let expected: Vec<u32> = (0..blocks * threads)
        .map(|i| (i / threads * 1000 + i % threads) as u32)
        .collect();
    assert_eq!(download::<u32>(&device, &out), expected);
}

#[test]
fn a_faulty_source_gives_the_compilers_message() {
    let error = device().custom_kernel("extern \"C\" __global__ void f() { undeclared = 1; }", "f");
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("undeclared") && text.contains("kernel f"),
        "{text}"
    );
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dims {
    rank: u32,
    size: [u32; 8],
}

#[test]
fn arguments_of_every_type_arrive() {
    let device = device();
    let source = r#"
        struct Dims { unsigned rank; unsigned size[8]; };
        extern "C" __global__ void all(double* out, unsigned a, unsigned long long b, int c, long long d,
                                       float e, double f, Dims g, unsigned char h) {
            out[0] = a; out[1] = (double)b; out[2] = c; out[3] = (double)d; out[4] = e; out[5] = f;
            out[6] = g.rank; out[7] = g.size[7]; out[8] = h;
        }"#;
    let out = device.alloc_zeroed(8 * 10).unwrap();
    let dims = Dims {
        rank: 3,
        size: [0, 0, 0, 0, 0, 0, 0, 77],
    };
    let args = Args::new()
        .ptr(&out, 8)
        .u32(u32::MAX)
        .u64(1 << 40)
        .i32(-5)
        .i64(-(1 << 41))
        .f32(0.25)
        .f64(1e300)
        .value(&dims)
        .value(&200u8);
    assert_eq!(
        args.sizes().collect::<Vec<_>>(),
        [8, 4, 8, 4, 8, 4, 8, 36, 1]
    );
    let all = kernel(&device, source, "all");
    // SAFETY: the arguments are the kernel's, and there is room for what it writes.
    unsafe { all.launch(ONE, &args) }.unwrap();
    let expected = [
        0.0,
        4294967295.0,
        1099511627776.0,
        -5.0,
        -2199023255552.0,
        0.25,
        1e300,
        3.0,
        77.0,
        200.0,
    ];
    assert_eq!(download::<f64>(&device, &out), expected);
}

const TOUCH: &str = "extern \"C\" __global__ void touch(unsigned* out) { *out = 1; }";

#[test]
fn unusable_arguments_are_refused_before_the_launch() {
    let (here, there) = (device(), device());
    let touch = kernel(&here, TOUCH, "touch");
    let (mine, other) = (here.alloc(4).unwrap(), there.alloc(4).unwrap());
    // SAFETY: none of these is launched.
    let launch = |args: Args| unsafe { touch.launch(ONE, &args) };
    let beyond = launch(Args::new().ptr(&mine, 5));
    assert!(
        matches!(beyond, Err(Error::InvalidLaunch { .. })),
        "{beyond:?}"
    );
    let foreign = launch(Args::new().ptr(&other, 0));
    assert!(
        matches!(foreign, Err(Error::DeviceMismatch { .. })),
        "{foreign:?}"
    );
    let mixed = launch(Args::new().ptr(&mine, 0).ptr(&other, 0));
    assert!(
        matches!(mixed, Err(Error::DeviceMismatch { .. })),
        "{mixed:?}"
    );
    let huge = launch(Args::new().ptr(&mine, 0).value(&[0u64; 512]));
    assert!(matches!(huge, Err(Error::InvalidLaunch { .. })), "{huge:?}");
    here.synchronize().unwrap();
}

#[test]
fn an_impossible_block_is_a_launch_error_with_kernel_and_sizes() {
    let device = device();
    let out = device.alloc(4).unwrap();
    let config = LaunchConfig {
        grid: 3,
        block: 4096,
        shared_bytes: 0,
    };
    let touch = kernel(&device, TOUCH, "touch");
    // SAFETY: the kernel writes one word.
    let error = unsafe { touch.launch(config, &Args::new().ptr(&out, 0)) }.unwrap_err();
    let Error::Launch {
        kernel,
        grid: 3,
        block: 4096,
        arch,
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (kernel.as_str(), arch),
        ("touch", &device.properties().full_arch)
    );
    device.synchronize().unwrap();
}

#[test]
fn a_grid_of_zero_launches_nothing() {
    let device = device();
    let out = device.alloc_zeroed(4).unwrap();
    let config = LaunchConfig::for_elements(0);
    assert_eq!(config.grid, 0);
    let touch = kernel(&device, TOUCH, "touch");
    // SAFETY: the kernel writes one word.
    unsafe { touch.launch(config, &Args::new().ptr(&out, 0)) }.unwrap();
    assert_eq!(download::<u32>(&device, &out), [0]);
}

#[test]
fn the_grid_is_capped_for_huge_counts() {
    let config = LaunchConfig::for_elements(1 << 40);
    assert_eq!(config.grid, LaunchConfig::MAX_GRID);
}
