//! Layers of f32 on the CPU by loops of their own, beside plain operations: those are what runs where gradients are
//! wanted, so each case goes once with constants and once with variables.

use candle::{DType, Device, Module, Result, Tensor, Var, D};
use candle_nn::{fused, Activation, Conv2d, Conv2dConfig, Linear};

/// Numbers between -1 and 1 that look random.
fn numbers(shape: &[usize], seed: u32) -> Result<Tensor> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = std::iter::repeat_with(next)
        .take(shape.iter().product())
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

fn tracked(x: &Tensor) -> Result<Tensor> {
    Ok(Var::from_tensor(x)?.as_tensor().clone())
}

#[track_caller]
fn assert_near(found: &Tensor, expected: &Tensor, tolerance: f32, what: &str) -> Result<()> {
    assert!(!found.track_op() && expected.track_op(), "{what}");
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let apart = (found - expected)?.abs()?.flatten_all()?.max(0)?;
    let apart = apart.to_scalar::<f32>()?;
    assert!(apart < tolerance, "{what}: {apart} apart");
    Ok(())
}

#[test]
fn convolutions() -> Result<()> {
    let plain = Conv2dConfig {
        padding: 1,
        ..Default::default()
    };
    let cases = [
        (2, 5, 7, 9, 18, 3, plain),
        (1, 33, 16, 70, 5, 3, plain),
        (2, 4, 6, 6, 8, 1, Conv2dConfig::default()),
        (1, 3, 9, 12, 7, 3, Conv2dConfig { stride: 2, ..plain }),
        (
            1,
            2,
            9,
            12,
            7,
            3,
            Conv2dConfig {
                dilation: 2,
                ..plain
            },
        ),
        (1, 8, 5, 6, 4, 3, Conv2dConfig { groups: 2, ..plain }),
    ];
    for (batch, inputs, height, width, outputs, kernel, config) in cases {
        let x = numbers(&[batch, inputs, height, width], 1)?;
        let turned = numbers(&[batch, inputs, width, height], 2)?.transpose(2, 3)?;
        let w = numbers(&[outputs, inputs / config.groups, kernel, kernel], 3)?;
        let b = numbers(&[outputs], 4)?;
        for (x, bias) in [(&x, Some(&b)), (&x, None), (&turned, Some(&b))] {
            let found = Conv2d::new(w.clone(), bias.cloned(), config).forward(x)?;
            let expected = Conv2d::new(tracked(&w)?, bias.cloned(), config).forward(x)?;
            assert_near(
                &found,
                &expected,
                1e-4,
                &format!("{:?}, {config:?}", x.dims()),
            )?;
        }
    }
    Ok(())
}

#[test]
fn convolutions_that_do_not_fit_are_refused() -> Result<()> {
    let layer = |shape: &[usize], config| -> Result<Conv2d> {
        Ok(Conv2d::new(
            numbers(shape, 1)?,
            Some(numbers(&[4], 2)?),
            config,
        ))
    };
    let x = numbers(&[1, 3, 2, 2], 3)?;
    let config = Conv2dConfig::default();
    assert!(layer(&[4, 2, 1, 1], config)?.forward(&x).is_err());
    assert!(layer(&[4, 3, 5, 5], config)?.forward(&x).is_err());
    assert!(layer(&[5, 3, 1, 1], config)?.forward(&x).is_err());
    let config = Conv2dConfig {
        stride: 0,
        ..config
    };
    assert!(layer(&[4, 3, 1, 1], config)?.forward(&x).is_err());
    Ok(())
}

#[test]
fn convolutions_of_doubled_pictures() -> Result<()> {
    let fitting = Conv2dConfig {
        padding: 1,
        ..Default::default()
    };
    let other = Conv2dConfig {
        padding: 0,
        ..fitting
    };
    for (shape, config) in [
        ([2, 3, 5, 7], fitting),
        ([1, 70, 8, 33], fitting),
        ([1, 3, 5, 7], other),
    ] {
        let (x, w, b) = (
            numbers(&shape, 1)?,
            numbers(&[6, shape[1], 3, 3], 2)?,
            numbers(&[6], 3)?,
        );
        let found = fused::conv2d_of_doubled(&x, &Conv2d::new(w.clone(), Some(b.clone()), config))?;
        let layer = Conv2d::new(tracked(&w)?, Some(b), config);
        let expected = fused::conv2d_of_doubled(&x, &layer)?;
        assert_near(&found, &expected, 1e-4, &format!("{shape:?}, {config:?}"))?;
    }
    Ok(())
}

#[test]
fn linear_layers() -> Result<()> {
    for shape in [vec![9, 21], vec![2, 40, 21], vec![2, 3, 5, 21], vec![1, 21]] {
        let (w, b) = (numbers(&[34, 21], 2)?, numbers(&[34], 3)?);
        let x = numbers(&shape, 1)?;
        let mut turned = shape.clone();
        turned.reverse();
        let axes: Vec<usize> = (0..shape.len()).rev().collect();
        let turned = numbers(&turned, 4)?.permute(axes)?;
        for (x, bias) in [(&x, Some(&b)), (&x, None), (&turned, Some(&b))] {
            if x.rank() == 4 && !x.is_contiguous() {
                // Plain products take no such strides.
                continue;
            }
            let found = Linear::new(w.clone(), bias.cloned()).forward(x)?;
            let expected = Linear::new(tracked(&w)?, bias.cloned()).forward(x)?;
            assert_near(&found, &expected, 1e-4, &format!("{shape:?}"))?;
        }
    }
    let wrong = Linear::new(numbers(&[4, 3], 1)?, None).forward(&numbers(&[9, 4], 1)?);
    assert!(wrong.is_err());
    Ok(())
}

#[test]
fn group_norms() -> Result<()> {
    for (shape, groups) in [
        (vec![2, 6, 5, 7], 3),
        (vec![1, 8, 33], 8),
        (vec![3, 4, 2, 3, 2], 1),
    ] {
        let x = ((numbers(&shape, 1)? * 3.0)? + 5.0)?;
        let (w, b) = (numbers(&[shape[1]], 2)?, numbers(&[shape[1]], 3)?);
        for norm in [fused::group_norm, fused::group_norm_silu] {
            let found = norm(&x, &w, &b, groups, 1e-5)?;
            let expected = norm(&x, &tracked(&w)?, &b, groups, 1e-5)?;
            assert_near(&found, &expected, 1e-5, &format!("{shape:?}, {groups}"))?;
        }
    }
    let (x, w) = (numbers(&[1, 4, 2], 1)?, numbers(&[4], 2)?);
    assert!(fused::group_norm(&x, &w, &w, 3, 1e-5).is_err());
    assert!(fused::group_norm(&numbers(&[3, 4], 1)?, &w, &w, 2, 1e-5).is_err());
    Ok(())
}

#[test]
fn gates() -> Result<()> {
    let both = (numbers(&[3, 5, 46], 1)? * 6.0)?;
    let halves = (
        both.narrow(D::Minus1, 0, 23)?,
        both.narrow(D::Minus1, 23, 23)?,
    );
    let turned = (numbers(&[23, 5, 3], 2)?.t()?, numbers(&[23, 5, 3], 3)?.t()?);
    for act in [
        Activation::Silu,
        Activation::Gelu,
        Activation::NewGelu,
        Activation::GeluPytorchTanh,
        Activation::Relu,
    ] {
        for (gate, up) in [&halves, &turned] {
            let found = fused::gate_mul(act, gate, up)?;
            let expected = fused::gate_mul(act, &tracked(gate)?, up)?;
            assert_near(&found, &expected, 1e-5, &format!("{act:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn transposed_matrices() -> Result<()> {
    for shape in [vec![3, 5], vec![2, 9, 16], vec![2, 3, 17, 8], vec![2, 0, 3]] {
        let x = numbers(&shape, 1)?;
        let turned = x.t()?;
        for x in [&x, &turned] {
            let found = fused::transposed(x)?;
            let expected = x.t()?.contiguous()?;
            assert!(found.is_contiguous());
            assert_eq!(found.dims(), expected.dims());
            let values = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
            assert_eq!(values(&found)?, values(&expected)?);
        }
    }
    assert!(fused::transposed(&numbers(&[3], 1)?).is_err());
    Ok(())
}

#[test]
fn other_dtypes_go_as_before() -> Result<()> {
    let (x, w) = (numbers(&[1, 2, 4, 4], 1)?, numbers(&[2, 2, 3, 3], 2)?);
    let layer = |dtype| -> Result<Tensor> {
        let layer = Conv2d::new(w.to_dtype(dtype)?, None, Conv2dConfig::default());
        layer.forward(&x.to_dtype(dtype)?)
    };
    let apart = (layer(DType::F32)?.to_dtype(DType::F64)? - layer(DType::F64)?)?;
    assert!(apart.abs()?.max_all()?.to_scalar::<f64>()? < 1e-5);
    Ok(())
}
