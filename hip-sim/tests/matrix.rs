//! Matrix instructions that a wave must not execute so; correct ones are tested where kernels use them.

mod common;

use common::*;
use hip_sim::hip::*;
use std::sync::Once;

/// Two devices: gfx942 (wave 64) and gfx1100 (wave 32).
fn setup(device: i32) -> std::sync::MutexGuard<'static, ()> {
    static ONCE: Once = Once::new();
    let turn = turn();
    ONCE.call_once(|| std::env::set_var("HIP_SIM_ARCH", "gfx942,gfx1100"));
    ok(hipSetDevice(device));
    turn
}

const MFMA: &str = r#"
typedef short operand __attribute__((vector_size(8)));
typedef float sums __attribute__((vector_size(16)));
extern "C" __global__ void ones(float* out) {
    const operand one = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
    sums c = {1, 2, 3, 4};
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(one, one, c, 0, 0, 0);
    for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = c[i];
}
extern "C" __global__ void diverging(float* out, int lanes) {
    const operand one = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
    sums c = {};
    if (threadIdx.x < lanes) c = __builtin_amdgcn_mfma_f32_16x16x16f16(one, one, c, 0, 0, 0);
    out[threadIdx.x] = c[0];
}
extern "C" __global__ void mixing(float* out, int lanes) {
    const operand one = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
    sums c = {};
    if (threadIdx.x < lanes) c = __builtin_amdgcn_mfma_f32_16x16x16f16(one, one, c, 0, 0, 0);
    else c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(one, one, c, 0, 0, 0);
    out[threadIdx.x] = c[0];
}"#;

/// The launch fails, and the only finding contains the text.
#[track_caller]
fn fails(status: i32, text: &str) {
    assert_eq!(status, LAUNCH_FAILURE);
    let reports = take_reports();
    assert!(
        reports.len() == 1 && reports[0].contains(text),
        "{reports:?}"
    );
}

/// `hipErrorLaunchFailure`.
const LAUNCH_FAILURE: i32 = 719;

#[test]
fn a_whole_wave_multiplies_and_a_part_of_one_is_a_fault() {
    let _turn = setup(0);
    let module = Module::new(MFMA);
    let out = Buffer::new(4 * 256);
    module.launch("ones", 1, 64, 0, &mut [out.arg()]);
    let expected: Vec<f32> = (0..256).map(|i| 17.0 + (i % 4) as f32).collect();
    assert_eq!(out.to_vec::<f32>(), expected);
    module.launch("diverging", 1, 64, 0, &mut [out.arg(), Arg::I32(64)]);
    fails(
        module.try_launch("diverging", 1, 64, 0, &mut [out.arg(), Arg::I32(63)]),
        "63 of 64 lanes of a wave execute v_mfma_f32_16x16x16_f16, which needs all",
    );
    fails(
        module.try_launch("ones", 1, 32, 0, &mut [out.arg()]),
        "32 of 64 lanes",
    );
    fails(
        module.try_launch("mixing", 1, 64, 0, &mut [out.arg(), Arg::I32(16)]),
        "lanes of a wave wait at v_mfma_f32_16x16x16_f16 and at v_mfma_f32_16x16x16_bf16",
    );
}

#[test]
fn halves_of_a_gfx11_wave_must_agree() {
    let _turn = setup(1);
    let module = Module::new(
        r#"
        typedef short operand __attribute__((vector_size(32)));
        typedef float sums __attribute__((vector_size(32)));
        extern "C" __global__ void halves(float* out, int k) {
            operand a = {}, b = {};
            for (int i = 0; i < 16; ++i) a[i] = b[i] = 0x3c00;
            if (threadIdx.x == 21) b[k] = 0x4000;
            if (k == 0 && threadIdx.x == 5) b[k] = 0x4000;
            const sums c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, sums{});
            out[threadIdx.x] = c[0];
        }"#,
    );
    let out = Buffer::new(4 * 32);
    module.launch("halves", 1, 32, 0, &mut [out.arg(), Arg::I32(0)]);
    let column = |i: usize| if i % 16 == 5 { 17.0 } else { 16.0 };
    assert_eq!(out.to_vec::<f32>(), (0..32).map(column).collect::<Vec<_>>());
    fails(
        module.try_launch("halves", 1, 32, 0, &mut [out.arg(), Arg::I32(1)]),
        "v_wmma_f32_16x16x16_f16 (gfx11): lanes 5 and 21 hold different values of B",
    );
}

#[test]
fn an_arch_has_its_own_instructions_only() {
    let _turn = setup(0);
    assert!(compile(MFMA, "gfx90a").is_ok());
    for arch in ["gfx1030", "gfx1100", "gfx1201", "gfx906"] {
        let log = compile(MFMA, arch).unwrap_err();
        assert!(
            log.contains("__builtin_amdgcn_mfma_f32_16x16x16f16"),
            "{arch}: {log}"
        );
    }
}
