//! Softmax against f64 on the host.

mod common;

use candle_rocm::ops::norm::rms_norm;
use candle_rocm::ops::softmax::softmax_last_dim;
use candle_rocm::{Device, Error};
use common::*;
use half::{bf16, f16};

const SOFTMAX_LIMIT: f64 = 1e-6;

/// The exact values, rounded to the dtype.
fn rounded<T: Element>(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    values
        .into_iter()
        .map(|v| T::from_f64(v).to_f64())
        .collect()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = row.iter().map(|v| (v - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

fn rows_of<T: Element>(tensor: &HostTensor<T>, row: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let columns = *tensor.dims.last().unwrap();
    let values: Vec<f64> = tensor.values().iter().map(|v| v.to_f64()).collect();
    rounded::<T>(values.chunks(columns.max(1)).flat_map(row))
}

/// Row lengths around packs, a wave, what a wave keeps in registers (512 or 1024), what the largest block keeps (16384
/// of f32, 32768 of narrow types), and beyond.
const COLUMNS: [usize; 14] = [
    1, 2, 7, 33, 64, 257, 511, 513, 1000, 1025, 4096, 16_384, 20_001, 33_008,
];

fn softmaxes<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for columns in COLUMNS {
        for (layout, rows) in [
            (Layout::Contiguous, 3),
            (Layout::Narrowed, 5),
            (Layout::Transposed, 2),
        ] {
            let dims = [rows, columns];
            let x = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, -8.0, 8.0));
            let buffer = x.upload(device);
            let got = softmax_last_dim(device, &x.view(&buffer)).unwrap();
            let what = format!("softmax {} {dims:?} {layout:?}", T::DTYPE);
            assert_close(
                &download::<T>(device, &got),
                &rows_of(&x, softmax),
                SOFTMAX_LIMIT,
                &what,
            );
        }
    }
    for layout in Layout::ALL {
        let x = HostTensor::<T>::with_layout(&[2, 3, 37], layout, |n| rng.vec(n, -8.0, 8.0));
        let buffer = x.upload(device);
        let got = softmax_last_dim(device, &x.view(&buffer)).unwrap();
        let what = format!("softmax {} {layout:?}", T::DTYPE);
        assert_close(
            &download::<T>(device, &got),
            &rows_of(&x, softmax),
            SOFTMAX_LIMIT,
            &what,
        );
    }
}

#[test]
fn softmax_of_any_width() {
    let device = device();
    softmaxes::<f16>(&device);
    softmaxes::<bf16>(&device);
    softmaxes::<f32>(&device);
    softmaxes::<f64>(&device);
}

#[test]
fn softmax_of_infinities_and_nan_is_candles() {
    let device = device();
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for columns in [4, 3000, 20_000] {
        let mut rows: Vec<Vec<f32>> = vec![vec![-inf; columns]; 5];
        rows[0][1..3].fill(0.5); // masked: two places share the weight
        rows[1][2] = -3e38; // alone
        rows[2][0] = inf;
        rows[3] = vec![1.0; columns];
        rows[3][columns - 1] = nan;
        let x = HostTensor::contiguous(rows.concat(), &[5, columns]);
        let buffer = x.upload(&device);
        let got: Vec<f32> = download(
            &device,
            &softmax_last_dim(&device, &x.view(&buffer)).unwrap(),
        );
        let got: Vec<&[f32]> = got.chunks(columns).collect();
        let masked = [[0.0, 0.5, 0.5].as_slice(), &vec![0.0; columns - 3]].concat();
        assert_eq!(got[0], masked);
        assert_eq!((got[1][2], got[1].iter().sum::<f32>()), (1.0, 1.0));
        for row in &got[2..] {
            assert!(row.iter().all(|v| v.is_nan()), "{:?}", &row[..4]);
        }
    }
}

#[test]
fn softmax_of_large_values_does_not_overflow() {
    let device = device();
    let x = HostTensor::contiguous(vec![1e30f32, 1e30, -1e30, 0.0], &[1, 4]);
    let buffer = x.upload(&device);
    let got: Vec<f32> = download(
        &device,
        &softmax_last_dim(&device, &x.view(&buffer)).unwrap(),
    );
    assert_eq!(got, [0.5, 0.5, 0.0, 0.0]);
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    // Eight rows a block where waves are 32 wide.
    let rows = 8 * 65_600;
    let x = HostTensor::contiguous(
        (0..rows * 2).map(|i| (i % 11) as f32).collect::<Vec<_>>(),
        &[rows, 2],
    );
    let buffer = x.upload(&device);
    let got = softmax_last_dim(&device, &x.view(&buffer)).unwrap();
    assert_close(
        &download::<f32>(&device, &got),
        &rows_of(&x, softmax),
        SOFTMAX_LIMIT,
        "many rows",
    );
    // A block each; every row is the same one.
    let (rows, columns) = (66_000, 520);
    let x = HostTensor::with_layout(&[rows, columns], Layout::BroadcastFirst, |n| {
        vec![f16::ONE; n]
    });
    let weight = HostTensor::contiguous(vec![f16::from_f32(3.0); columns], &[columns]);
    let (x_buffer, weight_buffer) = (x.upload(&device), weight.upload(&device));
    let got = rms_norm(
        &device,
        &x.view(&x_buffer),
        &weight.view(&weight_buffer),
        0.0,
    )
    .unwrap();
    let mut bytes = vec![0; got.len()];
    device.download(&got, 0, &mut bytes).unwrap();
    assert_eq!(bytes.len(), rows * columns * 2);
    assert_eq!(
        bytes,
        to_bytes(&[f16::from_f32(3.0)]).repeat(rows * columns)
    );
}

#[test]
fn softmax_reads_wide_rows_twice_at_most_and_sees_their_end() {
    let device = device();
    // The largest value is the last, after a thread's sum was rescaled many times; all before it are in ascending
    // order.
    let columns = 40_000;
    let values: Vec<f32> = (0..columns).map(|i| (i / 16) as f32 * 0.01).collect();
    let x = HostTensor::contiguous(values, &[1, columns]);
    let buffer = x.upload(&device);
    let got: Vec<f32> = download(
        &device,
        &softmax_last_dim(&device, &x.view(&buffer)).unwrap(),
    );
    assert_close(&got, &rows_of(&x, softmax), SOFTMAX_LIMIT, "ascending");
}

#[test]
fn zero_sizes() {
    let device = device();
    for dims in [[0, 5], [5, 0]] {
        let x = HostTensor::<f32>::contiguous(vec![], &dims);
        let buffer = x.upload(&device);
        let got = softmax_last_dim(&device, &x.view(&buffer)).unwrap();
        assert!(got.is_empty());
    }
}

#[test]
fn what_is_refused() {
    let device = device();
    let ints = HostTensor::contiguous(vec![1i32; 16], &[4, 4]);
    let scalar = HostTensor::contiguous(vec![1f32], &[]);
    let (ib, sb) = (ints.upload(&device), scalar.upload(&device));
    assert!(matches!(
        softmax_last_dim(&device, &ints.view(&ib)),
        Err(Error::UnsupportedDType { .. })
    ));
    assert!(matches!(
        softmax_last_dim(&device, &scalar.view(&sb)),
        Err(Error::InvalidArgument { .. })
    ));
}
