//! `nvcuda::wmma`, in waves of 64 and 32 without matrix instructions, and with those of gfx11 and gfx12.

use crate::device::{full, on, Loaded, Numbers, ARCHS};
use half::{bf16, f16};
use std::fmt::Debug;

const UNIT: &str = include_str!("kernels/matrix.hip");

/// Warps of a block, of which one multiplies nothing.
const WARPS: usize = 4;
const IDLE: usize = 2;

/// Waves of 64 and each kind of instruction, and with all also waves of 32 without any.
fn archs() -> &'static [&'static str] {
    if full() {
        &ARCHS
    } else {
        &["gfx942", "gfx1100", "gfx1201"]
    }
}

#[derive(Clone, Copy)]
struct Case {
    kernel: &'static str,
    shape: [usize; 3],
    /// Whether A and B lie in memory by rows.
    by_rows: [bool; 2],
    /// The elements' range: sums stay exact in every type.
    range: [i64; 2],
}

fn check<T: Copy, S: Copy + Default + PartialEq + Debug>(
    device: &Loaded,
    case: Case,
    of: impl Fn(i64) -> T,
    sum_of: impl Fn(i64) -> S,
) {
    let Case {
        kernel,
        shape: [m, n, k],
        by_rows,
        range: [low, high],
    } = case;
    let mut numbers = Numbers::new((m * n * k) as u64);
    let mut make = |count: usize| {
        let numbers = (0..WARPS * count).map(|_| numbers.between(low, high));
        numbers.collect::<Vec<i64>>()
    };
    let (a, b, c) = (make(m * k), make(k * n), make(m * n));
    let [x, y] = [&a, &b].map(|from| from.iter().map(|&x| of(x)).collect::<Vec<T>>());
    let sums: Vec<S> = c.iter().map(|&x| sum_of(x)).collect();
    let mut wanted = vec![sum_of(7); 2 * WARPS * m * n];
    for warp in 0..WARPS {
        let (a, b) = (&a[warp * m * k..], &b[warp * k * n..]);
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let product = (0..k).map(|i| {
                let x = a[if by_rows[0] { row * k + i } else { i * m + row }];
                x * b[if by_rows[1] {
                    i * n + column
                } else {
                    column * k + i
                }]
            });
            let product = if warp == IDLE {
                0
            } else {
                product.sum::<i64>()
            };
            let sum = c[(warp * m + row) * n + column] + product;
            wanted[warp * 2 * m * n + column * 2 * m + row] = sum_of(2 * sum);
        }
    }
    let block = [32 * WARPS as u32, 1, 1];
    let got: Vec<S> = device.product(kernel, block, [&x, &y], &sums, wanted.len());
    assert_eq!(got, wanted, "{}: {kernel}", device.arch);
}

#[test]
fn every_shape_and_type() {
    on(archs(), "matrix.hip", UNIT, |device| {
        let case = |kernel, shape, by_rows, range| Case {
            kernel,
            shape,
            by_rows,
            range,
        };
        let half = |x: i64| f16::from_f64(x as f64);
        let brain = |x: i64| bf16::from_f64(x as f64);
        let float = |x: i64| x as f32;
        let int = |x: i64| x as i32;
        let (square, small) = ([16, 16, 16], [-9, 9]);
        check(
            device,
            case("half_rc", square, [true, false], small),
            half,
            float,
        );
        check(
            device,
            case("half_cr", square, [false, true], small),
            half,
            float,
        );
        check(
            device,
            case("half_32", [32, 8, 16], [true, true], small),
            half,
            float,
        );
        check(
            device,
            case("half_8", [8, 32, 16], [false, false], small),
            half,
            float,
        );
        check(
            device,
            case("half_half", square, [true, true], [-7, 7]),
            half,
            half,
        );
        check(
            device,
            case("bf16_rc", square, [true, false], small),
            brain,
            float,
        );
        check(
            device,
            case("bf16_8", [8, 32, 16], [true, false], small),
            brain,
            float,
        );
        check(
            device,
            case("i8_rc", square, [true, false], [-128, 127]),
            |x| x as i8,
            int,
        );
        check(
            device,
            case("u8_rr", square, [true, true], [0, 255]),
            |x| x as u8,
            int,
        );
        check(
            device,
            case("u8_32", [32, 8, 16], [false, false], [0, 255]),
            |x| x as u8,
            int,
        );
        check(
            device,
            case("f64_rc", [8, 8, 4], [true, false], small),
            |x| x as f64,
            |x| x as f64,
        );
        check(
            device,
            case("tf32_rc", [16, 16, 8], [true, false], small),
            float,
            float,
        );
    });
}

#[test]
fn saturated_sums_stay_finite() {
    on(archs(), "matrix.hip", UNIT, |device| {
        let int = |x: i8, y: i8, c: i32| {
            let got = device.product("saturated_i8", [32, 1, 1], [&[x], &[y]], &[c], 256);
            assert!(got.iter().all(|&d: &i32| d == got[0]));
            got[0]
        };
        assert_eq!(int(127, 127, i32::MAX - 5), i32::MAX);
        assert_eq!(int(-128, 127, i32::MIN + 5), i32::MIN);
        assert_eq!(int(-128, 127, 1_000_000), 1_000_000 - 16 * 128 * 127);
        let half = |x: f32, c: f32| {
            let [x, y, c] = [x, 100.0, c].map(f16::from_f32);
            let got = device.product("saturated_half", [32, 1, 1], [&[x], &[y]], &[c], 256);
            assert!(got.iter().all(|&d: &f16| d == got[0]));
            got[0].to_f32()
        };
        assert_eq!(half(100.0, 0.0), 65504.0);
        assert_eq!(half(-100.0, 0.0), -65504.0);
        assert_eq!(half(f32::INFINITY, f32::NEG_INFINITY), 0.0);
        assert_eq!(half(1.0, 4.0), 1604.0);
    });
}

#[test]
fn floats_for_tensor_cores_have_eleven_bits() {
    let ulp = 1.0 / 1024.0f32;
    let input = [
        1.0,
        1.0 + ulp / 2.0,
        1.0 + ulp / 4.0,
        -1.0 - ulp * 0.75,
        f32::INFINITY,
        0.0,
    ];
    let wanted = [1.0, 1.0 + ulp, 1.0, -1.0 - ulp, f32::INFINITY, 0.0];
    on(&["gfx942"], "matrix.hip", UNIT, |device| {
        let got: Vec<f32> = device.block("to_tf32", [6, 1, 1], &[&input[..]], 6);
        assert_eq!(got, wanted);
    });
}
