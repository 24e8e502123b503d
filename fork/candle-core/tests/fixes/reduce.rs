//! Sums, extrema, powers and gradients: values in closed form, or PyTorch's.

use candle_core::{DType, Device, Result, Tensor, Var};

const CPU: Device = Device::Cpu;
const SMALL: [DType; 3] = [DType::F16, DType::BF16, DType::F8E4M3];
const HALVES: [DType; 2] = [DType::F16, DType::BF16];
const FLOATS: [DType; 5] = [
    DType::F8E4M3,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
];
const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

fn tensor(values: &[f64], dtype: DType) -> Result<Tensor> {
    Tensor::new(values, &CPU)?.to_dtype(dtype)
}

/// Equal, or both NaN; `within` is relative to the wanted value.
#[track_caller]
fn assert_near(got: &Tensor, want: &[f64], within: f64, what: &str) {
    let got = values(got).unwrap();
    assert_eq!(got.len(), want.len(), "{what}");
    for (g, w) in got.iter().zip(want) {
        let near = (g - w).abs() <= within * w.abs() || g == w || g.is_nan() && w.is_nan();
        assert!(near, "{what}: {got:?} instead of {want:?}");
    }
}

#[track_caller]
fn assert_same(got: &Tensor, want: &[f64], what: &str) {
    assert_near(got, want, 0., what)
}

/// The gradient of the sum of `f`'s outcome with respect to `x`.
fn gradient(x: &[f64], dtype: DType, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let x = Var::from_tensor(&tensor(x, dtype)?)?;
    let grads = f(x.as_tensor())?.sum_all()?.backward()?;
    Ok(grads.get(x.as_tensor()).expect("a gradient").clone())
}

/// `x` as the dtype has it.
fn rounded(x: f64, dtype: DType) -> Result<f64> {
    Ok(values(&tensor(&[x], dtype)?)?[0])
}

#[test]
fn long_sums() -> Result<()> {
    for dtype in SMALL {
        for count in [100, 1000, 5000] {
            let ones = Tensor::ones((2, count), dtype, &CPU)?;
            let want = rounded(count as f64, dtype)?;
            assert_same(&ones.sum(1)?, &[want; 2], "rows");
            assert_same(&ones.t()?.sum(0)?, &[want; 2], "columns of a view");
            assert_same(&ones.t()?.contiguous()?.sum(0)?, &[want; 2], "columns");
            assert_same(
                &ones.sum_keepdim((0, 1))?,
                &[rounded(2. * count as f64, dtype)?],
                "all",
            );
        }
    }
    // Where f32 stops growing, and where a few rounded additions would show.
    let ones = Tensor::ones((1, 1), DType::F32, &CPU)?.broadcast_as(((1 << 24) + 8, 1))?;
    assert_same(&ones.sum(0)?, &[16777224.], "2^24 + 8 ones");
    let tenths = Tensor::full(0.1f32, 1_000_000, &CPU)?;
    assert_near(&tenths.sum_all()?, &[0.1f32 as f64 * 1e6], 1e-7, "tenths");
    Ok(())
}

/// Any set of axes of any layout, against sums one after the other.
#[test]
fn sums_of_every_layout() -> Result<()> {
    let x = Tensor::arange(0f64, 2. * 3. * 4. * 5., &CPU)?.reshape((2, 3, 4, 5))?;
    let views = [
        x.clone(),
        x.permute((3, 1, 0, 2))?,
        x.narrow(2, 1, 2)?,
        x.narrow(3, 2, 1)?.broadcast_as((2, 3, 4, 5))?,
        x.t()?,
    ];
    for view in views {
        for axes in 0..16usize {
            let axes: Vec<usize> = (0..4).filter(|axis| axes >> axis & 1 == 1).collect();
            let mut want = view.contiguous()?;
            for &axis in &axes {
                let size = want.dim(axis)?;
                let slices = (0..size).map(|i| want.narrow(axis, i, 1));
                let slices: Vec<Tensor> = slices.collect::<Result<_>>()?;
                let mut sum = slices[0].clone();
                for slice in &slices[1..] {
                    sum = (sum + slice)?;
                }
                want = sum;
            }
            let got = view.sum_keepdim(axes.clone())?;
            assert_eq!(got.dims(), want.dims());
            assert_same(&got, &values(&want)?, &format!("{axes:?}"));
        }
    }
    assert_same(
        &Tensor::zeros((0, 2), DType::F16, &CPU)?.sum(0)?,
        &[0., 0.],
        "none",
    );
    assert_same(&Tensor::new(3i64, &CPU)?.sum_all()?, &[3.], "one");
    let bytes = Tensor::full(200u8, (3, 2), &CPU)?;
    assert_same(&bytes.sum(0)?, &[88., 88.], "wrapping");
    let large = Tensor::full(i64::MAX, 3, &CPU)?.sum_all()?;
    assert_eq!(large.to_scalar::<i64>()?, i64::MAX - 2);
    Ok(())
}

#[test]
fn means_do_not_overflow() -> Result<()> {
    for dtype in SMALL {
        let top = if dtype == DType::F8E4M3 { 400. } else { 60000. };
        let top = rounded(top, dtype)?;
        let many = tensor(&vec![top; 64], dtype)?.reshape((4, 16))?;
        assert_same(&many.mean_all()?, &[top], "mean_all");
        assert_same(&many.mean(0)?, &[top; 16], "mean");
        assert_same(&many.mean_keepdim((0, 1))?, &[top], "mean_keepdim");
        assert_same(
            &Tensor::ones(65520, dtype, &CPU)?.mean_all()?,
            &[1.],
            "ones",
        );
        let grad = gradient(&[top; 4], dtype, |x| x.mean(0))?;
        assert_same(&grad, &[0.25; 4], "gradient");
    }
    let huge = Tensor::full(3e38f32, 8, &CPU)?.mean_all()?;
    assert_same(&huge, &[3e38f32 as f64], "f32");
    assert_same(
        &Tensor::new(&[1i64, 2, 5], &CPU)?.mean_all()?,
        &[2.],
        "integers",
    );
    assert_same(
        &Tensor::new(&[-1i32, -2, -2], &CPU)?.mean(0)?,
        &[-1.],
        "integers",
    );
    assert_same(
        &Tensor::new(&[250u8, 252], &CPU)?.mean(0)?,
        &[251.],
        "bytes",
    );
    assert_same(
        &Tensor::zeros(0, DType::F32, &CPU)?.mean_all()?,
        &[NAN],
        "none",
    );
    Ok(())
}

#[test]
fn variances_norms_and_dots_do_not_overflow() -> Result<()> {
    let half = [vec![0.; 2048], vec![1.; 2048]].concat();
    for dtype in HALVES {
        assert_near(&tensor(&half, dtype)?.var(0)?, &[0.25], 0.01, "var");
        let x = tensor(&[300.; 16], dtype)?;
        assert_same(&x.norm()?, &[1200.], "norm");
        let y = tensor(&[[300.; 8], [-300.; 8]].concat(), dtype)?;
        assert_same(&x.dot(&y)?, &[0.], "dot");
        assert_same(
            &tensor(&[500., -500.], dtype)?.var(0)?,
            &[rounded(500000., dtype)?],
            "var",
        );
    }
    assert_same(
        &tensor(&[400.; 4], DType::F8E4M3)?.norm()?,
        &[448.],
        "saturates",
    );
    Ok(())
}

#[test]
fn pools_of_many_elements() -> Result<()> {
    for dtype in SMALL {
        let ones = Tensor::ones((1, 1, 64, 64), dtype, &CPU)?;
        assert_same(&ones.avg_pool2d(64)?, &[1.], "avg_pool2d");
    }
    let large = Tensor::full(60000f32, (1, 1, 4, 4), &CPU)?.to_dtype(DType::F16)?;
    assert_same(&large.avg_pool2d(4)?, &[60000.], "avg_pool2d");
    Ok(())
}

#[test]
fn many_rows_to_one_place() -> Result<()> {
    for dtype in SMALL {
        let count = if dtype == DType::F8E4M3 { 200 } else { 5000 };
        let want = rounded(count as f64, dtype)?;
        let ids = Tensor::zeros(count, DType::U32, &CPU)?;
        let ones = Tensor::ones((count, 2), dtype, &CPU)?;
        let zeros = Tensor::zeros((3, 2), dtype, &CPU)?;
        let got = zeros.index_add(&ids, &ones, 0)?;
        assert_same(&got, &[want, want, 0., 0., 0., 0.], "index_add");
        let each = ids.unsqueeze(1)?.broadcast_as((count, 2))?.contiguous()?;
        let got = zeros.scatter_add(&each, &ones, 0)?;
        assert_same(&got, &[want, want, 0., 0., 0., 0.], "scatter_add");
        let table = Var::from_tensor(&zeros)?;
        let grads = table.index_select(&ids, 0)?.sum_all()?.backward()?;
        let got = grads.get(&table).expect("a gradient");
        assert_same(got, &[want, want, 0., 0., 0., 0.], "gradient");
    }
    Ok(())
}

#[test]
fn products_of_f8e4m3() -> Result<()> {
    let dtype = DType::F8E4M3;
    // The sum of the first half is beyond 448, and every sum needs more than four bits on its way.
    let signs = [vec![16.; 64], vec![-16.; 64], vec![1.5]].concat();
    let count = signs.len();
    let lhs = tensor(&signs, dtype)?.reshape((1, count))?;
    let rhs = Tensor::ones((count, 3), dtype, &CPU)?;
    assert_same(&lhs.matmul(&rhs)?, &[1.5; 3], "matmul");
    // 17 is between 16 and 18, and rounds to even; 512 saturates.
    let rows = tensor(&[16., 1., 250., 250.], dtype)?.reshape((2, 2))?;
    let ones = Tensor::ones((2, 1), dtype, &CPU)?;
    assert_same(&rows.matmul(&ones)?, &[16., 448.], "rounding");
    // Views, and one matrix for a batch.
    let x = tensor(&[1., 2., 3., 4., 5., 6.], dtype)?.reshape((3, 2))?;
    let want = [1. + 9. + 25., 2. + 12. + 30., 44., 4. + 16. + 36.];
    let want = want.map(|v| rounded(v, dtype).unwrap());
    assert_same(&x.t()?.matmul(&x)?, &want, "transposed");
    let batch = Tensor::stack(&[x.t()?, x.t()?], 0)?;
    let got = batch.broadcast_matmul(&x)?;
    assert_same(&got, &[want, want].concat(), "batch");
    Ok(())
}

#[test]
fn products_of_f16() -> Result<()> {
    // The sum of the first half overflows.
    let signs = [vec![200.; 4096], vec![-200.; 4096], vec![1.]].concat();
    let count = signs.len();
    let lhs = tensor(&signs, DType::F16)?.reshape((1, count))?;
    let rhs = Tensor::ones((count, 3), DType::F16, &CPU)?;
    assert_same(&lhs.matmul(&rhs)?, &[1.; 3], "matmul");
    assert_same(
        &lhs.matmul(&rhs.t()?.contiguous()?.t()?)?,
        &[1.; 3],
        "of a view",
    );
    let batches = lhs.broadcast_as((2, 1, count))?;
    let each = rhs.broadcast_as((2, count, 3))?;
    assert_same(&batches.matmul(&each)?, &[1.; 6], "of batches");
    let image = lhs.reshape((1, count, 1, 1))?;
    let kernel = Tensor::ones((1, count, 1, 1), DType::F16, &CPU)?;
    assert_same(&image.conv2d(&kernel, 0, 1, 1, 1)?, &[1.], "conv2d");
    let ones = Tensor::ones((1, count, 1), DType::F16, &CPU)?;
    assert_same(
        &image.squeeze(3)?.conv1d(&ones, 0, 1, 1, 1)?,
        &[1.],
        "conv1d",
    );
    Ok(())
}

#[test]
fn transposed_convolutions_round_once() -> Result<()> {
    for dtype in HALVES {
        // 2048 (f16) or 256 (bf16) and seven ones come to one place.
        let large = if dtype == DType::F16 { 2048. } else { 256. };
        let x = tensor(&[large, 1., 1., 1., 1., 1., 1., 1.], dtype)?.reshape((1, 1, 8))?;
        let kernel = Tensor::ones((1, 1, 8), dtype, &CPU)?;
        let want = rounded(large + 7., dtype)?;
        let got = x
            .conv_transpose1d(&kernel, 0, 0, 1, 1, 1)?
            .narrow(2, 7, 1)?;
        assert_same(&got, &[want], "conv_transpose1d");
        let (x, kernel) = (x.unsqueeze(2)?, kernel.unsqueeze(2)?);
        let got = x.conv_transpose2d(&kernel, 0, 0, 1, 1)?.narrow(3, 7, 1)?;
        assert_same(&got, &[want], "conv_transpose2d");
    }
    Ok(())
}

#[test]
fn nan_is_the_extremum() -> Result<()> {
    let rows = [
        1., NAN, 3., 2., NAN, 1., 0., -1., 5., 4., 3., NAN, 1., 2., 0., 1.,
    ];
    for dtype in FLOATS {
        let x = tensor(&rows, dtype)?.reshape((4, 4))?;
        // Rows, columns of the transposed in memory, and a view of columns.
        let columns = x.t()?.contiguous()?;
        for (x, axis) in [(&x, 1), (&columns, 0), (&columns.t()?, 1)] {
            assert_same(&x.max(axis)?, &[NAN, NAN, NAN, 2.], "max");
            assert_same(&x.min(axis)?, &[NAN, NAN, NAN, 0.], "min");
            assert_same(&x.argmax(axis)?, &[1., 0., 3., 1.], "argmax");
            assert_same(&x.argmin(axis)?, &[1., 0., 3., 2.], "argmin");
        }
        assert_same(&x.max_all()?, &[NAN], "max_all");
        assert_same(&x.min_all()?, &[NAN], "min_all");
        let (a, b) = (
            tensor(&[0., NAN, 1., NAN], dtype)?,
            tensor(&[NAN, 0., 2., NAN], dtype)?,
        );
        assert_same(&a.maximum(&b)?, &[NAN, NAN, 2., NAN], "maximum");
        assert_same(&a.minimum(&b)?, &[NAN, NAN, 1., NAN], "minimum");
        assert_same(
            &a.broadcast_maximum(&tensor(&[NAN], dtype)?)?,
            &[NAN; 4],
            "scalar",
        );
        assert_same(
            &tensor(&[NAN, -1., 0., 2.], dtype)?.relu()?,
            &[NAN, 0., 0., 2.],
            "relu",
        );
        assert_same(&a.clamp(0.5, 0.75)?, &[0.5, NAN, 0.75, NAN], "clamp");
        let windows = x.reshape((1, 1, 4, 4))?.max_pool2d((1, 4))?;
        assert_same(&windows, &[NAN, NAN, NAN, 2.], "max_pool2d");
    }
    let inf = tensor(&[-INF, -INF, INF, NAN], DType::F32)?.reshape((2, 2))?;
    assert_same(&inf.argmax(1)?, &[0., 1.], "of infinities");
    Ok(())
}

#[test]
fn extrema_share_their_gradient() -> Result<()> {
    let third = 1. / 3.;
    let rows = [1., 3., 3., 2., 2., 2.];
    for dtype in HALVES.into_iter().chain([DType::F32, DType::F64]) {
        let of = |f: fn(&Tensor) -> Result<Tensor>, want: &[f64]| -> Result<()> {
            let grad = gradient(&rows, dtype, |x| f(&x.reshape((2, 3))?))?;
            assert_near(&grad, want, 0.01, "shares");
            Ok(())
        };
        of(|x| x.max(1), &[0., 0.5, 0.5, third, third, third])?;
        of(|x| x.max_keepdim(1), &[0., 0.5, 0.5, third, third, third])?;
        of(|x| x.min(1), &[1., 0., 0., third, third, third])?;
        of(|x| x.max(0), &[0., 1., 1., 1., 0., 0.])?;
        of(|x| x.max_all(), &[0., 0.5, 0.5, 0., 0., 0.])?;
    }
    let grad = gradient(&[1., NAN, NAN], DType::F32, |x| x.max(0))?;
    assert_same(&grad, &[0., 0.5, 0.5], "NaN");
    let many = gradient(&vec![1.; 4096], DType::F16, |x| x.max(0))?;
    assert_near(&many, &vec![1. / 4096.; 4096], 0., "many");
    let (a, b) = ([1., 2., 3.], Tensor::new(&[2f32, 2., 2.], &CPU)?);
    let grad = gradient(&a, DType::F32, |x| x.maximum(&b))?;
    assert_same(&grad, &[0., 0.5, 1.], "maximum");
    let grad = gradient(&a, DType::F32, |x| x.minimum(&b))?;
    assert_same(&grad, &[1., 0.5, 0.], "minimum");
    Ok(())
}

#[test]
fn kinks() -> Result<()> {
    let x = [-2., -1., 0., 1., 2.];
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        assert_same(
            &gradient(&x, dtype, |x| x.relu())?,
            &[0., 0., 0., 1., 1.],
            "relu",
        );
        assert_same(
            &gradient(&x, dtype, |x| x.abs())?,
            &[-1., -1., 0., 1., 1.],
            "abs",
        );
        let grad = gradient(&x, dtype, |x| x.clamp(-1., 1.))?;
        assert_same(&grad, &[0., 1., 1., 1., 0.], "clamp");
        let grad = gradient(&x, dtype, |x| x.elu(1.))?;
        let below = [(-2f64).exp(), (-1f64).exp(), 1., 1., 1.];
        assert_near(&grad, &below, 0.01, "elu");
    }
    let low = Var::from_tensor(&Tensor::new(&[-1f32; 5], &CPU)?)?;
    let x = Tensor::new(&[-2f32, -1., 0., 1., 2.], &CPU)?;
    let grads = x.clamp(low.as_tensor(), 1f32)?.sum_all()?.backward()?;
    assert_same(
        grads.get(&low).expect("a gradient"),
        &[1., 0., 0., 0., 0.],
        "of a bound",
    );
    assert_same(&x.clamp(1.5f32, -1.5f32)?, &[-1.5; 5], "crossing bounds");
    Ok(())
}

/// Slopes of functions at extreme arguments, in all dtypes that have these.
#[test]
fn slopes_are_finite() -> Result<()> {
    type Function = fn(&Tensor) -> Result<Tensor>;
    let functions: [(&str, Function, [f64; 2]); 3] = [
        ("gelu", |x| x.gelu(), [1., 0.]),
        ("gelu_erf", |x| x.gelu_erf(), [1., 0.]),
        ("silu", |x| x.silu(), [1., 0.]),
    ];
    for (name, f, want) in functions {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for x in [45., 300., 2049., 4097., 60000.] {
                let grad = gradient(&[x, -x], dtype, f)?;
                let got = values(&grad)?;
                let near = |(g, w): (&f64, &f64)| (g - w).abs() < 1e-6;
                assert!(
                    got.iter().zip(&want).all(near),
                    "{name} {dtype:?} at {x}: {got:?}"
                );
            }
        }
        let large = gradient(&[1e13, -1e13, 1e25], DType::F32, f)?;
        assert_same(&large, &[1., 0., 1.], name);
    }
    // Against differences in f64.
    for (name, f, _) in functions {
        for x in [-3., -0.5, 0., 0.7, 2.] {
            let step = 1e-5;
            let ends = values(&f(&tensor(&[x - step, x + step], DType::F64)?)?)?;
            let want = (ends[1] - ends[0]) / (2. * step);
            assert_near(&gradient(&[x], DType::F64, f)?, &[want], 1e-6, name);
        }
    }
    let grad = gradient(&[3.5], DType::F16, |x| x.tanh())?;
    let y = values(&tensor(&[3.5f64.tanh()], DType::F16)?)?[0];
    assert_near(&grad, &[1. - y * y], 1e-3, "tanh");
    Ok(())
}

#[test]
fn slopes_of_quotients() -> Result<()> {
    let one = |dtype| Tensor::new(&[1000f64], &CPU)?.to_dtype(dtype);
    let grad = gradient(&[300.], DType::F16, |x| one(DType::F16)?.div(x))?;
    assert_near(&grad, &[-1000. / 90000.], 0.01, "division");
    let grad = gradient(&[300.], DType::F16, |x| x.recip())?;
    assert_near(&grad, &[-1. / 90000.], 0.01, "recip");
    let grad = gradient(&[1e20], DType::F32, |x| one(DType::F32)?.div(x))?;
    assert_near(&grad, &[-1e-37], 0.01, "division");
    let grad = gradient(&[INF, 1.], DType::F32, |x| x.elu(1.))?;
    assert_same(&grad, &[1., 1.], "elu");
    Ok(())
}

#[test]
fn powers() -> Result<()> {
    let base = [-2., 0., -2., -8., 2., 0., -1., NAN, 0.];
    let exponent = [2., 0., 3., 1. / 3., 0.5, 2., INF, 0., -1.];
    let want = [4., 1., -8., NAN, 2f64.sqrt(), 0., 1., 1., INF];
    for dtype in FLOATS {
        // f8e4m3 has no infinities.
        let count = if dtype == DType::F8E4M3 { 6 } else { 9 };
        let (x, y) = (
            tensor(&base[..count], dtype)?,
            tensor(&exponent[..count], dtype)?,
        );
        assert_near(&x.pow(&y)?, &want[..count], 0.06, "pow");
    }
    let x = Tensor::new(&[[-2f32], [3.]], &CPU)?;
    let y = Tensor::new(&[2f32, 3.], &CPU)?;
    assert_same(&x.broadcast_pow(&y)?, &[4., -8., 9., 27.], "broadcast_pow");
    assert_same(&x.reshape(2)?.powf(2.)?, &[4., 9.], "powf");
    let y = Tensor::new(&[2f32, 0., 1., 0.], &CPU)?;
    let grad = gradient(&[-2., 0., 0., 5.], DType::F32, |x| x.pow(&y))?;
    assert_same(&grad, &[-4., 0., 1., 0.], "of the base");
    let x = Tensor::new(&[2f32, 0., 1., 0.], &CPU)?;
    let grad = gradient(&[2., 0., 1., 3.], DType::F32, |y| x.pow(y))?;
    assert_near(
        &grad,
        &[4. * 2f64.ln(), 0., 0., 0.],
        1e-6,
        "of the exponent",
    );
    let grad = gradient(&[0., -2.], DType::F32, |x| x.powf(0.))?;
    assert_same(&grad, &[0., 0.], "of a 0th power");
    let grad = gradient(&[0., -2.], DType::F32, |x| x.powf(2.))?;
    assert_same(&grad, &[0., -4.], "of a square");
    let third = tensor(&[10.], DType::BF16)?.powf(2.3)?;
    assert_near(
        &third,
        &[10f64.powf(2.3)],
        0.004,
        "the exponent is not rounded",
    );
    assert!(Tensor::new(&[2i64], &CPU)?
        .pow(&Tensor::new(&[2i64], &CPU)?)
        .is_err());
    Ok(())
}

#[test]
fn cumulative_sums() -> Result<()> {
    let x = tensor(&[1., INF, 2., NAN, 3.], DType::F32)?;
    assert_same(&x.cumsum(0)?, &[1., INF, INF, NAN, NAN], "inf and NaN");
    let integers = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];
    for dtype in integers.into_iter().chain(FLOATS) {
        let x = tensor(&[1., 2., 3., 4., 5., 6.], dtype)?.reshape((2, 3))?;
        assert_same(&x.cumsum(1)?, &[1., 3., 6., 4., 9., 15.], "rows");
        assert_same(&x.cumsum(0)?, &[1., 2., 3., 5., 7., 9.], "columns");
        assert_same(&x.t()?.cumsum(0)?, &[1., 4., 3., 9., 6., 15.], "of a view");
    }
    assert_eq!(
        Tensor::zeros((2, 0), DType::F16, &CPU)?.cumsum(1)?.dims(),
        [2, 0]
    );
    for dtype in HALVES {
        let last = Tensor::ones(5000, dtype, &CPU)?
            .cumsum(0)?
            .narrow(0, 4999, 1)?;
        assert_same(&last, &[rounded(5000., dtype)?], "long");
    }
    // 128k squared would take 64 GB.
    let long = Tensor::ones(128 << 10, DType::F32, &CPU)?.cumsum(0)?;
    assert_same(&long.narrow(0, (128 << 10) - 1, 1)?, &[131072.], "128k");
    let weights = Tensor::new(&[1f32, 10., 100.], &CPU)?;
    let grad = gradient(&[1., 2., 3.], DType::F32, |x| x.cumsum(0)? * &weights)?;
    assert_same(&grad, &[111., 110., 100.], "gradient");
    Ok(())
}

#[test]
fn log_sum_exp_of_infinities() -> Result<()> {
    for dtype in HALVES.into_iter().chain([DType::F32, DType::F64]) {
        let x = tensor(&[-INF, -INF, INF, 0., NAN, 1., -INF, 0., 500., 500.], dtype)?;
        let got = x.reshape((5, 2))?.log_sum_exp(1)?;
        assert_near(&got, &[-INF, INF, NAN, 0., 500.69], 0.004, "log_sum_exp");
        let many = Tensor::zeros((2, 1 << 17), dtype, &CPU)?.log_sum_exp(1)?;
        assert_near(&many, &[17. * 2f64.ln(); 2], 0.004, "many");
    }
    let x = Tensor::arange(0f64, 24., &CPU)?.reshape((2, 3, 4))?;
    let both = x.log_sum_exp((2, 0))?;
    let want = x.permute((1, 0, 2))?.reshape((3, 8))?.log_sum_exp(1)?;
    assert_near(&both, &values(&want)?, 1e-12, "two axes");
    let grad = gradient(&[-INF, 0.], DType::F32, |x| x.log_sum_exp(0))?;
    assert_same(&grad, &[0., 1.], "gradient");
    Ok(())
}

#[test]
fn gradient_of_max_pool2d_with_nan() -> Result<()> {
    let grad = gradient(&[1., NAN, 3., 3.], DType::F32, |x| {
        x.reshape((1, 1, 2, 2))?.max_pool2d((1, 2))
    })?;
    assert_same(&grad, &[0., 1., 0.5, 0.5], "gradient");
    Ok(())
}

#[test]
fn elu_of_small_numbers() -> Result<()> {
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        let x = tensor(&[-1e-3], dtype)?;
        assert_near(&x.elu(2.)?, &[-2e-3], 0.01, "elu");
    }
    let tiny = Tensor::new(&[-1e-8f32], &CPU)?.elu(1.)?;
    assert_near(&tiny, &[-1e-8], 1e-6, "elu");
    Ok(())
}
