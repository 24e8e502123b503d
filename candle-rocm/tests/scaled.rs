//! Products of plain tensors of 8-bit floats, with scales of every kind, against f64.

mod common;
mod float8_oracle;

use candle_rocm::ops::scaled::{scaled_matmul, Scales, BLOCK};
use candle_rocm::{Buffer, DType, Device, Error, View};
use common::{assert_close, device, download, upload, Element, HostTensor, Layout, Rng};
use float8::F8E4M3;
use float8_oracle::{finite, product, ROUNDED, SUMMED};
use half::{bf16, f16};

/// How an operand is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tensor,
    Rows,
    Blocks,
}

const KINDS: [Kind; 3] = [Kind::Tensor, Kind::Rows, Kind::Blocks];

/// `[batches, rows, k]` with their scales, on the host.
struct Operand {
    floats: HostTensor<F8E4M3>,
    kind: Kind,
    scales: Vec<f32>,
    /// Rows that share a scale of blocks.
    shared: usize,
}

impl Operand {
    fn new(dims: [usize; 3], layout: Layout, kind: Kind, shared: usize, rng: &mut Rng) -> Self {
        let [batches, rows, k] = dims;
        let floats = HostTensor::with_layout(&dims, layout, |n| finite(rng, n));
        let count = match kind {
            Kind::Tensor => 1,
            Kind::Rows => batches * rows,
            Kind::Blocks => batches * rows.div_ceil(shared) * k.div_ceil(BLOCK),
        };
        Operand {
            floats,
            kind,
            scales: rng.vec(count, 0.01, 2.0),
            shared,
        }
    }

    /// The elements with their scales applied.
    fn values(&self) -> Vec<f64> {
        let &[_, rows, k] = &self.floats.dims[..] else {
            panic!("three dimensions")
        };
        let (lines, blocks) = (rows.div_ceil(self.shared), k.div_ceil(BLOCK));
        let scale = |i: usize| match self.kind {
            Kind::Tensor => self.scales[0],
            Kind::Rows => self.scales[i / k],
            Kind::Blocks => {
                let line = i / k / rows * lines + i / k % rows / self.shared;
                self.scales[line * blocks + i % k / BLOCK]
            }
        };
        let values = self.floats.values();
        let values = values.iter().enumerate();
        values
            .map(|(i, v)| v.to_f64() * f64::from(scale(i)))
            .collect()
    }
}

/// With scales and bias as views of device memory.
fn multiply(device: &Device, a: &Operand, b: &Operand, bias: Option<&[f32]>, to: DType) -> Buffer {
    let buffers = [a, b].map(|o| (o.floats.upload(device), upload(device, &o.scales)));
    let lengths = [[a.scales.len()], [b.scales.len()]];
    let scales = |i: usize, kind| {
        let view = View::contiguous(&buffers[i].1, DType::F32, &lengths[i], &[1]);
        match kind {
            Kind::Tensor => Scales::Tensor(view),
            Kind::Rows => Scales::Rows(view),
            Kind::Blocks => Scales::Blocks(view),
        }
    };
    let bias_len = [bias.map_or(0, <[f32]>::len)];
    let bias = bias.map(|bias| match to {
        DType::F16 => upload(
            device,
            &bias.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>(),
        ),
        DType::BF16 => upload(
            device,
            &bias.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>(),
        ),
        _ => upload(device, bias),
    });
    let bias = bias
        .as_ref()
        .map(|buffer| View::contiguous(buffer, to, &bias_len, &[1]));
    let (scale_a, scale_b) = (scales(0, a.kind), scales(1, b.kind));
    let one = b.floats.dims[0] == 1;
    let view_b = b.floats.view(&buffers[1].0);
    let view_b = View {
        dims: if one { &view_b.dims[1..] } else { view_b.dims },
        strides: if one {
            &view_b.strides[1..]
        } else {
            view_b.strides
        },
        ..view_b
    };
    let view_a = a.floats.view(&buffers[0].0);
    scaled_matmul(
        device,
        &view_a,
        &view_b,
        &scale_a,
        &scale_b,
        bias.as_ref(),
        to,
    )
    .unwrap()
}

fn check<T: Element>(device: &Device, a: &Operand, b: &Operand, bias: Option<&[f32]>, limit: f64) {
    let (&[batches, m, k], &[_, n, _]) = (&a.floats.dims[..], &b.floats.dims[..]) else {
        panic!("three dimensions")
    };
    let mut want = product(&a.values(), &b.values(), [batches, m, n, k]);
    if let Some(bias) = bias {
        for (i, sum) in want.iter_mut().enumerate() {
            *sum += T::from_f32(bias[i % n]).to_f64();
        }
    }
    let what = format!(
        "{batches} x {m} x {n} x {k} {:?} {:?} {}",
        a.kind,
        b.kind,
        T::DTYPE
    );
    let got = download::<T>(device, &multiply(device, a, b, bias, T::DTYPE));
    assert_close(&got, &want, limit, &what);
}

#[test]
fn scales_are_those_of_tensors_rows_and_blocks() {
    let device = device();
    let mut rng = Rng::new(1);
    for kind_a in KINDS {
        for kind_b in KINDS {
            // Tiles and parts of them, K with and without a part of a block or of a load.
            for [m, n, k] in [[3, 130, 300], [70, 67, 256], [1, 1, 1], [17, 9, 77]] {
                let a = Operand::new([1, m, k], Layout::Contiguous, kind_a, 1, &mut rng);
                let b = Operand::new([1, n, k], Layout::Contiguous, kind_b, BLOCK, &mut rng);
                check::<f32>(&device, &a, &b, None, SUMMED);
            }
        }
    }
}

#[test]
fn results_are_of_any_float_and_have_a_bias() {
    let device = device();
    let mut rng = Rng::new(2);
    let a = Operand::new([1, 20, 200], Layout::Contiguous, Kind::Rows, 1, &mut rng);
    let b = Operand::new(
        [1, 30, 200],
        Layout::Contiguous,
        Kind::Blocks,
        BLOCK,
        &mut rng,
    );
    let bias: Vec<f32> = rng.vec(30, -90.0, 90.0);
    for bias in [None, Some(&bias[..])] {
        check::<f32>(&device, &a, &b, bias, SUMMED);
        check::<bf16>(&device, &a, &b, bias, ROUNDED);
    }
    // Sums that f16 has.
    let [mut a, mut b] = [a, b];
    a.scales.iter_mut().for_each(|scale| *scale *= 1e-3);
    b.scales.iter_mut().for_each(|scale| *scale *= 1e-2);
    check::<f16>(&device, &a, &b, Some(&bias), ROUNDED);
}

#[test]
fn operands_have_any_layout_and_matrices_are_many_or_one() {
    let device = device();
    let mut rng = Rng::new(3);
    for layout in [Layout::Offset, Layout::Transposed, Layout::Narrowed] {
        let a = Operand::new([2, 11, 140], layout, Kind::Blocks, 1, &mut rng);
        for matrices in [1, 2] {
            let b = Operand::new([matrices, 131, 140], layout, Kind::Blocks, BLOCK, &mut rng);
            check::<f32>(&device, &a, &b, None, SUMMED);
            let b = Operand::new([matrices, 13, 140], layout, Kind::Rows, BLOCK, &mut rng);
            check::<f32>(&device, &a, &b, None, SUMMED);
        }
    }
}

#[test]
fn large_tiles_are_right_too() {
    // As many as make the simulated GPU take tiles of 128.
    let device = device();
    let units = device.properties().compute_units as usize;
    let mut rng = Rng::new(4);
    let n = 129 + 128 * units.min(16);
    for kind in [Kind::Tensor, Kind::Blocks] {
        let a = Operand::new([1, 250, 200], Layout::Contiguous, kind, 1, &mut rng);
        let b = Operand::new([1, n, 200], Layout::Contiguous, kind, BLOCK, &mut rng);
        check::<f32>(&device, &a, &b, None, SUMMED);
    }
}

/// On hardware with another bias, the bits of NaN are numbers and those of -0 are NaN.
#[test]
fn nan_spreads_along_its_row_and_column_and_minus_zero_does_not() {
    let device = device();
    let (m, n, k) = (20, 70, 130);
    let mut rng = Rng::new(5);
    let mut a = Operand::new([1, m, k], Layout::Contiguous, Kind::Tensor, 1, &mut rng);
    let mut b = Operand::new([1, n, k], Layout::Contiguous, Kind::Tensor, 1, &mut rng);
    a.floats.storage[3 * k..4 * k].fill(F8E4M3::from_bits(0x80));
    a.floats.storage[5 * k + 129] = F8E4M3::from_bits(0x7f);
    b.floats.storage[66 * k] = F8E4M3::from_bits(0xff);
    let got = download::<f32>(&device, &multiply(&device, &a, &b, None, DType::F32));
    let want = product(&a.values(), &b.values(), [1, m, n, k]);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!(got.is_nan(), i / n == 5 || i % n == 66, "{i}: {got}");
        assert_eq!(got.is_nan(), want.is_nan(), "{i}");
    }
    assert!((0..66).all(|column| got[3 * n + column] == 0.0));
}

#[test]
fn every_float_is_what_it_is() {
    // Each times one: exact, subnormal ones included.
    let device = device();
    let all: Vec<F8E4M3> = (0..=255).map(F8E4M3::from_bits).collect();
    for m in [256, 3] {
        let mut one = Operand::new(
            [1, m, 1],
            Layout::Contiguous,
            Kind::Tensor,
            1,
            &mut Rng::new(6),
        );
        let mut floats = Operand::new(
            [1, 256, 1],
            Layout::Contiguous,
            Kind::Tensor,
            1,
            &mut Rng::new(6),
        );
        one.floats.storage.fill(F8E4M3::from_f32(1.0));
        floats.floats.storage.copy_from_slice(&all);
        (one.scales[0], floats.scales[0]) = (1.0, 1.0);
        let got = download::<f32>(&device, &multiply(&device, &one, &floats, None, DType::F32));
        for (i, got) in got.iter().enumerate() {
            let want = all[i % 256].to_f32();
            assert!(
                *got == want || got.is_nan() && want.is_nan(),
                "{i}: {got} instead of {want}"
            );
        }
    }
}

#[test]
fn without_elements_there_is_nothing_or_the_bias() {
    let device = device();
    let mut rng = Rng::new(7);
    let bias = [1.5f32, -2.0];
    for [m, n, k] in [[0, 2, 3], [3, 0, 4], [3, 2, 0]] {
        for kind in KINDS {
            let a = Operand::new([1, m, k], Layout::Contiguous, kind, 1, &mut rng);
            let b = Operand::new([1, n, k], Layout::Contiguous, kind, BLOCK, &mut rng);
            let y = multiply(&device, &a, &b, Some(&bias[..n]), DType::F32);
            let got = download::<f32>(&device, &y);
            assert_eq!(got, [bias; 3].concat()[..m * n]);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = device();
    let floats = upload(&device, &[F8E4M3::from_f32(1.0); 12]);
    let scales = upload(&device, &[1f32; 8]);
    let view = |dims: &'static [usize], strides: &'static [usize]| {
        View::contiguous(&floats, DType::F8E4M3, dims, strides)
    };
    let numbers = |dims: &'static [usize], strides: &'static [usize]| {
        View::contiguous(&scales, DType::F32, dims, strides)
    };
    let one = Scales::Tensor(numbers(&[1], &[1]));
    let a = view(&[2, 6], &[6, 1]);
    let run = |b: &View, scale_a: &Scales, bias: Option<&View>, to| {
        scaled_matmul(&device, &a, b, scale_a, &one, bias, to)
            .map(drop)
            .unwrap_err()
    };
    let other = view(&[3, 4], &[4, 1]);
    assert!(matches!(
        run(&other, &one, None, DType::F32),
        Error::ShapeMismatch { .. }
    ));
    let batched = view(&[3, 1, 6], &[6, 6, 1]);
    let batched = View {
        dims: &[2, 1, 6],
        ..batched
    };
    assert!(matches!(
        run(&batched, &one, None, DType::F32),
        Error::ShapeMismatch { .. }
    ));
    let error = run(&a, &Scales::Rows(numbers(&[3], &[1])), None, DType::F32).to_string();
    assert!(
        error.contains("these operands have 2 of this kind"),
        "{error}"
    );
    let spread = View {
        strides: &[2],
        ..numbers(&[2], &[1])
    };
    assert!(matches!(
        run(&a, &Scales::Rows(spread), None, DType::F32),
        Error::InvalidArgument { .. }
    ));
    let error = run(
        &a,
        &Scales::Rows(View {
            dtype: DType::F8E4M3,
            ..numbers(&[2], &[1])
        }),
        None,
        DType::F32,
    );
    assert!(matches!(error, Error::DTypeMismatch { .. }));
    assert!(matches!(
        run(&a, &one, None, DType::U32),
        Error::UnsupportedDType { .. }
    ));
    let bias = numbers(&[3], &[1]);
    assert!(matches!(
        run(&a, &one, Some(&bias), DType::F32),
        Error::ShapeMismatch { .. }
    ));
    let wide = View {
        dtype: DType::F32,
        ..numbers(&[2, 4], &[4, 1])
    };
    assert!(matches!(
        run(&wide, &one, None, DType::F32),
        Error::UnsupportedDType { .. }
    ));
}
