//! Selection by a condition.

mod common;

use candle_rocm::ops::ternary::where_cond;
use candle_rocm::{DType, Device, Error};
use common::*;

fn check<C: Element, T: Element>(device: &Device, dims: &[usize], layouts: [Layout; 3]) {
    let mut rng = Rng::new(6);
    let cond = HostTensor::<C>::with_layout(dims, layouts[0], |n| {
        // High bits alone must count as true.
        let high = C::from_bits(1 << (8 * C::DTYPE.size_in_bytes() - 1));
        (0..n)
            .map(|_| [C::from_f64(0.0), C::from_f64(1.0), high][rng.below(3)])
            .collect()
    });
    let on_true = HostTensor::<T>::with_layout(dims, layouts[1], |n| rng.any(n));
    let on_false = HostTensor::<T>::with_layout(dims, layouts[2], |n| rng.any(n));
    let (c, t, f) = (
        cond.upload(device),
        on_true.upload(device),
        on_false.upload(device),
    );
    let got = where_cond(
        device,
        &cond.view(&c),
        &on_true.view(&t),
        &on_false.view(&f),
    )
    .unwrap();
    let want: Vec<T> = cond
        .values()
        .iter()
        .zip(on_true.values().into_iter().zip(on_false.values()))
        .map(|(c, (t, f))| if c.to_bits() != 0 { t } else { f })
        .collect();
    let what = format!("{} {} {dims:?} {layouts:?}", C::DTYPE, T::DTYPE);
    assert_exact(&download::<T>(device, &got), &want, &what);
}

fn every_condition<T: Element>(device: &Device) {
    let contiguous = [Layout::Contiguous; 3];
    check::<u8, T>(device, &[5, 41], contiguous);
    check::<u32, T>(device, &[5, 41], contiguous);
    check::<i16, T>(device, &[5, 41], contiguous);
    check::<i32, T>(device, &[5, 41], contiguous);
    check::<i64, T>(device, &[5, 41], contiguous);
}

#[test]
fn every_condition_and_dtype() {
    let device = device();
    for_each_dtype!(every_condition(&device));
}

#[test]
fn every_combination_of_layouts() {
    let device = device();
    for cond in Layout::ALL {
        for on_true in Layout::ALL {
            for on_false in Layout::ALL {
                check::<u8, f32>(&device, &[3, 2, 8], [cond, on_true, on_false]);
            }
        }
    }
    check::<i64, half::f16>(
        &device,
        &[7, 13],
        [
            Layout::Transposed,
            Layout::BroadcastFirst,
            Layout::Contiguous,
        ],
    );
}

#[test]
fn no_elements() {
    let device = device();
    check::<u8, f32>(&device, &[0, 4], [Layout::Contiguous; 3]);
}

#[test]
fn operands_must_fit() {
    let device = device();
    let floats = HostTensor::contiguous(vec![1f32; 4], &[4]);
    let other = HostTensor::contiguous(vec![1f64; 4], &[4]);
    let shorter = HostTensor::contiguous(vec![1f32; 3], &[3]);
    let cond = HostTensor::contiguous(vec![1u8; 4], &[4]);
    let (x, y, z, c) = (
        floats.upload(&device),
        other.upload(&device),
        shorter.upload(&device),
        cond.upload(&device),
    );
    let (x, y, z, c) = (
        floats.view(&x),
        other.view(&y),
        shorter.view(&z),
        cond.view(&c),
    );
    assert!(matches!(
        where_cond(&device, &x, &x, &x),
        Err(Error::UnsupportedDType {
            dtype: DType::F32,
            ..
        })
    ));
    assert!(matches!(
        where_cond(&device, &c, &x, &y),
        Err(Error::DTypeMismatch { .. })
    ));
    assert!(matches!(
        where_cond(&device, &c, &x, &z),
        Err(Error::ShapeMismatch { .. })
    ));
}
