//! Paths that `CANDLE_ROCM_QMATMUL` forces, and what is refused.

use super::*;

/// `linear` of several numbers of columns, in a process in which a path is forced.
fn check_forced(format: Format, columns: &[usize], limit: f64) {
    let device = device();
    let mut rng = Rng::new(13);
    let weights = Weights::new(&device, format, 19, 256, &mut rng);
    for &columns in columns {
        let x = HostTensor::contiguous(rng.vec::<f32>(columns * 256, -1.0, 1.0), &[columns, 256]);
        let buffer = x.upload(&device);
        let bias = HostTensor::contiguous(vec![0.5f32; 19], &[19]);
        let bias_buffer = bias.upload(&device);
        let epilogue = Epilogue {
            bias: Some(bias.view(&bias_buffer)),
            ..Epilogue::default()
        };
        let y = linear(&device, &weights.matrix(), &x.view(&buffer), &epilogue).unwrap();
        let want: Vec<f64> = product(&weights, &exact(&x.storage))
            .into_iter()
            .map(|v| v + 0.5)
            .collect();
        assert_close::<f32>(&download(&device, &y), &want, limit, &format!("{columns}"));
    }
}

#[test]
fn forced_to_dequantize() {
    let environment = [(Path::VARIABLE, "dequantize")];
    // No activation is quantized on this path, so its error is that of f32.
    isolated::in_child("paths::forced_to_dequantize", &environment, || {
        check_forced(Format::Q3K, &[1, 8, 9], SUMMED);
    });
}

#[test]
fn forced_to_bf16() {
    let environment = [(Path::VARIABLE, "bf16")];
    isolated::in_child("paths::forced_to_bf16", &environment, || {
        check_forced(Format::Q4K, &[1, 8, 33], ROUNDED);
    });
}

#[test]
fn a_matrix_larger_than_what_is_dequantized_at_a_time() {
    let environment = [(Path::VARIABLE, "bf16")];
    let name = "paths::a_matrix_larger_than_what_is_dequantized_at_a_time";
    isolated::in_child(name, &environment, || {
        let device = device();
        let mut rng = Rng::new(17);
        // 256 such rows are 128 MiB of bf16. Few of them differ, in a number that does not divide 256.
        let (rows, cols, distinct) = (300, 1 << 18, 7);
        let few = Weights::new(&device, Format::Q4_0, distinct, cols, &mut rng);
        let row_bytes = cols / 32 * 18;
        let buffer = device.alloc(rows * row_bytes).unwrap();
        for row in 0..rows {
            let from = few.offset + row % distinct * row_bytes;
            device
                .copy(&few.buffer, from, &buffer, row * row_bytes, row_bytes)
                .unwrap();
        }
        let x = HostTensor::contiguous(rng.vec::<f32>(2 * cols, -1.0, 1.0), &[2, cols]);
        let x_buffer = x.upload(&device);
        let weights = QuantizedMatrix::new(Format::Q4_0, &buffer, rows, cols);
        let y = linear(&device, &weights, &x.view(&x_buffer), &Epilogue::default()).unwrap();
        let sums = product(&few, &exact(&x.storage));
        let want: Vec<f64> = (0..2 * rows)
            .map(|i| sums[i / rows * distinct + i % rows % distinct])
            .collect();
        assert_close::<f32>(&download(&device, &y), &want, ROUNDED, "in parts");
    });
}

#[test]
fn forced_to_matmul() {
    let environment = [(Path::VARIABLE, "matmul")];
    isolated::in_child("paths::forced_to_matmul", &environment, || {
        check_forced(Format::Q2K, &[1, 8, 33], QUANTIZED);
    });
}

#[test]
fn forced_to_matvec_refuses_more_columns() {
    let environment = [(Path::VARIABLE, "matvec")];
    isolated::in_child(
        "paths::forced_to_matvec_refuses_more_columns",
        &environment,
        || {
            check_forced(Format::Q4K, &[1, 8], QUANTIZED);
            let device = device();
            let weights = Weights::new(&device, Format::Q4K, 2, 256, &mut Rng::new(1));
            let x = device.alloc_zeroed(9 * 256 * 4).unwrap();
            let (dims, strides) = ([9, 256], [256, 1]);
            let x = View::contiguous(&x, DType::F32, &dims, &strides);
            let error = linear(&device, &weights.matrix(), &x, &Epilogue::default()).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("9 vectors"), "{error}");
        },
    );
}

#[test]
fn an_unknown_path_is_an_error() {
    let environment = [(Path::VARIABLE, "fast")];
    isolated::in_child("paths::an_unknown_path_is_an_error", &environment, || {
        let error = candle_rocm::Device::new(0).unwrap_err().to_string();
        assert!(
            error.contains("\"fast\" is not auto, matvec") && error.contains(Path::VARIABLE),
            "{error}"
        );
    });
}

#[test]
fn nothing_gives_nothing_or_zeros() {
    let device = device();
    let weights = device.alloc_zeroed(18).unwrap();
    let x = device.alloc_zeroed(20 * 32 * 4).unwrap();
    let run = |rows, cols, dims: &[usize]| {
        let strides = common::row_major(dims);
        let x = View::contiguous(&x, DType::F32, dims, &strides);
        let weights = QuantizedMatrix::new(Format::Q4_0, &weights, rows, cols);
        let y = linear(&device, &weights, &x, &Epilogue::default()).unwrap();
        download::<f32>(&device, &y)
    };
    assert!(run(0, 32, &[2, 32]).is_empty());
    assert!(run(1, 32, &[0, 32]).is_empty());
    assert_eq!(run(3, 0, &[2, 0]), [0.0; 6]);
    assert_eq!(run(3, 0, &[20, 0]), [0.0; 60]);
}

#[test]
fn misuse_is_a_typed_error() {
    use Format::{F16, Q4_0};
    let device = device();
    let weights = device.alloc_zeroed(4 * 18).unwrap();
    let x = device.alloc_zeroed(9 * 64 * 8).unwrap();
    let quantize = |dtype, dims: &[usize]| {
        let strides = common::row_major(dims);
        QuantizedActivations::quantize(&device, &View::contiguous(&x, dtype, dims, &strides))
    };
    let run = |format, rows, cols, columns: usize| {
        let x = quantize(DType::F32, &[columns, cols]).unwrap();
        let weights = QuantizedMatrix::new(format, &weights, rows, cols);
        matvec(&device, &weights, &x, &Epilogue::default(), DType::F32).unwrap_err()
    };
    let error = quantize(DType::F64, &[1, 64]).unwrap_err();
    let is_f64 = matches!(error, Error::UnsupportedDType { dtype, .. } if dtype == DType::F64);
    assert!(is_f64, "{error}");
    let error = quantize(DType::F32, &[1, 48]).unwrap_err();
    assert!(error.to_string().contains("multiples of 32"), "{error}");
    let error = quantize(DType::F32, &[]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");

    let error = run(Q4_0, 2, 64, 9);
    assert!(error.to_string().contains("at most 8"), "{error}");
    let error = run(F16, 1, 32, 1);
    assert!(
        error.to_string().contains("f16 is not a quantized format"),
        "{error}"
    );
    let error = run(Q4_0, 3, 64, 1);
    assert!(
        matches!(error, Error::OutOfBounds { bytes: 108, .. }),
        "{error}"
    );

    let matrix = QuantizedMatrix::new(Q4_0, &weights, 2, 64);
    let short = quantize(DType::F32, &[1, 32]).unwrap();
    let fits = quantize(DType::F32, &[1, 64]).unwrap();
    let none = Epilogue::default();
    for multiply in [matvec, matmul] {
        let error = multiply(&device, &matrix, &short, &none, DType::F32).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        let error = multiply(&device, &matrix, &fits, &none, DType::F64).unwrap_err();
        assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
        let (dims, strides) = ([3], [1]);
        let epilogue = |dtype| Epilogue {
            bias: Some(View::contiguous(&x, dtype, &dims, &strides)),
            ..Epilogue::default()
        };
        let error = multiply(&device, &matrix, &fits, &epilogue(DType::F32), DType::F32);
        assert!(
            matches!(error, Err(Error::ShapeMismatch { .. })),
            "{error:?}"
        );
        let error = multiply(&device, &matrix, &fits, &epilogue(DType::F16), DType::F32);
        assert!(
            matches!(error, Err(Error::DTypeMismatch { .. })),
            "{error:?}"
        );
    }
    let another = Device::new(0).unwrap();
    let error = matvec(&another, &matrix, &fits, &none, DType::F32).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
}
