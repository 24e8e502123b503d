//! Functions of one operand, against Rust's mathematics in f64.

mod common;

use candle_rocm::ops::unary::{unary, UnaryOp};
use candle_rocm::{DType, Device, Error};
use common::*;

/// 1 - erf(x) for x >= 2, by Laplace's continued fraction, from far enough out.
fn erfc_tail(x: f64) -> f64 {
    let fraction = (1..200).rev().fold(x, |f, k| x + f64::from(k) / 2.0 / f);
    (-x * x).exp() / fraction / std::f64::consts::PI.sqrt()
}

/// Error function by its series 2/√π e^(-x²) Σ 2ⁿ x^(2n+1) / (2n+1)!!, whose terms are all of one sign.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() >= 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, 0.0, 1.0);
    while sum + term != sum {
        sum += term;
        n += 2.0;
        term *= 2.0 * x * x / n;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// `x` rounded to `T`, by way of the type that `T` computes in.
fn rounded<T: Element>(x: f64) -> f64 {
    match T::DTYPE {
        DType::F64 => x,
        _ => T::from_f32(x as f32).to_f64(),
    }
}

fn unrounded(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Neg => -x,
        UnaryOp::Recip => 1.0 / x,
        UnaryOp::Sqr => x * x,
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Gelu => {
            let inner = std::f64::consts::FRAC_2_PI.sqrt() * x * (1.0 + 0.044715 * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        UnaryOp::GeluErf => {
            let z = x * std::f64::consts::FRAC_1_SQRT_2;
            let one_plus_erf = if z < -2.0 {
                erfc_tail(-z)
            } else {
                1.0 + erf(z)
            };
            one_plus_erf * 0.5 * x
        }
        UnaryOp::Erf => erf(x),
        UnaryOp::Relu if x <= 0.0 => 0.0,
        UnaryOp::Relu => x,
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round(),
        UnaryOp::Sign => f64::from(x > 0.0) - f64::from(x < 0.0),
        UnaryOp::Sigmoid => 1.0 / ((-x).exp() + 1.0),
    }
}

fn oracle<T: Element>(op: UnaryOp, x: f64) -> f64 {
    rounded::<T>(unrounded(op, x))
}

fn check<T: Element>(device: &Device, op: UnaryOp, x: &HostTensor<T>, what: &str) {
    let buffer = x.upload(device);
    let got = unary(device, op, &x.view(&buffer)).unwrap();
    let want: Vec<f64> = x
        .values()
        .iter()
        .map(|v| oracle::<T>(op, v.to_f64()))
        .collect();
    let what = format!("{} {} {what}", op.as_str(), T::DTYPE);
    assert_close(&download::<T>(device, &got), &want, NMSE_LIMIT, &what);
}

fn every_layout<T: Element>(device: &Device) {
    let mut rng = Rng::new(8);
    for op in UnaryOp::ALL {
        // Further down, 1 + tanh leaves GELU few digits, which a tensor of one element shows.
        let low = if op == UnaryOp::Gelu { -2.0 } else { -8.0 };
        for dims in [&[3usize, 5, 7][..], &[4, 24], &[0], &[1], &[1021]] {
            for layout in Layout::ALL {
                let x = HostTensor::<T>::with_layout(dims, layout, |n| rng.vec(n, low, 8.0));
                check(device, op, &x, &format!("{dims:?} {layout:?}"));
            }
        }
    }
}

#[test]
fn every_float_and_layout() {
    let device = device();
    for_each_float!(every_layout(&device));
}

fn special<T: Element>(device: &Device) {
    let values: Vec<T> = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        -2.5,
        200.0,
        -200.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ]
    .iter()
    .map(|&v| T::from_f64(v))
    .chain([T::from_bits(1)])
    .collect();
    // One by one: where one value is NaN or huge, no other value's error hides behind it. What is within eight units of
    // float of where rounding changes, as half the smallest denormal is, may round either way.
    for op in UnaryOp::ALL {
        for v in &values {
            let x = HostTensor::contiguous(vec![*v], &[1]);
            let buffer = x.upload(device);
            let got = download::<T>(device, &unary(device, op, &x.view(&buffer)).unwrap());
            let (got, want) = (got[0].to_f64(), oracle::<T>(op, v.to_f64()));
            // The 1 + tanh of GELU limits what is left of it in the negative tail.
            let scale = match op {
                UnaryOp::Gelu => v.to_f64().abs(),
                _ => want.abs(),
            };
            let slack = 8.0 * f64::from(f32::EPSILON);
            let close = (got - want).abs() <= scale * slack
                || [1.0 - slack, 1.0 + slack]
                    .iter()
                    .any(|factor| got == rounded::<T>(unrounded(op, v.to_f64()) * factor));
            assert!(
                got == want || got.is_nan() && want.is_nan() || close,
                "{} {} of {v:?}: {got}, expected {want}",
                op.as_str(),
                T::DTYPE
            );
        }
    }
}

#[test]
fn special_values() {
    let device = device();
    for_each_float!(special(&device));
}

/// Largest distance from the oracle in units of the result's last place, over arguments of every magnitude.
fn worst_ulps<T: Element>(
    device: &Device,
    op: UnaryOp,
    arguments: &[T],
    ulp: fn(f64) -> f64,
    oracle: fn(f64) -> f64,
) -> f64 {
    let x = HostTensor::contiguous(arguments.to_vec(), &[arguments.len()]);
    let buffer = x.upload(device);
    let got = download::<T>(device, &unary(device, op, &x.view(&buffer)).unwrap());
    let mut worst = 0.0f64;
    for (x, y) in arguments.iter().zip(got) {
        let (y, want) = (y.to_f64(), oracle(x.to_f64()));
        let rounded = T::from_f64(want).to_f64();
        if !rounded.is_finite() {
            assert!(
                y == rounded || y.is_nan() && rounded.is_nan(),
                "{} of {x:?}: {y}, expected {rounded}",
                op.as_str()
            );
            continue;
        }
        worst = worst.max((y - want).abs() / ulp(rounded));
    }
    worst
}

type Function = (UnaryOp, fn(f64) -> f64);

const FUNCTIONS: [Function; 7] = [
    (UnaryOp::Exp, f64::exp),
    (UnaryOp::Log, f64::ln),
    (UnaryOp::Sin, f64::sin),
    (UnaryOp::Cos, f64::cos),
    (UnaryOp::Tanh, f64::tanh),
    (UnaryOp::Sqrt, f64::sqrt),
    (UnaryOp::Erf, erf),
];

/// Within 3 ulp from denormals to the largest arguments; sine and cosine reduce them exactly.
#[test]
fn f32_is_accurate_everywhere() {
    fn ulp(y: f64) -> f64 {
        let y = y.abs() as f32;
        (y.next_up() - y).into()
    }
    let device = device();
    let mut rng = Rng::new(9);
    let mut arguments = rng.any::<f32>(60_000);
    arguments.extend(rng.vec::<f32>(30_000, -110.0, 110.0));
    arguments.extend(rng.vec::<f32>(30_000, -2.0, 2.0));
    // The largest value that exp can overflow at, and multiples of π/2.
    arguments.extend([88.72283, 88.72284, -103.97, -103.98]);
    arguments.extend((0..2000).map(|k| (f64::from(k) * std::f64::consts::FRAC_PI_2) as f32));
    for (op, oracle) in FUNCTIONS {
        let worst = worst_ulps(&device, op, &arguments, ulp, oracle);
        assert!(worst <= 3.0, "{}: {worst} ulp", op.as_str());
    }
}

/// The same for f64, whose oracle is itself only good to an ulp (erf: a few).
#[test]
fn f64_is_accurate_everywhere() {
    fn ulp(y: f64) -> f64 {
        y.abs().next_up() - y.abs()
    }
    let device = device();
    let mut rng = Rng::new(10);
    let mut arguments = rng.any::<f64>(60_000);
    arguments.extend(rng.vec::<f64>(30_000, -750.0, 750.0));
    arguments.extend(rng.vec::<f64>(30_000, -2.0, 2.0));
    arguments.extend((0..2000).map(|k| f64::from(k) * std::f64::consts::FRAC_PI_2));
    for (op, oracle) in FUNCTIONS {
        let limit = if op == UnaryOp::Erf { 40.0 } else { 4.0 };
        let worst = worst_ulps(&device, op, &arguments, ulp, oracle);
        assert!(worst <= limit, "{}: {worst} ulp", op.as_str());
    }
}

/// What integers have: candle's CPU results.
fn integer<T: Element>(device: &Device) {
    let mut rng = Rng::new(11);
    let zero = T::from_f64(0.0);
    let lowest = T::from_f64(f64::MIN);
    for layout in Layout::ALL {
        let x = HostTensor::<T>::with_layout(&[3, 5, 8], layout, |n| {
            let mut values = rng.any(n);
            values[n / 2] = zero;
            values[n - 1] = lowest;
            values
        });
        let buffer = x.upload(device);
        for op in UnaryOp::ALL {
            let result = unary(device, op, &x.view(&buffer));
            let what = format!("{} {} {layout:?}", op.as_str(), T::DTYPE);
            let expected: fn(T) -> T = match op {
                UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => |v| v,
                UnaryOp::Abs => |v| {
                    // In two's complement the lowest value is its own magnitude.
                    if v < T::from_f64(0.0) {
                        T::from_bits(v.to_bits().wrapping_neg())
                    } else {
                        v
                    }
                },
                UnaryOp::Relu => |v| {
                    if v > T::from_f64(0.0) {
                        v
                    } else {
                        T::from_f64(0.0)
                    }
                },
                UnaryOp::Sign => |v| {
                    let zero = T::from_f64(0.0);
                    T::from_f64(f64::from(v > zero) - f64::from(v < zero))
                },
                UnaryOp::Gelu | UnaryOp::GeluErf | UnaryOp::Erf | UnaryOp::Silu => {
                    |_| T::from_f64(0.0)
                }
                _ => {
                    match result {
                        Err(Error::UnsupportedDType { op: name, dtype }) => {
                            assert_eq!((name, dtype), (op.as_str(), T::DTYPE));
                        }
                        other => panic!("{what} gave {other:?}"),
                    }
                    continue;
                }
            };
            let want: Vec<T> = x.values().into_iter().map(expected).collect();
            assert_exact(&download::<T>(device, &result.unwrap()), &want, &what);
        }
    }
}

#[test]
fn integers() {
    let device = device();
    for_each_integer!(integer(&device));
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    let n = 65_536 * 256 + 3;
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let x = HostTensor::contiguous(values, &[n]);
    let buffer = x.upload(&device);
    let got = unary(&device, UnaryOp::Neg, &x.view(&buffer)).unwrap();
    let got = download::<f32>(&device, &got);
    assert!(got.iter().enumerate().all(|(i, &v)| v == -(i as f32)));
}
