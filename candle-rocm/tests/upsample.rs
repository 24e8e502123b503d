//! Upsampling against plain loops on the host.

mod common;

use candle_rocm::ops::upsample::{upsample_bilinear2d, upsample_nearest1d, upsample_nearest2d};
use candle_rocm::{Device, Error};
use common::*;

type Pair = (usize, usize);
type Factors = (Option<f64>, Option<f64>);

/// `sample(plane, y, x)` for every output, `plane` giving the input's elements by row and column.
fn outputs<T: Element, R>(
    tensor: &HostTensor<T>,
    size: Pair,
    sample: impl Fn(&dyn Fn(usize, usize) -> T, usize, usize) -> R,
) -> Vec<R> {
    let values = tensor.values();
    let [b, c, h, w] = tensor.dims[..] else {
        panic!("four dimensions");
    };
    let mut outputs = Vec::new();
    for plane in 0..b * c {
        let at = |y: usize, x: usize| values[(plane * h + y) * w + x];
        for y in 0..size.0 {
            for x in 0..size.1 {
                outputs.push(sample(&at, y, x));
            }
        }
    }
    outputs
}

fn nearest(out: usize, from: usize, to: usize) -> usize {
    ((out as f64 * (from as f64 / to as f64)) as usize).min(from - 1)
}

/// The position of an output in the input, as PyTorch defines it.
fn position(out: usize, from: usize, to: usize, align_corners: bool, factor: Option<f64>) -> f64 {
    if align_corners {
        let spaces = (to - 1).max(1) as f64;
        return if to == 1 {
            0.0
        } else {
            out as f64 * ((from - 1) as f64 / spaces)
        };
    }
    let scale = factor.map_or(from as f64 / to as f64, |factor| 1.0 / factor);
    (scale * (out as f64 + 0.5) - 0.5).max(0.0)
}

/// The value at `at` on the line through `count` values, in f64 and in the order in which candle's CPU back end
/// computes it: results halfway between two small floats must fall on the same side.
fn line(at: f64, count: usize, value: impl Fn(usize) -> f64) -> f64 {
    let low = (at as usize).min(count - 1);
    let weight = (at - low as f64).min(1.0);
    value(low) * (1.0 - weight) + value((low + 1).min(count - 1)) * weight
}

fn bilinear<T: Element>(
    tensor: &HostTensor<T>,
    size: Pair,
    align_corners: bool,
    factors: Factors,
) -> Vec<f64> {
    let (h, w) = (tensor.dims[2], tensor.dims[3]);
    outputs(tensor, size, |plane, y, x| {
        let y = position(y, h, size.0, align_corners, factors.0);
        let x = position(x, w, size.1, align_corners, factors.1);
        let sum = line(y, h, |row| line(x, w, |column| plane(row, column).to_f64()));
        if T::DTYPE.is_float() {
            T::from_f64(sum).to_f64()
        } else {
            sum
        }
    })
}

fn layouts<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for (dims, size) in [
        ([1, 1, 1, 1], (3, 2)),
        ([2, 3, 5, 7], (10, 14)),
        ([2, 3, 5, 7], (3, 4)),
        ([2, 1, 4, 6], (4, 9)),
        ([1, 2, 6, 5], (1, 1)),
        ([3, 2, 3, 17], (19, 50)),
    ] {
        for layout in Layout::ALL {
            let tensor = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, 0.0, 99.0));
            let buffer = tensor.upload(device);
            let view = tensor.view(&buffer);
            let what = format!("{} {dims:?} {layout:?} to {size:?}", T::DTYPE);

            let got = upsample_nearest2d(device, &view, size).unwrap();
            let want = outputs(&tensor, size, |plane, y, x| {
                plane(nearest(y, dims[2], size.0), nearest(x, dims[3], size.1))
            });
            assert_exact(
                &download::<T>(device, &got),
                &want,
                &format!("nearest {what}"),
            );

            for align_corners in [false, true] {
                let got = upsample_bilinear2d(device, &view, size, align_corners, (None, None));
                let got: Vec<T> = download(device, &got.unwrap());
                let want = bilinear(&tensor, size, align_corners, (None, None));
                let what = format!("bilinear {what}, align_corners {align_corners}");
                if T::DTYPE.is_float() {
                    assert_close(&got, &want, NMSE_LIMIT, &what);
                } else {
                    // Cut off; a sum that is a whole number but for its rounding may fall on either side.
                    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                        let past = w - g.to_f64();
                        assert!(
                            (-1e-9..1.0 + 1e-9).contains(&past),
                            "{what}: element {i} is {g:?}, not {w}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_dtype_layout_and_size() {
    let device = device();
    for_each_dtype!(layouts(&device));
}

#[test]
fn nearest_of_one_dimension() {
    let device = device();
    let mut rng = Rng::new(2);
    for layout in Layout::ALL {
        for size in [1, 4, 5, 13] {
            let tensor = HostTensor::<half::bf16>::with_layout(&[2, 3, 5], layout, |n| {
                rng.vec(n, -4.0, 4.0)
            });
            let buffer = tensor.upload(&device);
            let got = upsample_nearest1d(&device, &tensor.view(&buffer), size).unwrap();
            let want: Vec<half::bf16> = tensor
                .values()
                .chunks(5)
                .flat_map(|row| (0..size).map(|x| row[nearest(x, 5, size)]))
                .collect();
            assert_exact(
                &download(&device, &got),
                &want,
                &format!("{layout:?} to {size}"),
            );
        }
    }
}

#[test]
fn scale_factors_set_the_distance_of_outputs() {
    let device = device();
    let mut rng = Rng::new(3);
    let tensor = HostTensor::<f64>::contiguous(rng.vec(2 * 7 * 9, -4.0, 4.0), &[1, 2, 7, 9]);
    let buffer = tensor.upload(&device);
    for (factors, align_corners) in [
        ((1.7, 2.3), false),
        ((0.6, 0.45), false),
        ((1.7, 0.45), true),
    ] {
        let size = ((7.0 * factors.0) as usize, (9.0 * factors.1) as usize);
        let factors = (Some(factors.0), Some(factors.1));
        let got = upsample_bilinear2d(&device, &tensor.view(&buffer), size, align_corners, factors);
        let want = bilinear(&tensor, size, align_corners, factors);
        let got = download::<f64>(&device, &got.unwrap());
        assert_close(&got, &want, 1e-24, &format!("{factors:?}"));
    }
}

#[test]
fn positions_past_the_edge_take_the_last_element() {
    let device = device();
    let tensor = HostTensor::contiguous(vec![1f32, 2., 3.], &[1, 1, 1, 3]);
    let buffer = tensor.upload(&device);
    let factors = (None, Some(0.25));
    let got = upsample_bilinear2d(&device, &tensor.view(&buffer), (1, 4), false, factors).unwrap();
    assert_eq!(download::<f32>(&device, &got), [2.5, 3., 3., 3.]);
}

#[test]
fn nothing_to_do_and_nothing_to_choose_from() {
    let device = device();
    let buffer = device.alloc(0).unwrap();
    let none = HostTensor::<f32>::contiguous(vec![], &[0, 3, 4, 4]);
    assert!(upsample_nearest2d(&device, &none.view(&buffer), (8, 8))
        .unwrap()
        .is_empty());
    let flat = HostTensor::<f32>::contiguous(vec![], &[1, 3, 0, 4]);
    for align_corners in [false, true] {
        let error = upsample_bilinear2d(
            &device,
            &flat.view(&buffer),
            (2, 2),
            align_corners,
            (None, None),
        )
        .unwrap_err();
        assert!(error.to_string().contains("no elements"), "{error}");
    }
    let one = HostTensor::contiguous(vec![1f32], &[1, 1, 1, 1]);
    let buffer = one.upload(&device);
    assert!(upsample_nearest2d(&device, &one.view(&buffer), (0, 2))
        .unwrap()
        .is_empty());
    let error = upsample_bilinear2d(
        &device,
        &one.view(&buffer),
        (2, 2),
        false,
        (Some(0.0), None),
    )
    .unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let error = upsample_nearest1d(&device, &one.view(&buffer), 2).unwrap_err();
    assert!(error.to_string().contains("[1, 1, 1, 1]"), "{error}");
}
