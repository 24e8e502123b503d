//! Gradients of fused operations: the published crate leaves them out without a word.

use candle::{DType, Device, Result, Tensor, Var, D};
use candle_nn::rotary_emb::{rope, rope_i, rope_i_slow, rope_slow, rope_thd};
use candle_nn::{ops, LayerNorm, Module, RmsNorm};

type Function = fn(&[Tensor]) -> Result<Tensor>;

fn numbers(shape: &[usize], seed: u64) -> Result<Tensor> {
    let number = |i: u64| ((i * 37 + seed * 11) % 23) as f32 / 10. - 1.1;
    let count = shape.iter().product::<usize>() as u64;
    Tensor::from_vec((0..count).map(number).collect(), shape, &Device::Cpu)
}

/// The gradients of a weighted sum of the results.
fn gradients(f: Function, shapes: &[&[usize]]) -> Result<Vec<Tensor>> {
    let vars = shapes.iter().zip(1..);
    let vars = vars.map(|(shape, seed)| Var::from_tensor(&numbers(shape, seed)?));
    let vars = vars.collect::<Result<Vec<_>>>()?;
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let y = f(&tensors)?;
    let store = y.mul(&numbers(y.dims(), 9)?)?.sum_all()?.backward()?;
    let gradient = |(i, var): (usize, &Var)| match store.get(var) {
        Some(gradient) => Ok(gradient.clone()),
        None => candle::bail!("input {i} has no gradient"),
    };
    vars.iter().enumerate().map(gradient).collect()
}

/// Each fused operation beside the same of operations that have gradients upstream.
#[test]
fn fused_operations_have_the_gradients_of_the_slow_ones() -> Result<()> {
    const NORM: &[&[usize]] = &[&[40, 9], &[9]];
    const LAYER: &[&[usize]] = &[&[40, 9], &[9], &[9]];
    const ROPE: &[&[usize]] = &[&[2, 3, 4, 8], &[4, 4], &[4, 4]];
    let cases: [(&str, &[&[usize]], Function, Function); 9] = [
        (
            "softmax_last_dim",
            &[&[3, 4, 7]],
            |x| ops::softmax_last_dim(&x[0]),
            |x| ops::softmax(&x[0], D::Minus1),
        ),
        (
            "rms_norm",
            NORM,
            |x| ops::rms_norm(&x[0], &x[1], 1e-5),
            |x| ops::rms_norm_slow(&x[0], &x[1], 1e-5),
        ),
        (
            "RmsNorm",
            NORM,
            |x| RmsNorm::new(x[1].clone(), 1e-5).forward(&x[0]),
            |x| ops::rms_norm_slow(&x[0], &x[1], 1e-5),
        ),
        (
            "layer_norm",
            LAYER,
            |x| ops::layer_norm(&x[0], &x[1], &x[2], 1e-5),
            |x| ops::layer_norm_slow(&x[0], &x[1], &x[2], 1e-5),
        ),
        (
            "LayerNorm",
            LAYER,
            |x| LayerNorm::new(x[1].clone(), x[2].clone(), 1e-5).forward(&x[0]),
            |x| ops::layer_norm_slow(&x[0], &x[1], &x[2], 1e-5),
        ),
        (
            "rope",
            ROPE,
            |x| rope(&x[0], &x[1], &x[2]),
            |x| rope_slow(&x[0], &x[1], &x[2]),
        ),
        (
            "rope_i",
            ROPE,
            |x| rope_i(&x[0], &x[1], &x[2]),
            |x| rope_i_slow(&x[0], &x[1], &x[2]),
        ),
        (
            "rope_thd",
            &[&[2, 4, 3, 8], &[4, 4], &[4, 4]],
            |x| rope_thd(&x[0], &x[1], &x[2]),
            |x| {
                let heads_first = x[0].transpose(1, 2)?.contiguous()?;
                rope_slow(&heads_first, &x[1], &x[2])?.transpose(1, 2)
            },
        ),
        (
            "sdpa",
            &[&[1, 2, 3, 8], &[1, 2, 5, 8], &[1, 2, 5, 8]],
            |x| ops::sdpa(&x[0], &x[1], &x[2], None, false, 0.4, 1.),
            |x| {
                let scores = (x[0].matmul(&x[1].t()?)? * 0.4)?;
                ops::softmax(&scores, D::Minus1)?.matmul(&x[2])
            },
        ),
    ];
    for (name, shapes, fused, slow) in cases {
        let (got, want) = (gradients(fused, shapes)?, gradients(slow, shapes)?);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let error = (got - want)?.abs()?.max_all()?.to_scalar::<f32>()?;
            let most = want.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(error <= 1e-5 * most, "{name}, input {i}: {error} of {most}");
        }
    }
    Ok(())
}

#[test]
fn norms_of_f64() -> Result<()> {
    let x = numbers(&[3, 8], 1)?.to_dtype(DType::F64)?;
    let (weight, bias) = (x.get(0)?, x.get(1)?);
    let got = LayerNorm::new(weight.clone(), bias.clone(), 1e-5).forward(&x)?;
    let want = ops::layer_norm_slow(&x, &weight, &bias, 1e-5)?;
    assert_eq!(got.to_vec2::<f64>()?, want.to_vec2::<f64>()?);
    let got = RmsNorm::new(weight.clone(), 1e-5).forward(&x)?;
    let want = ops::rms_norm_slow(&x, &weight, 1e-5)?;
    assert_eq!(got.to_vec2::<f64>()?, want.to_vec2::<f64>()?);
    Ok(())
}

#[test]
fn attention_on_the_cpu_says_that_it_has_no_gradient() -> Result<()> {
    use candle_nn::attention::{flash_attn, AttnMask};
    let x = Var::from_tensor(&numbers(&[1, 3, 2, 8], 1)?)?;
    for mask in [AttnMask::None, AttnMask::causal()] {
        let y = flash_attn::<f32>(&x, &x, &x, 0.3, mask, None, None)?;
        let error = y.backward().expect_err("no gradient").to_string();
        assert!(error.contains("cpu_flash attention"), "{error}");
    }
    Ok(())
}
