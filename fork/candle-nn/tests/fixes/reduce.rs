//! Softmax, losses, norms and activations: values in closed form, or PyTorch's.

use candle::{DType, Device, Module, ModuleT, Result, Tensor, Var};
use candle_nn::{loss, ops, Activation};

const CPU: Device = Device::Cpu;
const HALVES: [DType; 2] = [DType::F16, DType::BF16];
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const INF: f64 = f64::INFINITY;

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

fn tensor(values: &[f64], dtype: DType) -> Result<Tensor> {
    Tensor::new(values, &CPU)?.to_dtype(dtype)
}

#[track_caller]
fn assert_near(got: &Tensor, want: &[f64], within: f64, what: &str) {
    let got = values(got).unwrap();
    assert_eq!(got.len(), want.len(), "{what}");
    for (g, w) in got.iter().zip(want) {
        let near = (g - w).abs() <= within * w.abs() || g == w || g.is_nan() && w.is_nan();
        assert!(near, "{what}: {got:?} instead of {want:?}");
    }
}

fn gradient(x: &[f64], dtype: DType, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let x = Var::from_tensor(&tensor(x, dtype)?)?;
    let grads = f(x.as_tensor())?.sum_all()?.backward()?;
    Ok(grads.get(x.as_tensor()).expect("a gradient").clone())
}

/// Relative precision of a dtype, some times over.
fn precision(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1e-2,
        DType::F16 => 1e-3,
        DType::F32 => 1e-5,
        _ => 1e-9,
    }
}

#[test]
fn softmax_of_many() -> Result<()> {
    for dtype in FLOATS {
        for count in [4096, 1 << 17] {
            let zeros = Tensor::zeros((1, count), dtype, &CPU)?;
            let (share, log) = (1. / count as f64, -(count as f64).ln());
            let within = precision(dtype).max(if count > 4096 { 0.004 } else { 0. });
            for got in [
                ops::softmax(&zeros, 1)?,
                ops::softmax_last_dim(&zeros)?,
                ops::softmax(&zeros.t()?, 0)?,
            ] {
                assert_near(
                    &got.flatten_all()?.narrow(0, 7, 1)?,
                    &[share],
                    within,
                    "softmax",
                );
            }
            let got = ops::log_softmax(&zeros, 1)?
                .flatten_all()?
                .narrow(0, 7, 1)?;
            assert_near(&got, &[log], precision(dtype), "log_softmax");
            let target = Tensor::new(&[5u32], &CPU)?;
            let got = loss::cross_entropy(&zeros, &target)?;
            assert_near(&got, &[-log], precision(dtype), "cross_entropy");
        }
        let x = [-INF, 0., 1., 2.];
        let sum = 1. + 1f64.exp() + 2f64.exp();
        let want = [0., 1. / sum, 1f64.exp() / sum, 2f64.exp() / sum];
        let grads = gradient(&x[1..], dtype, |x| ops::softmax(x, 0)?.narrow(0, 0, 1))?;
        let p = &want[1..];
        let of_first = [p[0] * (1. - p[0]), -p[0] * p[1], -p[0] * p[2]];
        assert_near(
            &ops::softmax(&tensor(&x, dtype)?, 0)?,
            &want,
            precision(dtype),
            "softmax",
        );
        assert_near(&grads, &of_first, 2. * precision(dtype), "gradient");
    }
    Ok(())
}

#[test]
fn losses_of_many() -> Result<()> {
    for dtype in HALVES {
        let count = 20_000;
        let log = tensor(&vec![-8.; count], dtype)?.reshape((count, 1))?;
        let target = Tensor::zeros(count, DType::U32, &CPU)?;
        assert_near(&loss::nll(&log, &target)?, &[8.], 0., "nll");
        let x = tensor(&[&[300.; 1][..], &[0.; 15][..]].concat(), dtype)?;
        let zeros = x.zeros_like()?;
        assert_near(&loss::mse(&x, &zeros)?, &[5625.], precision(dtype), "mse");
        assert_near(
            &loss::huber(&x, &zeros, 1.)?,
            &[299.5 / 16.],
            precision(dtype),
            "huber",
        );
    }
    Ok(())
}

#[test]
fn binary_cross_entropy_of_large_logits() -> Result<()> {
    let bce =
        |x: &Tensor, t: &[f64]| loss::binary_cross_entropy_with_logit(x, &tensor(t, x.dtype())?);
    for dtype in FLOATS {
        for v in [0f64, 3., 16., 17., 20., 200.] {
            let large = (-v).exp().ln_1p() + v;
            assert_near(
                &bce(&tensor(&[v], dtype)?, &[0.])?,
                &[large],
                precision(dtype),
                "0",
            );
            assert_near(
                &bce(&tensor(&[-v], dtype)?, &[1.])?,
                &[large],
                precision(dtype),
                "1",
            );
        }
        let x = tensor(&[200., -200., 0.], dtype)?;
        assert_near(
            &bce(&x, &[1., 0., 1.])?,
            &[2f64.ln() / 3.],
            precision(dtype),
            "mixed",
        );
        let x = [200., -200., 0., 50., -1.];
        let t = [0., 0., 1., 1., 0.5];
        let grad = gradient(&x, dtype, |x| bce(x, &t)? * 5.)?;
        let want = x.iter().zip(t).map(|(x, t)| 1. / (1. + (-x).exp()) - t);
        let got = values(&grad)?;
        let near = |(g, w): (&f64, f64)| (g - w).abs() < 2. * precision(dtype);
        assert!(got.iter().zip(want).all(near), "gradient: {got:?}");
    }
    // Small losses are not lost.
    let small = bce(&tensor(&[20.], DType::F32)?, &[1.])?;
    assert_near(&small, &[(-20f64).exp()], 1e-5, "small");
    Ok(())
}

#[test]
fn norms_of_large_means() -> Result<()> {
    let want = [0.44721, -0.44721, 1.34164, -1.34164];
    let x = [10001., 10000., 10002., 9999.];
    let (ones, zeros) = (
        Tensor::ones(4, DType::F32, &CPU)?,
        Tensor::zeros(4, DType::F32, &CPU)?,
    );
    let row = tensor(&x, DType::F32)?.unsqueeze(0)?;
    let got = ops::layer_norm(&row, &ones, &zeros, 1e-5)?;
    assert_near(&got, &want, 1e-4, "layer_norm");
    let got = ops::layer_norm_slow(&row, &ones, &zeros, 1e-5)?;
    assert_near(&got, &want, 1e-3, "layer_norm_slow");
    let norm = candle_nn::GroupNorm::new(ones.clone(), zeros.clone(), 4, 1, 1e-5)?;
    assert_near(
        &norm.forward(&row.reshape((1, 4, 1))?)?,
        &want,
        1e-3,
        "group norm",
    );
    let constant = ops::layer_norm(&Tensor::full(3e4f32, (1, 4), &CPU)?, &ones, &zeros, 1e-5)?;
    assert_near(&constant, &[0.; 4], 0., "constant");
    Ok(())
}

#[test]
fn norms_of_extreme_scales() -> Result<()> {
    for dtype in HALVES {
        let weight = tensor(&[1., 1., 2., 1.], dtype)?;
        for scale in [1e-4, 1., 6e4] {
            let x = tensor(&[scale, -scale, scale, scale], dtype)?.unsqueeze(0)?;
            let want = [1., -1., 2., 1.];
            let got = ops::rms_norm(&x, &weight, 1e-14)?;
            assert_near(&got, &want, precision(dtype), "rms_norm");
            let got = ops::rms_norm_slow(&x, &weight, 1e-14)?;
            assert_near(&got, &want, precision(dtype), "rms_norm_slow");
        }
    }
    let x = Tensor::full(1e30f32, (1, 4), &CPU)?;
    let got = ops::rms_norm(&x, &Tensor::ones(4, DType::F32, &CPU)?, 1e-5)?;
    assert_near(&got, &[1.; 4], 1e-6, "f32");
    Ok(())
}

#[test]
fn batch_norms_of_halves() -> Result<()> {
    for dtype in HALVES {
        let t = |v: &[f64]| tensor(v, dtype);
        let norm =
            candle_nn::BatchNorm::new(1, t(&[256.])?, t(&[1.])?, t(&[1.])?, t(&[0.])?, 1e-5)?;
        let x = t(&[254., 256., 258., 256.])?.reshape((4, 1, 1))?;
        let got = norm.forward_t(&x, false)?;
        assert_near(&got, &[-2., 0., 2., 0.], precision(dtype), "evaluation");
        let got = norm.forward_t(&x, true)?;
        let root = 2f64.sqrt();
        assert_near(&got, &[-root, 0., root, 0.], precision(dtype), "training");
        assert_near(norm.running_mean(), &[256.], 0., "running mean");
    }
    Ok(())
}

#[test]
fn activations_at_extremes() -> Result<()> {
    for dtype in FLOATS {
        let exact = |x: f64| x * x.exp().ln_1p().tanh();
        let x = [-20., -1., 0., 1., 30., 89., 1000.];
        let want: Vec<f64> = x
            .iter()
            .map(|&x| if x > 20. { x } else { exact(x) })
            .collect();
        // f16 has -20 e^-20 as 0.
        let x = if dtype == DType::F16 { &x[1..] } else { &x[..] };
        let want = &want[want.len() - x.len()..];
        assert_near(
            &ops::mish(&tensor(x, dtype)?)?,
            want,
            precision(dtype),
            "mish",
        );
        let grad = gradient(&[12., 45., 89., 1000.], dtype, ops::mish)?;
        assert_near(&grad, &[1.; 4], 1e-3, "gradient of mish");
        let grad = gradient(&[-1000., 0., 100.], dtype, |x| ops::selu(x, 1.6733, 1.0507))?;
        assert_near(
            &grad,
            &[0., 1.6733f32 as f64 * 1.0507f32 as f64, 1.0507f32 as f64],
            precision(dtype),
            "selu",
        );
    }
    Ok(())
}

#[test]
fn kinks() -> Result<()> {
    let x = [-1., 0., 1.];
    let grad = gradient(&x, DType::F32, |x| ops::leaky_relu(x, 0.25))?;
    assert_near(&grad, &[0.25, 0.25, 1.], 0., "leaky_relu");
    let prelu = candle_nn::PReLU::new(Tensor::new(&[0.25f32], &CPU)?, true);
    let prelu = |x: &Tensor| prelu.forward(x);
    assert_near(
        &gradient(&x, DType::F32, prelu)?,
        &[0.25, 0.25, 1.],
        0.,
        "prelu",
    );
    assert_near(
        &prelu(&tensor(&x, DType::F32)?)?,
        &[-0.25, 0., 1.],
        0.,
        "prelu",
    );
    let grad = gradient(&[-1., 0., 3., 6., 7.], DType::F32, |x| {
        Activation::Relu6.forward(x)
    })?;
    assert_near(&grad, &[0., 0., 1., 0., 0.], 0., "relu6");
    let grad = gradient(&[-3., 0., 3.], DType::F32, ops::hard_sigmoid)?;
    assert_near(&grad, &[0., 1. / 6., 0.], 1e-6, "hard_sigmoid");
    let nan = ops::leaky_relu(&tensor(&[f64::NAN], DType::F32)?, 0.25)?;
    assert_near(&nan, &[f64::NAN], 0., "NaN");
    Ok(())
}
