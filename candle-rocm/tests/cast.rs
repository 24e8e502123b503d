//! Every pair of element types, against Rust's `as` and the crates `half` and `float8`, bit by bit.

mod common;

use candle_rocm::ops::cast::cast;
use candle_rocm::{DType, Device};
use common::*;
use float8::F8E4M3;
use half::{bf16, f16};

/// A value of any type in the one from which it is converted.
#[derive(Clone, Copy, Debug)]
enum Wide {
    Int(i64),
    Single(f32),
    Double(f64),
}

trait Convert: Element {
    fn widen(self) -> Wide;
    fn convert(from: Wide) -> Self;
}

macro_rules! integer {
    ($($ty:ty),*) => {$(
        impl Convert for $ty {
            fn widen(self) -> Wide {
                Wide::Int(self as i64)
            }
            fn convert(from: Wide) -> Self {
                match from {
                    Wide::Int(v) => v as $ty,
                    Wide::Single(v) => v as $ty,
                    Wide::Double(v) => v as $ty,
                }
            }
        }
    )*};
}

integer!(u8, u32, i16, i32, i64);

impl Convert for f32 {
    fn widen(self) -> Wide {
        Wide::Single(self)
    }
    fn convert(from: Wide) -> Self {
        match from {
            Wide::Int(v) => v as f32,
            Wide::Single(v) => v,
            Wide::Double(v) => v as f32,
        }
    }
}

impl Convert for f64 {
    fn widen(self) -> Wide {
        Wide::Double(self)
    }
    fn convert(from: Wide) -> Self {
        match from {
            Wide::Int(v) => v as f64,
            Wide::Single(v) => v.into(),
            Wide::Double(v) => v,
        }
    }
}

macro_rules! small_float {
    ($ty:ty, $from_double:expr) => {
        impl Convert for $ty {
            fn widen(self) -> Wide {
                Wide::Single(self.to_f32())
            }
            fn convert(from: Wide) -> Self {
                match from {
                    Wide::Int(v) => <$ty>::from_f32(v as f32),
                    Wide::Single(v) => <$ty>::from_f32(v),
                    Wide::Double(v) => $from_double(v),
                }
            }
        }
    };
}

// With hardware support `half` converts to f16 by way of f32; spelled out, the result is the same on every machine.
small_float!(f16, |v| f16::from_f32(v as f32));
small_float!(bf16, bf16::from_f64);
small_float!(F8E4M3, F8E4M3::from_f64);

/// Values on and beside the boundaries of every type, and random ones of every magnitude.
fn values<T: Element>(rng: &mut Rng) -> Vec<T> {
    let mut values = rng.any(400);
    for exponent in -160..=160 {
        for fraction in [
            1.0,
            1.0 - 2f64.powi(-24),
            1.0 + 2f64.powi(-24),
            1.5,
            1.0625,
            1.1875,
        ] {
            let v = 2f64.powi(exponent) * fraction;
            values.extend([T::from_f64(v), T::from_f64(-v)]);
        }
    }
    for v in [
        0.0,
        -0.0,
        0.5,
        -0.5,
        255.5,
        256.0,
        32767.5,
        -32768.5,
        448.0,
        463.9,
        464.0,
        464.1,
        480.0,
        65504.0,
        65519.9,
        65520.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ] {
        values.push(T::from_f64(v));
    }
    values
}

fn check<From: Convert, To: Convert>(device: &Device) {
    let mut rng = Rng::new(5);
    let x = values::<From>(&mut rng);
    let mut tensors = vec![HostTensor::contiguous(x.clone(), &[x.len()])];
    for layout in Layout::ALL {
        tensors.push(HostTensor::with_layout(&[6, 3, 8], layout, |n| {
            x[x.len() - n..].to_vec()
        }));
    }
    tensors.push(HostTensor::contiguous(Vec::new(), &[0, 3]));
    for tensor in tensors {
        let buffer = tensor.upload(device);
        let got = cast(device, &tensor.view(&buffer), To::DTYPE).unwrap();
        let want: Vec<To> = tensor
            .values()
            .iter()
            .map(|v| {
                if From::DTYPE == To::DTYPE {
                    To::from_bits(v.to_bits())
                } else {
                    To::convert(v.widen())
                }
            })
            .collect();
        let what = format!("{} to {} {:?}", From::DTYPE, To::DTYPE, tensor.strides);
        assert_exact(&download::<To>(device, &got), &want, &what);
    }
}

fn from<From: Convert>(device: &Device) {
    check::<From, u8>(device);
    check::<From, u32>(device);
    check::<From, i16>(device);
    check::<From, i32>(device);
    check::<From, i64>(device);
    check::<From, f16>(device);
    check::<From, bf16>(device);
    check::<From, f32>(device);
    check::<From, f64>(device);
    check::<From, F8E4M3>(device);
}

#[test]
fn every_pair() {
    let device = device();
    for_each_dtype!(from(&device));
}

/// All 65,536 and all 256 codes of the small floats.
#[test]
fn every_code_of_the_small_floats() {
    let device = device();
    fn all<T: Convert>(device: &Device, codes: u64) {
        let x: Vec<T> = (0..codes).map(T::from_bits).collect();
        let x = HostTensor::contiguous(x, &[codes as usize]);
        let buffer = x.upload(device);
        let got = cast(device, &x.view(&buffer), DType::F64).unwrap();
        let want: Vec<f64> = x.storage.iter().map(|v| v.to_f64()).collect();
        assert_exact(
            &download::<f64>(device, &got),
            &want,
            &format!("{}", T::DTYPE),
        );
    }
    all::<f16>(&device, 1 << 16);
    all::<bf16>(&device, 1 << 16);
    all::<F8E4M3>(&device, 1 << 8);
}

/// Doubles between neighbouring codes, at and beside the midpoint: one rounding, not two.
#[test]
fn doubles_round_once() {
    let device = device();
    fn between<T: Convert>(device: &Device, codes: u64, step: usize) {
        let x: Vec<f64> = (0..codes - 1)
            .step_by(step)
            .flat_map(|code| {
                let (low, high) = (T::from_bits(code).to_f64(), T::from_bits(code + 1).to_f64());
                let middle = low + (high - low) / 2.0;
                [middle, middle.next_up(), middle.next_down(), -middle]
            })
            .collect();
        let x = HostTensor::contiguous(x.clone(), &[x.len()]);
        let buffer = x.upload(device);
        let got = cast(device, &x.view(&buffer), T::DTYPE).unwrap();
        let want: Vec<T> = x.storage.iter().map(|v| T::convert(v.widen())).collect();
        assert_exact(
            &download::<T>(device, &got),
            &want,
            &format!("f64 to {}", T::DTYPE),
        );
    }
    between::<F8E4M3>(&device, 0x7f, 1);
    between::<bf16>(&device, 0x7f80, 7);
    between::<f16>(&device, 0x7c00, 7);
}
