//! Operations of tensors and of candle-nn on shapes and with arguments that are hardly ever tried: sizes of 0 and 1,
//! steps of 0, indices at the end, integers with fractions. Nothing may panic, and both devices must either fail or
//! give the same shape, dtype and values.

use std::panic::{catch_unwind, AssertUnwindSafe};

use candle_core::{DType, Device, Module, Result, Tensor, D};

/// Shape, dtype and elements of a tensor.
type Values = (Vec<usize>, DType, Vec<f64>);

/// What an operation gives: tensors, or that it fails.
type Outcome = std::result::Result<Vec<Values>, String>;

/// Operations that were tried, and what was wrong with them.
struct Trials {
    /// A stream of its own: indices out of range are told by the next operation on the same one.
    device: Device,
    count: usize,
    wrong: Vec<String>,
}

impl Default for Trials {
    fn default() -> Self {
        Self {
            device: Device::new_rocm_with_stream(0).expect("the device that the tests run on"),
            count: 0,
            wrong: Vec::new(),
        }
    }
}

impl Trials {
    /// Runs `operation` on both devices.
    fn of(&mut self, what: String, operation: impl Fn(&Device) -> Result<Vec<Tensor>>) {
        let on = |device: &Device| -> Option<Outcome> {
            let run = || -> Result<Vec<Values>> {
                let tensors = operation(device)?;
                tensors.iter().map(download).collect()
            };
            let outcome = catch_unwind(AssertUnwindSafe(run)).ok()?;
            Some(outcome.map_err(|error| error.to_string()))
        };
        self.count += 1;
        match (on(&Device::Cpu), on(&self.device)) {
            (None, _) => self.wrong.push(format!("{what}: the CPU panics")),
            (_, None) => self.wrong.push(format!("{what}: the device panics")),
            (Some(cpu), Some(device)) => {
                if !agree(&cpu, &device) {
                    self.wrong
                        .push(format!("{what}: CPU {cpu:?}, device {device:?}"));
                }
            }
        }
    }

    /// One tensor.
    fn one(&mut self, what: String, operation: impl Fn(&Device) -> Result<Tensor>) {
        self.of(what, |device| Ok(vec![operation(device)?]));
    }

    fn finish(self) {
        assert!(self.count > 0);
        let wrong = self.wrong.len();
        assert!(
            wrong == 0,
            "{wrong} of {}:\n{}",
            self.count,
            self.wrong.join("\n")
        );
    }
}

fn download(x: &Tensor) -> Result<Values> {
    let host = x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok((x.dims().to_vec(), x.dtype(), host.flatten_all()?.to_vec1()?))
}

/// Up to the rounding of the dtype in which an operation has several steps.
fn agree(a: &Outcome, b: &Outcome) -> bool {
    let (Ok(a), Ok(b)) = (a, b) else {
        return a.is_err() && b.is_err();
    };
    let tensor = |(a, b): (&Values, &Values)| {
        let unit = if a.1 == DType::BF16 { 4e-2 } else { 1e-4 };
        let same = |(a, b): (&f64, &f64)| {
            a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= unit * a.abs().max(0.25)
        };
        a.0 == b.0 && a.1 == b.1 && a.2.iter().zip(&b.2).all(same)
    };
    a.len() == b.len() && a.iter().zip(b).all(tensor)
}

const SHAPES: [&[usize]; 11] = [
    &[],
    &[0],
    &[1],
    &[3],
    &[0, 3],
    &[3, 0],
    &[2, 3],
    &[2, 0, 3],
    &[1, 1, 0, 4],
    &[0, 2, 4, 4],
    &[1, 2, 4, 4],
];
const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::U8, DType::I64];

/// Small whole numbers, among them 0 and, where the dtype has them, negative ones.
fn tensor(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let least = if dtype == DType::U8 { 0 } else { -2 };
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..count)
        .map(|i| ((i * 5 + 3) % 7) as f64 + f64::from(least))
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(device)
}

/// An operation and its name.
type Named<'a> = (&'a str, &'a dyn Fn(&Tensor) -> Result<Vec<Tensor>>);

/// Tries operations on tensors of every shape and dtype.
fn on_every_tensor(dtypes: &[DType], operations: &[Named]) {
    let mut trials = Trials::default();
    for shape in SHAPES {
        for &dtype in dtypes {
            for (name, operation) in operations {
                let what = format!("{name} of {shape:?} in {dtype:?}");
                trials.of(what, |device| operation(&tensor(shape, dtype, device)?));
            }
        }
    }
    trials.finish();
}

/// `name: expression` with the tensor as `x`.
macro_rules! operations {
    ($x:ident: $($name:literal => $operation:expr),* $(,)?) => {
        &[$(($name, &|$x: &Tensor| Ok(vec![$operation]))),*]
    };
}

#[test]
fn elements() {
    on_every_tensor(
        &DTYPES,
        operations! { x:
            "affine" => x.affine(1.5, -0.25)?,
            "affine with a number that is none" => x.affine(f64::NAN, 0.)?,
            "times infinity" => (x * f64::INFINITY)?,
            "by 2" => (x / 2.)?,
            "by 3" => (x / 3.)?,
            "by 2.5" => (x / 2.5)?,
            "by 0" => (x / 0.)?,
            "minus 1" => (x - 1.)?,
            "from 3" => (3. - x)?,
            "1 by it" => (1. / x)?,
            "by itself" => (x / x)?,
            "times itself" => (x * x)?,
            "the largest times itself" => { let y = x.affine(0., 1e18)?; (&y * &y)? },
            "powf" => x.powf(2.)?,
            "powf of 0" => x.powf(0.)?,
            "elu" => x.elu(0.5)?,
            "clamp" => x.clamp(0.5f64, 2.5f64)?,
            "clamp the wrong way" => x.clamp(3i64, -3i64)?,
            "maximum with NaN" => x.maximum(f64::NAN)?,
            "minimum" => x.minimum(-300i64)?,
            "round_to" => x.round_to(-1)?,
            "greater" => x.gt(0.5f64)?,
            "at least" => x.ge(-1.5f32)?,
            "less" => x.lt(1e30f64)?,
            "equal" => x.eq(1.5f64)?,
            "not equal" => x.ne(f64::NAN)?,
            "beyond the dtype" => x.le(-1i64)?,
            "neg" => x.neg()?, "exp" => x.exp()?, "log" => x.log()?, "sin" => x.sin()?, "cos" => x.cos()?,
            "tanh" => x.tanh()?, "abs" => x.abs()?, "sqr" => x.sqr()?, "sqrt" => x.sqrt()?, "recip" => x.recip()?,
            "gelu" => x.gelu()?, "gelu_erf" => x.gelu_erf()?, "erf" => x.erf()?, "relu" => x.relu()?,
            "silu" => x.silu()?, "ceil" => x.ceil()?, "floor" => x.floor()?, "round" => x.round()?,
            "sign" => x.sign()?,
            "where_cond" => x.where_cond(x, &x.zeros_like()?)?,
            "contiguous" => x.force_contiguous()?,
            "copy" => x.copy()?,
            "ones" => x.ones_like()?,
            "to u8" => x.to_dtype(DType::U8)?,
            "to f16" => x.to_dtype(DType::F16)?,
        },
    );
}

#[test]
fn reductions() {
    let mut trials = Trials::default();
    type Along = fn(&Tensor, usize) -> Result<Tensor>;
    let along: [(&str, Along); 16] = [
        ("sum", |x, dim| x.sum(dim)),
        ("sum_keepdim", |x, dim| x.sum_keepdim(dim)),
        ("mean", |x, dim| x.mean(dim)),
        ("mean_keepdim", |x, dim| x.mean_keepdim(dim)),
        ("var", |x, dim| x.var(dim)),
        ("max", |x, dim| x.max(dim)),
        ("max_keepdim", |x, dim| x.max_keepdim(dim)),
        ("min", |x, dim| x.min(dim)),
        ("argmax", |x, dim| x.argmax(dim)),
        ("argmin", |x, dim| x.argmin(dim)),
        ("cumsum", |x, dim| x.cumsum(dim)),
        ("log_sum_exp", |x, dim| x.log_sum_exp(dim)),
        ("softmax", |x, dim| candle_nn::ops::softmax(x, dim)),
        ("log_softmax", |x, dim| candle_nn::ops::log_softmax(x, dim)),
        ("roll", |x, dim| x.roll(-1, dim)),
        ("flip", |x, dim| x.flip(&[dim])),
    ];
    type All = fn(&Tensor) -> Result<Tensor>;
    let all: [(&str, All); 9] = [
        ("sum_all", |x| x.sum_all()),
        ("mean_all", |x| x.mean_all()),
        ("max_all", |x| x.max_all()),
        ("min_all", |x| x.min_all()),
        ("norm", |x| x.norm()),
        ("sum of no dimension", |x| x.sum(Vec::<usize>::new())),
        ("mean of no dimension", |x| x.mean(Vec::<usize>::new())),
        ("softmax_last_dim", candle_nn::ops::softmax_last_dim),
        ("sort", |x| Ok(x.sort_last_dim(true)?.0)),
    ];
    for shape in SHAPES {
        for dtype in DTYPES {
            for (name, operation) in along {
                for dim in 0..=shape.len() {
                    let what = format!("{name} of {shape:?} along {dim} in {dtype:?}");
                    trials.one(what, |device| {
                        operation(&tensor(shape, dtype, device)?, dim)
                    });
                }
            }
            for (name, operation) in all {
                let what = format!("{name} of {shape:?} in {dtype:?}");
                trials.one(what, |device| operation(&tensor(shape, dtype, device)?));
            }
        }
    }
    trials.finish();
}

#[test]
fn shapes() {
    on_every_tensor(
        &[DType::F32, DType::U8],
        operations! { x:
            "narrow to nothing" => x.narrow(0, 0, 0)?,
            "narrow at the end" => x.narrow(0, x.dim(0)?, 0)?,
            "narrow too far" => x.narrow(0, 1, usize::MAX)?,
            "get" => x.get(0)?,
            "t" => x.t()?.contiguous()?,
            "flatten" => x.flatten_all()?,
            "flatten_to" => x.flatten_to(1)?,
            "flatten_from" => x.flatten_from(1)?,
            "squeeze" => x.squeeze(0)?,
            "unsqueeze" => x.unsqueeze(x.rank())?,
            "repeat" => x.repeat(2)?,
            "repeat not at all" => x.repeat((0, 2))?,
            "broadcast_left" => x.broadcast_left(0)?,
            "broadcast_as" => x.broadcast_as((2, 3))?,
            "reshape with a hole" => x.reshape(((), 2))?,
            "reshape with a hole beside 0" => x.reshape((0, ()))?,
            "pad_with_zeros" => x.pad_with_zeros(0, 1, 2)?,
            "pad_with_same" => x.pad_with_same(0, 1, 2)?,
            "unfold by nothing" => x.unfold(0, 1, 0)?.contiguous()?,
            "unfold of nothing" => x.unfold(0, 0, 1)?.contiguous()?,
            "unfold" => x.unfold(0, 1, 2)?.contiguous()?,
            "unfold of too much" => x.unfold(0, 9, 1)?.contiguous()?,
            "cat" => Tensor::cat(&[x, x], 0)?,
            "cat of transposed ones" => Tensor::cat(&[&x.t()?, &x.t()?], 0)?,
            "stack" => Tensor::stack(&[x, x], 0)?,
            "product" => x.matmul(&x.t()?)?,
            "broadcast product" => x.broadcast_matmul(&x.t()?)?,
            "dot" => x.dot(x)?,
            "sum with a row" => x.broadcast_add(&x.narrow(0, 0, 1)?)?,
            "slice_scatter" => x.slice_scatter(x, 0, 0)?,
            "slice_scatter too far" => x.slice_scatter(x, 0, 1)?,
            "slice_scatter0" => x.slice_scatter0(x, 1)?,
            "slice_assign" => x.slice_assign(&vec![0..1; x.rank()], x)?,
            "meshgrid" => Tensor::meshgrid(&[x, x], true)?.remove(0),
            "pool" => x.avg_pool2d(2)?,
            "pool of nothing" => x.max_pool2d(0)?,
            "pool by nothing" => x.max_pool2d_with_stride(1, 0)?,
            "pool of too much" => x.avg_pool2d(5)?,
            "resize" => x.upsample_nearest2d(3, 5)?,
            "resize to nothing" => x.upsample_nearest2d(0, 5)?,
            "resize in one dimension" => x.upsample_nearest1d(2)?,
            "interpolate" => x.upsample_bilinear2d(3, 1, true)?,
            "interpolate to nothing" => x.upsample_bilinear2d(0, 1, false)?,
            "interpolate by a negative scale" => x.upsample_bilinear2d_with_scale(-1., 1., false)?,
        },
    );
    on_every_tensor(
        &[DType::F32],
        &[
            ("chunk into none", &|x| x.chunk(0, 0)),
            ("chunk into five", &|x| x.chunk(5, 0)),
            ("chunk into two", &|x| x.chunk(2, D::Minus1)),
        ],
    );
}

#[test]
fn indices() {
    let mut trials = Trials::default();
    let ids: [&[f64]; 6] = [&[], &[0.], &[1., 0.], &[255.], &[-1.], &[2., 4294967295.]];
    type Indexed = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let operations: [(&str, Indexed); 8] = [
        ("index_select", |x, ids| x.index_select(ids, 0)),
        ("index_select along the last", |x, ids| {
            x.index_select(ids, D::Minus1)
        }),
        ("embedding", |x, ids| x.embedding(ids)),
        ("gather", |x, ids| x.gather(&column(x, ids)?, 0)),
        ("scatter", |x, ids| {
            x.scatter(&column(x, ids)?, &source(x, ids)?, 0)
        }),
        ("scatter_add", |x, ids| {
            x.scatter_add(&column(x, ids)?, &source(x, ids)?, 0)
        }),
        ("index_add", |x, ids| x.index_add(ids, &source(x, ids)?, 0)),
        ("one_hot", |_, ids| {
            candle_nn::encoding::one_hot(ids.clone(), 3, 1f32, 0f32)
        }),
    ];
    for shape in SHAPES.iter().chain(&[&[256, 1][..]]) {
        for id_type in [DType::U8, DType::U32, DType::I64, DType::I32, DType::I16] {
            for numbers in ids {
                let is_there = |id: &f64| (0. ..1.).contains(id);
                if shape.contains(&0) && !numbers.iter().all(is_there) {
                    // Where no element is read, a device looks at no id, and the CPU at all of them.
                    continue;
                }
                for (name, operation) in operations {
                    let what = format!("{name} of {shape:?} at {numbers:?} in {id_type:?}");
                    trials.one(what, |device| {
                        let ids = Tensor::new(numbers, &Device::Cpu)?
                            .to_dtype(id_type)?
                            .to_device(device)?;
                        operation(&tensor(shape, DType::F32, device)?, &ids)
                    });
                }
            }
        }
    }
    trials.finish();
}

/// The ids along the first dimension, the same for all others.
fn column(x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    let mut shape = vec![1; dims.len()];
    match (dims.first_mut(), shape.first_mut()) {
        (Some(first), Some(one)) => (*first, *one) = (ids.elem_count(), ids.elem_count()),
        _ => candle_core::bail!("a scalar has no dimensions"),
    }
    ids.reshape(shape)?.broadcast_as(dims)?.contiguous()
}

fn source(x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    Tensor::ones(column(x, ids)?.shape(), DType::F32, x.device())
}

#[test]
fn convolutions() {
    let mut trials = Trials::default();
    let arguments = [0, 1, 2, 5];
    let options = || {
        let each = |with: fn(usize) -> [usize; 5]| arguments.into_iter().map(with);
        // Padding, output padding, stride, dilation, groups.
        each(|n| [n, 0, 1, 1, 1])
            .chain(each(|n| [0, n, 2, 1, 1]))
            .chain(each(|n| [1, 0, n, 1, 1]))
            .chain(each(|n| [1, 0, 1, n, 1]))
            .chain(each(|n| [1, 0, 1, 1, n]))
            .chain([
                [usize::MAX, 0, 1, 1, 1],
                [0, 0, usize::MAX, 1, 1],
                [0, 0, 1, usize::MAX, 1],
                [0, 0, 1, 1, usize::MAX],
            ])
    };
    for (x, k) in [
        (&[1usize, 4, 5][..], &[4usize, 4, 3][..]),
        (&[1, 4, 2], &[3, 4, 3]),
        (&[1, 4, 5], &[4, 2, 3]),
        (&[1, 4, 5], &[3, 2, 3]),
        (&[1, 4, 5], &[4, 4, 0]),
        (&[0, 4, 5], &[4, 4, 3]),
        (&[1, 4, 0], &[4, 4, 1]),
        (&[1, 4, 1], &[4, 1, 3]),
        (&[1, 0, 5], &[0, 0, 3]),
        (&[1, 4, 5], &[0, 4, 3]),
    ] {
        for o @ [padding, output_padding, stride, dilation, groups] in options() {
            let what = format!("of {x:?} with {k:?} and {o:?}");
            let operands = |dims: usize, device: &Device| -> Result<(Tensor, Tensor)> {
                let shape = |of: &[usize]| [of, &of[2..]].concat()[..2 + dims].to_vec();
                Ok((
                    tensor(&shape(x), DType::F32, device)?,
                    tensor(&shape(k), DType::F32, device)?,
                ))
            };
            trials.one(format!("conv1d {what}"), |device| {
                let (x, k) = operands(1, device)?;
                x.conv1d(&k, padding, stride, dilation, groups)
            });
            trials.one(format!("conv2d {what}"), |device| {
                let (x, k) = operands(2, device)?;
                x.conv2d(&k, padding, stride, dilation, groups)
            });
            trials.one(format!("conv_transpose1d {what}"), |device| {
                let (x, k) = operands(1, device)?;
                x.conv_transpose1d(&k, padding, output_padding, stride, dilation, groups)
            });
            trials.one(format!("conv_transpose2d {what}"), |device| {
                let (x, k) = operands(2, device)?;
                x.conv_transpose2d(&k, padding, output_padding, stride, dilation)
            });
        }
    }
    trials.finish();
}

#[test]
fn modules() {
    use candle_nn::{loss, ops};
    on_every_tensor(
        &[DType::F32, DType::BF16, DType::U8],
        operations! { x:
            "sigmoid" => ops::sigmoid(x)?,
            "hard_sigmoid" => ops::hard_sigmoid(x)?,
            "mish" => ops::mish(x)?,
            "leaky_relu" => ops::leaky_relu(x, 0.25)?,
            "selu" => ops::selu(x, 1., 1.)?,
            "swiglu" => ops::swiglu(x)?,
            "dropout of everything" => ops::dropout(x, 1.)?,
            "dropout of nothing" => ops::dropout(x, 0.)?,
            "rms_norm" => ops::rms_norm(x, &x.narrow(0, 0, 1)?.flatten_all()?, 1e-5)?,
            "rms_norm of rows" => ops::rms_norm(x, &row(x)?, 1e-5)?,
            "rms_norm_slow" => ops::rms_norm_slow(x, &row(x)?, 1e-5)?,
            "layer_norm" => ops::layer_norm(x, &row(x)?, &row(x)?, 1e-5)?,
            "layer_norm_slow" => ops::layer_norm_slow(x, &row(x)?, &row(x)?, 1e-5)?,
            "group_norm" => candle_nn::GroupNorm::new(row(x)?, row(x)?, x.dim(1)?, 0, 1e-5)?.forward(x)?,
            "group_norm of a group" => candle_nn::GroupNorm::new(channels(x)?, channels(x)?, x.dim(1)?, 1, 1e-5)?.forward(x)?,
            "pixel_shuffle by nothing" => ops::pixel_shuffle(x, 0)?,
            "pixel_shuffle" => ops::pixel_shuffle(x, 2)?,
            "pixel_unshuffle by nothing" => ops::pixel_unshuffle(x, 0)?,
            "pixel_unshuffle" => ops::pixel_unshuffle(x, 2)?,
            "replication_pad2d" => ops::replication_pad2d(x, 1)?,
            "mse" => loss::mse(x, x)?,
            "nll" => loss::nll(x, &targets(x)?)?,
            "cross_entropy" => loss::cross_entropy(x, &targets(x)?)?,
            "binary_cross_entropy" => loss::binary_cross_entropy_with_logit(x, x)?,
            "rope" => candle_nn::rotary_emb::rope(x, &table(x)?, &table(x)?)?,
            "rope of neighbours" => candle_nn::rotary_emb::rope_i(x, &table(x)?, &table(x)?)?,
            "rope of threads" => candle_nn::rotary_emb::rope_thd(x, &table(x)?, &table(x)?)?,
            "linear" => candle_nn::Linear::new(tensor(&[2, x.dim(D::Minus1)?], x.dtype(), x.device())?, None).forward(x)?,
        },
    );
}

/// Ones for the last dimension.
fn row(x: &Tensor) -> Result<Tensor> {
    Tensor::ones(x.dim(D::Minus1)?, x.dtype(), x.device())
}

/// Ones for the second one.
fn channels(x: &Tensor) -> Result<Tensor> {
    Tensor::ones(x.dim(1)?, x.dtype(), x.device())
}

/// The first class for every row.
fn targets(x: &Tensor) -> Result<Tensor> {
    Tensor::zeros(x.dim(0)?, DType::U32, x.device())
}

/// What rotates the last two dimensions.
fn table(x: &Tensor) -> Result<Tensor> {
    Tensor::ones(
        (x.dim(D::Minus2)?, x.dim(D::Minus1)? / 2),
        x.dtype(),
        x.device(),
    )
}

#[test]
fn what_is_made_anew() {
    let mut trials = Trials::default();
    for dtype in differential::DTYPES {
        for n in [0, 1, 3] {
            trials.one(format!("tril2 {n} {dtype:?}"), |device| {
                Tensor::tril2(n, dtype, device)
            });
            trials.one(format!("triu2 {n} {dtype:?}"), |device| {
                Tensor::triu2(n, dtype, device)
            });
            trials.one(format!("eye {n} {dtype:?}"), |device| {
                Tensor::eye(n, dtype, device)
            });
        }
        for shape in SHAPES {
            trials.one(format!("zeros {shape:?} {dtype:?}"), |device| {
                Tensor::zeros(shape, dtype, device)
            });
            trials.one(format!("ones {shape:?} {dtype:?}"), |device| {
                Tensor::ones(shape, dtype, device)
            });
            for (lo, up) in [(2., 2.), (2., 1.), (f64::NAN, 1.), (0., f64::INFINITY)] {
                trials.one(format!("rand from {lo} to {up} {dtype:?}"), |device| {
                    tensor(shape, dtype, device)?.rand_like(lo, up)
                });
            }
            for (mean, deviation) in [(2., 0.), (0., -1.), (0., f64::NAN)] {
                trials.one(format!("randn {mean} {deviation} {dtype:?}"), |device| {
                    tensor(shape, dtype, device)?.randn_like(mean, deviation)
                });
            }
        }
        trials.one(format!("too large {dtype:?}"), |device| {
            Tensor::zeros((usize::MAX, 2), dtype, device)
        });
    }
    for step in [0., 0.25, -0.25, f64::NAN, 1e-300] {
        trials.one(format!("arange in steps of {step}"), |device| {
            Tensor::arange_step(0., 1., step, device)
        });
    }
    trials.finish();
}
