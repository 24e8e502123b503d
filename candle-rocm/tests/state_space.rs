//! Recurrences over states against plain loops in f64: rows that lie apart, several sequences, states kept and reused.

mod common;

use candle_rocm::ops::state_space::{
    gated_recurrence, selective_scan, wkv7, Gated, Selective, Wkv7,
};
use candle_rocm::ops::Sequences;
use candle_rocm::{Buffer, DType, Device, Error, Result, View};
use common::*;
use half::{bf16, f16};

/// Sequences behind each other: rows, the slot that each starts from, and slots of the last rows.
struct Batch {
    starts: Vec<u32>,
    from: Vec<u32>,
    to: Vec<u32>,
}

impl Batch {
    fn new(sequences: &[(usize, u32, &[u32])]) -> Self {
        let (mut starts, mut from, mut to) = (vec![0], Vec::new(), Vec::new());
        for (rows, slot, after) in sequences {
            from.push(*slot);
            to.resize(to.len() + rows - after.len(), NO_SLOT);
            to.extend_from_slice(after);
            starts.push(to.len() as u32);
        }
        Self { starts, from, to }
    }

    /// A new sequence, one that goes on and keeps states on the way, one of padding, one that goes on where another
    /// has been.
    fn mixed() -> Self {
        Self::new(&[
            (7, NO_SLOT, &[0]),
            (5, 1, &[3, NO_SLOT, 1]),
            (1, NO_SLOT, &[NO_SLOT]),
            (1, 2, &[2]),
        ])
    }

    fn rows(&self) -> usize {
        self.to.len()
    }

    fn run(
        &self,
        device: &Device,
        scan: impl FnOnce(&Sequences) -> Result<Buffer>,
    ) -> Result<Buffer> {
        let [starts, from, to] = [&self.starts, &self.from, &self.to].map(|n| upload(device, n));
        let lengths = [self.starts.len(), self.from.len(), self.to.len()];
        let view = |buffer, n: usize| View::contiguous(buffer, DType::U32, &lengths[n..=n], &[1]);
        scan(&Sequences {
            starts: view(&starts, 0),
            from: view(&from, 1),
            to: view(&to, 2),
            longest: self.rows(),
        })
    }

    /// Walks all rows with states of `size` numbers.
    fn walk(&self, states: &mut [f64], size: usize, mut step: impl FnMut(usize, bool, &mut [f64])) {
        let before = states.to_vec();
        for (sequence, from) in self.from.iter().enumerate() {
            let mut state = match *from {
                NO_SLOT => vec![0.0; size],
                slot => before[slot as usize * size..][..size].to_vec(),
            };
            let first = self.starts[sequence] as usize;
            for row in first..self.starts[sequence + 1] as usize {
                step(row, row == first && *from == NO_SLOT, &mut state);
                if self.to[row] != NO_SLOT {
                    states[self.to[row] as usize * size..][..size].copy_from_slice(&state);
                }
            }
        }
    }
}

const SLOTS: usize = 4;
/// In place of a slot.
const NO_SLOT: u32 = u32::MAX;

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn f64s<T: Element>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| v.to_f64()).collect()
}

/// Sizes of a selective scan.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    size: usize,
    groups: usize,
    width: usize,
    by_state: bool,
}

/// Random operands; rows of `x`, `b` and `c` are parts of one tensor's, as a convolution leaves them.
struct Operands<T> {
    sizes: Sizes,
    rows: usize,
    packed: Vec<T>,
    dt: Vec<T>,
    a: Vec<f32>,
    d: Vec<f32>,
    bias: Vec<f32>,
    states: Vec<f32>,
}

impl<T: Element> Operands<T> {
    fn new(sizes: Sizes, rows: usize) -> Self {
        let mut rng = Rng::new(5);
        let Sizes {
            heads, size, width, ..
        } = sizes;
        let rates = if sizes.by_state { heads * width } else { heads };
        Self {
            sizes,
            rows,
            packed: rng.vec(rows * Self::row(sizes), -1.5, 1.5),
            dt: rng.vec(rows * heads, -6.0, 3.0),
            a: rng.vec(rates, -4.0, -0.01),
            d: rng.vec(heads, -1.0, 1.0),
            bias: rng.vec(heads, -1.0, 1.0),
            states: rng.vec(SLOTS * heads * size * width, -1.0, 1.0),
        }
    }

    fn row(sizes: Sizes) -> usize {
        sizes.heads * sizes.size + 2 * sizes.groups * sizes.width
    }

    /// What the device gives and keeps.
    fn run(&self, device: &Device, batch: &Batch, limits: (f32, f32)) -> (Vec<T>, Vec<f32>) {
        let Sizes {
            heads,
            size,
            groups,
            width,
            by_state,
        } = self.sizes;
        let row = Self::row(self.sizes);
        let packed = upload(device, &self.packed);
        let dt = upload(device, &self.dt);
        let floats = [&self.a, &self.d, &self.bias, &self.states].map(|v| upload(device, v));
        let [a, d, bias, states] = &floats;
        let part = |offset, dims, strides| View {
            buffer: &packed,
            dtype: T::DTYPE,
            offset,
            dims,
            strides,
        };
        let (x_dims, x_strides) = ([self.rows, heads, size], [row, size, 1]);
        let (b_dims, b_strides) = ([self.rows, groups, width], [row, width, 1]);
        let (dt_dims, s_dims) = ([self.rows, heads], [SLOTS, heads, size, width]);
        let a_dims: &[usize] = if by_state { &[heads, width] } else { &[heads] };
        let (dt_strides, a_strides) = (row_major(&dt_dims), row_major(a_dims));
        let s_strides = row_major(&s_dims);
        let scan = Selective {
            x: part(0, &x_dims, &x_strides),
            b: part(heads * size, &b_dims, &b_strides),
            c: part(heads * size + groups * width, &b_dims, &b_strides),
            dt: View::contiguous(&dt, T::DTYPE, &dt_dims, &dt_strides),
            a: View::contiguous(a, DType::F32, a_dims, &a_strides),
            d: View::contiguous(d, DType::F32, &a_dims[..1], &[1]),
            dt_bias: Some(View::contiguous(bias, DType::F32, &a_dims[..1], &[1])),
            limits,
        };
        let kept = View::contiguous(states, DType::F32, &s_dims, &s_strides);
        let y = batch
            .run(device, |slots| selective_scan(device, &scan, &kept, slots))
            .unwrap();
        (download(device, &y), download(device, states))
    }

    fn oracle(&self, batch: &Batch, limits: (f32, f32)) -> (Vec<f64>, Vec<f64>) {
        let Sizes {
            heads,
            size,
            groups,
            width,
            by_state,
        } = self.sizes;
        let row_size = Self::row(self.sizes);
        let packed = f64s(&self.packed);
        let mut states = f64s(&self.states);
        let mut y = vec![0.0; self.rows * heads * size];
        batch.walk(&mut states, heads * size * width, |row, _, state| {
            let packed = &packed[row * row_size..];
            for channel in 0..heads * size {
                let head = channel / size;
                let step =
                    softplus(self.dt[row * heads + head].to_f64() + f64::from(self.bias[head]));
                let step = step.clamp(limits.0.into(), limits.1.into());
                let b = heads * size + head / (heads / groups) * width;
                let c = b + groups * width;
                let mut sum = f64::from(self.d[head]) * packed[channel];
                for n in 0..width {
                    let rate = self.a[if by_state { head * width + n } else { head }];
                    let element = &mut state[channel * width + n];
                    *element = (step * f64::from(rate)).exp() * *element
                        + step * packed[channel] * packed[b + n];
                    sum += *element * packed[c + n];
                }
                y[row * heads * size + channel] = sum;
            }
        });
        (y, states)
    }
}

fn selective<T: Element>(device: &Device, limit: f64) {
    let head = |heads, size, groups, width| Sizes {
        heads,
        size,
        groups,
        width,
        by_state: false,
    };
    let own = |heads, width| Sizes {
        heads,
        size: 1,
        groups: 1,
        width,
        by_state: true,
    };
    let batch = Batch::mixed();
    for sizes in [
        head(3, 8, 1, 16),
        head(4, 64, 2, 32),
        head(6, 20, 3, 128),
        head(4, 4, 1, 64),
        head(2, 4, 1, 256),
        own(68, 16),
        own(12, 64),
    ] {
        for limits in [(0.0, f32::INFINITY), (0.02, 0.7)] {
            let operands = Operands::<T>::new(sizes, batch.rows());
            let (y, states) = operands.run(device, &batch, limits);
            let (want, kept) = operands.oracle(&batch, limits);
            let what = format!("{} of {} states", T::DTYPE, sizes.width);
            assert_close(&y, &want, limit, &what);
            assert_close(&states, &kept, NMSE_LIMIT, &format!("states of {what}"));
        }
    }
}

#[test]
fn selective_scans_of_heads_and_of_channels() {
    let device = device();
    selective::<f32>(&device, NMSE_LIMIT);
    selective::<f16>(&device, 1e-6);
    selective::<bf16>(&device, 1e-4);
}

/// A sequence gives the same bits alone and among others, at once and in two parts.
#[test]
fn results_depend_on_the_sequence_alone() {
    let device = device();
    let sizes = Sizes {
        heads: 4,
        size: 12,
        groups: 2,
        width: 32,
        by_state: false,
    };
    let limits = (0.0, f32::INFINITY);
    let together = Batch::new(&[(4, NO_SLOT, &[3]), (6, 1, &[0])]);
    let mut all = Operands::<f32>::new(sizes, together.rows());
    let (y, states) = all.run(&device, &together, limits);
    let row = Operands::<f32>::row(sizes);
    let channels = sizes.heads * sizes.size;
    let mut found = Vec::new();
    for (first, rows, from, to) in [(4, 2, 1, 2), (6, 4, 2, 0)] {
        let part = Operands {
            sizes,
            rows,
            packed: all.packed[first * row..][..rows * row].to_vec(),
            dt: all.dt[first * sizes.heads..][..rows * sizes.heads].to_vec(),
            a: all.a.clone(),
            d: all.d.clone(),
            bias: all.bias.clone(),
            states: all.states.clone(),
        };
        let (y, states) = part.run(&device, &Batch::new(&[(rows, from, &[to])]), limits);
        found.extend(y);
        all.states = states;
    }
    assert_exact(&found, &y[4 * channels..], "results in parts");
    let size = channels * sizes.width;
    assert_exact(&all.states[..size], &states[..size], "the state behind all");
}

#[test]
fn matrices_of_rwkv() {
    let device = device();
    let batch = Batch::mixed();
    for heads in [1, 3] {
        let size = 64;
        let dims = [batch.rows(), heads, size];
        let count = dims.iter().product();
        let mut rng = Rng::new(8);
        let ranges = [
            (-1.0, 1.0),
            (0.3, 1.0),
            (-1.0, 0.8),
            (-0.5, 1.0),
            (-0.2, 0.1),
            (-0.1, 0.2),
        ];
        let values = ranges.map(|(low, high)| rng.vec::<f32>(count, low, high));
        let states: Vec<f32> = rng.vec(SLOTS * heads * size * size, -1.0, 1.0);
        let [r, w, k, v, a, b] = &values;
        let (mut want, mut kept) = (vec![0.0; count], f64s(&states));
        batch.walk(&mut kept, heads * size * size, |row, _, state| {
            for line in 0..heads * size {
                let first = (row * heads + line / size) * size;
                let of = |x: &[f32], n: usize| f64::from(x[first + n]);
                let state = &mut state[line * size..][..size];
                let dot: f64 = (0..size).map(|n| state[n] * of(a, n)).sum();
                let value = f64::from(v[row * heads * size + line]);
                for (n, element) in state.iter_mut().enumerate() {
                    *element = *element * of(w, n) + dot * of(b, n) + value * of(k, n);
                }
                want[row * heads * size + line] = (0..size).map(|n| state[n] * of(r, n)).sum();
            }
        });
        let buffers = values.each_ref().map(|v| upload(&device, v));
        let strides = row_major(&dims);
        let [r, w, k, v, a, b] = buffers
            .each_ref()
            .map(|buffer| View::contiguous(buffer, DType::F32, &dims, &strides));
        let scan = Wkv7 { r, w, k, v, a, b };
        let states = upload(&device, &states);
        let dims = [SLOTS, heads, size, size];
        let strides = row_major(&dims);
        let view = View::contiguous(&states, DType::F32, &dims, &strides);
        let y = batch.run(&device, |slots| wkv7(&device, &scan, &view, slots));
        let y: Vec<f32> = download(&device, &y.unwrap());
        assert_close(&y, &want, NMSE_LIMIT, &format!("{heads} heads"));
        let states: Vec<f32> = download(&device, &states);
        assert_close(
            &states,
            &kept,
            NMSE_LIMIT,
            &format!("states of {heads} heads"),
        );
    }
}

fn gated<T: Element>(device: &Device, limit: f64) {
    let batch = Batch::mixed();
    for channels in [1, 96, 301] {
        let mut rng = Rng::new(6);
        let dims = [batch.rows(), channels];
        let count = batch.rows() * channels;
        let values = [(-2.0, 2.0), (-2.0, 2.0), (-3.0, 3.0)]
            .map(|(low, high)| rng.vec::<T>(count, low, high));
        let rates: Vec<f32> = rng.vec(channels, 0.001, 0.6);
        let states: Vec<f32> = rng.vec(SLOTS * channels, -1.0, 1.0);
        let [x, input, recurrent] = values.each_ref().map(|v| f64s(v));
        let (mut want, mut kept) = (vec![0.0; count], f64s(&states));
        batch.walk(&mut kept, channels, |row, begins, state| {
            for (channel, element) in state.iter_mut().enumerate() {
                let at = row * channels + channel;
                let decay = (-8.0 * sigmoid(recurrent[at]) * f64::from(rates[channel])).exp();
                let root = if begins {
                    1.0
                } else {
                    (1.0 - decay * decay).sqrt()
                };
                *element = decay * *element + x[at] * sigmoid(input[at]) * root;
                want[at] = *element;
            }
        });
        let buffers = values.each_ref().map(|v| upload(device, v));
        let (rates, states) = (upload(device, &rates), upload(device, &states));
        let strides = row_major(&dims);
        let [x, input_gate, recurrent_gate] = buffers
            .each_ref()
            .map(|buffer| View::contiguous(buffer, T::DTYPE, &dims, &strides));
        let scan = Gated {
            x,
            input_gate,
            recurrent_gate,
            rates: View::contiguous(&rates, DType::F32, &dims[1..], &[1]),
        };
        let (kept_dims, kept_strides) = ([SLOTS, channels], [channels, 1]);
        let view = View::contiguous(&states, DType::F32, &kept_dims, &kept_strides);
        let y = batch.run(device, |slots| {
            gated_recurrence(device, &scan, &view, slots)
        });
        let y: Vec<T> = download(device, &y.unwrap());
        assert_close(
            &y,
            &want,
            limit,
            &format!("{} of {channels} channels", T::DTYPE),
        );
        let states: Vec<f32> = download(device, &states);
        assert_close(
            &states,
            &kept,
            NMSE_LIMIT,
            &format!("states of {channels} channels"),
        );
    }
}

#[test]
fn gated_recurrences_of_griffin() {
    let device = device();
    gated::<f32>(&device, NMSE_LIMIT);
    gated::<f16>(&device, 1e-6);
    gated::<bf16>(&device, 1e-4);
}

#[test]
fn what_kernels_cannot_do_is_refused() {
    let device = device();
    let buffer = upload(&device, &vec![0f32; 4096]);
    let scan = |heads: usize, size: usize, width: usize| {
        let (x_dims, b_dims) = ([1, heads, size], [1, 1, width]);
        let s_dims = [1, heads, size, width];
        let (x_strides, b_strides) = (row_major(&x_dims), row_major(&b_dims));
        let s_strides = row_major(&s_dims);
        let view = |dims, strides| View::contiguous(&buffer, DType::F32, dims, strides);
        let dt_strides = [heads, 1];
        let b = view(&b_dims, &b_strides);
        let scan = Selective {
            x: view(&x_dims, &x_strides),
            dt: view(&x_dims[..2], &dt_strides),
            b,
            c: b,
            a: view(&x_dims[1..2], &[1]),
            d: view(&x_dims[1..2], &[1]),
            dt_bias: None,
            limits: (0.0, f32::INFINITY),
        };
        let states = view(&s_dims, &s_strides);
        Batch::new(&[(1, NO_SLOT, &[0])]).run(&device, |slots| {
            selective_scan(&device, &scan, &states, slots)
        })
    };
    assert!(scan(2, 8, 16).is_ok());
    for (heads, size, width) in [(2, 6, 16), (1, 4, 24)] {
        let error = scan(heads, size, width).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
}
