//! Softmax and rotary embeddings against f64 on the host.

mod common;

use candle_rocm::ops::nn::{rms_norm, rope, rope_i, rope_thd, softmax_last_dim};
use candle_rocm::{Buffer, Device, Error, Result, View};
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

/// Row lengths around packs, a wave, what a wave keeps in registers (512 or 1024), what the largest block keeps (16384 of f32, 32768 of
/// narrow types), and beyond.
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

#[derive(Clone, Copy, Debug)]
enum Kind {
    Half,
    Interleaved,
    TimeHeads,
}

impl Kind {
    fn run(self, device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
        match self {
            Kind::Half => rope(device, x, cos, sin),
            Kind::Interleaved => rope_i(device, x, cos, sin),
            Kind::TimeHeads => rope_thd(device, x, cos, sin),
        }
    }
}

fn rotated<T: Element>(
    kind: Kind,
    x: &HostTensor<T>,
    cos: &HostTensor<T>,
    sin: &HostTensor<T>,
) -> Vec<f64> {
    let [_, second, third, size] = x.dims[..] else {
        unreachable!()
    };
    let half = size / 2;
    let values: Vec<f64> = x.values().iter().map(|v| v.to_f64()).collect();
    let (cos_values, sin_values) = (cos.values(), sin.values());
    let at = |table: &HostTensor<T>, batch: usize, time: usize, i: usize| {
        let batched = table.dims.len() == 3;
        (if batched { batch * table.dims[1] } else { 0 } + time) * half + i
    };
    let mut out = vec![0.0; values.len()];
    for row in 0..values.len() / size {
        let batch = row / (second * third);
        let time = match kind {
            Kind::TimeHeads => row / third % second,
            _ => row % third,
        };
        for i in 0..half {
            let (a, b) = match kind {
                Kind::Interleaved => (row * size + 2 * i, row * size + 2 * i + 1),
                _ => (row * size + i, row * size + i + half),
            };
            let c = cos_values[at(cos, batch, time, i)].to_f64();
            let s = sin_values[at(sin, batch, time, i)].to_f64();
            out[a] = values[a] * c - values[b] * s;
            out[b] = values[a] * s + values[b] * c;
        }
    }
    rounded::<T>(out)
}

fn ropes<T: Element>(device: &Device) {
    let mut rng = Rng::new(3);
    for kind in [Kind::Half, Kind::Interleaved, Kind::TimeHeads] {
        for dims in [
            [1, 1, 1, 2],
            [2, 3, 1, 8],
            [2, 3, 5, 6],
            [3, 4, 7, 64],
            [2, 0, 3, 4],
        ] {
            let [batch, second, third, size] = dims;
            let time = if matches!(kind, Kind::TimeHeads) {
                second
            } else {
                third
            };
            for table_dims in [
                vec![time, size / 2],
                vec![time + 3, size / 2],
                vec![batch, time, size / 2],
                vec![batch, time + 2, size / 2],
            ] {
                for layout in [
                    Layout::Contiguous,
                    Layout::Offset,
                    Layout::Transposed,
                    Layout::Narrowed,
                    Layout::BroadcastFirst,
                ] {
                    let x = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, -2.0, 2.0));
                    let table_layout = if layout == Layout::Contiguous {
                        Layout::Contiguous
                    } else {
                        Layout::Narrowed
                    };
                    let cos = HostTensor::<T>::with_layout(&table_dims, table_layout, |n| {
                        rng.vec(n, -1.0, 1.0)
                    });
                    let sin = HostTensor::<T>::with_layout(&table_dims, Layout::Offset, |n| {
                        rng.vec(n, -1.0, 1.0)
                    });
                    let (xb, cb, sb) = (x.upload(device), cos.upload(device), sin.upload(device));
                    let what = format!(
                        "{kind:?} {} {dims:?} {layout:?} table {table_dims:?}",
                        T::DTYPE
                    );
                    let got = kind
                        .run(device, &x.view(&xb), &cos.view(&cb), &sin.view(&sb))
                        .unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_close(
                        &download::<T>(device, &got),
                        &rotated(kind, &x, &cos, &sin),
                        NMSE_LIMIT,
                        &what,
                    );
                }
            }
        }
    }
}

#[test]
fn rope_in_three_orders() {
    let device = device();
    ropes::<f16>(&device);
    ropes::<bf16>(&device);
    ropes::<f32>(&device);
    ropes::<f64>(&device);
}

#[test]
fn rope_of_many_pairs_shares_tables_between_heads() {
    let device = device();
    let mut rng = Rng::new(4);
    // An odd number of heads and just enough pairs.
    let (heads, time) = (3, 10_923);
    for (kind, dims) in [
        (Kind::Half, [1, heads, time, 128]),
        (Kind::TimeHeads, [1, time, heads, 128]),
    ] {
        let x = HostTensor::<f16>::contiguous(rng.vec(heads * time * 128, -2.0, 2.0), &dims);
        let mut table = || HostTensor::contiguous(rng.vec(time * 64, -1.0, 1.0), &[time, 64]);
        let (cos, sin) = (table(), table());
        let (xb, cb, sb) = (x.upload(&device), cos.upload(&device), sin.upload(&device));
        let got = kind
            .run(&device, &x.view(&xb), &cos.view(&cb), &sin.view(&sb))
            .unwrap();
        assert_close(
            &download::<f16>(&device, &got),
            &rotated(kind, &x, &cos, &sin),
            NMSE_LIMIT,
            &format!("{kind:?} {dims:?}"),
        );
    }
}

#[test]
fn softmax_reads_wide_rows_twice_at_most_and_sees_their_end() {
    let device = device();
    // The largest value is the last, after a thread's sum was rescaled many times; all before it are in ascending order.
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
    let x = HostTensor::contiguous(vec![1f32; 16], &[1, 2, 2, 4]);
    let ints = HostTensor::contiguous(vec![1i32; 16], &[4, 4]);
    let doubles = HostTensor::contiguous(vec![1f64; 16], &[4, 4]);
    let scalar = HostTensor::contiguous(vec![1f32], &[]);
    let table = HostTensor::contiguous(vec![1f32; 2], &[1, 2]);
    let (xb, ib, db, sb, cb) = (
        x.upload(&device),
        ints.upload(&device),
        doubles.upload(&device),
        scalar.upload(&device),
        table.upload(&device),
    );
    let x = x.view(&xb);
    assert!(matches!(
        softmax_last_dim(&device, &ints.view(&ib)),
        Err(Error::UnsupportedDType { .. })
    ));
    assert!(matches!(
        softmax_last_dim(&device, &scalar.view(&sb)),
        Err(Error::InvalidArgument { .. })
    ));
    // The table is shorter than the input in time.
    let table = table.view(&cb);
    assert!(matches!(
        rope(&device, &x, &table, &table),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        rope(&device, &doubles.view(&db), &table, &table),
        Err(Error::InvalidArgument { .. })
    ));
}
