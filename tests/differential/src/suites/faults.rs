//! Where the published candle is at fault (`fork/*/FIXES.md`), `Device::Rocm` and the CPU agree on what is right.

use crate::{error_of, to_f64, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor, Var, D};
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
    Suite::unlisted("reductions-of-small-floats", reductions_of_small_floats),
    Suite::unlisted("nan-in-extrema", nan_in_extrema),
    Suite::unlisted("cumulative-sums", cumulative_sums),
    Suite::unlisted("powers", powers),
    Suite::unlisted("gradients-at-ties", gradients_at_ties),
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

/// Sums that end where the dtype cannot count on, and means whose sums overflow.
fn reductions_of_small_floats(context: &Context, _: &mut Report) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let ones = |d: &Device| Tensor::ones((2, 5000), dtype, d);
        let full = |d: &Device, v: f32| Tensor::full(v, 64, d)?.to_dtype(dtype);
        let sums = both(context, |d| ones(d)?.sum(1))?;
        ensure!((sums[0] - 5000.).abs() < 10., "{sums:?}");
        both(context, |d| ones(d)?.t()?.contiguous()?.sum(0))?;
        let means = both(context, |d| full(d, 60000.)?.mean_all())?;
        ensure!((means[0] - 60000.).abs() < 100., "{means:?}");
        let norms = both(context, |d| full(d, 300.)?.norm())?;
        ensure_eq!(norms, [2400.]);
        both(context, |d| full(d, 500.)?.var(0))?;
        both(context, |d| {
            ones(d)?
                .narrow(1, 0, 4096)?
                .reshape((2, 1, 64, 64))?
                .avg_pool2d(64)
        })?;
        both(context, |d| candle_nn::ops::softmax(&ones(d)?, D::Minus1))?;
        both(context, |d| candle_nn::ops::softmax(&ones(d)?.t()?, 0))?;
        let rows = both(context, |d| {
            let ids = Tensor::zeros(5000, DType::U32, d)?;
            Tensor::zeros((2, 3), dtype, d)?.index_add(&ids, &Tensor::ones((5000, 3), dtype, d)?, 0)
        })?;
        ensure!((rows[0] - 5000.).abs() < 10., "{rows:?}");
        both(context, |d| {
            let ids = Tensor::zeros((5000, 3), DType::U32, d)?;
            Tensor::zeros((2, 3), dtype, d)?.scatter_add(
                &ids,
                &Tensor::ones((5000, 3), dtype, d)?,
                0,
            )
        })?;
    }
    Ok(())
}

/// 64 where there was NaN, which equals nothing.
fn marked(t: Tensor) -> Result<Tensor> {
    let mark = Tensor::full(64f32, t.dims(), t.device())?.to_dtype(t.dtype())?;
    t.ne(&t)?.where_cond(&mark, &t)
}

fn nan_in_extrema(context: &Context, _: &mut Report) -> Result<()> {
    let numbers: Vec<f32> = (0..12 * 40u32)
        .map(|i| match i % 67 {
            13 => f32::NAN,
            _ => (i * 7919 % 100) as f32 - 50.,
        })
        .collect();
    for dtype in [
        DType::F8E4M3,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
    ] {
        let x = |d: &Device| {
            Tensor::new(&numbers[..], d)?
                .reshape((12, 40))?
                .to_dtype(dtype)
        };
        for axis in [0, 1] {
            let found = both(context, |d| marked(x(d)?.max(axis)?))?;
            ensure!(found.contains(&64.), "{found:?}");
            both(context, |d| marked(x(d)?.min(axis)?))?;
            both(context, |d| x(d)?.argmax(axis))?;
            both(context, |d| x(d)?.argmin(axis))?;
        }
        both(context, |d| marked(x(d)?.max_all()?))?;
        both(context, |d| marked(x(d)?.relu()?))?;
        both(context, |d| marked(x(d)?.maximum(&x(d)?.flip(&[1])?)?))?;
        both(context, |d| marked(x(d)?.minimum(&x(d)?.flip(&[1])?)?))?;
        both(context, |d| marked(x(d)?.clamp(-10f32, 10f32)?))?;
        both(context, |d| {
            marked(x(d)?.reshape((1, 1, 12, 40))?.max_pool2d((3, 5))?)
        })?;
    }
    Ok(())
}

fn cumulative_sums(context: &Context, _: &mut Report) -> Result<()> {
    let all = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F8E4M3,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
    ];
    for dtype in all {
        for axis in 0..3 {
            // Small enough for sums in every dtype to be exact or to round alike.
            both(context, |d| {
                let bits = Tensor::arange(0u32, 3 * 70 * 5, d)?.reshape((3, 70, 5))?;
                let even = (bits.to_dtype(DType::F32)? * 0.7)?
                    .round()?
                    .to_dtype(DType::U8)?;
                even.le(90u8)?.to_dtype(dtype)?.cumsum(axis)
            })?;
        }
    }
    let sums = both(context, |d| {
        marked(Tensor::new(&[1f32, f32::INFINITY, 2., f32::NAN, 3.], d)?.cumsum(0)?)
    })?;
    ensure_eq!(sums, [1., f64::INFINITY, f64::INFINITY, 64., 64.]);
    Ok(())
}

fn powers(context: &Context, _: &mut Report) -> Result<()> {
    let base = [-2f32, 0., -2., 2., -1., 0., -0.5];
    let exponent = [2f32, 0., 3., 0., 0.5, 2., -2.];
    for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
        let of = |d: &Device, v: &[f32]| Tensor::new(v, d)?.to_dtype(dtype);
        let powers = both(context, |d| marked(of(d, &base)?.pow(&of(d, &exponent)?)?))?;
        ensure_eq!(powers, [4., 1., -8., 1., 64., 0., 4.]);
        both(context, |d| of(d, &base)?.powf(2.))?;
    }
    Ok(())
}

fn gradients_at_ties(context: &Context, _: &mut Report) -> Result<()> {
    type Function = fn(&Tensor) -> Result<Tensor>;
    let functions: [Function; 8] = [
        |x| x.max(1),
        |x| x.min(0),
        |x| x.maximum(&x.zeros_like()?),
        |x| x.clamp(-1f32, 1f32),
        Tensor::relu,
        Tensor::abs,
        |x| candle_nn::ops::leaky_relu(x, 0.25),
        |x| x.reshape((1, 1, 3, 4))?.max_pool2d((3, 2)),
    ];
    for f in functions {
        both(context, |d| {
            let x = [-1f32, 0., 1., 1., 0., 0., 2., 2., -1., -1., 3., 0.];
            let x = Var::from_tensor(&Tensor::new(&x, d)?.reshape((3, 4))?)?;
            let grads = f(x.as_tensor())?.sum_all()?.backward()?;
            Ok(grads.get(&x).expect("a gradient").clone())
        })?;
    }
    Ok(())
}
