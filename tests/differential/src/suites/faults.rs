//! Where the published candle is at fault (`fork/*/FIXES.md`), `Device::Rocm` and the CPU agree on what is right.

use crate::{error_of, to_f64, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope, rope_i, rope_thd};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::unlisted("f8e4m3-as-f64", f8e4m3_as_f64),
    Suite::unlisted(
        "products-with-one-right-hand-side",
        products_with_one_right_hand_side,
    ),
    Suite::unlisted("convolutions-of-views", convolutions),
    Suite::unlisted("gather-with-fewer-ids", gather_with_fewer_ids),
    Suite::unlisted("avg-pool2d-of-integers", avg_pool2d_of_integers),
    Suite::unlisted(
        "bilinear-resizing-of-a-view-to-its-own-size",
        bilinear_resizing_of_a_view_to_its_own_size,
    ),
    Suite::unlisted("sorting-nan", sorting_nan),
    Suite::unlisted(
        "rope-with-tables-for-every-sequence",
        rope_with_tables_for_every_sequence,
    ),
    Suite::unlisted("functions-of-integers", functions_of_integers),
];

const CPU: Device = Device::Cpu;

/// The outcome on both devices, which must be the same numbers.
fn both(context: &Context, f: impl Fn(&Device) -> Result<Tensor>) -> Result<Vec<f64>> {
    let (got, want) = (f(&context.device)?, f(&CPU)?);
    ensure_eq!((got.dtype(), got.dims()), (want.dtype(), want.dims()));
    let (got, want) = (to_f64(&got)?, to_f64(&want)?);
    ensure_eq!(got, want);
    Ok(got)
}

fn count(device: &Device, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let elements = shape.iter().product::<usize>() as f32;
    // Bytes hold the numbers, and so do the sums of a few products in f32.
    let numbers = (Tensor::arange(0f32, elements, &CPU)? - 7.)?.reshape(shape)?;
    numbers.to_dtype(dtype)?.to_device(device)
}

fn f8e4m3_as_f64(context: &Context, _: &mut Report) -> Result<()> {
    let numbers = both(context, |d| {
        count(d, DType::F8E4M3, &[24])?.to_dtype(DType::F64)
    })?;
    ensure_eq!(numbers[..3], [-7., -6., -5.]);
    Ok(())
}

fn products_with_one_right_hand_side(context: &Context, _: &mut Report) -> Result<()> {
    both(context, |d| {
        let lhs = count(d, DType::F32, &[2, 4, 3])?.t()?;
        lhs.matmul(&count(d, DType::F32, &[4, 5])?.broadcast_as((2, 4, 5))?)
    })?;
    Ok(())
}

fn convolutions(context: &Context, _: &mut Report) -> Result<()> {
    for batch in [1, 2] {
        both(context, |d| {
            let x = count(d, DType::F32, &[batch, 3, 4])?;
            x.conv_transpose1d(&count(d, DType::F32, &[3, 2, 2])?, 0, 0, 1, 1, 1)
        })?;
        both(context, |d| {
            let kernel = count(d, DType::F32, &[3, 3, 4])?.narrow(2, 1, 2)?;
            count(d, DType::F32, &[batch, 3, 5])?.conv1d(&kernel, 0, 1, 1, 1)
        })?;
    }
    Ok(())
}

fn gather_with_fewer_ids(context: &Context, _: &mut Report) -> Result<()> {
    both(context, |d| {
        let ids = Tensor::new(&[[[1u32, 0], [0, 2]]], d)?;
        count(d, DType::F32, &[2, 3, 4])?.gather(&ids, 1)
    })?;
    both(context, |d| {
        let ids = Tensor::new(&[[[1u32], [0]], [[2], [3]]], d)?;
        count(d, DType::I64, &[2, 3, 4])?.gather(&ids, 2)
    })?;
    Ok(())
}

fn avg_pool2d_of_integers(context: &Context, _: &mut Report) -> Result<()> {
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let means = both(context, |d| {
            let pixels = count(d, dtype, &[1, 2, 3, 5])?;
            pixels.avg_pool2d_with_stride((2, 2), (1, 3))
        })?;
        ensure!(means.iter().any(|mean| *mean != 0.), "{dtype:?}");
    }
    Ok(())
}

fn bilinear_resizing_of_a_view_to_its_own_size(context: &Context, _: &mut Report) -> Result<()> {
    both(context, |d| {
        let view = count(d, DType::F32, &[1, 1, 4, 4])?.narrow(3, 1, 2)?;
        view.upsample_bilinear2d(4, 2, false)
    })?;
    Ok(())
}

fn sorting_nan(context: &Context, _: &mut Report) -> Result<()> {
    let numbers: Vec<f32> = (0..300u32)
        .map(|i| match i % 7 {
            0 => f32::NAN,
            _ => (i * 7919 % 1000) as f32,
        })
        .collect();
    for ascending in [true, false] {
        both(context, |d| {
            Tensor::new(&numbers[..], d)?.arg_sort_last_dim(ascending)
        })?;
    }
    Ok(())
}

fn rope_with_tables_for_every_sequence(context: &Context, _: &mut Report) -> Result<()> {
    type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let ropes: [(Rope, usize); 3] = [(rope, 2), (rope_i, 2), (rope_thd, 1)];
    for (rope, time) in ropes {
        for steps in [1, 3] {
            let mut shape = [2, 2, 2, 8];
            shape[time] = steps;
            let [x, cos, sin] = [&shape[..], &[2, 5, 4], &[2, 5, 4]];
            let numbers = |d: &Device, shape| count(d, DType::F32, shape);
            both(context, |d| {
                rope(
                    &numbers(d, x)?,
                    &numbers(d, cos)?,
                    &(numbers(d, sin)? * 0.5)?,
                )
            })?;
            // One table for all with one for each: the CPU refuses it, the device knows what is meant.
            let mixed =
                |d: &Device| rope(&numbers(d, x)?, &numbers(d, cos)?, &numbers(d, &[5, 4])?);
            ensure!(mixed(&CPU).is_err());
            let device = context.device.clone();
            let one = numbers(&device, &[5, 4])?;
            let repeated = Tensor::stack(&[&one, &one], 0)?;
            let want = rope(&numbers(&device, x)?, &numbers(&device, cos)?, &repeated)?;
            ensure_eq!(to_f64(&mixed(&device)?)?, to_f64(&want)?);
        }
    }
    Ok(())
}

/// Functions that integers do not have are errors on both devices, by name and dtype.
fn functions_of_integers(context: &Context, _: &mut Report) -> Result<()> {
    for device in [context.device.clone(), CPU] {
        for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
            let t = Tensor::ones((2, 3), dtype, &device)?;
            for (name, outcome) in [("exp", t.exp()), ("gelu", t.gelu()), ("silu", t.silu())] {
                let error = error_of(outcome, name)?.to_lowercase();
                ensure!(
                    error.contains(name) && error.contains(dtype.as_str()),
                    "{error}"
                );
            }
        }
    }
    Ok(())
}
