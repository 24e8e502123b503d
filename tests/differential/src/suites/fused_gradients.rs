//! Gradients of fused operations, on `Device::Rocm` and on the CPU, against differences of the written formula's values
//! in f64.

use crate::{error_of, name, nmse, to_f64, values, Context, Report, Suite};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::rotary_emb::{rope, rope_i, rope_i_slow, rope_slow, rope_thd};
use candle_nn::{fused, ops, Activation, GroupNorm, LayerNorm, Module, RmsNorm};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("fused-gradients", gradients_are_derivatives),
    Suite::unlisted(
        "fused-gradients-large",
        large_gradients_are_those_of_the_formula,
    ),
    Suite::unlisted("fused-gradients-none", what_has_none_says_so),
];

type Function = fn(&[Tensor]) -> Result<Tensor>;

/// A fused operation, and the same of operations that have gradients.
struct Case {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    fused: Function,
    plain: Function,
}

const fn case(
    name: &'static str,
    shapes: &'static [&'static [usize]],
    fused: Function,
    plain: Function,
) -> Case {
    Case {
        name,
        shapes,
        fused,
        plain,
    }
}

const EPS: f64 = 1e-5;
const ROWS: &[usize] = &[5, 9];
const NORM: &[&[usize]] = &[ROWS, &[9]];
const LAYER: &[&[usize]] = &[ROWS, &[9], &[9]];
const ADD_NORM: &[&[usize]] = &[ROWS, ROWS, &[9]];
const ADD_LAYER: &[&[usize]] = &[ROWS, ROWS, &[9], &[9]];
const IMAGES: &[&[usize]] = &[&[2, 6, 3, 5], &[6], &[6]];
const HEADS: &[&[usize]] = &[&[2, 3, 4, 8], &[6, 4], &[6, 4]];
const TABLES: &[&[usize]] = &[&[2, 3, 4, 8], &[2, 5, 4], &[2, 5, 4]];
const THD: &[&[usize]] = &[&[2, 4, 3, 8], &[6, 4], &[6, 4]];
const PAIR: &[&[usize]] = &[ROWS, ROWS];
const ATTENTION: &[&[usize]] = &[&[2, 4, 5, 8], &[2, 2, 7, 8], &[2, 2, 7, 8]];
const MASKED: &[&[usize]] = &[&[1, 2, 3, 8], &[1, 2, 4, 8], &[1, 2, 4, 8], &[1, 2, 3, 4]];

/// Sequences one by one, with tables cut to their length.
fn rope_plain(
    x: &[Tensor],
    slow: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (batch, _, time, _) = x[0].dims4()?;
    let one = |b: usize| {
        let table = |table: &Tensor| match table.rank() {
            2 => table.narrow(0, 0, time),
            _ => table.get(b)?.narrow(0, 0, time),
        };
        slow(&x[0].narrow(0, b, 1)?, &table(&x[1])?, &table(&x[2])?)
    };
    Tensor::cat(&(0..batch).map(one).collect::<Result<Vec<_>>>()?, 0)
}

fn heads_first(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut x = x.to_vec();
    x[0] = x[0].transpose(1, 2)?.contiguous()?;
    Ok(x)
}

fn layer_plain(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    ops::layer_norm_slow(x, weight, bias, EPS as f32)
}

/// `softmax(scale q kᵀ + bias) v`, with heads that share keys, and scores that pass through `cap`.
fn attention_plain(x: &[Tensor], bias: Option<&Tensor>, cap: Option<f64>) -> Result<Tensor> {
    let group = x[0].dim(1)? / x[1].dim(1)?;
    let repeated = |x: &Tensor| -> Result<Tensor> {
        let (b, heads, keys, size) = x.dims4()?;
        x.unsqueeze(2)?
            .broadcast_as((b, heads, group, keys, size))?
            .reshape((b, heads * group, keys, size))
    };
    let mut scores = (x[0].matmul(&repeated(&x[1])?.t()?)? * 0.35)?;
    if let Some(cap) = cap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(bias) = bias {
        scores = scores.broadcast_add(bias)?;
    }
    ops::softmax(&scores, D::Minus1)?.matmul(&repeated(&x[2])?)
}

/// 0 for the keys that a row sees, and so little for others that they weigh nothing.
fn causal(x: &[Tensor]) -> Result<Tensor> {
    let (rows, keys) = (x[0].dim(2)?, x[1].dim(2)?);
    let bias = |i: usize| {
        if i % keys + rows > i / keys + keys {
            -1e4
        } else {
            0.
        }
    };
    let bias: Vec<f64> = (0..rows * keys).map(bias).collect();
    Tensor::from_vec(bias, (rows, keys), x[0].device())
}

/// A packed product's halves, as views.
fn halves(x: &[Tensor]) -> Result<[Tensor; 2]> {
    let packed = Tensor::cat(&[&x[0], &x[1]], 1)?;
    let half = x[0].dim(1)?;
    Ok([packed.narrow(1, 0, half)?, packed.narrow(1, half, half)?])
}

fn weights(device: &Device) -> Result<QTensor> {
    let weights = Tensor::from_vec(values(3 * 32, 5, -1., 1.), (3, 32), &Device::Cpu)?;
    QTensor::quantize_onto(&weights.to_dtype(DType::F32)?, GgmlDType::Q8_0, device)
}

const CASES: &[Case] = &[
    case(
        "softmax_last_dim",
        &[ROWS],
        |x| ops::softmax_last_dim(&x[0]),
        |x| ops::softmax(&x[0], D::Minus1),
    ),
    case(
        "rms_norm",
        NORM,
        |x| ops::rms_norm(&x[0], &x[1], EPS as f32),
        |x| ops::rms_norm_slow(&x[0], &x[1], EPS as f32),
    ),
    case(
        "RmsNorm",
        NORM,
        |x| RmsNorm::new(x[1].clone(), EPS).forward(&x[0]),
        |x| ops::rms_norm_slow(&x[0], &x[1], EPS as f32),
    ),
    case(
        "layer_norm",
        LAYER,
        |x| ops::layer_norm(&x[0], &x[1], &x[2], EPS as f32),
        |x| layer_plain(&x[0], &x[1], &x[2]),
    ),
    case(
        "LayerNorm",
        LAYER,
        |x| LayerNorm::new(x[1].clone(), x[2].clone(), EPS).forward(&x[0]),
        |x| layer_plain(&x[0], &x[1], &x[2]),
    ),
    case(
        "add_rms_norm",
        ADD_NORM,
        |x| {
            let (sum, normed) = fused::add_rms_norm(&x[0], &x[1], &x[2], EPS as f32)?;
            sum * normed
        },
        |x| {
            let sum = (&x[0] + &x[1])?;
            &sum * ops::rms_norm_slow(&sum, &x[2], EPS as f32)?
        },
    ),
    case(
        "add_layer_norm",
        ADD_LAYER,
        |x| {
            let pair = fused::add_layer_norm(&x[0], &x[1], &x[2], Some(&x[3]), EPS as f32)?;
            pair.0 * pair.1
        },
        |x| {
            let sum = (&x[0] + &x[1])?;
            &sum * layer_plain(&sum, &x[2], &x[3])?
        },
    ),
    case(
        "group_norm",
        IMAGES,
        |x| fused::group_norm(&x[0], &x[1], &x[2], 3, EPS),
        |x| GroupNorm::new(x[1].clone(), x[2].clone(), 6, 3, EPS)?.forward(&x[0]),
    ),
    case(
        "group_norm_silu",
        IMAGES,
        |x| fused::group_norm_silu(&x[0], &x[1], &x[2], 3, EPS),
        |x| {
            let norm = GroupNorm::new(x[1].clone(), x[2].clone(), 6, 3, EPS)?;
            norm.forward(&x[0])?.silu()
        },
    ),
    case(
        "rope",
        HEADS,
        |x| rope(&x[0], &x[1], &x[2]),
        |x| rope_plain(x, rope_slow),
    ),
    case(
        "rope with tables for every sequence",
        TABLES,
        |x| rope(&x[0], &x[1], &x[2]),
        |x| rope_plain(x, rope_slow),
    ),
    case(
        "rope_i",
        HEADS,
        |x| rope_i(&x[0], &x[1], &x[2]),
        |x| rope_plain(x, rope_i_slow),
    ),
    case(
        "rope_thd",
        THD,
        |x| rope_thd(&x[0], &x[1], &x[2]),
        |x| {
            rope_plain(&heads_first(x)?, rope_slow)?
                .transpose(1, 2)?
                .contiguous()
        },
    ),
    case(
        "silu_mul",
        PAIR,
        |x| fused::silu_mul(&x[0], &x[1]),
        |x| x[0].silu()? * &x[1],
    ),
    case(
        "gelu_mul",
        PAIR,
        |x| fused::gelu_mul(&x[0], &x[1]),
        |x| x[0].gelu()? * &x[1],
    ),
    case(
        "gelu_erf_mul",
        PAIR,
        |x| fused::gelu_erf_mul(&x[0], &x[1]),
        |x| x[0].gelu_erf()? * &x[1],
    ),
    case(
        "gate_mul of ReLU",
        PAIR,
        |x| fused::gate_mul(Activation::Relu, &x[0], &x[1]),
        |x| x[0].relu()? * &x[1],
    ),
    case(
        "gate_mul of halves",
        PAIR,
        |x| {
            let [gate, up] = halves(x)?;
            fused::silu_mul(&gate, &up)
        },
        |x| x[0].silu()? * &x[1],
    ),
    case(
        "sdpa",
        ATTENTION,
        |x| ops::sdpa(&x[0], &x[1], &x[2], None, false, 0.35, 1.),
        |x| attention_plain(x, None, None),
    ),
    case(
        "sdpa, causal and bounded",
        ATTENTION,
        |x| ops::sdpa(&x[0], &x[1], &x[2], None, true, 0.35, 2.),
        |x| attention_plain(x, Some(&causal(x)?), Some(2.)),
    ),
    case(
        "sdpa with a learned mask",
        MASKED,
        |x| ops::sdpa(&x[0], &x[1], &x[2], Some(&x[3]), false, 0.35, 1.),
        |x| attention_plain(x, Some(&x[3]), None),
    ),
    case(
        "quantized matmul",
        &[&[2, 3, 32]],
        |x| QMatMul::from_qtensor(weights(x[0].device())?)?.forward(&x[0]),
        |x| {
            let weights = weights(&Device::Cpu)?.dequantize(&Device::Cpu)?;
            x[0].broadcast_matmul(&weights.to_dtype(DType::F64)?.t()?)
        },
    ),
];

/// The numbers of the inputs as the dtype has them.
fn numbers(shapes: &[&[usize]], dtype: DType) -> Result<Vec<Tensor>> {
    let tensor = |(i, shape): (usize, &&[usize])| {
        let numbers = values(shape.iter().product(), 300 + i as u64, -1.5, 1.5);
        Tensor::from_vec(numbers, *shape, &Device::Cpu)?.to_dtype(dtype)
    };
    shapes.iter().enumerate().map(tensor).collect()
}

/// The sum of the outcome's elements, each with a weight of its own that every dtype has.
fn weighted(y: &Tensor) -> Result<Tensor> {
    let weights = values(y.elem_count(), 7, 2., 6.);
    let weights: Vec<f64> = weights.iter().map(|w| w.round() / 4.).collect();
    let weights = Tensor::from_vec(weights, y.shape(), &Device::Cpu)?;
    y.mul(&weights.to_dtype(y.dtype())?.to_device(y.device())?)?
        .sum_all()
}

/// The gradient of each input.
fn gradients(f: Function, inputs: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    let var = |x: &Tensor| Var::from_tensor(&x.to_device(device)?);
    let vars: Vec<Var> = inputs.iter().map(var).collect::<Result<_>>()?;
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let store = weighted(&f(&tensors)?)?.backward()?;
    let gradient = |(i, var): (usize, &Var)| match store.get(var) {
        Some(gradient) => Ok(gradient.clone()),
        None => candle_core::bail!("input {i} has no gradient"),
    };
    vars.iter().enumerate().map(gradient).collect()
}

/// By how much results of a dtype may differ.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-6,
        DType::BF16 => 1e-4,
        _ => 1e-10,
    }
}

/// Central differences of the plain formula.
fn derivatives(case: &Case, inputs: &[Tensor], i: usize) -> Result<Vec<f64>> {
    const STEP: f64 = 1e-4;
    let numbers = to_f64(&inputs[i])?;
    let at = |element: usize, step: f64| -> Result<f64> {
        let mut moved = numbers.clone();
        moved[element] += step;
        let mut inputs = inputs.to_vec();
        inputs[i] = Tensor::from_vec(moved, inputs[i].shape(), &Device::Cpu)?;
        weighted(&(case.plain)(&inputs)?)?.to_scalar::<f64>()
    };
    (0..numbers.len())
        .map(|element| Ok((at(element, STEP)? - at(element, -STEP)?) / (2. * STEP)))
        .collect()
}

fn gradients_are_derivatives(context: &Context, report: &mut Report) -> Result<()> {
    let devices = [("", context.device.clone()), ("on the CPU, ", Device::Cpu)];
    for case in CASES {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if case.name == "quantized matmul" && dtype != DType::F32 {
                continue;
            }
            let inputs = numbers(case.shapes, dtype)?;
            let wide: Vec<Tensor> = inputs
                .iter()
                .map(|x| x.to_dtype(DType::F64))
                .collect::<Result<_>>()?;
            for (place, device) in &devices {
                let got = gradients(case.fused, &inputs, device);
                for (i, x) in wide.iter().enumerate() {
                    let want = derivatives(case, &wide, i)
                        .and_then(|want| Tensor::from_vec(want, x.shape(), &Device::Cpu));
                    let got = match &got {
                        Ok(gradients) => Ok(gradients[i].clone()),
                        Err(error) => Err(candle_core::Error::msg(error.to_string())),
                    };
                    let (op, what) = (
                        format!("gradient of {}", case.name),
                        format!("{place}input {i}"),
                    );
                    report.compare(&op, name(dtype), &what, limit(dtype), got, want);
                }
            }
        }
    }
    Ok(())
}

/// Rows that blocks have, rows enough for several parts, and more than one wave's: against the plain formula's graph.
fn large_gradients_are_those_of_the_formula(context: &Context, report: &mut Report) -> Result<()> {
    let shapes: [(&str, &[&[usize]]); 7] = [
        ("softmax_last_dim", &[&[3, 1500]]),
        ("rms_norm", &[&[150, 70], &[70]]),
        ("layer_norm", &[&[40, 1100], &[1100], &[1100]]),
        ("group_norm_silu", &[&[2, 6, 20, 33], &[6], &[6]]),
        ("silu_mul", &[&[7, 333], &[7, 333]]),
        (
            "sdpa, causal and bounded",
            &[&[1, 4, 70, 40], &[1, 2, 150, 40], &[1, 2, 150, 40]],
        ),
        (
            "sdpa",
            &[&[1, 2, 9, 136], &[1, 1, 20, 136], &[1, 1, 20, 136]],
        ),
    ];
    for (op, shapes) in shapes {
        let case = CASES.iter().find(|case| case.name == op);
        let case = case.expect("there is a case of this name");
        for dtype in [DType::F32, DType::F16] {
            let inputs = numbers(shapes, dtype)?;
            let wide: Vec<Tensor> = inputs
                .iter()
                .map(|x| x.to_dtype(DType::F64))
                .collect::<Result<_>>()?;
            let got = gradients(case.fused, &inputs, &context.device)?;
            let want = gradients(case.plain, &wide, &Device::Cpu)?;
            for (i, (got, want)) in got.into_iter().zip(want).enumerate() {
                // GELU's and others' derivatives have six digits in candle.
                let limit = limit(dtype).max(1e-9);
                let what = format!("input {i} of {shapes:?}");
                report.compare(op, name(dtype), &what, limit, Ok(got), Ok(want));
            }
        }
    }
    Ok(())
}

/// No result leaves its inputs out of the graph without a word.
fn what_has_none_says_so(_: &Context, _: &mut Report) -> Result<()> {
    use candle_nn::attention::{flash_attn, flash_attn_varlen_cpu, AttnMask};
    let cpu = Device::Cpu;
    let x = Var::ones((1, 3, 2, 8), DType::F32, &cpu)?;
    for mask in [AttnMask::None, AttnMask::causal()] {
        let y = flash_attn::<f32>(&x, &x, &x, 0.3, mask, None, None)?;
        let error = error_of(y.backward(), "cpu_flash")?;
        ensure!(error.contains("cpu_flash attention"), "{error}");
    }
    let (packed, lengths) = (x.squeeze(0)?, Tensor::new(&[3u32], &cpu)?);
    let y = flash_attn_varlen_cpu(
        &packed, &packed, &packed, None, &lengths, &lengths, 3, 3, 0.3, true, None, None,
    )?;
    let error = error_of(y.backward(), "varlen")?;
    ensure!(error.contains("cpu_flash attention"), "{error}");
    // Weights that are no variables, and inputs that are none, have no gradients and need none.
    let weight = Tensor::ones(8, DType::F32, &cpu)?;
    let y = ops::rms_norm(&x, &weight, EPS as f32)?;
    let store = y.sqr()?.backward()?;
    ensure!(store.get(&x).is_some() && store.get(&weight).is_none());
    let y = ops::rms_norm(
        &Tensor::ones((2, 8), DType::F32, &cpu)?,
        &weight,
        EPS as f32,
    )?;
    ensure!(!y.track_op());
    ensure!(nmse(&to_f64(&y)?, &[1.; 16]).is_ok_and(|error| error < 1e-9));
    Ok(())
}
