//! Functions of rows against an oracle that shares no code with candle, on the device and on candle's CPU: long rows of
//! halves, special values in every position, extreme scales, shapes of nothing and of one.

use crate::{name, oracle, to_f64, values, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor, D};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::unlisted("long-rows", long_rows),
    Suite::unlisted("special-positions", special_positions),
    Suite::unlisted("special-pairs", special_pairs),
    Suite::unlisted("extreme-scales", extreme_scales),
    Suite::unlisted("degenerate-shapes", degenerate_shapes),
];

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const EPS: f32 = 1e-5;

/// What the oracle gives for a row.
#[derive(Clone, Copy)]
enum Oracle {
    One(fn(&[f64]) -> f64),
    Place(fn(&[f64]) -> usize),
    Row(fn(&[f64]) -> Vec<f64>),
}

/// What the rounding errors of a function's intermediate values are in proportion to.
#[derive(Clone, Copy, PartialEq)]
enum Errors {
    /// The result.
    Result,
    /// The sum of the row's magnitudes.
    Sum,
    /// Their mean.
    Mean,
    /// One, as where a difference is what counts.
    One,
    /// The result and the logarithm that it is the exponential of, tens at most.
    Exponential,
}

/// A function of the rows of a matrix.
struct Function {
    name: &'static str,
    oracle: Oracle,
    run: fn(&Tensor) -> Result<Tensor>,
    errors: Errors,
    /// Whether numbers are squared on the way, which leaves half of an exponent's range.
    squares: bool,
}

const fn function(
    name: &'static str,
    oracle: Oracle,
    run: fn(&Tensor) -> Result<Tensor>,
) -> Function {
    Function {
        name,
        oracle,
        run,
        errors: Errors::Result,
        squares: false,
    }
}

fn functions() -> Vec<Function> {
    use Oracle::{One, Place, Row};
    let squares = |function: Function| Function {
        squares: true,
        ..function
    };
    let errors = |errors: Errors, function: Function| Function { errors, ..function };
    vec![
        errors(
            Errors::Sum,
            function("sum", One(oracle::sum), |t| t.sum(D::Minus1)),
        ),
        errors(
            Errors::Sum,
            function("sum of columns", One(oracle::sum), |t| {
                t.t()?.contiguous()?.sum(0)
            }),
        ),
        errors(
            Errors::Sum,
            function("sum of a view", One(oracle::sum), |t| {
                t.t()?.contiguous()?.t()?.sum(1)
            }),
        ),
        errors(
            Errors::Mean,
            function("mean", One(oracle::mean), |t| t.mean(D::Minus1)),
        ),
        errors(
            Errors::Mean,
            function("mean of columns", One(oracle::mean), |t| {
                t.t()?.contiguous()?.mean(0)
            }),
        ),
        errors(
            Errors::Mean,
            function("avg_pool2d", One(oracle::mean), |t| {
                let (rows, len) = t.dims2()?;
                t.reshape((1, rows, 1, len))?
                    .avg_pool2d((1, len))?
                    .flatten_all()
            }),
        ),
        squares(function("var", One(oracle::var), |t| t.var(D::Minus1))),
        function("max", One(oracle::max), |t| t.max(D::Minus1)),
        function("min", One(oracle::min), |t| t.min(D::Minus1)),
        function("max of columns", One(oracle::max), |t| {
            t.t()?.contiguous()?.max(0)
        }),
        function("min of a view", One(oracle::min), |t| {
            t.t()?.contiguous()?.t()?.min(1)
        }),
        function("argmax", Place(oracle::argmax), |t| t.argmax(D::Minus1)),
        function("argmin", Place(oracle::argmin), |t| t.argmin(D::Minus1)),
        function("argmax of columns", Place(oracle::argmax), |t| {
            t.t()?.contiguous()?.argmax(0)
        }),
        function("max_pool2d", One(oracle::max), |t| {
            let (rows, len) = t.dims2()?;
            t.reshape((1, rows, 1, len))?
                .max_pool2d((1, len))?
                .flatten_all()
        }),
        function("log_sum_exp", One(oracle::log_sum_exp), |t| {
            t.log_sum_exp(D::Minus1)
        }),
        errors(
            Errors::Exponential,
            function("softmax", Row(oracle::softmax), |t| {
                candle_nn::ops::softmax(t, D::Minus1)
            }),
        ),
        errors(
            Errors::Exponential,
            function(
                "softmax_last_dim",
                Row(oracle::softmax),
                candle_nn::ops::softmax_last_dim,
            ),
        ),
        errors(
            Errors::One,
            function("log_softmax", Row(oracle::log_softmax), |t| {
                candle_nn::ops::log_softmax(t, D::Minus1)
            }),
        ),
        errors(
            Errors::Sum,
            function("cumsum", Row(oracle::cumsum), |t| t.cumsum(D::Minus1)),
        ),
        errors(
            Errors::Sum,
            function("cumsum of columns", Row(oracle::cumsum), |t| {
                t.t()?.contiguous()?.cumsum(0)?.t()?.contiguous()
            }),
        ),
        squares(function(
            "rms_norm",
            Row(|row| oracle::rms_norm(row, f64::from(EPS))),
            |t| candle_nn::ops::rms_norm(t, &weights(t, 1.)?, EPS),
        )),
        errors(
            Errors::One,
            squares(function(
                "layer_norm",
                Row(|row| oracle::layer_norm(row, f64::from(EPS))),
                |t| candle_nn::ops::layer_norm(t, &weights(t, 1.)?, &weights(t, 0.)?, EPS),
            )),
        ),
        function("sort_last_dim", Row(oracle::sorted), |t| {
            Ok(t.sort_last_dim(true)?.0)
        }),
        function(
            "relu",
            Row(|row| row.iter().map(|x| oracle::maximum(*x, 0.)).collect()),
            Tensor::relu,
        ),
        function(
            "clamp",
            Row(|row| row.iter().map(|x| clamped(*x)).collect()),
            |t| t.clamp(-0.5, 0.5),
        ),
    ]
}

fn clamped(x: f64) -> f64 {
    match x.is_nan() {
        true => x,
        false => x.clamp(-0.5, 0.5),
    }
}

/// One number for each column.
fn weights(t: &Tensor, value: f64) -> Result<Tensor> {
    Tensor::full(value, t.dim(1)?, t.device())?.to_dtype(t.dtype())
}

/// Distance of neighbours in a dtype, in proportion, and its smallest number.
fn precision(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (2f64.powi(-10), 2f64.powi(-24)),
        DType::BF16 => (2f64.powi(-7), 1e-40),
        DType::F32 => (2f64.powi(-20), 1e-40),
        _ => (1e-12, 1e-300),
    }
}

/// Rounding error of accumulators: f32 for halves, in proportion to what was added.
fn accumulated(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-14,
        _ => 2e-6,
    }
}

/// The largest finite number.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.,
        DType::BF16 => 3.3895313892515355e38,
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

/// Values as a dtype holds them.
fn rounded(numbers: Vec<f64>, dtype: DType) -> Result<Vec<f64>> {
    to_f64(&Tensor::new(numbers, &Device::Cpu)?.to_dtype(dtype)?)
}

/// Runs a function on rows of one length on both devices, and records a comparison for each row.
fn compare(
    context: &Context,
    report: &mut Report,
    function: &Function,
    dtype: DType,
    rows: &[(String, Vec<f64>)],
) -> Result<()> {
    let len = rows[0].1.len();
    let numbers: Vec<f64> = rows
        .iter()
        .flat_map(|(_, row)| row.iter().copied())
        .collect();
    let host = Tensor::from_vec(numbers, (rows.len(), len), &Device::Cpu)?.to_dtype(dtype)?;
    let held = to_f64(&host)?;
    for device in [&context.device, &Device::Cpu] {
        let op = match device.is_cpu() {
            true => format!("{} on the CPU", function.name),
            false => function.name.to_string(),
        };
        let got = host.to_device(device).and_then(|t| (function.run)(&t));
        let got = got.and_then(|t| to_f64(&t));
        for (i, (what, _)) in rows.iter().enumerate() {
            let row = &held[i * len..(i + 1) * len];
            let wanted = match function.oracle {
                Oracle::One(oracle) => rounded(vec![oracle(row)], dtype)?,
                Oracle::Place(oracle) => vec![oracle(row) as f64],
                Oracle::Row(oracle) => rounded(oracle(row), dtype)?,
            };
            let failure = match &got {
                Err(error) => Some(error.to_string()),
                Ok(got) => {
                    let per_row = wanted.len();
                    let found = got.get(i * per_row..(i + 1) * per_row).unwrap_or(&[]);
                    far_off(function, dtype, row, found, &wanted)
                }
            };
            report.record(&op, name(dtype), &format!("{len}: {what}"), failure);
        }
    }
    Ok(())
}

/// What is wrong with the results of a row, if anything.
fn far_off(
    function: &Function,
    dtype: DType,
    row: &[f64],
    got: &[f64],
    wanted: &[f64],
) -> Option<String> {
    if got.len() != wanted.len() {
        return Some(format!("{} results instead of {}", got.len(), wanted.len()));
    }
    let finite = row.iter().filter(|x| x.is_finite());
    let magnitudes: f64 = finite.map(|x| x.abs()).sum();
    let amount = match function.errors {
        Errors::Result | Errors::Exponential => 0.,
        Errors::Sum => magnitudes,
        Errors::Mean => magnitudes / row.len() as f64,
        Errors::One => 1.,
    };
    let (ulp, least) = precision(dtype);
    let relative = match function.errors {
        Errors::Exponential => 8. * ulp,
        _ => ulp,
    };
    let places = got.iter().zip(wanted).enumerate();
    for (i, (&got, &wanted)) in places {
        let right = match wanted.is_finite() && got.is_finite() {
            true => {
                (got - wanted).abs()
                    <= relative * wanted.abs() + accumulated(dtype) * amount + least
            }
            false => got == wanted || got.is_nan() && wanted.is_nan(),
        };
        // Next to the largest number, rounding decides whether a result is infinite.
        let edge = largest(dtype) * (1. - 2. * ulp);
        let at_edge = got.abs() >= edge && wanted.abs() >= edge && got.signum() == wanted.signum();
        if !right && !at_edge {
            return Some(format!("result {i} is {got} instead of {wanted}"));
        }
    }
    None
}

/// More elements than halves can count, and sums that they cannot hold.
fn long_rows(context: &Context, report: &mut Report) -> Result<()> {
    let lengths: &[usize] = context.first(1, &[4097, 5000, 16384, 65520]);
    for function in functions() {
        // The simulator takes its time to sort.
        let most = match function.name {
            "sort_last_dim" => 5000,
            // No window is larger, and those of f32 are added up one by one, as elsewhere.
            "avg_pool2d" => 5000,
            _ => usize::MAX,
        };
        for dtype in FLOATS {
            for &len in lengths.iter().filter(|len| **len <= most) {
                let large = if dtype == DType::F16 { 60000. } else { 3e4 };
                let mut rows = vec![
                    ("zeros".to_string(), vec![0.; len]),
                    ("ones".to_string(), vec![1.; len]),
                    ("positive".to_string(), values(len, 1, 0., 1.)),
                    ("both signs".to_string(), values(len, 2, -2., 2.)),
                    (
                        "zeros and ones".to_string(),
                        (0..len).map(|i| (i % 2) as f64).collect(),
                    ),
                ];
                if !function.squares {
                    rows.push(("large".to_string(), vec![large; len]));
                }
                compare(context, report, &function, dtype, &rows)?;
            }
        }
    }
    Ok(())
}

/// NaN, infinities, zeros and the ends of the range at every place of a row.
fn special_positions(context: &Context, report: &mut Report) -> Result<()> {
    let lengths: &[usize] = context.first(1, &[7, 1, 2, 3, 16, 33, 65, 130]);
    for function in functions() {
        for dtype in FLOATS {
            let large = match function.squares {
                true => 100.,
                false => largest(dtype),
            };
            let (_, least) = precision(dtype);
            let special = [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                -0.,
                large,
                -large,
                least,
            ];
            for &len in lengths {
                // The variance of one number is 0/0.
                if len == 1 && function.name == "var" {
                    continue;
                }
                let mut places: Vec<usize> = match len {
                    0..=7 => (0..len).collect(),
                    _ => vec![0, 1, len / 2, len - 1],
                };
                places.dedup();
                let mut rows = Vec::new();
                for &place in &places {
                    for value in special {
                        let mut row = values(len, 3 + place as u64, -2., 2.);
                        row[place] = value;
                        rows.push((format!("{value} at {place}"), row.clone()));
                        // A second one, at the other end.
                        if len > 2 {
                            row[len - 1 - place] = special[place % 3];
                            rows.push((
                                format!("{value} at {place} and {}", special[place % 3]),
                                row,
                            ));
                        }
                    }
                }
                compare(context, report, &function, dtype, &rows)?;
            }
        }
    }
    Ok(())
}

/// Every special value beside every other, in functions and comparisons of two.
fn special_pairs(context: &Context, report: &mut Report) -> Result<()> {
    type Pair = (
        &'static str,
        fn(f64, f64) -> f64,
        fn(&Tensor, &Tensor) -> Result<Tensor>,
    );
    let pairs: [Pair; 9] = [
        ("maximum", oracle::maximum, |a, b| a.maximum(b)),
        ("minimum", oracle::minimum, |a, b| a.minimum(b)),
        ("eq", |a, b| f64::from(u8::from(a == b)), |a, b| a.eq(b)),
        ("ne", |a, b| f64::from(u8::from(a != b)), |a, b| a.ne(b)),
        ("lt", |a, b| f64::from(u8::from(a < b)), |a, b| a.lt(b)),
        ("le", |a, b| f64::from(u8::from(a <= b)), |a, b| a.le(b)),
        ("gt", |a, b| f64::from(u8::from(a > b)), |a, b| a.gt(b)),
        ("ge", |a, b| f64::from(u8::from(a >= b)), |a, b| a.ge(b)),
        (
            "pow of whole exponents",
            |a, b| a.powf(b.round()),
            |a, b| a.pow(&b.round()?),
        ),
    ];
    for dtype in FLOATS {
        let special = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.,
            -0.,
            1.,
            -1.,
            2.5,
            -2.5,
            3.,
        ];
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for a in special {
            for b in special {
                left.push(a);
                right.push(b);
            }
        }
        for (op, oracle, run) in pairs {
            for device in [&context.device, &Device::Cpu] {
                let make = |numbers: &[f64]| {
                    Tensor::new(numbers, &Device::Cpu)?
                        .to_dtype(dtype)?
                        .to_device(device)
                };
                let got = make(&left)
                    .and_then(|a| run(&a, &make(&right)?))
                    .and_then(|t| to_f64(&t));
                let on = if device.is_cpu() { " on the CPU" } else { "" };
                for (i, (&a, &b)) in left.iter().zip(&right).enumerate() {
                    let wanted = rounded(vec![oracle(a, b)], dtype)?[0];
                    let (ulp, _) = precision(dtype);
                    let failure = match &got {
                        Err(error) => Some(error.to_string()),
                        Ok(got) => {
                            let got = got[i];
                            let same = got == wanted || got.is_nan() && wanted.is_nan();
                            let near = (got - wanted).abs() <= ulp * wanted.abs();
                            (!same && !near).then(|| format!("{got} instead of {wanted}"))
                        }
                    };
                    report.record(
                        &format!("{op}{on}"),
                        name(dtype),
                        &format!("{a} and {b}"),
                        failure,
                    );
                }
            }
        }
    }
    Ok(())
}

/// Rows of all magnitudes, and rows that lie close together far from zero.
fn extreme_scales(context: &Context, report: &mut Report) -> Result<()> {
    for function in functions() {
        for dtype in FLOATS {
            let exponents = match (dtype, function.squares) {
                (DType::F16, false) => -6..=3,
                (DType::F16, true) => -3..=1,
                (_, true) => -14..=15,
                _ => -36..=35,
            };
            let step = context.pick(9, 1);
            let mut rows: Vec<_> = exponents
                .step_by(step)
                .map(|exponent| {
                    let row = values(24, 7, -2., 2.).into_iter();
                    let row = row.map(|x| x * 10f64.powi(exponent)).collect();
                    (format!("times 1e{exponent}"), row)
                })
                .collect();
            let (ulp, _) = precision(dtype);
            for middle in [100., 1e4] {
                // Whole numbers far from zero, which all dtypes but halves hold apart.
                if ulp < 1e-6 {
                    let row = (0..24).map(|i| middle + f64::from(i * 7 % 24)).collect();
                    rows.push((format!("around {middle}"), row));
                }
            }
            compare(context, report, &function, dtype, &rows)?;
        }
    }
    Ok(())
}

/// Shapes without elements, and of one: the device does as the CPU, be it a result or an error.
fn degenerate_shapes(context: &Context, report: &mut Report) -> Result<()> {
    type Shaped = (&'static str, fn(&Tensor) -> Result<Tensor>);
    let ops: [Shaped; 36] = [
        ("neg", Tensor::neg),
        ("relu", Tensor::relu),
        ("affine", |t| t.affine(2., 1.)),
        ("powf", |t| t.powf(2.)),
        ("sum", |t| t.sum(D::Minus1)),
        ("sum of the first", |t| t.sum(0)),
        ("sum_all", Tensor::sum_all),
        ("mean", |t| t.mean(D::Minus1)),
        ("mean_all", Tensor::mean_all),
        ("max", |t| t.max(D::Minus1)),
        ("max of the first", |t| t.max(0)),
        ("min_all", Tensor::min_all),
        ("argmax", |t| t.argmax(D::Minus1)),
        ("argmin of the first", |t| t.argmin(0)),
        ("var", |t| t.var(D::Minus1)),
        ("log_sum_exp", |t| t.log_sum_exp(D::Minus1)),
        ("cumsum", |t| t.cumsum(D::Minus1)),
        ("softmax", |t| candle_nn::ops::softmax(t, D::Minus1)),
        ("softmax of the first", |t| candle_nn::ops::softmax(t, 0)),
        ("softmax_last_dim", candle_nn::ops::softmax_last_dim),
        ("log_softmax", |t| candle_nn::ops::log_softmax(t, D::Minus1)),
        ("rms_norm", |t| {
            let width = Tensor::ones(t.dim(D::Minus1)?, t.dtype(), t.device())?;
            candle_nn::ops::rms_norm(t, &width, EPS)
        }),
        ("layer_norm", |t| {
            let width = Tensor::ones(t.dim(D::Minus1)?, t.dtype(), t.device())?;
            candle_nn::ops::layer_norm(t, &width, &width, EPS)
        }),
        ("sort_last_dim", |t| Ok(t.sort_last_dim(false)?.0)),
        ("arg_sort_last_dim", |t| t.arg_sort_last_dim(true)),
        ("cat", |t| Tensor::cat(&[t, t], 0)),
        ("stack", |t| Tensor::stack(&[t, t], 0)),
        ("roll", |t| t.roll(1, 0)),
        ("flip", |t| t.flip(&[0])),
        ("repeat", |t| t.repeat(2)),
        ("transposed copy", |t| {
            t.transpose(0, D::Minus1)?.contiguous()
        }),
        ("pad_with_zeros", |t| t.pad_with_zeros(0, 1, 2)),
        ("product with itself", |t| t.matmul(&t.t()?)),
        ("index_select of nothing", |t| {
            t.index_select(&Tensor::zeros(0, DType::U32, t.device())?, 0)
        }),
        ("to_dtype", |t| t.to_dtype(DType::I64)),
        ("where", |t| t.gt(0.)?.where_cond(t, t)),
    ];
    let shapes: [&[usize]; 9] = [
        &[0],
        &[1],
        &[0, 3],
        &[3, 0],
        &[1, 1],
        &[2, 0, 3],
        &[0, 0],
        &[1, 4, 1],
        &[4, 1],
    ];
    let dtypes = context.pick(
        &[DType::F32][..],
        &[
            DType::F16,
            DType::BF16,
            DType::F32,
            DType::F64,
            DType::I64,
            DType::U8,
        ],
    );
    for (op, run) in ops {
        for &dtype in dtypes {
            for shape in shapes {
                let on = |device: &Device| -> Result<(Vec<usize>, Vec<f64>)> {
                    let numbers = values(shape.iter().product(), 5, 1., 9.);
                    let t = Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)?;
                    let result = run(&t.to_device(device)?)?;
                    Ok((result.dims().to_vec(), to_f64(&result)?))
                };
                let (got, wanted) = (on(&context.device), on(&Device::Cpu));
                let failure = match (&got, &wanted) {
                    (Ok(got), Ok(wanted)) if got.0 != wanted.0 => {
                        Some(format!("shape {:?} instead of {:?}", got.0, wanted.0))
                    }
                    (Ok(got), Ok(wanted)) => {
                        crate::nmse(&got.1, &wanted.1).map_or_else(Some, |error| {
                            let (ulp, _) = precision(dtype);
                            (error > ulp * ulp).then(|| format!("NMSE {error:e}"))
                        })
                    }
                    (Err(_), Err(_)) => None,
                    (Err(error), Ok(_)) => Some(format!("only the device has an error: {error}")),
                    (Ok(_), Err(error)) => Some(format!("only the CPU has an error: {error}")),
                };
                report.record(op, name(dtype), &format!("{shape:?}"), failure);
            }
        }
    }
    Ok(())
}
