//! Copies between layouts against plain loops on the host.

mod common;

use candle_rocm::ops::copy::{contiguous, copy2d, copy_strided};
use candle_rocm::{Device, Error, View};
use common::*;

/// Copies into the middle of a larger buffer and looks at all of it.
fn check<T: Element>(device: &Device, tensor: &HostTensor<T>, dst_offset: usize, what: &str) {
    let buffer = tensor.upload(device);
    let marker = T::from_bits(0x2d2d_2d2d_2d2d_2d2d);
    let n = tensor.elem_count();
    let dst = upload(device, &vec![marker; dst_offset + n + 5]);
    copy_strided(device, &tensor.view(&buffer), &dst, dst_offset)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut want = vec![marker; dst_offset + n + 5];
    want[dst_offset..dst_offset + n].copy_from_slice(&tensor.values());
    assert_exact(&download::<T>(device, &dst), &want, what);
}

fn layouts<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for dims in [
        vec![],
        vec![0],
        vec![1],
        vec![13],
        vec![4, 0, 3],
        vec![1, 1],
        vec![16, 32],
        vec![37, 45],
        vec![3, 64, 16],
        vec![2, 3, 4, 5, 6],
    ] {
        for layout in Layout::ALL {
            let tensor = HostTensor::<T>::with_layout(&dims, layout, |n| rng.any(n));
            for dst_offset in [0, 3] {
                check(
                    device,
                    &tensor,
                    dst_offset,
                    &format!("{} {dims:?} {layout:?} to {dst_offset}", T::DTYPE),
                );
            }
        }
    }
}

#[test]
fn every_dtype_and_layout() {
    let device = device();
    for_each_dtype!(layouts(&device));
}

/// A tensor of `dims` whose axes lie in memory in the order `memory`, outermost first.
fn permuted<T: Element>(
    dims: &[usize],
    memory: &[usize],
    values: impl FnOnce(usize) -> Vec<T>,
) -> HostTensor<T> {
    let mut strides = vec![0; dims.len()];
    let mut stride = 1;
    for &axis in memory.iter().rev() {
        strides[axis] = stride;
        stride *= dims[axis];
    }
    HostTensor {
        storage: values(stride),
        offset: 0,
        dims: dims.to_vec(),
        strides,
    }
}

fn permutations<T: Element>(device: &Device) {
    let mut rng = Rng::new(2);
    // Batched transposes with sides around the tile's, and orders that no tile fits.
    for (dims, memory) in [
        (vec![2, 33, 31], vec![0, 2, 1]),
        (vec![5, 9, 70], vec![1, 2, 0]),
        (vec![2, 3, 32, 64], vec![1, 0, 3, 2]),
        (vec![2, 40, 3, 50], vec![0, 2, 3, 1]),
        (vec![3, 10, 4, 11], vec![3, 1, 0, 2]),
        (vec![3, 4, 5, 6, 7, 8], vec![5, 4, 3, 2, 1, 0]),
    ] {
        let tensor = permuted::<T>(&dims, &memory, |n| rng.any(n));
        check(
            device,
            &tensor,
            1,
            &format!("{} {dims:?} from {memory:?}", T::DTYPE),
        );
    }
}

#[test]
fn tiled_transpose_and_other_permutations() {
    let device = device();
    for_each_dtype!(permutations(&device));
}

#[test]
fn large_transpose_takes_several_tiles_per_block() {
    let device = device();
    let dims = [4123, 4127];
    let tensor = permuted::<u8>(&dims, &[1, 0], |n| {
        (0..n).map(|i| (i * 7 / 5) as u8).collect()
    });
    check(&device, &tensor, 0, "large transpose");
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    // Every other element: neither a transpose nor wide pieces.
    let n = 256 * 65_600;
    let tensor = HostTensor {
        storage: (0..2 * n).map(|i| (i / 3) as u8).collect(),
        offset: 1,
        dims: vec![n],
        strides: vec![2],
    };
    // The last element is the buffer's last: reading one more would leave it.
    assert_eq!(tensor.offset + (n - 1) * 2 + 1, tensor.storage.len());
    check(&device, &tensor, 0, "many blocks");
}

#[test]
fn strided_copy_does_not_over_read() {
    let device = device();
    // Rows of every length end at the buffer's last byte; hip-sim sees a byte read beyond.
    for columns in 1..40 {
        let rows = 3;
        let stride = columns + 9;
        let storage: Vec<u8> = (0..(rows - 1) * stride + columns)
            .map(|i| i as u8)
            .collect();
        let tensor = HostTensor {
            storage,
            offset: 0,
            dims: vec![rows, columns],
            strides: vec![stride, 1],
        };
        check(&device, &tensor, 0, &format!("{columns} columns"));
    }
}

fn rows<T: Element>(device: &Device) {
    let mut rng = Rng::new(3);
    for (d1, d2, src_stride, dst_stride, src_offset, dst_offset) in [
        (4, 16, 32, 16, 0, 0),
        (4, 16, 16, 48, 16, 32),
        (5, 7, 9, 8, 3, 1),
        (1, 9, 0, 0, 2, 4),
        (6, 8, 8, 8, 8, 8),
        (3, 5, 0, 5, 1, 0),
        (0, 5, 5, 5, 0, 0),
        (5, 0, 5, 5, 0, 0),
        (100, 333, 400, 333, 7, 5),
    ] {
        let what = format!("{} {d1}x{d2} from {src_stride} to {dst_stride}", T::DTYPE);
        let reach = |offset: usize, stride: usize| -> usize {
            offset + usize::saturating_sub(d1, 1) * stride + d2
        };
        let host: Vec<T> = rng.any(reach(src_offset, src_stride));
        let mut want: Vec<T> = rng.any(reach(dst_offset, dst_stride));
        let (src, dst) = (upload(device, &host), upload(device, &want));
        copy2d(
            device,
            T::DTYPE,
            &src,
            &dst,
            d1,
            d2,
            src_stride,
            dst_stride,
            src_offset,
            dst_offset,
        )
        .unwrap_or_else(|e| panic!("{what}: {e}"));
        for i in 0..d1 {
            let (from, to) = (src_offset + i * src_stride, dst_offset + i * dst_stride);
            want[to..to + d2].copy_from_slice(&host[from..from + d2]);
        }
        assert_exact(&download::<T>(device, &dst), &want, &what);
    }
}

#[test]
fn copy2d_of_every_dtype() {
    let device = device();
    for_each_dtype!(rows(&device));
}

#[test]
fn copy2d_checks_its_bounds() {
    let device = device();
    let src = upload(&device, &[0u32; 12]);
    let dst = upload(&device, &[0u32; 12]);
    let copy = |d1, d2, src_stride, dst_stride, src_offset, dst_offset| {
        copy2d(
            &device,
            candle_rocm::DType::U32,
            &src,
            &dst,
            d1,
            d2,
            src_stride,
            dst_stride,
            src_offset,
            dst_offset,
        )
    };
    assert!(copy(3, 4, 4, 4, 0, 0).is_ok());
    for result in [
        copy(3, 4, 4, 4, 1, 0),
        copy(3, 4, 4, 4, 0, 1),
        copy(3, 4, 5, 4, 0, 0),
        copy(2, 4, usize::MAX, 4, 0, 0),
    ] {
        assert!(
            matches!(result, Err(Error::OutOfBounds { .. })),
            "{result:?}"
        );
    }
    let overlapping = copy(3, 4, 4, 2, 0, 0);
    assert!(
        matches!(overlapping, Err(Error::InvalidArgument { .. })),
        "{overlapping:?}"
    );
}

#[test]
fn a_copy_must_fit() {
    let device = device();
    let src = upload(&device, &[0f32; 6]);
    let dst = upload(&device, &[0f32; 6]);
    let view = View::contiguous(&src, candle_rocm::DType::F32, &[6], &[1]);
    let error = copy_strided(&device, &view, &dst, 1).unwrap_err();
    assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    let view = View::contiguous(&src, candle_rocm::DType::F32, &[7], &[1]);
    let error = contiguous(&device, &view).unwrap_err();
    assert!(matches!(error, Error::InvalidView { .. }), "{error}");
}
