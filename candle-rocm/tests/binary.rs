//! Arithmetic and comparison, bit by bit against Rust and the crates `half` and `float8`.

mod common;

use candle_rocm::ops::binary::{binary, compare, power, BinaryOp, CompareOp};
use candle_rocm::{DType, Device, Error, View};
use common::*;
use float8::F8E4M3;
use half::{bf16, f16};

trait Arithmetic: Element {
    fn apply(self, op: BinaryOp, other: Self) -> Self;
}

macro_rules! arithmetic {
    ($($ty:ty),*; $add:expr, $sub:expr, $mul:expr, $div:expr) => {$(
        impl Arithmetic for $ty {
            fn apply(self, op: BinaryOp, other: Self) -> Self {
                let with = |f: fn($ty, $ty) -> $ty| f(self, other);
                match op {
                    BinaryOp::Add => with($add),
                    BinaryOp::Sub => with($sub),
                    BinaryOp::Mul => with($mul),
                    BinaryOp::Div => with($div),
                    BinaryOp::Minimum => if self > other || is_nan(other) { other } else { self },
                    BinaryOp::Maximum => if self < other || is_nan(other) { other } else { self },
                }
            }
        }
    )*};
}

arithmetic!(u8, u32, i16, i32, i64;
    |a, b| a.wrapping_add(b),
    |a, b| a.wrapping_sub(b),
    |a, b| a.wrapping_mul(b),
    |a, b| if b == 0 { 0 } else { a.wrapping_div(b) });
arithmetic!(f16, bf16, f32, f64, F8E4M3; |a, b| a + b, |a, b| a - b, |a, b| a * b, |a, b| a / b);

/// Small values, so that operands meet zero and each other, or any bits.
fn operand<T: Element>(rng: &mut Rng, dims: &[usize], layout: Layout) -> HostTensor<T> {
    HostTensor::with_layout(dims, layout, |n| {
        let any = rng.any::<T>(n);
        let small = rng.vec::<T>(n, -4.0, 4.0);
        let choose = |(a, s)| if rng.below(3) == 0 { a } else { s };
        any.into_iter().zip(small).map(choose).collect()
    })
}

fn check<T: Arithmetic>(device: &Device, dims: &[usize], left: Layout, right: Layout) {
    let mut rng = Rng::new(7);
    let x = operand::<T>(&mut rng, dims, left);
    let y = operand::<T>(&mut rng, dims, right);
    let (a, b) = (x.upload(device), y.upload(device));
    let pairs: Vec<(T, T)> = x.values().into_iter().zip(y.values()).collect();
    let what = |op: &str| format!("{op} {} {dims:?} {left:?} {right:?}", T::DTYPE);
    for op in BinaryOp::ALL {
        let got = binary(device, op, &x.view(&a), &y.view(&b)).unwrap();
        let want: Vec<T> = pairs.iter().map(|&(x, y)| x.apply(op, y)).collect();
        assert_exact(&download::<T>(device, &got), &want, &what(op.as_str()));
    }
    for op in CompareOp::ALL {
        let got = compare(device, op, &x.view(&a), &y.view(&b)).unwrap();
        let holds = |&(x, y): &(T, T)| match op {
            CompareOp::Eq => x == y,
            CompareOp::Ne => x != y,
            CompareOp::Lt => x < y,
            CompareOp::Le => x <= y,
            CompareOp::Gt => x > y,
            CompareOp::Ge => x >= y,
        };
        let want: Vec<u8> = pairs.iter().map(|pair| holds(pair).into()).collect();
        assert_exact(&download::<u8>(device, &got), &want, &what(op.as_str()));
    }
}

fn every_layout<T: Arithmetic>(device: &Device) {
    for left in Layout::ALL {
        for right in Layout::ALL {
            check::<T>(device, &[3, 2, 8], left, right);
        }
        check::<T>(device, &[5, 3, 7], left, Layout::Contiguous);
    }
    for dims in [&[0usize, 3][..], &[1], &[1021], &[1, 1, 1]] {
        check::<T>(device, dims, Layout::Contiguous, Layout::Contiguous);
    }
}

#[test]
fn integers() {
    let device = device();
    for_each_integer!(every_layout(&device));
}

#[test]
fn floats() {
    let device = device();
    for_each_float!(every_layout(&device));
}

/// Powers of every pair of special values, against Rust's; halves are rounded once.
fn powers<T: Element>(device: &Device) {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -0.5,
        0.3125,
        8.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let n = special.len();
    let numbers = special.iter().map(|&v| T::from_f64(v)).collect();
    let numbers = HostTensor::contiguous(numbers, &[n]);
    let buffer = numbers.upload(device);
    let spread = |strides| View {
        dims: &[13, 13],
        strides,
        ..numbers.view(&buffer)
    };
    let got = power(device, &spread(&[1, 0]), &spread(&[0, 1])).unwrap();
    let got: Vec<T> = download(device, &got);
    let values = numbers.values();
    for (i, got) in got.into_iter().enumerate() {
        let (x, y) = (values[i / n].to_f64(), values[i % n].to_f64());
        let want = match T::DTYPE {
            DType::F64 => x.powf(y),
            _ => T::from_f32((x as f32).powf(y as f32)).to_f64(),
        };
        let (near, got) = (
            (got.to_f64() - want).abs() <= 1e-6 * want.abs(),
            got.to_f64(),
        );
        let same = got == want && got.is_sign_negative() == want.is_sign_negative();
        assert!(
            near || same || got.is_nan() && want.is_nan(),
            "{} {x} to the power of {y}: {got} instead of {want}",
            T::DTYPE
        );
    }
}

#[test]
fn powers_of_special_values() {
    let device = device();
    for_each_float!(powers(&device));
    let integers = HostTensor::contiguous(vec![2i64], &[1]);
    let buffer = integers.upload(&device);
    let view = integers.view(&buffer);
    assert!(matches!(
        power(&device, &view, &view),
        Err(Error::UnsupportedDType { op: "pow", .. })
    ));
}

#[test]
fn integer_division_at_the_edges() {
    let device = device();
    let x = HostTensor::contiguous(vec![i64::MIN, i64::MIN, 5, -5, 0], &[5]);
    let y = HostTensor::contiguous(vec![-1i64, 0, 0, 0, 0], &[5]);
    let (a, b) = (x.upload(&device), y.upload(&device));
    let got = binary(&device, BinaryOp::Div, &x.view(&a), &y.view(&b)).unwrap();
    assert_exact(&download(&device, &got), &[i64::MIN, 0, 0, 0, 0], "div");
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    let n = 65_536 * 256 + 3;
    let bytes: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
    let (x, y) = (upload(&device, &bytes), upload(&device, &[3u8]));
    let view = |buffer, strides| View {
        buffer,
        dtype: DType::U8,
        offset: 0,
        dims: &[65_536 * 256 + 3],
        strides,
    };
    let sum = binary(&device, BinaryOp::Add, &view(&x, &[1]), &view(&y, &[0])).unwrap();
    let want: Vec<u8> = bytes.iter().map(|v| v + 3).collect();
    assert!(download::<u8>(&device, &sum) == want);
}

#[test]
fn operands_must_fit() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f32; 6], &[2, 3]);
    let y = HostTensor::contiguous(vec![1f32; 6], &[3, 2]);
    let z = HostTensor::contiguous(vec![1f64; 6], &[2, 3]);
    let (a, b, c) = (x.upload(&device), y.upload(&device), z.upload(&device));
    assert!(matches!(
        binary(&device, BinaryOp::Add, &x.view(&a), &y.view(&b)),
        Err(Error::ShapeMismatch { op: "add", .. })
    ));
    assert!(matches!(
        compare(&device, CompareOp::Lt, &x.view(&a), &z.view(&c)),
        Err(Error::DTypeMismatch { op: "lt", .. })
    ));
}
