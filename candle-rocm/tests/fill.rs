//! Writing one value everywhere.

mod common;

use candle_rocm::ops::fill::fill;
use candle_rocm::{DType, Device, Error, Scalar, View};
use common::*;

fn scalar<T: Element>(v: T) -> Scalar {
    match T::DTYPE {
        DType::U8 => Scalar::U8(v.to_bits() as u8),
        DType::U32 => Scalar::U32(v.to_bits() as u32),
        DType::I16 => Scalar::I16(v.to_bits() as i16),
        DType::I32 => Scalar::I32(v.to_bits() as i32),
        DType::I64 => Scalar::I64(v.to_bits() as i64),
        DType::F16 => Scalar::F16(half::f16::from_bits(v.to_bits() as u16)),
        DType::BF16 => Scalar::BF16(half::bf16::from_bits(v.to_bits() as u16)),
        DType::F32 => Scalar::F32(f32::from_bits(v.to_bits() as u32)),
        DType::F64 => Scalar::F64(f64::from_bits(v.to_bits())),
        DType::F8E4M3 => Scalar::F8E4M3(float8::F8E4M3::from_bits(v.to_bits() as u8)),
    }
}

/// Fills a view and compares the whole buffer, so that elements beside the view are seen to survive.
fn check<T: Element>(device: &Device, tensor: &HostTensor<T>, value: T, what: &str) {
    let buffer = tensor.upload(device);
    fill(device, &tensor.view(&buffer), scalar(value)).expect(what);
    let mut want = tensor.storage.clone();
    for at in tensor.positions() {
        want[at] = value;
    }
    assert_exact(&download::<T>(device, &buffer), &want, what);
}

fn every_layout<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for dims in [&[3usize, 5, 7][..], &[2, 16], &[1], &[33]] {
        for layout in Layout::ALL {
            let tensor = HostTensor::<T>::with_layout(dims, layout, |n| rng.vec(n, 0.0, 9.0));
            let value = T::from_f64(42.0);
            check(
                device,
                &tensor,
                value,
                &format!("{} {dims:?} {layout:?}", T::DTYPE),
            );
        }
    }
}

#[test]
fn every_dtype_and_layout() {
    let device = device();
    for_each_dtype!(every_layout(&device));
}

/// Heads and tails around the 16-byte stores: every alignment, and lengths from none to several stores.
#[test]
fn every_alignment() {
    let device = device();
    let strides = [1];
    for offset in 0..17usize {
        for n in [0usize, 1, 2, 15, 16, 17, 31, 50] {
            let tensor = HostTensor {
                storage: vec![7u8; 80],
                offset,
                dims: vec![n],
                strides: strides.to_vec(),
            };
            check(
                &device,
                &tensor,
                200,
                &format!("offset {offset}, {n} bytes"),
            );
        }
    }
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    let n = 65_536 * 256 + 3;
    let buffer = device.alloc(n).unwrap();
    let view = View {
        buffer: &buffer,
        dtype: DType::U8,
        offset: 0,
        dims: &[n],
        strides: &[1],
    };
    fill(&device, &view, Scalar::U8(9)).unwrap();
    assert!(download::<u8>(&device, &buffer).iter().all(|&v| v == 9));
}

#[test]
fn the_value_has_the_views_type() {
    let device = device();
    let tensor = HostTensor::contiguous(vec![0f32; 4], &[4]);
    let buffer = tensor.upload(&device);
    assert!(matches!(
        fill(&device, &tensor.view(&buffer), Scalar::U32(1)),
        Err(Error::DTypeMismatch {
            lhs: DType::F32,
            rhs: DType::U32,
            ..
        })
    ));
}
