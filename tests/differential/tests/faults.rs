//! Where the published candle is at fault (`fork/*/FIXES.md`), `Device::Rocm` and the CPU agree on what is right.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope, rope_i, rope_thd};
use differential::{rocm, to_f64};

const CPU: Device = Device::Cpu;

/// The outcome on both devices, which must be the same numbers.
fn both(f: impl Fn(&Device) -> Result<Tensor>) -> Result<Vec<f64>> {
    let (got, want) = (f(&rocm())?, f(&CPU)?);
    assert_eq!((got.dtype(), got.dims()), (want.dtype(), want.dims()));
    let (got, want) = (to_f64(&got)?, to_f64(&want)?);
    assert_eq!(got, want);
    Ok(got)
}

fn count(device: &Device, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let elements = shape.iter().product::<usize>() as f32;
    // Bytes hold the numbers, and so do the sums of a few products in f32.
    let numbers = (Tensor::arange(0f32, elements, &CPU)? - 7.)?.reshape(shape)?;
    numbers.to_dtype(dtype)?.to_device(device)
}

#[test]
fn f8e4m3_as_f64() -> Result<()> {
    let numbers = both(|d| count(d, DType::F8E4M3, &[24])?.to_dtype(DType::F64))?;
    assert_eq!(numbers[..3], [-7., -6., -5.]);
    Ok(())
}

#[test]
fn products_with_one_right_hand_side() -> Result<()> {
    both(|d| {
        let lhs = count(d, DType::F32, &[2, 4, 3])?.t()?;
        lhs.matmul(&count(d, DType::F32, &[4, 5])?.broadcast_as((2, 4, 5))?)
    })?;
    Ok(())
}

#[test]
fn convolutions() -> Result<()> {
    for batch in [1, 2] {
        both(|d| {
            let x = count(d, DType::F32, &[batch, 3, 4])?;
            x.conv_transpose1d(&count(d, DType::F32, &[3, 2, 2])?, 0, 0, 1, 1, 1)
        })?;
        both(|d| {
            let kernel = count(d, DType::F32, &[3, 3, 4])?.narrow(2, 1, 2)?;
            count(d, DType::F32, &[batch, 3, 5])?.conv1d(&kernel, 0, 1, 1, 1)
        })?;
    }
    Ok(())
}

#[test]
fn gather_with_fewer_ids() -> Result<()> {
    both(|d| {
        let ids = Tensor::new(&[[[1u32, 0], [0, 2]]], d)?;
        count(d, DType::F32, &[2, 3, 4])?.gather(&ids, 1)
    })?;
    both(|d| {
        let ids = Tensor::new(&[[[1u32], [0]], [[2], [3]]], d)?;
        count(d, DType::I64, &[2, 3, 4])?.gather(&ids, 2)
    })?;
    Ok(())
}

#[test]
fn avg_pool2d_of_integers() -> Result<()> {
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let means = both(|d| {
            let pixels = count(d, dtype, &[1, 2, 3, 5])?;
            pixels.avg_pool2d_with_stride((2, 2), (1, 3))
        })?;
        assert!(means.iter().any(|mean| *mean != 0.), "{dtype:?}");
    }
    Ok(())
}

#[test]
fn bilinear_resizing_of_a_view_to_its_own_size() -> Result<()> {
    both(|d| {
        let view = count(d, DType::F32, &[1, 1, 4, 4])?.narrow(3, 1, 2)?;
        view.upsample_bilinear2d(4, 2, false)
    })?;
    Ok(())
}

#[test]
fn sorting_nan() -> Result<()> {
    let numbers: Vec<f32> = (0..300u32)
        .map(|i| match i % 7 {
            0 => f32::NAN,
            _ => (i * 7919 % 1000) as f32,
        })
        .collect();
    for ascending in [true, false] {
        both(|d| Tensor::new(&numbers[..], d)?.arg_sort_last_dim(ascending))?;
    }
    Ok(())
}

#[test]
fn rope_with_tables_for_every_sequence() -> Result<()> {
    type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let ropes: [(Rope, usize); 3] = [(rope, 2), (rope_i, 2), (rope_thd, 1)];
    for (rope, time) in ropes {
        for steps in [1, 3] {
            let mut shape = [2, 2, 2, 8];
            shape[time] = steps;
            let [x, cos, sin] = [&shape[..], &[2, 5, 4], &[2, 5, 4]];
            let numbers = |d: &Device, shape| count(d, DType::F32, shape);
            both(|d| {
                rope(
                    &numbers(d, x)?,
                    &numbers(d, cos)?,
                    &(numbers(d, sin)? * 0.5)?,
                )
            })?;
            // One table for all with one for each: the CPU refuses it, the device knows what is meant.
            let mixed =
                |d: &Device| rope(&numbers(d, x)?, &numbers(d, cos)?, &numbers(d, &[5, 4])?);
            assert!(mixed(&CPU).is_err());
            let device = rocm();
            let one = numbers(&device, &[5, 4])?;
            let repeated = Tensor::stack(&[&one, &one], 0)?;
            let want = rope(&numbers(&device, x)?, &numbers(&device, cos)?, &repeated)?;
            assert_eq!(to_f64(&mixed(&device)?)?, to_f64(&want)?);
        }
    }
    Ok(())
}

/// Functions that integers do not have are errors on both devices, by name and dtype.
#[test]
fn functions_of_integers() -> Result<()> {
    for device in [rocm(), CPU] {
        for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
            let t = Tensor::ones((2, 3), dtype, &device)?;
            for (name, outcome) in [("exp", t.exp()), ("gelu", t.gelu()), ("silu", t.silu())] {
                let error = outcome.expect_err(name).to_string().to_lowercase();
                assert!(
                    error.contains(name) && error.contains(dtype.as_str()),
                    "{error}"
                );
            }
        }
    }
    Ok(())
}
