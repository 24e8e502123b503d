//! Products by our own kernels: every dtype, layout, stride and size against a product in f64, and when they take
//! rocBLAS's place.

mod common;
mod installation;
mod isolated;

use candle_rocm::blas::{self, matmul, Class, Size};
use candle_rocm::config::{Config, Multiplier, Path};
use candle_rocm::ops::quantized::{linear, Epilogue, Format, QuantizedMatrix};
use candle_rocm::{precompile, CodeObject, DType, Device, Error};
use common::{assert_close, assert_exact, download, Element, HostTensor, Rng};
use half::{bf16, f16};
use installation::rocm_without;
use isolated::in_child;

/// A device whose products are our own kernels'.
fn device() -> Device {
    let config = Config {
        matmul: Some(Multiplier::Own),
        ..Config::from_env().unwrap()
    };
    Device::with_config(0, config).unwrap()
}

/// How the last two dimensions of an operand lie.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Rows,
    Columns,
    /// Neither rows nor columns are dense.
    Apart,
    /// Rows that begin one element after each other.
    Windows,
    /// One row for all.
    Repeated,
}

const LIES: [Lie; 5] = [
    Lie::Rows,
    Lie::Columns,
    Lie::Apart,
    Lie::Windows,
    Lie::Repeated,
];

/// An operand of which everything that the view does not reach is NaN, or does not exist.
fn operand<T: Element>(rng: &mut Rng, dims: [usize; 3], lie: Lie) -> HostTensor<T> {
    let [batch, rows, columns] = dims;
    let gap = rng.below(3) * rng.below(5);
    let (row, column) = match lie {
        Lie::Rows => (columns + gap, 1),
        Lie::Columns => (1, rows + gap),
        Lie::Apart => (2 * columns + gap, 2),
        Lie::Windows => (1, 1),
        Lie::Repeated => (0, 1),
    };
    let span = (rows - 1) * row + (columns - 1) * column + 1;
    let batch_stride = [span + gap, 0][rng.below(4) / 3];
    let offset = rng.below(6);
    let mut tensor = HostTensor {
        storage: vec![T::from_f64(f64::NAN); offset + (batch - 1) * batch_stride + span],
        offset,
        dims: dims.to_vec(),
        strides: vec![batch_stride, row, column],
    };
    for at in tensor.positions() {
        tensor.storage[at] = T::from_f64(rng.uniform(-1.0, 1.0));
    }
    tensor
}

/// The product in f64 of the values as the dtype holds them.
fn product<T: Element>(lhs: &HostTensor<T>, rhs: &HostTensor<T>) -> Vec<f64> {
    let (&[b, m, k], &[_, _, n]) = (&lhs.dims[..], &rhs.dims[..]) else {
        panic!()
    };
    let f64s = |tensor: &HostTensor<T>| -> Vec<f64> {
        tensor.values().iter().map(|v| v.to_f64()).collect()
    };
    let (x, y) = (f64s(lhs), f64s(rhs));
    let mut out = vec![0.0; b * m * n];
    for i in 0..b {
        for row in 0..m {
            for l in 0..k {
                let factor = x[(i * m + row) * k + l];
                let line = &y[(i * k + l) * n..][..n];
                for (sum, v) in out[(i * m + row) * n..].iter_mut().zip(line) {
                    *sum += factor * v;
                }
            }
        }
    }
    out
}

/// Multiplies twice, by results that must be the same, and compares with f64.
fn check<T: Element>(device: &Device, lhs: &HostTensor<T>, rhs: &HostTensor<T>, limit: f64) {
    let (&[b, m, k], &[_, _, n]) = (&lhs.dims[..], &rhs.dims[..]) else {
        panic!()
    };
    let (left, right) = (lhs.upload(device), rhs.upload(device));
    let multiply = || {
        let (left, right) = (lhs.view(&left), rhs.view(&right));
        download::<T>(
            device,
            &matmul(device, T::DTYPE, (b, m, n, k), &left, &right).unwrap(),
        )
    };
    let what = format!(
        "{} {:?}/{:?} x {:?}/{:?}",
        T::DTYPE,
        lhs.dims,
        lhs.strides,
        rhs.dims,
        rhs.strides
    );
    let got = multiply();
    assert_close(&got, &product(lhs, rhs), limit, &what);
    assert_exact(&got, &multiply(), &what);
}

/// Around the edges of tiles, packs and steps.
const SIZES: [usize; 18] = [
    1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 150,
];

fn sweep<T: Element>(device: &Device, seed: u64, cases: usize, limit: f64) {
    let mut rng = Rng::new(seed);
    for _ in 0..cases {
        let [m, n, k] = [(); 3].map(|()| SIZES[rng.below(SIZES.len())]);
        let b = [1, 1, 2, 3][rng.below(4)];
        let (left, right) = (LIES[rng.below(5)], LIES[rng.below(5)]);
        let lhs = operand::<T>(&mut rng, [b, m, k], left);
        let rhs = operand::<T>(&mut rng, [b, k, n], right);
        check(device, &lhs, &rhs, limit);
    }
}

#[test]
fn any_shape_and_stride() {
    let device = device();
    sweep::<f32>(&device, 1, 60, 1e-12);
    sweep::<f64>(&device, 2, 40, 1e-27);
    sweep::<f16>(&device, 3, 60, 1e-6);
    sweep::<bf16>(&device, 4, 60, 1e-4);
}

/// Matrices and vectors, with rows for waves and for blocks, and lengths that are no whole packs.
fn vectors<T: Element>(device: &Device, limit: f64) {
    let mut rng = Rng::new(5);
    for k in [256, 259, 2051] {
        for few in [1, 3, 4, 5, 8] {
            for many in [1, 9, 33] {
                for [m, n] in [[few, many], [many, few]] {
                    let lhs = operand::<T>(&mut rng, [2, m, k], Lie::Rows);
                    let rhs = operand::<T>(&mut rng, [2, k, n], Lie::Columns);
                    check(device, &lhs, &rhs, limit);
                }
            }
        }
    }
}

#[test]
fn a_matrix_times_a_few_vectors() {
    let device = device();
    vectors::<f32>(&device, 1e-12);
    vectors::<f64>(&device, 1e-27);
    vectors::<f16>(&device, 1e-6);
    vectors::<bf16>(&device, 1e-4);
}

/// Few rows and columns with a long inner dimension, which is cut into parts.
fn parts<T: Element>(device: &Device, limit: f64) {
    let mut rng = Rng::new(6);
    for (b, m, n, k) in [(1, 12, 20, 5000), (3, 70, 9, 1100), (2, 33, 40, 769)] {
        for (left, right) in [
            (Lie::Rows, Lie::Columns),
            (Lie::Rows, Lie::Rows),
            (Lie::Columns, Lie::Rows),
        ] {
            let lhs = operand::<T>(&mut rng, [b, m, k], left);
            let rhs = operand::<T>(&mut rng, [b, k, n], right);
            check(device, &lhs, &rhs, limit);
        }
    }
}

#[test]
fn a_long_inner_dimension_in_parts() {
    let device = device();
    parts::<f32>(&device, 1e-11);
    parts::<f64>(&device, 1e-27);
    parts::<f16>(&device, 1e-6);
    parts::<bf16>(&device, 1e-4);
}

/// Enough tiles for large ones.
fn large<T: Element>(device: &Device, limit: f64) {
    let mut rng = Rng::new(7);
    let units = device.properties().compute_units as usize;
    // Twice, for GPUs that count units by two.
    let b = (2 * 2 * units).div_ceil(4).min(80);
    for (left, right) in [(Lie::Rows, Lie::Columns), (Lie::Columns, Lie::Rows)] {
        let lhs = operand::<T>(&mut rng, [b, 131, 40], left);
        let rhs = operand::<T>(&mut rng, [b, 40, 140], right);
        check(device, &lhs, &rhs, limit);
    }
}

#[test]
fn large_tiles() {
    let device = device();
    large::<f32>(&device, 1e-12);
    large::<f16>(&device, 1e-6);
    large::<bf16>(&device, 1e-4);
}

#[test]
fn results_of_16_bits_may_be_f32() {
    // Quantized weights as bf16: the same operands for both, and results that are not rounded.
    let weights: Vec<u8> = (0..130 * 256 / 32 * 34)
        .map(|i| (i * 37 % 64) as u8)
        .collect();
    let mut rng = Rng::new(9);
    for vectors in [3, 70] {
        let x = HostTensor::contiguous(rng.vec::<f32>(vectors * 256, -1.0, 1.0), &[vectors, 256]);
        let by = |who| {
            let config = Config {
                matmul: Some(who),
                quantized: Some(Path::Bf16),
                ..Config::from_env().unwrap()
            };
            let device = Device::with_config(0, config).unwrap();
            let weights = device.upload(&weights).unwrap();
            let weights = QuantizedMatrix::new(Format::Q8_0, &weights, 130, 256);
            let buffer = x.upload(&device);
            let y = linear(&device, &weights, &x.view(&buffer), &Epilogue::default()).unwrap();
            download::<f32>(&device, &y)
        };
        let want: Vec<f64> = by(Multiplier::Rocblas).iter().map(|v| *v as f64).collect();
        assert_close(&by(Multiplier::Own), &want, 1e-12, "Q8_0 as bf16");
    }
}

#[test]
fn infinities_and_nan_stay_where_they_belong() {
    let device = device();
    let mut lhs = vec![1.0f32; 20 * 33];
    (lhs[3 * 33 + 32], lhs[7 * 33]) = (f32::INFINITY, f32::NAN);
    let lhs = HostTensor::contiguous(lhs, &[1, 20, 33]);
    let rhs = HostTensor::contiguous(vec![1.0f32; 33 * 10], &[1, 33, 10]);
    check(&device, &lhs, &rhs, 1e-12);
}

// ---------------------------------------------------------------- who multiplies

/// Multiplies on a device that the environment configures.
fn multiply_by_default() -> Device {
    let device = common::device();
    let mut rng = Rng::new(8);
    let lhs = operand::<f16>(&mut rng, [1, 9, 20], Lie::Rows);
    let rhs = operand::<f16>(&mut rng, [1, 20, 30], Lie::Columns);
    check(&device, &lhs, &rhs, 1e-6);
    device
}

const CLASS: Class = Class {
    dtype: DType::F16,
    transposed: [false, true],
    size: Size::Narrow,
};

#[test]
fn rocblas_multiplies_where_it_has_kernels() {
    let name = "rocblas_multiplies_where_it_has_kernels";
    in_child(name, &[], || {
        let device = multiply_by_default();
        assert_eq!(blas::refusal(&device), None);
        assert_eq!(blas::multiplier(&device, CLASS), Multiplier::Rocblas);
        assert_eq!(precompile::own_products(&device, &CodeObject::all()), []);
    });
}

#[test]
fn rocblas_without_kernels_for_the_gpu_is_not_called() {
    let name = "rocblas_without_kernels_for_the_gpu_is_not_called";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("TensileLibrary_lazy_gfx000.dat"), "").unwrap();
    let environment = [("ROCBLAS_TENSILE_LIBPATH", folder.path().to_str().unwrap())];
    in_child(name, &environment, || {
        let device = multiply_by_default();
        let refusal = blas::refusal(&device).expect("no kernels");
        let folder = std::env::var("ROCBLAS_TENSILE_LIBPATH").unwrap();
        for word in [device.properties().arch.as_str(), &folder, "Install"] {
            assert!(refusal.contains(word), "{refusal}");
        }
        assert_eq!(blas::multiplier(&device, CLASS), Multiplier::Own);
        let wanted: [CodeObject; 2] =
            ["norm.hip f16", "fill.hip"].map(|text| text.parse().unwrap());
        let foreseen = precompile::own_products(&device, &wanted);
        let foreseen: Vec<String> = foreseen.iter().map(ToString::to_string).collect();
        assert_eq!(foreseen, ["matmul/gemm.hip f16", "matmul/gemv.hip f16"]);
        blas::prepare(&device).unwrap();
        assert!(blas::tune(&device, (64, 64)).unwrap().is_empty());
    });
}

#[test]
fn products_need_no_rocblas() {
    let name = "products_need_no_rocblas";
    let rocm = rocm_without("rocblas");
    in_child(
        name,
        &[("ROCM_PATH", rocm.path().to_str().unwrap())],
        || {
            let device = multiply_by_default();
            let refusal = blas::refusal(&device).expect("no library");
            assert!(refusal.starts_with("librocblas was not found"), "{refusal}");
            blas::prepare(&device).unwrap();
            // Who insists on it is told that it is not there.
            let config = Config {
                matmul: Some(Multiplier::Rocblas),
                ..*device.config()
            };
            let device = Device::with_config(0, config).unwrap();
            let x = HostTensor::contiguous(vec![1.0f32; 4], &[2, 2]);
            let buffer = x.upload(&device);
            let x = x.view(&buffer);
            let error = matmul(&device, DType::F32, (1, 2, 2, 2), &x, &x).unwrap_err();
            assert!(matches!(error, Error::Load(_)), "{error:?}");
            assert!(matches!(blas::prepare(&device), Err(Error::Load(_))));
        },
    );
}

const HIPBLASLT: &str = "ROCBLAS_USE_HIPBLASLT";

fn hipblaslt_is(name: &str, environment: &[(&str, &str)], expected: Option<&str>) {
    in_child(name, environment, || {
        blas::prepare(&common::device()).unwrap();
        assert_eq!(std::env::var(HIPBLASLT).ok().as_deref(), expected);
    });
}

#[test]
fn gfx12_multiplies_without_hipblaslt() {
    let name = "gfx12_multiplies_without_hipblaslt";
    hipblaslt_is(name, &[("HIP_SIM_ARCH", "gfx1201")], Some("0"));
}

#[test]
fn hipblaslt_is_the_users_choice() {
    let environment = [("HIP_SIM_ARCH", "gfx1201"), (HIPBLASLT, "1")];
    hipblaslt_is("hipblaslt_is_the_users_choice", &environment, Some("1"));
}

#[test]
fn other_gpus_are_left_to_rocblas() {
    let environment = [("HIP_SIM_ARCH", "gfx942")];
    hipblaslt_is("other_gpus_are_left_to_rocblas", &environment, None);
}

#[test]
fn what_is_measured_decides_until_it_is_forgotten() {
    let name = "what_is_measured_decides_until_it_is_forgotten";
    let folder = tempfile::tempdir().unwrap();
    let environment = [("CANDLE_ROCM_CACHE_DIR", folder.path().to_str().unwrap())];
    in_child(name, &environment, || {
        let device = common::device();
        let timings = blas::tune(&device, (64, 96)).unwrap();
        assert_eq!(timings.len(), 3 * 2 * 3);
        for timing in &timings {
            assert!(!timing.rocblas.is_zero() && !timing.own.is_zero());
            let faster = match timing.own < timing.rocblas {
                true => Multiplier::Own,
                false => Multiplier::Rocblas,
            };
            assert_eq!(timing.taken, faster);
            // Products as small as these fall into fewer classes, and the last of each counts.
            let of_class = timings.iter().rev().find(|t| t.class == timing.class);
            let taken = of_class.map(|timing| timing.taken);
            assert_eq!(Some(blas::multiplier(&device, timing.class)), taken);
        }
        let files = std::fs::read_dir(std::env::var_os("CANDLE_ROCM_CACHE_DIR").unwrap());
        let names = files.unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        let is_ours = |name: &&String| name.starts_with("matmul-") && name.ends_with(".tsv");
        assert_eq!(names.iter().filter(is_ours).count(), 1, "{names:?}");
        blas::forget(&device).unwrap();
        for timing in &timings {
            assert_eq!(blas::multiplier(&device, timing.class), Multiplier::Rocblas);
        }
    });
}
