//! Element-wise operations in every dtype, arrangement and a range of sizes.

use crate::{name, tensor, widen, Arrangement, Context, Report, Suite, DTYPES, FLOATS};
use candle_core::{DType, Device, Result, Tensor};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("unary", unary),
    Suite::listed("affine", affine_of_integers),
    Suite::listed("binary", binary_and_comparisons),
    Suite::listed("cast", casts_between_every_pair),
    Suite::listed("special", special_values_agree),
    Suite::listed("where", where_cond),
    Suite::listed("constants", constants),
    Suite::listed("large", more_than_65535_blocks),
];

const SHAPES: [&[usize]; 4] = [&[0, 3], &[1], &[5, 7], &[3, 17, 33]];
const LIMIT: f64 = 1e-7;

type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// The oracle of a float operation: in f64 on the CPU, rounded once.
fn in_f64(
    inputs: &[&Tensor],
    dtype: DType,
    op: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    let wide = inputs
        .iter()
        .map(|t| widen(t))
        .collect::<Result<Vec<_>>>()?;
    op(&wide)?.to_dtype(dtype)
}

fn shapes(context: &Context) -> &'static [&'static [usize]] {
    context.pick(&SHAPES[2..3], &SHAPES)
}

/// Arrangements that make sense for a shape: a broadcast or transposed empty or one-dimensional tensor is contiguous.
fn arrangements(context: &Context, shape: &[usize]) -> &'static [Arrangement] {
    match shape {
        [_] | [0, ..] => &[Arrangement::Contiguous, Arrangement::Narrowed],
        _ => context.arrangements(),
    }
}

fn unary(context: &Context, report: &mut Report) -> Result<()> {
    let ops: [(&str, Unary, (f64, f64)); 22] = [
        ("exp", Tensor::exp, (-4., 4.)),
        ("log", Tensor::log, (0.1, 9.)),
        ("sin", Tensor::sin, (-9., 9.)),
        ("cos", Tensor::cos, (-9., 9.)),
        ("tanh", Tensor::tanh, (-4., 4.)),
        ("abs", Tensor::abs, (-4., 4.)),
        ("neg", Tensor::neg, (-4., 4.)),
        ("recip", Tensor::recip, (0.5, 4.)),
        ("sqr", Tensor::sqr, (-4., 4.)),
        ("sqrt", Tensor::sqrt, (0., 9.)),
        ("gelu", Tensor::gelu, (-4., 4.)),
        ("gelu_erf", Tensor::gelu_erf, (-4., 4.)),
        ("erf", Tensor::erf, (-4., 4.)),
        ("relu", Tensor::relu, (-4., 4.)),
        ("silu", Tensor::silu, (-4., 4.)),
        ("floor", Tensor::floor, (-4., 4.)),
        ("ceil", Tensor::ceil, (-4., 4.)),
        ("round", Tensor::round, (-4., 4.)),
        ("sign", Tensor::sign, (-4., 4.)),
        ("powf", |t| t.powf(2.5), (0., 4.)),
        ("elu", |t| t.elu(0.7), (-4., 4.)),
        ("affine", |t| t.affine(1.5, -0.25), (-4., 4.)),
    ];
    let rocm = context.device.clone();
    for (op, f, range) in ops {
        for dtype in FLOATS {
            for (seed, shape) in shapes(context).iter().enumerate() {
                for &arrangement in arrangements(context, shape) {
                    let make = |device: &Device| {
                        tensor(device, dtype, shape, arrangement, seed as u64, range)
                    };
                    let got = make(&rocm).and_then(|t| f(&t));
                    // Their scalars have the tensor's dtype, and each step is rounded: as on the CPU, exactly.
                    let stepwise = matches!(op, "affine" | "elu");
                    let want = make(&Device::Cpu).and_then(|t| match stepwise {
                        true => f(&t),
                        false => in_f64(&[&t], dtype, |t| f(&t[0])),
                    });
                    report.compare(
                        op,
                        name(dtype),
                        &format!("{shape:?} {arrangement:?}"),
                        LIMIT,
                        got,
                        want,
                    );
                }
            }
        }
    }
    Ok(())
}

fn affine_of_integers(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in DTYPES.into_iter().filter(|d| d.is_int()) {
        for &arrangement in context.arrangements() {
            let f = |device: &Device| {
                tensor(device, dtype, &[5, 9], arrangement, 3, (0., 50.))?.affine(3., 2.)
            };
            report.compare(
                "affine",
                name(dtype),
                &format!("{arrangement:?}"),
                0.,
                f(&rocm),
                f(&Device::Cpu),
            );
        }
    }
    Ok(())
}

fn binary_and_comparisons(context: &Context, report: &mut Report) -> Result<()> {
    let arithmetic: [(&str, Binary); 6] = [
        ("add", Tensor::broadcast_add),
        ("sub", Tensor::broadcast_sub),
        ("mul", Tensor::broadcast_mul),
        ("div", Tensor::broadcast_div),
        ("minimum", Tensor::broadcast_minimum),
        ("maximum", Tensor::broadcast_maximum),
    ];
    let comparisons: [(&str, Binary); 6] = [
        ("eq", Tensor::broadcast_eq),
        ("ne", Tensor::broadcast_ne),
        ("lt", Tensor::broadcast_lt),
        ("le", Tensor::broadcast_le),
        ("gt", Tensor::broadcast_gt),
        ("ge", Tensor::broadcast_ge),
    ];
    let rocm = context.device.clone();
    for dtype in DTYPES {
        for shape in shapes(context) {
            for &a in arrangements(context, shape) {
                for &b in arrangements(context, shape) {
                    // Small integers, so that equal pairs occur, every type holds the results, and nothing divides by
                    // zero.
                    let make = |device: &Device| -> Result<(Tensor, Tensor)> {
                        Ok((
                            tensor(device, dtype, shape, a, 1, (6., 12.))?,
                            tensor(device, dtype, shape, b, 2, (1., 6.9))?,
                        ))
                    };
                    let what = format!("{shape:?} {a:?} {b:?}");
                    for (op, f) in arithmetic {
                        let got = make(&rocm).and_then(|(x, y)| f(&x, &y));
                        let want = make(&Device::Cpu).and_then(|(x, y)| match dtype.is_int() {
                            true => f(&x, &y),
                            false => in_f64(&[&x, &y], dtype, |t| f(&t[0], &t[1])),
                        });
                        report.compare(op, name(dtype), &what, LIMIT, got, want);
                    }
                    for (op, f) in comparisons {
                        let got = make(&rocm).and_then(|(x, y)| f(&x, &y));
                        let want = make(&Device::Cpu).and_then(|(x, y)| f(&x, &y));
                        report.compare(op, name(dtype), &what, 0., got, want);
                    }
                }
            }
        }
    }
    Ok(())
}

fn casts_between_every_pair(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for from in DTYPES {
        for to in DTYPES {
            // candle 0.11.1 recurses for ever on this pair on the CPU; f32 in between gives the same values.
            let through_f32 = from == DType::F8E4M3 && to == DType::F64;
            for &arrangement in context.arrangements() {
                let make =
                    |device: &Device| tensor(device, from, &[4, 11], arrangement, 5, (-90., 120.));
                let got = make(&rocm).and_then(|t| t.to_dtype(to));
                let want = make(&Device::Cpu).and_then(|t| match through_f32 {
                    true => t.to_dtype(DType::F32)?.to_dtype(to),
                    false => t.to_dtype(to),
                });
                let pair = format!("{} to {}", name(from), name(to));
                report.compare(
                    "to_dtype",
                    name(from),
                    &format!("{pair} {arrangement:?}"),
                    0.,
                    got,
                    want,
                );
            }
        }
    }
    Ok(())
}

fn special_values_agree(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    let special = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.,
        -0.,
        1e30,
        -1e30,
        1e-30,
        448.,
        449.,
        65504.,
        65520.,
        0.5,
        1.5,
        2.5,
    ];
    let ops: [(&str, Unary); 8] = [
        ("exp", Tensor::exp),
        ("tanh", Tensor::tanh),
        ("sqrt", Tensor::sqrt),
        ("log", Tensor::log),
        ("recip", Tensor::recip),
        ("floor", Tensor::floor),
        ("round", Tensor::round),
        ("erf", Tensor::erf),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let make = |device: &Device| {
            Tensor::new(&special, &Device::Cpu)?
                .to_dtype(dtype)?
                .to_device(device)
        };
        for (op, f) in ops {
            let got = make(&rocm).and_then(|t| f(&t));
            let want = make(&Device::Cpu).and_then(|t| f(&t));
            report.compare(op, name(dtype), "special values", LIMIT, got, want);
        }
        for to in DTYPES {
            let got = make(&rocm).and_then(|t| t.to_dtype(to));
            let want = make(&Device::Cpu).and_then(|t| t.to_dtype(to));
            report.compare(
                "to_dtype",
                name(dtype),
                &format!("special values to {}", name(to)),
                0.,
                got,
                want,
            );
        }
    }
    Ok(())
}

fn where_cond(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in DTYPES {
        for cond in [DType::U8, DType::U32, DType::I64] {
            for &arrangement in context.arrangements() {
                let f = |device: &Device| {
                    let shape = [6, 5];
                    let cond = tensor(device, cond, &shape, arrangement, 7, (0., 1.99))?;
                    let on_true =
                        tensor(device, dtype, &shape, Arrangement::Contiguous, 8, (0., 9.))?;
                    let on_false = tensor(device, dtype, &shape, arrangement, 9, (0., 9.))?;
                    cond.where_cond(&on_true, &on_false)
                };
                let what = format!("{} {arrangement:?}", name(cond));
                report.compare(
                    "where_cond",
                    name(dtype),
                    &what,
                    0.,
                    f(&rocm),
                    f(&Device::Cpu),
                );
            }
        }
    }
    Ok(())
}

fn constants(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in DTYPES {
        let zeros = |device: &Device| Tensor::zeros((3, 5), dtype, device);
        report.compare(
            "zeros",
            name(dtype),
            "",
            0.,
            zeros(&rocm),
            zeros(&Device::Cpu),
        );
        let ones = |device: &Device| Tensor::ones((3, 5), dtype, device);
        report.compare("ones", name(dtype), "", 0., ones(&rocm), ones(&Device::Cpu));
        let set = |device: &Device| {
            let t = tensor(device, dtype, &[4, 6], Arrangement::Contiguous, 1, (2., 9.))?;
            t.narrow(1, 1, 3)?.one_set()?;
            Ok(t)
        };
        report.compare(
            "const_set",
            name(dtype),
            "narrowed",
            0.,
            set(&rocm),
            set(&Device::Cpu),
        );
    }
    Ok(())
}

/// More blocks than any old 65535 limit, in one launch.
fn more_than_65535_blocks(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    let blocks = context.pick(300, 65_536);
    let count = blocks * 256 + 77;
    let f = |device: &Device| {
        Tensor::ones(count, DType::U8, device)?
            .affine(3., 2.)?
            .to_dtype(DType::U32)?
            .sum_all()
    };
    report.compare(
        "affine",
        "u8",
        &format!("{blocks} blocks"),
        0.,
        f(&rocm),
        f(&Device::Cpu),
    );
    Ok(())
}
