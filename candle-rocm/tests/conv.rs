//! Convolutions against the definition in f64: every method, dtype, layout, and all options.

mod common;

use candle_rocm::ops::conv::{
    conv1d, conv2d, conv_transpose1d, conv_transpose2d, Conv, ConvTranspose, Method,
};
use candle_rocm::{Buffer, DType, Device, Error, Result, View};
use common::{assert_close, device, download, row_major, Element, HostTensor, Layout, Rng};
use float8::F8E4M3;
use half::{bf16, f16};

/// Largest tolerated normalised mean squared error.
const LIMIT: f64 = 5e-4;

/// Workspaces too small for one image, so that the columns come in pieces, and large enough for several.
const WORKSPACES: [usize; 3] = [0, 1500, 1 << 20];

#[derive(Clone, Copy, Debug)]
struct Options {
    transposed: bool,
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
}

const PLAIN: Options = Options {
    transposed: false,
    padding: 0,
    output_padding: 0,
    stride: 1,
    dilation: 1,
};
const TRANSPOSED: Options = Options {
    transposed: true,
    ..PLAIN
};

impl Options {
    fn run(self, x: &View, kernel: &View, method: Option<Method>) -> Result<Buffer> {
        let device = x.buffer.device();
        let Options {
            transposed,
            padding,
            output_padding,
            stride,
            dilation,
        } = self;
        let sequence = x.dims.len() == 3;
        if transposed {
            let options = ConvTranspose {
                padding,
                output_padding,
                stride,
                dilation,
                method,
            };
            match sequence {
                true => conv_transpose1d(device, x, kernel, options),
                false => conv_transpose2d(device, x, kernel, options),
            }
        } else {
            let options = Conv {
                padding,
                stride,
                dilation,
                method,
            };
            match sequence {
                true => conv1d(device, x, kernel, options),
                false => conv2d(device, x, kernel, options),
            }
        }
    }

    /// Size of the output along one dimension.
    fn output(self, size: usize, k: usize) -> usize {
        let taps = self.dilation * (k - 1) + 1;
        match self.transposed {
            true => (size - 1) * self.stride + taps + self.output_padding - 2 * self.padding,
            false => (size + 2 * self.padding - taps) / self.stride + 1,
        }
    }
}

/// The definition, of images: each input, kernel element and output whose coordinates belong together.
fn definition(
    x: &[f64],
    [batch, c_in, h, w]: [usize; 4],
    kernel: &[f64],
    [c_out, k_h, k_w]: [usize; 3],
    [vertical, horizontal]: [Options; 2],
) -> Vec<f64> {
    let (out_h, out_w) = (vertical.output(h, k_h), horizontal.output(w, k_w));
    let mut out = vec![0.0; batch * c_out * out_h * out_w];
    // Pairs of input and output coordinates that tap `k` connects.
    let pairs = |o: Options, size: usize, out: usize, k: usize| -> Vec<(usize, usize)> {
        let (near, far) = if o.transposed {
            (size, out)
        } else {
            (out, size)
        };
        (0..near)
            .filter_map(|n| {
                let f = (n * o.stride + k * o.dilation).checked_sub(o.padding)?;
                (f < far).then_some(if o.transposed { (n, f) } else { (f, n) })
            })
            .collect()
    };
    for ky in 0..k_h {
        for kx in 0..k_w {
            let (rows, columns) = (
                pairs(vertical, h, out_h, ky),
                pairs(horizontal, w, out_w, kx),
            );
            for plane in 0..batch * c_out {
                let (b, co) = (plane / c_out, plane % c_out);
                for ci in 0..c_in {
                    let weight = match vertical.transposed {
                        true => ci * c_out + co,
                        false => co * c_in + ci,
                    };
                    let weight = kernel[(weight * k_h + ky) * k_w + kx];
                    for &(iy, oy) in &rows {
                        for &(ix, ox) in &columns {
                            out[(plane * out_h + oy) * out_w + ox] +=
                                weight * x[((b * c_in + ci) * h + iy) * w + ix];
                        }
                    }
                }
            }
        }
    }
    out
}

fn f64s<T: Element>(tensor: &HostTensor<T>) -> Vec<f64> {
    tensor.values().iter().map(|v| v.to_f64()).collect()
}

/// The outcome by definition, and the kernel's dimensions as those of an image.
fn expected<T: Element>(
    x: &HostTensor<T>,
    kernel: &HostTensor<T>,
    options: Options,
) -> (Vec<f64>, [usize; 4]) {
    let image = |dims: &[usize]| match *dims {
        [n, c, w] => [n, c, 1, w],
        [n, c, h, w] => [n, c, h, w],
        _ => panic!("{dims:?}"),
    };
    let k = image(&kernel.dims);
    let c_out = if options.transposed { k[1] } else { k[0] };
    let unit = if options.transposed {
        TRANSPOSED
    } else {
        PLAIN
    };
    let vertical = if x.dims.len() == 3 { unit } else { options };
    let want = definition(
        &f64s(x),
        image(&x.dims),
        &f64s(kernel),
        [c_out, k[2], k[3]],
        [vertical, options],
    );
    (want, k)
}

/// Compares every method that applies, and the default one.
fn check<T: Element>(device: &Device, x: &HostTensor<T>, kernel: &HostTensor<T>, options: Options) {
    let (want, k) = expected(x, kernel, options);
    let (x_buffer, kernel_buffer) = (x.upload(device), kernel.upload(device));
    let is_product =
        k[2] * k[3] == 1 && (options.padding, options.output_padding, options.stride) == (0, 0, 1);
    let methods = WORKSPACES
        .map(|workspace_bytes| Some(Method::Columns { workspace_bytes }))
        .into_iter()
        .chain([None, Some(Method::Direct)])
        .chain(is_product.then_some(Some(Method::Product)));
    for method in methods {
        let what = format!(
            "{} {:?}/{:?} * {:?}/{:?} {options:?} {method:?}",
            T::DTYPE,
            x.dims,
            x.strides,
            kernel.dims,
            kernel.strides
        );
        let got = options
            .run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), method)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let limit = match T::DTYPE {
            DType::F64 => 1e-24,
            // MIOpen may have transformed the operands.
            DType::F32 if method.is_none() => 1e-9,
            DType::F32 => 1e-11,
            _ => LIMIT,
        };
        assert_close(&download::<T>(device, &got), &want, limit, &what);
    }
}

fn random<T: Element>(seed: u64, dims: &[usize], layout: Layout) -> HostTensor<T> {
    HostTensor::with_layout(dims, layout, |n| Rng::new(seed).vec(n, -1.0, 1.0))
}

/// `x` and a kernel for it with `c_out` outputs and the given spatial sizes.
fn check_random<T: Element>(
    device: &Device,
    x: &[usize],
    c_out: usize,
    taps: &[usize],
    layouts: [Layout; 2],
    options: Options,
) {
    let channels = match options.transposed {
        true => [x[1], c_out],
        false => [c_out, x[1]],
    };
    let kernel: Vec<usize> = channels.iter().chain(taps).copied().collect();
    check::<T>(
        device,
        &random(1, x, layouts[0]),
        &random(2, &kernel, layouts[1]),
        options,
    );
}

const CONTIGUOUS: [Layout; 2] = [Layout::Contiguous; 2];

fn options_and_shapes<T: Element>(device: &Device) {
    for transposed in [false, true] {
        for (padding, output_padding, stride, dilation) in [
            (0, 0, 1, 1),
            (1, 0, 1, 1),
            (2, 1, 2, 1),
            (1, 2, 3, 2),
            (0, 5, 2, 3),
        ] {
            let options = Options {
                transposed,
                padding,
                output_padding: if transposed { output_padding } else { 0 },
                stride,
                dilation,
            };
            for (x, c_out, taps) in [
                (&[2, 3, 11][..], 5, &[3][..]),
                (&[1, 20, 9], 7, &[2]),
                (&[3, 17, 8], 6, &[1]),
                (&[2, 3, 9, 7], 5, &[3, 2]),
                (&[1, 18, 5, 8], 6, &[1, 3]),
                (&[3, 1, 7, 7], 1, &[3, 3]),
                (&[2, 17, 6, 5], 8, &[1, 1]),
            ] {
                check_random::<T>(device, x, c_out, taps, CONTIGUOUS, options);
            }
        }
    }
}

#[test]
fn all_options() {
    let device = device();
    options_and_shapes::<f32>(&device);
    options_and_shapes::<f16>(&device);
    options_and_shapes::<bf16>(&device);
    options_and_shapes::<f64>(&device);
}

/// Integers wrap, f8e4m3 is rounded once; all methods but the direct one are refused.
fn directly<T: Element>(device: &Device, range: (f64, f64)) {
    for transposed in [false, true] {
        let options = Options {
            transposed,
            padding: 1,
            output_padding: usize::from(transposed),
            stride: 2,
            dilation: 2,
        };
        for (x, kernel) in [
            (&[2usize, 3, 6, 7][..], &[3usize, 3, 2, 3][..]),
            (&[1, 5, 9], &[5, 5, 2]),
            (&[2, 2, 4], &[2, 2, 1]),
        ] {
            let [x, kernel] = [(1, x), (2, kernel)].map(|(seed, dims)| {
                HostTensor::<T>::with_layout(dims, Layout::Transposed, |n| {
                    Rng::new(seed).vec(n, range.0, range.1)
                })
            });
            let (mut want, _) = expected(&x, &kernel, options);
            if T::DTYPE != DType::F8E4M3 {
                want = want
                    .iter()
                    .map(|&v| T::from_bits(v as i64 as u64).to_f64())
                    .collect();
            }
            let (x_buffer, kernel_buffer) = (x.upload(device), kernel.upload(device));
            let run =
                |method| options.run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), method);
            let what = format!("{} {:?} {options:?}", T::DTYPE, x.dims);
            let limit = if T::DTYPE == DType::F8E4M3 { 2e-3 } else { 0. };
            for method in [None, Some(Method::Direct)] {
                let got = run(method).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_close(&download::<T>(device, &got), &want, limit, &what);
            }
            for method in [
                Method::Product,
                Method::Columns {
                    workspace_bytes: 1 << 20,
                },
            ] {
                let error = run(Some(method)).expect_err(&what).to_string();
                assert!(error.contains("Method::Direct"), "{error}");
            }
        }
    }
}

#[test]
fn dtypes_without_matrix_products() {
    let device = device();
    directly::<u8>(&device, (0., 200.));
    directly::<u32>(&device, (0., 1e6));
    directly::<i16>(&device, (-2e3, 2e3));
    directly::<i32>(&device, (-1e6, 1e6));
    directly::<i64>(&device, (-1e6, 1e6));
    directly::<F8E4M3>(&device, (-1., 1.));
}

/// A few sizes that a slow emulator can compute, MIOpen's kernels included where it has any.
#[test]
fn small_sizes() {
    let device = device();
    fn check<T: Element>(device: &Device) {
        for options in [PLAIN, TRANSPOSED] {
            let options = Options {
                padding: 1,
                ..options
            };
            check_random::<T>(device, &[1, 18, 5, 4], 5, &[3, 2], CONTIGUOUS, options);
            let layouts = [Layout::Narrowed, Layout::Transposed];
            check_random::<T>(device, &[1, 17, 9], 6, &[3], layouts, options);
        }
        check_random::<T>(device, &[1, 5, 4, 3], 6, &[1, 1], CONTIGUOUS, PLAIN);
        check_random::<T>(device, &[1, 2, 6, 5], 3, &[3, 3], CONTIGUOUS, PLAIN);
    }
    check::<f32>(&device);
    check::<f16>(&device);
    check::<bf16>(&device);
    check::<f64>(&device);
}

#[test]
fn all_layouts() {
    let device = device();
    for x in Layout::ALL {
        for kernel in [Layout::Contiguous, Layout::Transposed, Layout::Narrowed, x] {
            for options in [PLAIN, TRANSPOSED] {
                let options = Options {
                    padding: 1,
                    stride: 2,
                    ..options
                };
                let layouts = [x, kernel];
                check_random::<f32>(&device, &[3, 18, 6, 7], 5, &[3, 2], layouts, options);
                check_random::<bf16>(&device, &[3, 17, 9], 6, &[4], layouts, options);
            }
            for options in [PLAIN, TRANSPOSED] {
                let layouts = [x, kernel];
                check_random::<f32>(&device, &[2, 5, 4, 3], 6, &[1, 1], layouts, options);
                check_random::<f16>(&device, &[2, 5, 4], 6, &[1], layouts, options);
            }
        }
    }
}

/// Sums of half types must be made in f32 and rounded once: here every partial sum in f16 would lose the small terms,
/// and a transposed convolution rounds no columns.
#[test]
fn half_sums_are_rounded_once() {
    let device = device();
    let c_in = 40;
    for options in [PLAIN, TRANSPOSED] {
        let x: Vec<f16> = (0..c_in * 6)
            .map(|i| f16::from_f64(if i < 6 { 2048.0 } else { 0.53125 }))
            .collect();
        let x = HostTensor::contiguous(x, &[1, c_in, 6]);
        let dims = if options.transposed {
            [c_in, 5, 3]
        } else {
            [5, c_in, 3]
        };
        let kernel = HostTensor::contiguous(vec![f16::ONE; c_in * 15], &dims);
        let (x_buffer, kernel_buffer) = (x.upload(&device), kernel.upload(&device));
        let padding = if options.transposed { 1 } else { 0 };
        for method in [
            Method::Direct,
            Method::Columns {
                workspace_bytes: 1 << 20,
            },
        ] {
            let got = Options { padding, ..options }
                .run(
                    &x.view(&x_buffer),
                    &kernel.view(&kernel_buffer),
                    Some(method),
                )
                .unwrap();
            let got = download::<f16>(&device, &got);
            let (inner, per_row) = if options.transposed {
                (1..5, 6)
            } else {
                (0..4, 4)
            };
            for row in got.chunks(per_row) {
                for value in &row[inner.clone()] {
                    // 3 (2048 + 39 * 0.53125) = 6206.16; neighbours in f16 are 4 apart. Columns rounded to 2068 would
                    // give 6204.
                    assert_eq!(value.to_f64(), 6208.0, "{options:?} {method:?}");
                }
            }
        }
    }
}

#[test]
fn the_default_workspace_is_divided() {
    // 96 * 9 f64 in a column: 64 MiB hold 9709 of the 9801 positions.
    let device = device();
    let options = Options {
        padding: 1,
        ..PLAIN
    };
    let x = random::<f64>(3, &[1, 96, 99, 99], Layout::Contiguous);
    let kernel = random::<f64>(4, &[5, 96, 3, 3], Layout::Contiguous);
    let (x_buffer, kernel_buffer) = (x.upload(&device), kernel.upload(&device));
    let run = |method| {
        let got = options.run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), method);
        download::<f64>(&device, &got.unwrap())
    };
    let direct: Vec<f64> = run(Some(Method::Direct));
    assert_close(&run(None), &direct, 1e-24, "in pieces");
}

#[test]
fn sizes_of_zero() {
    let device = device();
    let empty = |x: &[usize], kernel: &[usize], options: Options| -> Vec<f32> {
        let (x, kernel) = (
            random::<f32>(1, x, Layout::Contiguous),
            random::<f32>(2, kernel, Layout::Contiguous),
        );
        let (x_buffer, kernel_buffer) = (x.upload(&device), kernel.upload(&device));
        let got = options
            .run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), None)
            .unwrap();
        download(&device, &got)
    };
    assert!(empty(&[0, 3, 5, 5], &[4, 3, 3, 3], PLAIN).is_empty());
    assert!(empty(&[2, 3, 5, 5], &[0, 3, 3, 3], PLAIN).is_empty());
    assert!(empty(&[2, 3, 5], &[3, 0, 2], TRANSPOSED).is_empty());
    assert_eq!(
        empty(&[2, 0, 5, 5], &[4, 0, 3, 3], PLAIN),
        vec![0.0; 2 * 4 * 9]
    );
    assert_eq!(empty(&[1, 0, 5], &[0, 4, 2], TRANSPOSED), vec![0.0; 24]);
    let padded = Options {
        padding: 2,
        ..PLAIN
    };
    assert_eq!(empty(&[1, 3, 0], &[2, 3, 3], padded), vec![0.0; 4]);
}

#[test]
fn errors_are_typed() {
    let device = device();
    let storage = device.alloc_zeroed(1 << 12).unwrap();
    let run = |dtype: DType, x: &[usize], kernel: &[usize], options: Options, method| {
        let (x_strides, kernel_strides) = (row_major(x), row_major(kernel));
        let x = View::contiguous(&storage, dtype, x, &x_strides);
        let kernel = View::contiguous(&storage, dtype, kernel, &kernel_strides);
        options.run(&x, &kernel, method).unwrap_err()
    };
    let (x, kernel) = (&[1usize, 2, 5, 5][..], &[3usize, 2, 3, 3][..]);
    let with = |padding, stride, dilation| Options {
        padding,
        stride,
        dilation,
        ..PLAIN
    };
    assert!(matches!(
        run(DType::F32, x, &[3, 3, 3, 3], PLAIN, None),
        Error::ShapeMismatch { op: "conv2d", .. }
    ));
    assert!(matches!(
        run(DType::F32, &[1, 2, 5], &[3, 3, 3], TRANSPOSED, None),
        Error::ShapeMismatch {
            op: "conv_transpose1d",
            ..
        }
    ));
    assert!(matches!(
        run(DType::F32, x, &[3, 2, 3], PLAIN, None),
        Error::ShapeMismatch { .. }
    ));
    for options in [with(0, 0, 1), with(0, 1, 3)] {
        assert!(matches!(
            run(DType::F32, x, kernel, options, None),
            Error::InvalidArgument { op: "conv2d", .. }
        ));
    }
    let cut = Options {
        padding: 9,
        ..TRANSPOSED
    };
    for (x, kernel, options) in [
        (&[1, 2, 5][..], &[3, 2, 0][..], PLAIN),
        (&[1, 2, 0], &[2, 3, 3], TRANSPOSED),
        (&[1, 2, 5], &[2, 3, 3], cut),
    ] {
        assert!(matches!(
            run(DType::F32, x, kernel, options, None),
            Error::InvalidArgument { .. }
        ));
    }
    assert!(matches!(
        run(DType::F32, x, kernel, PLAIN, Some(Method::Product)),
        Error::InvalidArgument { .. }
    ));
    let huge = usize::MAX / 2;
    for options in [
        with(huge, 1, 1),
        with(1 << 40, 1, 1),
        with(0, 1, huge),
        Options {
            stride: huge,
            ..TRANSPOSED
        },
        Options {
            output_padding: huge,
            ..TRANSPOSED
        },
    ] {
        let kernel = &[2, 2, 4, 4][..];
        assert!(matches!(
            run(DType::F32, x, kernel, options, None),
            Error::TooLarge { .. } | Error::InvalidArgument { .. }
        ));
    }
    // 2^31-1 squared positions of a tensor that never was.
    let wide = Options {
        padding: 1 << 29,
        ..PLAIN
    };
    assert!(matches!(
        run(DType::F64, &[1 << 7, 1, 1, 1], &[1, 1, 1, 1], wide, None),
        Error::TooLarge { op: "conv2d", .. }
    ));
    let strides = [1; 4];
    let mixed = conv2d(
        &device,
        &View::contiguous(&storage, DType::F32, &[1; 4], &strides),
        &View::contiguous(&storage, DType::F16, &[1; 4], &strides),
        Conv::default(),
    );
    assert!(matches!(mixed, Err(Error::DTypeMismatch { .. })));
}

/// Strides beyond 32 bits along dimensions of one element count for nothing.
#[test]
fn huge_options_without_effect() {
    let device = device();
    let huge = Options {
        stride: 1 << 32,
        dilation: 1 << 32,
        ..TRANSPOSED
    };
    check_random::<f32>(&device, &[2, 3, 1, 1], 4, &[1, 1], CONTIGUOUS, huge);
    let forward = Options {
        transposed: false,
        ..huge
    };
    check_random::<f32>(&device, &[2, 3, 5, 4], 4, &[1, 1], CONTIGUOUS, forward);
}
