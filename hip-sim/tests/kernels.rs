//! Kernels in plain HIP through hiprtc, modules and launches, on a device with waves of 64 and on one with waves of 32.

mod common;

use common::*;
use hip_sim::hip::*;
use std::sync::Once;

/// Two devices: gfx942 (wave 64) and gfx1100 (wave 32).
fn setup(device: i32) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::env::set_var("HIP_SIM_ARCH", "gfx942,gfx1100"));
    ok(hipSetDevice(device));
}

#[test]
fn vector_add_in_plain_hip() {
    setup(0);
    let module = Module::new(
        r#"
        #include <hip/hip_runtime.h>
        extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) c[i] = a[i] + b[i];
        }"#,
    );
    let n = 100_003;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32).collect();
    let (a, b, c) = (
        Buffer::from_slice(&a),
        Buffer::from_slice(&b),
        Buffer::new(4 * n),
    );
    module.launch(
        "add",
        n.div_ceil(256) as u32,
        256,
        0,
        &mut [a.arg(), b.arg(), c.arg(), Arg::I32(n as i32)],
    );
    let expected: Vec<f32> = (0..n).map(|i| 1.5 * i as f32).collect();
    assert_eq!(c.to_vec::<f32>(), expected);
    guards_intact();
}

#[test]
fn a_block_reduces_through_barriers_and_static_shared_memory() {
    setup(0);
    let module = Module::new(
        r#"
        extern "C" __global__ void __launch_bounds__(256) sum(const float* x, float* out, int n) {
            __shared__ float part[256];
            int t = threadIdx.x;
            float s = 0;
            for (int i = blockIdx.x * blockDim.x + t; i < n; i += blockDim.x * gridDim.x) s += x[i];
            part[t] = s;
            __syncthreads();
            for (int width = blockDim.x / 2; width > 0; width /= 2) {
                if (t < width) part[t] += part[t + width];
                __syncthreads();
            }
            if (t == 0) out[blockIdx.x] = part[0];
        }"#,
    );
    let n = 1 << 16;
    let x = Buffer::from_slice(&vec![1f32; n]);
    let out = Buffer::new(4 * 64);
    module.launch(
        "sum",
        64,
        256,
        0,
        &mut [x.arg(), out.arg(), Arg::I32(n as i32)],
    );
    assert_eq!(out.to_vec::<f32>(), vec![1024f32; 64]);
    // More threads than the launch bounds allow.
    assert_eq!(
        module.try_launch("sum", 1, 512, 0, &mut [x.arg(), out.arg(), Arg::I32(1)]),
        9
    );
}

#[test]
fn shuffles_and_votes_follow_the_wave_size() {
    for (device, wave) in [(0, 64), (1, 32)] {
        setup(device);
        let module = Module::new(
            r#"
            extern "C" __global__ void lanes(int* sum, int* up, int* votes, int* size) {
                int t = threadIdx.x, v = t;
                for (int d = warpSize / 2; d > 0; d /= 2) v += __shfl_xor(v, d);
                sum[t] = v;
                up[t] = __shfl_up(t, 1, 8);
                votes[t] = __popcll(__ballot(t % 3 == 0)) * 100 + (__any(t == 5) * 10 + __all(t >= 0));
                if (t == 0) *size = warpSize;
            }"#,
        );
        let threads = 128usize;
        let buffers: Vec<Buffer> = (0..4).map(|_| Buffer::new(4 * threads)).collect();
        module.launch(
            "lanes",
            1,
            threads as u32,
            0,
            &mut [
                buffers[0].arg(),
                buffers[1].arg(),
                buffers[2].arg(),
                buffers[3].arg(),
            ],
        );
        let (sum, up, votes) = (
            buffers[0].to_vec::<i32>(),
            buffers[1].to_vec::<i32>(),
            buffers[2].to_vec::<i32>(),
        );
        assert_eq!(buffers[3].to_vec::<i32>()[0], wave);
        for t in 0..threads as i32 {
            let members = || (0..threads as i32).filter(|u| u / wave == t / wave);
            assert_eq!(sum[t as usize], members().sum::<i32>());
            assert_eq!(up[t as usize], if t % 8 == 0 { t } else { t - 1 });
            let multiples = members().filter(|u| u % 3 == 0).count() as i32;
            assert_eq!(
                votes[t as usize],
                multiples * 100 + (t / wave == 0) as i32 * 10 + 1
            );
        }
    }
}

#[test]
fn lanes_that_do_not_exist_or_have_left_take_no_part() {
    setup(1);
    let module = Module::new(
        r#"
        extern "C" __global__ void mask(unsigned long long* out) {
            int t = threadIdx.x;
            if (t % 2) return;
            out[t] = __ballot(1);
        }"#,
    );
    let out = Buffer::from_slice(&[0u64; 48]);
    module.launch("mask", 1, 48, 0, &mut [out.arg()]);
    let out = out.to_vec::<u64>();
    assert_eq!((out[0], out[32], out[1]), (0x5555_5555, 0x5555, 0));
}

#[test]
fn dynamic_shared_memory_in_both_scopes() {
    setup(0);
    let module = Module::new(
        r#"
        extern __shared__ int outer[];
        extern "C" __global__ void reverse(int* x) {
            extern __shared__ __align__(16) unsigned char inner[];
            int t = threadIdx.x, n = blockDim.x;
            ((int*)inner)[t] = x[t];
            __syncthreads();
            x[t] = outer[n - 1 - t];
        }"#,
    );
    let x = Buffer::from_slice(&(0..1000).collect::<Vec<i32>>());
    module.launch("reverse", 1, 1000, 4000, &mut [x.arg()]);
    assert_eq!(x.to_vec::<i32>(), (0..1000).rev().collect::<Vec<i32>>());
    assert_eq!(
        module.try_launch("reverse", 1, 1, (64 << 10) + 1, &mut [x.arg()]),
        1
    );
}

#[test]
fn atomics_of_many_blocks_add_up() {
    setup(0);
    let module = Module::new(
        r#"
        extern "C" __global__ void count(int* ints, float* floats, double* doubles, unsigned* most) {
            atomicAdd(ints, 1);
            atomicAdd(floats, 1.0f);
            atomicAdd(doubles, 0.5);
            atomicMax(most, blockIdx.x * blockDim.x + threadIdx.x);
        }"#,
    );
    let (ints, floats) = (Buffer::from_slice(&[0i32]), Buffer::from_slice(&[0f32]));
    let (doubles, most) = (Buffer::from_slice(&[0f64]), Buffer::from_slice(&[0u32]));
    module.launch(
        "count",
        500,
        200,
        0,
        &mut [ints.arg(), floats.arg(), doubles.arg(), most.arg()],
    );
    assert_eq!(
        (ints.to_vec::<i32>()[0], floats.to_vec::<f32>()[0]),
        (100_000, 100_000.0)
    );
    assert_eq!(
        (doubles.to_vec::<f64>()[0], most.to_vec::<u32>()[0]),
        (50_000.0, 99_999)
    );
}

#[test]
fn three_dimensions_and_structs_by_value() {
    setup(0);
    let module = Module::new(
        r#"
        struct Dims { unsigned rank; unsigned size[3]; unsigned char tail; };
        extern "C" __global__ void index(unsigned char first, Dims dims, double scale, double* out) {
            unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z * blockDim.z + threadIdx.z;
            out[(z * dims.size[1] + y) * dims.size[0] + x] = first + dims.tail + scale * (x + 100 * y + 10000 * z);
        }"#,
    );
    let (grid, block) = ([3, 2, 2], [4, 5, 3]);
    let (nx, ny, nz) = (12u32, 10u32, 6u32);
    let mut dims: Vec<u8> = [3, nx, ny, nz]
        .iter()
        .flat_map(|v: &u32| v.to_ne_bytes())
        .collect();
    dims.extend([7, 0, 0, 0]);
    let out = Buffer::new(8 * (nx * ny * nz) as usize);
    let mut args = [
        Arg::Bytes(vec![1]),
        Arg::Bytes(dims),
        Arg::Bytes(0.5f64.to_ne_bytes().to_vec()),
        out.arg(),
    ];
    ok(launch_on(
        module.function("index"),
        grid,
        block,
        0,
        std::ptr::null_mut(),
        &mut args,
    ));
    let out = out.to_vec::<f64>();
    for (i, v) in out.iter().enumerate() {
        let i = i as u32;
        let (x, y, z) = (i % nx, i / nx % ny, i / nx / ny);
        assert_eq!(*v, 8.0 + 0.5 * (x + 100 * y + 10000 * z) as f64);
    }
}
