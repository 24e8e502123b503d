//! Rotary embeddings against f64 on the host.

mod common;

use candle_rocm::ops::rope::{rope, rope_i, rope_i_thd, rope_thd};
use candle_rocm::{Buffer, Device, Error, Result, View};
use common::*;
use half::{bf16, f16};

/// The exact values, rounded to the dtype.
fn rounded<T: Element>(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    values
        .into_iter()
        .map(|v| T::from_f64(v).to_f64())
        .collect()
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Half,
    Interleaved,
    TimeHeads,
    InterleavedTimeHeads,
}

impl Kind {
    const ALL: [Kind; 4] = [
        Kind::Half,
        Kind::Interleaved,
        Kind::TimeHeads,
        Kind::InterleavedTimeHeads,
    ];

    fn is_interleaved(self) -> bool {
        matches!(self, Kind::Interleaved | Kind::InterleavedTimeHeads)
    }

    fn has_time_first(self) -> bool {
        matches!(self, Kind::TimeHeads | Kind::InterleavedTimeHeads)
    }

    fn run(self, device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
        match self {
            Kind::Half => rope(device, x, cos, sin),
            Kind::Interleaved => rope_i(device, x, cos, sin),
            Kind::TimeHeads => rope_thd(device, x, cos, sin),
            Kind::InterleavedTimeHeads => rope_i_thd(device, x, cos, sin),
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
        let time = match kind.has_time_first() {
            true => row / third % second,
            false => row % third,
        };
        for i in 0..half {
            let (a, b) = match kind.is_interleaved() {
                true => (row * size + 2 * i, row * size + 2 * i + 1),
                false => (row * size + i, row * size + i + half),
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
    for kind in Kind::ALL {
        for dims in [
            [1, 1, 1, 2],
            [2, 3, 1, 8],
            [2, 3, 5, 6],
            [3, 4, 7, 64],
            [2, 0, 3, 4],
        ] {
            let [batch, second, third, size] = dims;
            let time = if kind.has_time_first() { second } else { third };
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
fn rope_in_four_orders() {
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
        (Kind::InterleavedTimeHeads, [1, time, heads, 128]),
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
fn what_is_refused() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f32; 16], &[1, 2, 2, 4]);
    let doubles = HostTensor::contiguous(vec![1f64; 16], &[4, 4]);
    let table = HostTensor::contiguous(vec![1f32; 2], &[1, 2]);
    let (xb, db, cb) = (
        x.upload(&device),
        doubles.upload(&device),
        table.upload(&device),
    );
    let x = x.view(&xb);
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
