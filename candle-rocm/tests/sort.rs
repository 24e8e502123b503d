//! argsort against the standard library's stable sort.

mod common;

use candle_rocm::ops::sort::argsort;
use candle_rocm::{Device, Error};
use common::*;
use half::f16;
use std::cmp::Ordering;

/// NaN is greater than every number and equal to itself.
fn compare<T: Element>(a: T, b: T) -> Ordering {
    let nan = |v: T| v.partial_cmp(&v).is_none();
    a.partial_cmp(&b).unwrap_or_else(|| nan(a).cmp(&nan(b)))
}

fn check<T: Element>(device: &Device, tensor: &HostTensor<T>, what: &str) {
    let buffer = tensor.upload(device);
    let columns = *tensor.dims.last().unwrap();
    for ascending in [true, false] {
        let what = format!(
            "{} {:?} {what} ascending {ascending}",
            T::DTYPE,
            tensor.dims
        );
        let got = argsort(device, &tensor.view(&buffer), ascending)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let want: Vec<u32> = tensor
            .values()
            .chunks(columns)
            .flat_map(|row| {
                let mut indices: Vec<u32> = (0..columns as u32).collect();
                indices.sort_by(|&i, &j| {
                    let order = compare(row[i as usize], row[j as usize]);
                    if ascending {
                        order
                    } else {
                        order.reverse()
                    }
                });
                indices
            })
            .collect();
        assert_exact(&download::<u32>(device, &got), &want, &what);
    }
}

fn layouts<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for dims in [
        vec![1],
        vec![2],
        vec![37],
        vec![5, 1],
        vec![3, 4, 33],
        vec![1000, 3],
        vec![2, 2048],
        vec![3, 2049],
    ] {
        for layout in Layout::ALL {
            // Few values, so there are many ties.
            let tensor = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, 0.0, 60.0));
            check(device, &tensor, &format!("{layout:?}"));
        }
    }
}

/// What a slow emulator can sort: rows within a block and wider than one.
fn small<T: Element>(device: &Device) {
    let mut rng = Rng::new(7);
    for (dims, layout) in [
        ([3, 33], Layout::Transposed),
        ([2, 70], Layout::Narrowed),
        ([1, 2049], Layout::Contiguous),
    ] {
        let tensor = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, 0.0, 60.0));
        check(device, &tensor, &format!("{layout:?}"));
    }
}

#[test]
fn small_sizes() {
    let device = device();
    small::<u8>(&device);
    small::<i64>(&device);
    small::<f16>(&device);
    small::<f32>(&device);
}

#[test]
fn every_dtype_and_layout() {
    let device = device();
    for_each_dtype!(layouts(&device));
}

fn any_bits<T: Element>(device: &Device) {
    let mut rng = Rng::new(2);
    for dims in [[40, 100], [2, 5000]] {
        let tensor = HostTensor::<T>::contiguous(rng.any(dims[0] * dims[1]), &dims);
        check(device, &tensor, "random bits");
    }
}

#[test]
fn random_bits_with_nan_infinities_and_zeros() {
    let device = device();
    for_each_dtype!(any_bits(&device));
    let values = vec![
        0.0f32,
        -0.0,
        f32::NAN,
        -1.0,
        f32::INFINITY,
        -f32::NAN,
        0.0,
        f32::NEG_INFINITY,
    ];
    let tensor = HostTensor::contiguous(values, &[8]);
    check(&device, &tensor, "special values");
    let buffer = tensor.upload(&device);
    let got = argsort(&device, &tensor.view(&buffer), true).unwrap();
    assert_eq!(download::<u32>(&device, &got), [7, 3, 0, 1, 6, 4, 2, 5]);
}

/// Around the powers of two, where the network has no or many positions past the end of a row.
#[test]
fn wide_rows() {
    let device = device();
    let mut rng = Rng::new(3);
    for columns in [4096, 4097, 8191] {
        let dims = [2, columns];
        let tensor = HostTensor::<f32>::contiguous(rng.vec(2 * columns, -9.0, 9.0), &dims);
        check(&device, &tensor, "wide");
        let tensor = HostTensor::<i64>::contiguous(rng.any(2 * columns), &dims);
        check(&device, &tensor, "wide keys");
    }
    let n = 20_000;
    let sorted: Vec<u32> = (0..n as u32).collect();
    check(&device, &HostTensor::contiguous(sorted, &[n]), "sorted");
    check(
        &device,
        &HostTensor::contiguous(vec![7u8; n], &[n]),
        "equal",
    );
    for n in [100_000, 131_073] {
        let ties = HostTensor::<half::bf16>::contiguous(rng.vec(n, -9.0, 9.0), &[n]);
        check_large(&device, &ties);
        check_large(
            &device,
            &HostTensor::<f64>::contiguous(rng.vec(n, -9.0, 9.0), &[n]),
        );
    }
}

/// Checks an ascending sort without sorting on the host, which takes long for large tensors.
fn check_large<T: Element>(device: &Device, tensor: &HostTensor<T>) {
    let buffer = tensor.upload(device);
    let columns = *tensor.dims.last().unwrap();
    let got = argsort(device, &tensor.view(&buffer), true).unwrap();
    let got: Vec<u32> = download(device, &got);
    assert_eq!(got.len(), tensor.storage.len());
    for (row, (indices, values)) in got
        .chunks(columns)
        .zip(tensor.storage.chunks(columns))
        .enumerate()
    {
        let mut seen = vec![false; columns];
        for &i in indices {
            assert!(
                !std::mem::replace(&mut seen[i as usize], true),
                "row {row} has {i} twice"
            );
        }
        let in_order = |i: &[u32]| (values[i[0] as usize], i[0]) <= (values[i[1] as usize], i[1]);
        assert!(indices.windows(2).all(in_order), "row {row} is not sorted");
    }
}

/// More pairs than one batch of working memory holds.
#[test]
fn rows_in_batches() {
    let device = device();
    let dims = [2050, 2049];
    let tensor =
        HostTensor::<f64>::contiguous(Rng::new(4).vec(dims[0] * dims[1], -9.0, 9.0), &dims);
    check_large(&device, &tensor);
}

#[test]
fn more_tiles_than_blocks() {
    let device = device();
    let dims = [4100, 1025];
    let tensor = HostTensor::<u8>::contiguous(Rng::new(5).any(dims[0] * dims[1]), &dims);
    check_large(&device, &tensor);
}

#[test]
fn empty_rows_and_no_dimensions() {
    let device = device();
    let buffer = device.upload(&[0; 4]).unwrap();
    for dims in [[0, 3], [3, 0]] {
        let tensor = HostTensor::<f32>::contiguous(vec![], &dims);
        assert!(argsort(&device, &tensor.view(&buffer), true)
            .unwrap()
            .is_empty());
    }
    let scalar = HostTensor::contiguous(vec![1f32], &[]);
    let error = argsort(&device, &scalar.view(&buffer), true).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}
