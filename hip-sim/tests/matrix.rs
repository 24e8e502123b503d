//! Matrix instructions that a wave must not execute so; correct ones are tested where kernels use them.

mod common;

use common::*;
use hip_sim::hip::*;
use std::sync::Once;

/// Devices by their places here: gfx942 (wave 64) and gfx1100 (wave 32), and those with 8-bit floats.
const DEVICES: &str = "gfx942,gfx1100,gfx950,gfx1201,sm_90";

fn setup(device: i32) -> std::sync::MutexGuard<'static, ()> {
    static ONCE: Once = Once::new();
    let turn = turn();
    ONCE.call_once(|| std::env::set_var("HIP_SIM_ARCH", DEVICES));
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

/// Reproducible bytes.
fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(next).collect()
}

/// The value of e4m3 with a bias, by its definition.
fn e4m3(bits: u8, bias: i32) -> f32 {
    let (sign, exponent, fraction) = (bits >> 7, i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let is_nan = match bias {
        7 => bits & 0x7f == 0x7f,
        _ => bits == 0x80,
    };
    let magnitude = match exponent {
        0 => fraction / 8.0 * 2f64.powi(1 - bias),
        _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - bias),
    };
    match (is_nan, sign) {
        (true, _) => f32::NAN,
        (_, 0) => magnitude as f32,
        _ => -magnitude as f32,
    }
}

/// Row after row of `a` (K values each) times those of `b`, added to `c` in f32 by places of K.
fn product(a: &[f32], b: &[f32], c: &[f32], k: usize) -> Vec<f32> {
    let columns = b.len() / k;
    let sum = |at: usize| {
        let (row, column) = (&a[at / columns * k..][..k], &b[at % columns * k..][..k]);
        let pairs = row.iter().zip(column);
        pairs.fold(c[at], |sum, (x, y)| x * y + sum)
    };
    (0..c.len()).map(sum).collect()
}

/// Equal to the bit, NaN like NaN.
#[track_caller]
fn same(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let equal = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(equal, "element {i}: {got:e} instead of {want:e}");
    }
}

/// An instruction on 8-bit floats: where lanes hold what of it.
struct Floats {
    device: i32,
    bias: i32,
    /// Rows of A, columns of B, and K.
    shape: [usize; 3],
    /// C++ type of the operands and of the sums, and what it computes.
    operands: [&'static str; 2],
    sums: &'static str,
    builtin: &'static str,
    /// Row and place in K of a lane's byte of A and of B; row and column of its sums.
    of_a: fn(usize, usize) -> (usize, usize),
    of_b: fn(usize, usize) -> (usize, usize),
    of_c: fn(usize, usize) -> (usize, usize),
}

fn check(floats: &Floats) {
    let _turn = setup(floats.device);
    let wave = if [0, 2].contains(&floats.device) {
        64
    } else {
        32
    };
    let [rows, columns, k] = floats.shape;
    let source = format!(
        "typedef {} type_a; typedef {} type_b; typedef {} sums;
        extern \"C\" __global__ void multiply(const type_a* a, const type_b* b, const sums* c, sums* d) {{
            const unsigned i = threadIdx.x;
            d[i] = {};
        }}",
        floats.operands[0], floats.operands[1], floats.sums, floats.builtin
    );
    let module = Module::new(&source);
    // Small values, and one row and one column with everything that there is.
    let mut of_a = bytes(rows * k, 1);
    let mut of_b = bytes(columns * k, 2);
    for operand in [&mut of_a[k..], &mut of_b[k..]] {
        for bits in operand {
            *bits = *bits & 0xbf | 1;
        }
    }
    // NaN of either kind.
    of_a[..3].copy_from_slice(&[0x7f, 0xff, 0x80]);
    let c: Vec<f32> = bytes(rows * columns, 3)
        .iter()
        .map(|b| f32::from(*b) - 100.0)
        .collect();
    let values = |bits: &[u8]| -> Vec<f32> { bits.iter().map(|b| e4m3(*b, floats.bias)).collect() };
    let want = product(&values(&of_a), &values(&of_b), &c, k);
    assert!(want.iter().any(|x| x.is_nan()) && want.iter().any(|x| x.is_finite()));
    let spread =
        |bits: &[u8], lines: usize, place: fn(usize, usize) -> (usize, usize)| -> Vec<u8> {
            let each = lines * k / wave;
            let at = (0..wave * each).map(|at| place(at / each, at % each));
            at.map(|(line, k_at)| bits[line * k + k_at]).collect()
        };
    let each = rows * columns / wave;
    let places: Vec<usize> = (0..rows * columns)
        .map(|at| (floats.of_c)(at / each, at % each))
        .map(|(row, column)| row * columns + column)
        .collect();
    let a = Buffer::from_slice(&spread(&of_a, rows, floats.of_a)[..]);
    let b = Buffer::from_slice(&spread(&of_b, columns, floats.of_b)[..]);
    let gathered: Vec<f32> = places.iter().map(|at| c[*at]).collect();
    let (c, d) = (
        Buffer::from_slice(&gathered[..]),
        Buffer::new(4 * rows * columns),
    );
    module.launch(
        "multiply",
        1,
        wave as u32,
        0,
        &mut [a.arg(), b.arg(), c.arg(), d.arg()],
    );
    let mut got = vec![0.0; rows * columns];
    for (at, value) in places.iter().zip(d.to_vec::<f32>()) {
        got[*at] = value;
    }
    same(&got, &want);
}

#[test]
fn floats_of_8_bits_are_multiplied_as_each_arch_has_them() {
    const F32X4: &str = "float sums_type __attribute__((vector_size(16))); typedef sums_type";
    const F32X8: &str = "float sums_type __attribute__((vector_size(32))); typedef sums_type";
    const F32X16: &str = "float sums_type __attribute__((vector_size(64))); typedef sums_type";
    const I32X2: &str = "int pair_type __attribute__((vector_size(8))); typedef pair_type";
    const I32X4: &str = "int four_type __attribute__((vector_size(16))); typedef four_type";
    let mfma = Floats {
        device: 0,
        bias: 8,
        shape: [16, 16, 32],
        operands: ["long", "long"],
        sums: F32X4,
        builtin: "__builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a[i], b[i], c[i], 0, 0, 0)",
        of_a: |lane, i| (lane % 16, lane / 16 * 8 + i),
        of_b: |lane, i| (lane % 16, lane / 16 * 8 + i),
        of_c: |lane, i| (lane / 16 * 4 + i, lane % 16),
    };
    check(&mfma);
    check(&Floats {
        device: 2,
        bias: 7,
        ..mfma
    });
    let large = Floats {
        device: 0,
        bias: 8,
        shape: [32, 32, 16],
        operands: ["long", "long"],
        sums: F32X16,
        builtin: "__builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(a[i], b[i], c[i], 0, 0, 0)",
        of_a: |lane, i| (lane % 32, lane / 32 * 8 + i),
        of_b: |lane, i| (lane % 32, lane / 32 * 8 + i),
        of_c: |lane, i| (8 * (i / 4) + lane / 32 * 4 + i % 4, lane % 32),
    };
    check(&large);
    check(&Floats {
        device: 2,
        bias: 7,
        ..large
    });
    check(&Floats {
        device: 3,
        bias: 7,
        shape: [16, 16, 16],
        operands: [I32X2, "pair_type"],
        sums: F32X8,
        builtin: "__builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(a[i], b[i], c[i])",
        of_a: |lane, i| (lane % 16, lane / 16 * 8 + i),
        of_b: |lane, i| (lane % 16, lane / 16 * 8 + i),
        of_c: |lane, i| (lane / 16 * 8 + i, lane % 16),
    });
    // Four registers of A: rows 0 to 7, 8 to 15, then both again with the upper half of K.
    check(&Floats {
        device: 4,
        bias: 7,
        shape: [16, 8, 32],
        operands: [I32X4, I32X2],
        sums: F32X4,
        builtin: "hip_sim_mma_e4m3(a[i], b[i], c[i])",
        of_a: |lane, i| (lane / 4 + i / 4 % 2 * 8, i / 8 * 16 + lane % 4 * 4 + i % 4),
        of_b: |lane, i| (lane / 4, i / 4 * 16 + lane % 4 * 4 + i % 4),
        of_c: |lane, i| (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2),
    });
}

/// e2m1 by its table.
fn e2m1(nibble: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
    if nibble & 8 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

#[test]
fn blocks_of_floats_are_multiplied_with_their_scales() {
    let _turn = setup(2);
    let source = |[format_a, format_b]: [u32; 2]| {
        format!(
            "typedef int elements __attribute__((vector_size(32)));
            typedef float sums __attribute__((vector_size(16)));
            extern \"C\" __global__ void multiply(const elements* a, const elements* b, const int* scale_a, const int* scale_b, const sums* c, sums* d) {{
                const unsigned i = threadIdx.x;
                d[i] = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a[i], b[i], c[i], {format_a}, {format_b}, 1, scale_a[i], 2, scale_b[i]);
            }}"
        )
    };
    let (k, lanes) = (128, 64);
    // Registers of all lanes, and the values of rows: 8 bits in two runs of 16 places, 4 bits in one of 32.
    let operand = |format: u32, seed: u32| -> (Vec<u8>, Vec<f32>) {
        let registers: Vec<u8> = bytes(lanes * 32, seed).iter().map(|b| b & 0xbf).collect();
        let mut values = vec![0.0; 16 * k];
        for lane in 0..lanes {
            let (row, group) = (lane % 16, lane / 16);
            for i in 0..32 {
                let (place, value) = match format {
                    0 => (
                        i / 16 * 64 + group * 16 + i % 16,
                        e4m3(registers[lane * 32 + i], 7),
                    ),
                    _ => (
                        group * 32 + i,
                        e2m1(registers[lane * 32 + i / 2] >> (i % 2 * 4) & 15),
                    ),
                };
                values[row * k + place] = value;
            }
        }
        (registers, values)
    };
    // In the given byte of each lane's word.
    let scales = |byte: usize, seed: u32, values: &mut [f32]| -> Vec<u8> {
        let mut words = bytes(lanes * 4, seed);
        for lane in 0..lanes {
            let exponent = 120 + words[lane * 4 + byte] % 16;
            words[lane * 4 + byte] = exponent;
            let of_block = &mut values[lane % 16 * k + lane / 16 * 32..][..32];
            of_block
                .iter_mut()
                .for_each(|v| *v *= 2f32.powi(i32::from(exponent) - 127));
        }
        words
    };
    for formats in [[0, 0], [4, 4], [0, 4], [4, 0]] {
        let module = Module::new(&source(formats));
        let (a, mut a_values) = operand(formats[0], 5);
        let (b, mut b_values) = operand(formats[1], 6);
        let (scale_a, scale_b) = (scales(1, 7, &mut a_values), scales(2, 8, &mut b_values));
        let c: Vec<f32> = bytes(256, 9).iter().map(|b| f32::from(*b)).collect();
        let want = product(&a_values, &b_values, &c, k);
        let places: Vec<usize> = (0..256)
            .map(|at| (at / 4 / 16 * 4 + at % 4) * 16 + at / 4 % 16)
            .collect();
        let gathered: Vec<f32> = places.iter().map(|at| c[*at]).collect();
        let [a, b, scale_a, scale_b] =
            [a, b, scale_a, scale_b].map(|bytes| Buffer::from_slice(&bytes[..]));
        let (c, d) = (Buffer::from_slice(&gathered[..]), Buffer::new(4 * 256));
        let mut args = [
            a.arg(),
            b.arg(),
            scale_a.arg(),
            scale_b.arg(),
            c.arg(),
            d.arg(),
        ];
        module.launch("multiply", 1, 64, 0, &mut args);
        let mut got = vec![0.0; 256];
        for (at, value) in places.iter().zip(d.to_vec::<f32>()) {
            got[*at] = value;
        }
        same(&got, &want);
    }
    // Floats of 6 bits.
    let module = Module::new(&source([2, 0]));
    let buffer = Buffer::new(64 * 32);
    let mut args = [(); 6].map(|()| buffer.arg());
    fails(
        module.try_launch("multiply", 1, 64, 0, &mut args),
        "of format 2, which is not simulated",
    );
}
