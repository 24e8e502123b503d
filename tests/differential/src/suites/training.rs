//! Gradients on `Device::Rocm` against the CPU's, those against differences of the function's values, and a network
//! trained on both.

use crate::{error_of, nmse, to_f64, values, Context, Report, Size, Suite};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW, SGD};
use candle_nn::{loss, ops, Conv2d, Conv2dConfig, Linear, Module};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("gradients", gradients_are_those_of_the_cpu),
    Suite::on_cpu("derivatives", gradients_are_derivatives),
    Suite::unlisted("functions-without-a-gradient", functions_without_a_gradient),
    Suite::unlisted("adamw", a_network_trained_with_adamw),
    Suite::unlisted("sgd", a_network_trained_with_sgd),
];

type Function = fn(&[Tensor]) -> Result<Tensor>;

/// A differentiable function: its inputs' shapes, and the range that their values are from.
struct Case {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    range: (f64, f64),
    f: Function,
}

const fn case(name: &'static str, shapes: &'static [&'static [usize]], f: Function) -> Case {
    Case {
        name,
        shapes,
        range: (-1.5, 1.5),
        f,
    }
}

const fn positive(name: &'static str, shapes: &'static [&'static [usize]], f: Function) -> Case {
    Case {
        name,
        shapes,
        range: (0.5, 2.),
        f,
    }
}

const ONE: &[&[usize]] = &[&[3, 4]];
const TWO: &[&[usize]] = &[&[3, 4], &[3, 4]];

/// Row indices for the indexing functions.
fn ids(device: &Device, ids: &[u32], shape: &[usize]) -> Result<Tensor> {
    Tensor::new(ids, device)?.reshape(shape)
}

const CASES: &[Case] = &[
    case("add", TWO, |x| x[0].add(&x[1])),
    case("sub", TWO, |x| x[0].sub(&x[1])),
    case("mul", TWO, |x| x[0].mul(&x[1])),
    positive("div", TWO, |x| x[0].div(&x[1])),
    case("minimum", TWO, |x| x[0].minimum(&x[1])),
    case("maximum", TWO, |x| x[0].maximum(&x[1])),
    case("broadcast_add", &[&[3, 4], &[4]], |x| {
        x[0].broadcast_add(&x[1])
    }),
    case("broadcast_mul", &[&[3, 1], &[2, 1, 4]], |x| {
        x[0].broadcast_mul(&x[1])
    }),
    case("broadcast_sub", &[&[3, 4], &[3, 1]], |x| {
        x[0].broadcast_sub(&x[1])
    }),
    positive("broadcast_div", &[&[3, 4], &[4]], |x| {
        x[0].broadcast_div(&x[1])
    }),
    positive("pow", TWO, |x| x[0].pow(&x[1])),
    case("exp", ONE, |x| x[0].exp()),
    positive("log", ONE, |x| x[0].log()),
    case("sin", ONE, |x| x[0].sin()),
    case("cos", ONE, |x| x[0].cos()),
    case("tanh", ONE, |x| x[0].tanh()),
    case("abs", ONE, |x| x[0].abs()),
    case("neg", ONE, |x| x[0].neg()),
    positive("recip", ONE, |x| x[0].recip()),
    case("sqr", ONE, |x| x[0].sqr()),
    positive("sqrt", ONE, |x| x[0].sqrt()),
    case("gelu", ONE, |x| x[0].gelu()),
    case("gelu_erf", ONE, |x| x[0].gelu_erf()),
    case("erf", ONE, |x| x[0].erf()),
    case("relu", ONE, |x| x[0].relu()),
    case("silu", ONE, |x| x[0].silu()),
    case("elu", ONE, |x| x[0].elu(0.7)),
    positive("powf", ONE, |x| x[0].powf(2.5)),
    case("affine", ONE, |x| x[0].affine(1.5, -2.)),
    case("where_cond", TWO, |x| {
        let condition = Tensor::arange(0u32, 12, x[0].device())?.reshape((3, 4))?;
        condition.ge(5u32)?.where_cond(&x[0], &x[1])
    }),
    case("sum", ONE, |x| x[0].sum(1)),
    case("mean", ONE, |x| x[0].mean_keepdim(0)),
    case("var", ONE, |x| x[0].var(1)),
    case("max", ONE, |x| x[0].max(1)),
    case("min", ONE, |x| x[0].min(0)),
    case("cumsum", ONE, |x| x[0].cumsum(1)),
    case("log_sum_exp", ONE, |x| x[0].log_sum_exp(1)),
    case("matmul", &[&[3, 4], &[4, 5]], |x| x[0].matmul(&x[1])),
    case("batched matmul", &[&[2, 3, 4], &[2, 5, 4]], |x| {
        x[0].matmul(&x[1].t()?)
    }),
    case("broadcast_matmul", &[&[2, 3, 4], &[4, 5]], |x| {
        x[0].broadcast_matmul(&x[1])
    }),
    case("reshape", ONE, |x| x[0].reshape((2, 6))?.sqr()),
    case("transpose", ONE, |x| x[0].t()?.sqr()),
    case("permute", &[&[2, 3, 4]], |x| x[0].permute((2, 0, 1))?.sqr()),
    case("narrow", ONE, |x| x[0].narrow(1, 1, 2)?.sqr()),
    case("cat", TWO, |x| Tensor::cat(&[&x[0], &x[1], &x[0]], 1)),
    case("stack", TWO, |x| Tensor::stack(&[&x[0], &x[1]], 1)),
    case("chunk", ONE, |x| {
        let halves = x[0].chunk(2, 1)?;
        halves[0].mul(&halves[1])
    }),
    case("broadcast_as", &[&[3, 1]], |x| x[0].broadcast_as((2, 3, 4))),
    case("flip", ONE, |x| x[0].flip(&[1])),
    case("pad_with_zeros", ONE, |x| x[0].pad_with_zeros(1, 1, 2)),
    case("contiguous", ONE, |x| x[0].t()?.contiguous()),
    case("to_dtype", ONE, |x| {
        let other = match x[0].dtype() {
            DType::F64 => DType::F32,
            _ => DType::F64,
        };
        x[0].to_dtype(other)?.to_dtype(x[0].dtype())
    }),
    case("to_device", ONE, |x| {
        x[0].to_device(&Device::Cpu)?
            .sqr()?
            .to_device(x[0].device())
    }),
    case("slice_scatter", &[&[4, 3], &[2, 3]], |x| {
        x[0].slice_scatter(&x[1], 0, 1)
    }),
    case("gather", ONE, |x| {
        x[0].gather(&ids(x[0].device(), &[2, 0, 3, 3, 1, 0], &[3, 2])?, 1)
    }),
    case("scatter", &[&[3, 4], &[3, 2]], |x| {
        x[0].scatter(&ids(x[0].device(), &[2, 0, 3, 1, 1, 0], &[3, 2])?, &x[1], 1)
    }),
    case("scatter_add", &[&[3, 4], &[3, 2]], |x| {
        x[0].scatter_add(&ids(x[0].device(), &[2, 2, 3, 1, 1, 0], &[3, 2])?, &x[1], 1)
    }),
    case("index_select", ONE, |x| {
        x[0].index_select(&ids(x[0].device(), &[2, 0, 2], &[3])?, 0)
    }),
    case("index_add", &[&[3, 4], &[2, 4]], |x| {
        x[0].index_add(&ids(x[0].device(), &[2, 0], &[2])?, &x[1], 0)
    }),
    case("embedding", ONE, |x| {
        x[0].embedding(&ids(x[0].device(), &[2, 1, 2, 0], &[4])?)
    }),
    case("conv1d", &[&[2, 3, 7], &[4, 3, 3]], |x| {
        x[0].conv1d(&x[1], 1, 2, 1, 1)
    }),
    case("conv1d in groups", &[&[2, 4, 6], &[4, 2, 2]], |x| {
        x[0].conv1d(&x[1], 0, 1, 2, 2)
    }),
    case("conv2d", &[&[2, 2, 5, 5], &[3, 2, 3, 3]], |x| {
        x[0].conv2d(&x[1], 1, 2, 1, 1)
    }),
    case("conv2d, dilated", &[&[1, 2, 6, 5], &[2, 2, 2, 2]], |x| {
        x[0].conv2d(&x[1], 1, 1, 2, 1)
    }),
    case("conv2d in groups", &[&[1, 4, 4, 4], &[4, 1, 3, 3]], |x| {
        x[0].conv2d(&x[1], 1, 1, 1, 4)
    }),
    case("conv_transpose2d", &[&[2, 2, 3, 4], &[2, 3, 3, 3]], |x| {
        x[0].conv_transpose2d(&x[1], 1, 0, 2, 1)
    }),
    case("avg_pool2d", &[&[2, 2, 5, 7]], |x| x[0].avg_pool2d((2, 3))),
    case("max_pool2d", &[&[2, 2, 5, 7]], |x| x[0].max_pool2d((2, 3))),
    case("upsample_nearest1d", &[&[2, 2, 3]], |x| {
        x[0].upsample_nearest1d(6)
    }),
    case("upsample_nearest2d", &[&[1, 2, 3, 2]], |x| {
        x[0].upsample_nearest2d(6, 4)
    }),
    case("sigmoid", ONE, |x| ops::sigmoid(&x[0])),
    case("hard_sigmoid", ONE, |x| ops::hard_sigmoid(&x[0])),
    case("mish", ONE, |x| ops::mish(&x[0])),
    case("leaky_relu", ONE, |x| ops::leaky_relu(&x[0], 0.1)),
    case("swiglu", ONE, |x| ops::swiglu(&x[0])),
    case("softmax", ONE, |x| ops::softmax(&x[0], 0)),
    case("log_softmax", ONE, |x| ops::log_softmax(&x[0], D::Minus1)),
    case("rms_norm_slow", &[&[3, 8], &[8]], |x| {
        ops::rms_norm_slow(&x[0], &x[1], 1e-5)
    }),
    case("layer_norm_slow", &[&[3, 8], &[8], &[8]], |x| {
        ops::layer_norm_slow(&x[0], &x[1], &x[2], 1e-5)
    }),
    case("rope_slow", &[&[1, 2, 3, 4], &[3, 2], &[3, 2]], |x| {
        candle_nn::rotary_emb::rope_slow(&x[0], &x[1], &x[2])
    }),
    case("pixel_shuffle", &[&[1, 4, 2, 2]], |x| {
        ops::pixel_shuffle(&x[0], 2)
    }),
    case("cross_entropy", ONE, |x| {
        loss::cross_entropy(&x[0], &ids(x[0].device(), &[1, 3, 0], &[3])?)
    }),
    case("mse", TWO, |x| loss::mse(&x[0], &x[1])),
    case("huber", TWO, |x| loss::huber(&x[0], &x[1], 0.5)),
];

fn inputs(case: &Case, device: &Device, dtype: DType) -> Result<Vec<Var>> {
    let shapes = case.shapes.iter().enumerate();
    let var = |(i, shape): (usize, &&[usize])| {
        let numbers = values(
            shape.iter().product(),
            100 + i as u64,
            case.range.0,
            case.range.1,
        );
        let tensor = Tensor::from_vec(numbers, *shape, &Device::Cpu)?.to_dtype(dtype)?;
        Var::from_tensor(&tensor.to_device(device)?)
    };
    shapes.map(var).collect()
}

/// The sum of the outcome's elements, each with a weight of its own, so that no gradient cancels.
fn weighted(case: &Case, inputs: &[Tensor]) -> Result<Tensor> {
    let y = (case.f)(inputs)?;
    let weights = values(y.elem_count(), 7, 0.5, 1.5);
    let weights = Tensor::from_vec(weights, y.shape(), &Device::Cpu)?.to_dtype(y.dtype())?;
    y.mul(&weights.to_device(y.device())?)?.sum_all()
}

fn tensors(vars: &[Var]) -> Vec<Tensor> {
    vars.iter().map(|v| v.as_tensor().clone()).collect()
}

/// The gradient of each input.
fn gradients(case: &Case, device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
    let vars = inputs(case, device, dtype)?;
    let store: GradStore = weighted(case, &tensors(&vars))?.backward()?;
    let gradient = |var: &Var| match store.get(var) {
        Some(gradient) => Ok(gradient.clone()),
        None => candle_core::bail!("{}: an input has no gradient", case.name),
    };
    vars.iter().map(gradient).collect()
}

fn gradients_are_those_of_the_cpu(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for case in CASES {
        for (dtype, limit) in [(DType::F32, 1e-9), (DType::F64, 1e-20)] {
            let (got, want) = (
                gradients(case, &rocm, dtype),
                gradients(case, &Device::Cpu, dtype),
            );
            for i in 0..case.shapes.len() {
                let at = |all: &Result<Vec<Tensor>>| match all {
                    Ok(gradients) => Ok(gradients[i].clone()),
                    Err(error) => candle_core::bail!("{error}"),
                };
                let what = format!("input {i}");
                let op = format!("gradient of {}", case.name);
                report.compare(&op, dtype.as_str(), &what, limit, at(&got), at(&want));
            }
        }
    }
    Ok(())
}

/// Central differences in f64 on the CPU; the constants of candle's own derivatives have six digits.
fn gradients_are_derivatives(_: &Context, _: &mut Report) -> Result<()> {
    const STEP: f64 = 1e-5;
    // f32 in between leaves no digits for differences.
    for case in CASES.iter().filter(|case| case.name != "to_dtype") {
        let vars = tensors(&inputs(case, &Device::Cpu, DType::F64)?);
        let gradients = gradients(case, &Device::Cpu, DType::F64)?;
        for (i, gradient) in gradients.iter().enumerate() {
            let numbers = to_f64(&vars[i])?;
            let at = |element: usize, step: f64| -> Result<f64> {
                let mut moved = numbers.clone();
                moved[element] += step;
                let mut vars = vars.clone();
                vars[i] = Tensor::from_vec(moved, vars[i].shape(), &Device::Cpu)?;
                weighted(case, &vars)?.to_scalar::<f64>()
            };
            let want = (0..numbers.len())
                .map(|element| Ok((at(element, STEP)? - at(element, -STEP)?) / (2. * STEP)))
                .collect::<Result<Vec<_>>>()?;
            let error = nmse(&to_f64(gradient)?, &want).map_err(candle_core::Error::msg)?;
            ensure!(error < 1e-9, "{}, input {i}: NMSE {error:e}", case.name);
        }
    }
    Ok(())
}

/// A name in candle's message, the input's shape, the function.
type Failing = (
    &'static str,
    &'static [usize],
    fn(&Tensor) -> Result<Tensor>,
);

/// What has no derivative in candle says so, alike on both devices.
fn functions_without_a_gradient(context: &Context, _: &mut Report) -> Result<()> {
    let errors: [Failing; 4] = [
        ("conv-transpose1d", &[1, 2, 4], |x| {
            x.conv_transpose1d(
                &Tensor::ones((2, 2, 2), x.dtype(), x.device())?,
                0,
                0,
                1,
                1,
                1,
            )
        }),
        ("upsample_bilinear2d", &[1, 1, 2, 2], |x| {
            x.upsample_bilinear2d(4, 4, false)
        }),
        ("avgpool2d", &[1, 1, 4, 4], |x| {
            x.avg_pool2d_with_stride(2, 1)
        }),
        ("maxpool2d", &[1, 1, 4, 4], |x| {
            x.max_pool2d_with_stride(3, 1)
        }),
    ];
    for device in [context.device.clone(), Device::Cpu] {
        for (name, shape, f) in errors {
            let x = Var::ones(shape, DType::F32, &device)?;
            let error = error_of(f(&x)?.backward(), name)?;
            ensure!(error.contains(name), "{error}");
        }
        // Steps take no part in gradients.
        let x = Var::ones((3, 8), DType::F32, &device)?;
        let without = [x.ceil()?, x.floor()?, x.round()?, x.sign()?];
        for y in without {
            ensure!(y.backward()?.get(&x).is_none());
        }
    }
    Ok(())
}

/// Images of 8x8 pixels with noise: rows, columns or a chessboard. The class is which.
fn images(device: &Device) -> Result<(Tensor, Tensor)> {
    const COUNT: usize = 24;
    let noise = values(COUNT * 64, 11, -0.4, 0.4);
    let pattern = |class: usize, y: usize, x: usize| match class {
        0 => y % 2,
        1 => x % 2,
        _ => (x + y) % 2,
    };
    let pixels: Vec<f32> = (0..COUNT * 64)
        .map(|i| (pattern(i / 64 % 3, i / 8 % 8, i % 8) as f64 + noise[i]) as f32)
        .collect();
    let classes: Vec<u32> = (0..COUNT as u32).map(|i| i % 3).collect();
    let pixels = Tensor::from_vec(pixels, (COUNT, 1, 8, 8), &Device::Cpu)?;
    Ok((pixels.to_device(device)?, Tensor::new(classes, device)?))
}

/// Two convolutions with pooling and a classifier.
struct Network {
    weights: Vec<Var>,
}

impl Network {
    fn new(device: &Device) -> Result<Self> {
        let shapes: [&[usize]; 6] = [&[6, 1, 3, 3], &[6], &[8, 6, 3, 3], &[8], &[3, 32], &[3]];
        let weight = |(i, shape): (usize, &&[usize])| {
            let numbers = values(shape.iter().product(), 40 + i as u64, -0.3, 0.3);
            let tensor = Tensor::from_vec(numbers, *shape, &Device::Cpu)?.to_dtype(DType::F32)?;
            Var::from_tensor(&tensor.to_device(device)?)
        };
        let weights = shapes
            .iter()
            .enumerate()
            .map(weight)
            .collect::<Result<_>>()?;
        Ok(Self { weights })
    }

    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let [w1, b1, w2, b2, w3, b3] = &tensors(&self.weights)[..] else {
            unreachable!("there are six");
        };
        let config = Conv2dConfig {
            padding: 1,
            ..Default::default()
        };
        let layer = |w: &Tensor, b: &Tensor, x: &Tensor| {
            Conv2d::new(w.clone(), Some(b.clone()), config)
                .forward(x)?
                .relu()
        };
        let x = layer(w1, b1, images)?.max_pool2d(2)?;
        let x = layer(w2, b2, &x)?.avg_pool2d(2)?;
        let x = ops::Dropout::new(0.5).forward(&x.flatten_from(1)?, false)?;
        Linear::new(w3.clone(), Some(b3.clone())).forward(&x)
    }
}

/// Losses of `steps` steps.
fn train(
    device: &Device,
    steps: usize,
    optimizer: impl Fn(Vec<Var>) -> Result<Trainer>,
) -> Result<Vec<f64>> {
    let network = Network::new(device)?;
    let (images, classes) = images(device)?;
    let mut trainer = optimizer(network.weights.clone())?;
    (0..steps)
        .map(|_| {
            let loss = loss::cross_entropy(&network.forward(&images)?, &classes)?;
            match &mut trainer {
                Trainer::AdamW(adam) => adam.backward_step(&loss)?,
                Trainer::Sgd(sgd) => sgd.backward_step(&loss)?,
            }
            Ok(f64::from(loss.to_scalar::<f32>()?))
        })
        .collect()
}

enum Trainer {
    AdamW(AdamW),
    Sgd(SGD),
}

/// The loss falls to a tenth, and every step's is the CPU's to three digits: rounding differs, and grows from step to
/// step.
fn same_curve(
    context: &Context,
    report: &mut Report,
    name: &str,
    optimizer: fn(Vec<Var>) -> Result<Trainer>,
) -> Result<()> {
    let steps = context.pick(4, 40);
    let (got, want) = (
        train(&context.device, steps, optimizer)?,
        train(&Device::Cpu, steps, optimizer)?,
    );
    if context.size == Size::Full {
        ensure!(want[steps - 1] < want[0] / 10., "{want:?}");
    }
    for (step, (got, want)) in got.iter().zip(&want).enumerate() {
        // Small losses are differences of numbers around 1.
        let is_near = (got - want).abs() <= 1e-3 * want + f64::from(f32::EPSILON);
        let failure = (!is_near).then(|| format!("a loss of {got} instead of {want}"));
        report.record(name, "f32", &format!("step {step}"), failure);
    }
    Ok(())
}

fn a_network_trained_with_adamw(context: &Context, report: &mut Report) -> Result<()> {
    same_curve(context, report, "AdamW", |weights| {
        let params = ParamsAdamW {
            lr: 0.02,
            ..Default::default()
        };
        Ok(Trainer::AdamW(AdamW::new(weights, params)?))
    })
}

fn a_network_trained_with_sgd(context: &Context, report: &mut Report) -> Result<()> {
    same_curve(context, report, "SGD", |weights| {
        Ok(Trainer::Sgd(SGD::new(weights, 0.5)?))
    })
}
