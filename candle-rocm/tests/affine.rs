//! `x * mul + add`, powers and ELU, against the same arithmetic of Rust and the crates `half` and `float8`.

mod common;

use candle_rocm::ops::affine::{affine, elu, powf};
use candle_rocm::{Buffer, DType, Device, Error, Result, View};
use common::*;
use float8::F8E4M3;
use half::{bf16, f16};

/// `x * mul + add`: floats in the type itself, integers on integers or in f64.
trait Affine: Element {
    fn affine(self, mul: f64, add: f64) -> Self;
}

macro_rules! affine {
    (wrapping $($ty:ty),*) => {$(
        impl Affine for $ty {
            fn affine(self, mul: f64, add: f64) -> Self {
                match mul.fract() == 0. && add.fract() == 0. {
                    true => self.wrapping_mul(mul as i64 as $ty).wrapping_add(add as i64 as $ty),
                    false => (self as f64 * mul + add) as $ty,
                }
            }
        }
    )*};
    (rounding $($ty:ty),*) => {$(
        impl Affine for $ty {
            fn affine(self, mul: f64, add: f64) -> Self {
                self * Self::from_f64(mul) + Self::from_f64(add)
            }
        }
    )*};
}

affine!(wrapping u8, u32, i16, i32, i64);
affine!(rounding f16, bf16, f32, f64, F8E4M3);

fn every_layout<T: Affine>(device: &Device) {
    let mut rng = Rng::new(2);
    for dims in [&[3usize, 5, 7][..], &[4, 24], &[0], &[1], &[1021]] {
        for layout in Layout::ALL {
            let x = HostTensor::<T>::with_layout(dims, layout, |n| rng.any(n));
            let buffer = x.upload(device);
            for (mul, add) in [(2.5, -1.25), (-3.0, 0.1), (-3.0, -1.0), (1e10, 1e10)] {
                let got = affine(device, &x.view(&buffer), mul, add).unwrap();
                let want: Vec<T> = x.values().iter().map(|v| v.affine(mul, add)).collect();
                let what = format!("{} {dims:?} {layout:?} * {mul} + {add}", T::DTYPE);
                assert_exact(&download::<T>(device, &got), &want, &what);
            }
        }
    }
}

#[test]
fn affine_of_every_dtype_and_layout() {
    let device = device();
    for_each_dtype!(every_layout(&device));
}

/// A launcher of an operation with one scalar.
type Launch = fn(&Device, &View, f64) -> Result<Buffer>;

fn rounded<T: Element>(v: f64) -> f64 {
    match T::DTYPE {
        DType::F64 => v,
        _ => T::from_f32(v as f32).to_f64(),
    }
}

fn compare_scalar_op<T: Element>(
    device: &Device,
    name: &str,
    launch: Launch,
    scalars: &[f64],
    oracle: fn(f64, f64) -> f64,
) {
    let mut rng = Rng::new(3);
    for &scalar in scalars {
        for layout in [Layout::Contiguous, Layout::Transposed, Layout::Narrowed] {
            let x = HostTensor::<T>::with_layout(&[9, 4, 31], layout, |n| rng.vec(n, -3.0, 3.0));
            let buffer = x.upload(device);
            let got = launch(device, &x.view(&buffer), scalar).unwrap();
            let parameter = T::from_f64(scalar).to_f64();
            let want: Vec<f64> = x
                .values()
                .iter()
                .map(|v| rounded::<T>(oracle(v.to_f64(), parameter)))
                .collect();
            let what = format!("{name} {} {layout:?} {scalar}", T::DTYPE);
            assert_close(&download::<T>(device, &got), &want, NMSE_LIMIT, &what);
        }
    }
}

fn powf_of<T: Element>(device: &Device) {
    let exponents = [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 2.5, -2.0];
    compare_scalar_op::<T>(device, "powf", powf, &exponents, f64::powf);
}

#[test]
fn powf_of_every_float() {
    let device = device();
    for_each_float!(powf_of(&device));
}

/// Every combination of special values, against Rust.
#[test]
fn powf_special_cases() {
    let device = device();
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        5e-324,
        f64::MAX,
        f64::MIN,
        1e20,
        -1e20,
        9007199254740993.0,
    ];
    let x = HostTensor::contiguous(special.to_vec(), &[special.len()]);
    let buffer = x.upload(&device);
    let single: Vec<f32> = special.iter().map(|&v| v as f32).collect();
    let x32 = HostTensor::contiguous(single.clone(), &[special.len()]);
    let buffer32 = x32.upload(&device);
    for e in special {
        let got = powf(&device, &x.view(&buffer), e).unwrap();
        let want: Vec<f64> = special.iter().map(|v| v.powf(e)).collect();
        assert_within_an_ulp(&download(&device, &got), &want, &format!("f64 powf {e}"));
        let got = powf(&device, &x32.view(&buffer32), e).unwrap();
        let want: Vec<f32> = single.iter().map(|v| v.powf(e as f32)).collect();
        assert_within_an_ulp(&download(&device, &got), &want, &format!("f32 powf {e}"));
    }
}

/// Signs, zeros, infinities and NaN exactly; other values may be neighbours.
fn assert_within_an_ulp<T: Element>(got: &[T], want: &[T], what: &str) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let both_nan = g.to_f64().is_nan() && w.to_f64().is_nan();
        let plain = w.to_f64().is_finite() && w.to_f64() != 0.0 && g.to_f64().is_finite();
        let near = plain && g.to_bits().abs_diff(w.to_bits()) <= 1;
        assert!(
            both_nan || near || g.to_bits() == w.to_bits(),
            "{what}: element {i} is {g:?}, expected {w:?}"
        );
    }
}

/// Powers that the type can hold come out exact.
#[test]
fn integer_powers_are_exact() {
    let device = device();
    let bases: Vec<f64> = (-40..=40).map(|v| f64::from(v) / 4.0).collect();
    let x = HostTensor::contiguous(bases.clone(), &[bases.len()]);
    let single = HostTensor::contiguous(bases.iter().map(|&v| v as f32).collect(), &[bases.len()]);
    let (a, b) = (x.upload(&device), single.upload(&device));
    for e in 1..=6 {
        let want: Vec<f64> = bases.iter().map(|v| v.powi(e)).collect();
        let got = powf(&device, &x.view(&a), e.into()).unwrap();
        assert_exact(&download(&device, &got), &want, &format!("f64 powf {e}"));
        if e <= 4 {
            let want: Vec<f32> = want.iter().map(|&v| v as f32).collect();
            let got = powf(&device, &single.view(&b), e.into()).unwrap();
            assert_exact(&download(&device, &got), &want, &format!("f32 powf {e}"));
        }
    }
}

/// ELU, rounded once.
fn elu_in_f64<T: Element>(x: f64, alpha: f64) -> f64 {
    match x.is_sign_positive() {
        true => x,
        false => T::from_f64(x.exp_m1() * alpha).to_f64(),
    }
}

fn elu_of<T: Element>(device: &Device) {
    let mut rng = Rng::new(4);
    for alpha in [1.0, 0.3, -2.0] {
        for layout in Layout::ALL {
            let x = HostTensor::<T>::with_layout(&[9, 4, 31], layout, |n| rng.vec(n, -6.0, 6.0));
            let buffer = x.upload(device);
            let got = elu(device, &x.view(&buffer), alpha).unwrap();
            let want: Vec<f64> = x
                .values()
                .iter()
                .map(|v| elu_in_f64::<T>(v.to_f64(), alpha))
                .collect();
            let what = format!("elu {} {layout:?} {alpha}", T::DTYPE);
            assert_close(&download::<T>(device, &got), &want, NMSE_LIMIT, &what);
        }
    }
}

#[test]
fn elu_of_every_float() {
    let device = device();
    for_each_float!(elu_of(&device));
}

#[test]
fn elu_of_small_numbers_does_not_cancel() {
    let device = device();
    let x = HostTensor::contiguous(vec![-1e-8f32, -1e-3], &[2]);
    let buffer = x.upload(&device);
    let got = download::<f32>(&device, &elu(&device, &x.view(&buffer), 1.0).unwrap());
    assert_close(&got, &[-1e-8, (-1e-3f64).exp_m1()], NMSE_LIMIT, "elu");
    assert!((got[0] / -1e-8 - 1.0).abs() < 1e-6, "{got:?}");
}

#[test]
fn elu_of_special_values() {
    let device = device();
    let x = HostTensor::contiguous(
        vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0],
        &[5],
    );
    let buffer = x.upload(&device);
    let got = download::<f32>(&device, &elu(&device, &x.view(&buffer), 2.0).unwrap());
    assert_exact(&got, &[f32::INFINITY, -2.0, f32::NAN, 0.0, 0.0], "elu");
}

fn refuses<T: Element>(device: &Device) {
    let x = HostTensor::contiguous(vec![T::from_f64(1.0); 3], &[3]);
    let buffer = x.upload(device);
    let view = x.view(&buffer);
    for (op, result) in [
        ("powf", powf(device, &view, 2.0)),
        ("elu", elu(device, &view, 1.0)),
    ] {
        match result {
            Err(Error::UnsupportedDType { op: got, dtype }) => {
                assert_eq!((got, dtype), (op, T::DTYPE));
            }
            other => panic!("{op} of {} gave {other:?}", T::DTYPE),
        }
    }
}

#[test]
fn powf_and_elu_refuse_integers() {
    let device = device();
    for_each_integer!(refuses(&device));
}

#[test]
fn a_view_that_leaves_its_buffer_is_refused() {
    let device = device();
    let buffer = upload(&device, &[1f32; 8]);
    let view = View {
        buffer: &buffer,
        dtype: DType::F32,
        offset: 1,
        dims: &[8],
        strides: &[1],
    };
    assert!(matches!(
        affine(&device, &view, 1.0, 0.0),
        Err(Error::InvalidView { op: "affine", .. })
    ));
}
