//! unary.cu, binary.cu, affine.cu, cast.cu, fill.cu and ternary.cu: an operation on each element.

use crate::data::{Data, Type, Type::*};
use crate::layouts::{layouts, Layout};
use crate::random::Random;
use crate::rows::{Output, Row};

/// A function of one number.
type Function = fn(f64) -> f64;

/// Name, function, range of arguments, and roundings of the type that 16-bit kernels may make (0: it is exact).
const UNARY: [(&str, Function, f64, f64, f64); 21] = [
    ("ucopy", |x| x, -4., 4., 0.),
    ("uneg", |x| -x, -4., 4., 0.),
    ("urecip", |x| 1. / x, 0.3, 4., 1.),
    ("uexp", f64::exp, -4., 4., 1.),
    ("ulog", f64::ln, 0.01, 9., 1.),
    ("usin", f64::sin, -6., 6., 1.),
    ("ucos", f64::cos, -6., 6., 1.),
    ("utanh", f64::tanh, -3., 3., 1.),
    ("uerf", libm::erf, -2., 2., 1.),
    ("uceil", f64::ceil, -4., 4., 0.),
    ("ufloor", f64::floor, -4., 4., 0.),
    ("uround", f64::round, -4., 4., 0.),
    ("unormcdf", normal, -2., 2., 1.),
    ("uabs", f64::abs, -4., 4., 0.),
    ("usqr", |x| x * x, -3., 3., 1.),
    ("usqrt", f64::sqrt, 0., 9., 1.),
    ("ugelu", gelu, -3., 3., 8.),
    ("ugelu_erf", |x| x * normal(x), -3., 3., 2.),
    ("urelu", |x| x.max(0.), -4., 4., 0.),
    ("usilu", |x| x / (1. + (-x).exp()), -4., 4., 4.),
    (
        "usign",
        |x| {
            if x > 0. {
                1.
            } else if x < 0. {
                -1.
            } else {
                0.
            }
        },
        -2.,
        2.,
        0.,
    ),
];

/// Name, function, the number that it is given, and as in the table above.
type UnaryOfTwo = (&'static str, fn(f64, f64) -> f64, f64, f64, f64, f64);

/// The rest of the table: a number more to give.
const UNARY_OF_TWO: [UnaryOfTwo; 2] = [
    (
        "uelu",
        |x, a| if x > 0. { x } else { a * (x.exp() - 1.) },
        0.75,
        -4.,
        4.,
        4.,
    ),
    ("upowf", f64::powf, 1.75, 0.1, 4., 1.),
];

fn normal(x: f64) -> f64 {
    libm::erfc(-x / std::f64::consts::SQRT_2) / 2.
}

/// The approximation with tanh.
fn gelu(x: f64) -> f64 {
    let inner = (2. / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1. + inner.tanh())
}

/// The word of a type in names: unary.cu calls 8-bit floats `fp8_e4m3`, but not in `ucopy_f8_e4m3`.
fn unary_word(name: &str, kind: Type) -> &'static str {
    if kind == F8 && name != "ucopy" {
        "fp8_e4m3"
    } else {
        kind.word()
    }
}

/// Allowed difference of an elementwise function. 8-bit floats are computed in f32 and rounded once: the neighbour is
/// possible where the exact number is close to the middle of two.
fn tolerance(kind: Type, steps: f64) -> (f64, f64) {
    match kind {
        _ if steps == 0. => (0., 0.),
        F8 => (0., 0.),
        F16 => (steps * 2e-4, steps * kind.step()),
        BF16 => (steps * 1e-3, steps * kind.step()),
        F32 => (1e-6, 4e-6),
        _ => (1e-14, 1e-13),
    }
}

/// Launches of all of unary.cu.
pub fn unary(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut sigmoid = UNARY.to_vec();
    sigmoid.push(("usigmoid", |x| 1. / (1. + (-x).exp()), -4., 4., 3.));
    for (name, function, from, to, steps) in sigmoid {
        for kind in [F8, BF16, F16, F32, F64, U8, U32, I64] {
            if !kind.float() && (name != "ucopy") {
                continue;
            }
            for layout in layouts() {
                let from = if kind.float() { from } else { 0. };
                let input = Data::random(kind, layout.storage(), from, to, random);
                let expected = strided(&input, &layout).map(function);
                let (absolute, relative) = tolerance(kind, steps);
                let kernel = format!("{name}_{}", unary_word(name, kind));
                rows.push(
                    over(Row::new(kernel), &layout)
                        .input(&input)
                        .output(Output::exact(kind, expected).within(absolute, relative)),
                );
            }
        }
    }
    for (name, function, parameter, from, to, steps) in UNARY_OF_TWO {
        for kind in [F8, BF16, F16, F32, F64] {
            for layout in layouts() {
                let input = Data::random(kind, layout.storage(), from, to, random);
                let expected = strided(&input, &layout).map(|x| function(x, parameter));
                let (absolute, relative) = tolerance(kind, steps);
                rows.push(
                    over(
                        Row::new(format!("{name}_{}", unary_word(name, kind))),
                        &layout,
                    )
                    .scalar(kind, parameter)
                    .input(&input)
                    .output(Output::exact(kind, expected).within(absolute, relative)),
                );
            }
        }
    }
    // In place: without an input, the output is read; without sizes and strides, it is contiguous.
    let data = Data::random(F32, 300, -3., 3., random);
    let expected: Vec<f64> = data.values().iter().map(|x| x * x).collect();
    rows.push(
        Row::new("usqr_f32")
            .steps(300)
            .sizes(&[300, 1])
            .null()
            .null()
            .output(Output::exact(F32, expected).over(data).within(1e-6, 1e-6))
            .about("in place"),
    );
    rows
}

/// The arguments that elementwise kernels begin with: number of elements, of dimensions, sizes and strides.
fn over(row: Row, layout: &Layout) -> Row {
    let elements = layout.elements();
    row.steps(elements)
        .sizes(&[elements, layout.dims.len()])
        .input(&Data::sizes(&layout.info()))
        .about(layout.name)
}

/// Elements in order of a layout.
fn strided(data: &Data, layout: &Layout) -> impl Iterator<Item = f64> + use<> {
    let values = data.values();
    layout.all().into_iter().map(move |at| values[at])
}

type Arithmetic = (&'static str, fn(f64, f64) -> f64);

const ARITHMETIC: [Arithmetic; 6] = [
    ("badd", |x, y| x + y),
    ("bsub", |x, y| x - y),
    ("bmul", |x, y| x * y),
    ("bdiv", |x, y| x / y),
    ("bmaximum", f64::max),
    ("bminimum", f64::min),
];

type Comparison = (&'static str, fn(&f64, &f64) -> bool);

const COMPARISONS: [Comparison; 6] = [
    ("eq", |x, y| x == y),
    ("ne", |x, y| x != y),
    ("lt", |x, y| x < y),
    ("le", |x, y| x <= y),
    ("gt", |x, y| x > y),
    ("ge", |x, y| x >= y),
];

/// Pairs of layouts of the same sizes: both contiguous (long enough for packs, with a rest), either, neither.
fn pairs() -> Vec<(&'static str, Layout, Layout)> {
    let plain = Layout::contiguous;
    vec![
        ("both contiguous", plain(&[5, 67]), plain(&[5, 67])),
        (
            "right broadcast",
            plain(&[4, 37]),
            Layout::new("", &[4, 37], &[0, 1]),
        ),
        (
            "left transposed",
            Layout::new("", &[6, 13], &[1, 6]),
            plain(&[6, 13]),
        ),
        (
            "neither contiguous",
            Layout::new("", &[3, 7, 5], &[0, 5, 1]),
            Layout::new("", &[3, 7, 5], &[1, 15, 3]),
        ),
    ]
}

/// Launches of all of binary.cu.
pub fn binary(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [F8, BF16, F16, F32, F64, U8, U32, I64] {
        for (about, left, right) in pairs() {
            // Whole numbers that do not wrap, but for sums and products of u8; and quotients of more than one.
            let (low, high) = if kind.float() { (-3., 3.) } else { (1., 60.) };
            let x = Data::random(kind, left.storage(), low, high, random);
            let y = match kind.float() {
                true => Data::random(kind, right.storage(), 0.4, 3., random),
                false => Data::random(kind, right.storage(), 1., 12., random),
            };
            let both = || strided(&x, &left).zip(strided(&y, &right));
            let row = |name: &str| {
                let sizes: Vec<u64> = left
                    .info()
                    .into_iter()
                    .chain(right.strides.iter().map(|&s| s as u64))
                    .collect();
                Row::new(format!("{name}_{}", kind.word()))
                    .steps(left.elements())
                    .sizes(&[left.elements(), left.dims.len()])
                    .input(&Data::sizes(&sizes))
                    .input(&x)
                    .input(&y)
                    .about(about)
            };
            for (name, function) in ARITHMETIC {
                let expected = both().map(|(x, y)| function(x, y));
                let steps = if matches!(kind, F8 | F16 | BF16) {
                    0.
                } else {
                    1.
                };
                let expected = expected.map(|v| if kind.float() { kind.rounded(v) } else { v });
                rows.push(row(name).output(Output::near(kind, expected, steps)));
            }
            for (name, function) in COMPARISONS {
                let expected = both().map(|(x, y)| f64::from(u8::from(function(&x, &y))));
                rows.push(row(name).output(Output::exact(U8, expected)));
            }
        }
    }
    // Half of pairs are equal numbers, so that comparisons of floats have both answers.
    for kind in [F8, BF16, F16, F32, F64] {
        let x = Data::whole(kind, (0..130).map(|i| i % 3));
        let y = Data::whole(kind, (0..130).map(|i| i % 2));
        for (name, function) in COMPARISONS {
            let (x, y) = (&x, &y);
            let expected = x.values().into_iter().zip(y.values());
            let expected = expected.map(|(x, y)| f64::from(u8::from(function(&x, &y))));
            let row = Row::new(format!("{name}_{}", kind.word()))
                .steps(130)
                .sizes(&[130, 1]);
            rows.push(
                row.null()
                    .input(x)
                    .input(y)
                    .output(Output::exact(U8, expected))
                    .about("equal numbers"),
            );
        }
    }
    rows
}

/// Launches of all of affine.cu.
pub fn affine(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [F8, BF16, F16, F32, F64, U8, U32, I16, I32, I64] {
        for layout in layouts() {
            let (low, high) = if kind.float() { (-3., 3.) } else { (0., 20.) };
            let input = Data::random(kind, layout.storage(), low, high, random);
            let (multiply, add) = if kind.float() {
                (1.75, -0.625)
            } else {
                (3., 7.)
            };
            let expected = strided(&input, &layout).map(|x| x * multiply + add);
            // Two roundings in 16 bits, also where the sum comes close to zero.
            let output = match kind {
                F16 | BF16 => Output::exact(kind, expected).within(6. * kind.step(), kind.step()),
                F8 => Output::exact(kind, expected.map(|v| kind.rounded(v))),
                _ => Output::exact(kind, expected).within(8. * kind.step(), kind.step()),
            };
            let row = over(Row::new(format!("affine_{}", kind.word())), &layout).input(&input);
            let (data, kind) = (output, kind);
            let mut row = row.output(data);
            row = row.scalar(kind, multiply).scalar(kind, add);
            rows.push(row);
        }
    }
    rows
}

/// Launches of all of cast.cu: each pair of types that it has.
pub fn cast(random: &mut Random) -> Vec<Row> {
    let floats = [F16, BF16, F32, F64];
    let mut pairs = vec![
        (F8, F8),
        (F16, BF16),
        (BF16, F16),
        (I32, F8),
        (F8, I32),
        (U8, F8),
        (F8, U8),
    ];
    for kind in floats {
        pairs.extend([
            (F8, kind),
            (kind, F8),
            (kind, kind),
            (kind, U8),
            (U8, kind),
            (kind, U32),
            (U32, kind),
        ]);
    }
    for kind in [F16, BF16] {
        pairs.extend([(kind, F32), (F32, kind), (kind, F64), (F64, kind)]);
    }
    for kind in [U8, U32, F32, F64] {
        pairs.extend([(kind, I64), (I64, kind)]);
    }
    pairs.extend([
        (F32, F64),
        (F64, F32),
        (U8, U32),
        (U32, U8),
        (U8, U8),
        (U32, U32),
        (I64, I64),
    ]);
    let mut rows = Vec::new();
    for (from, to) in pairs {
        for layout in layouts() {
            let high = if from == U8 || to == U8 || to == F8 || from == F8 {
                200.
            } else {
                3000.
            };
            let low = if from.float() && to.float() || to == I64 {
                -high
            } else {
                0.
            };
            let low = if matches!(from, U8 | U32) { 0. } else { low };
            let input = Data::random(from, layout.storage(), low, high, random);
            // Exact: numbers are rounded once, to even for floats and to zero for integers.
            let expected = strided(&input, &layout).map(|v| to.rounded(v));
            rows.push(
                over(
                    Row::new(format!("cast_{}_{}", from.word(), to.word())),
                    &layout,
                )
                .input(&input)
                .output(Output::exact(to, expected)),
            );
        }
    }
    rows
}

/// Launches of all of fill.cu.
pub fn fill(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [F8, BF16, F16, F32, F64, U8, U32, I64] {
        let word = kind.word();
        let value = if kind.float() { 1.75 } else { 42. };
        for count in [1, 200] {
            rows.push(
                Row::new(format!("fill_{word}"))
                    .steps(count)
                    .output(Output::exact(kind, vec![value; count]))
                    .scalar(kind, value)
                    .size(count),
            );
        }
        // Rows of 7 of 11 to rows of 7 of 9: what lies between must stay.
        let source = Data::random(kind, 11 * 13, 0., 100., random);
        let before = Data::random(kind, 9 * 13, 0., 100., random);
        let mut expected = before.values();
        for (row, values) in source.values().chunks(11).enumerate() {
            expected[row * 9..row * 9 + 7].copy_from_slice(&values[..7]);
        }
        rows.push(
            Row::new(format!("copy2d_{word}"))
                .each(7 * 13)
                .input(&source)
                .output(Output::exact(kind, expected).over(before))
                .scalar(U32, 13.)
                .scalar(U32, 7.)
                .scalar(U32, 11.)
                .scalar(U32, 9.),
        );
        for layout in layouts().into_iter().filter(|l| l.name != "broadcast") {
            let before = Data::random(kind, layout.storage(), 0., 100., random);
            let mut expected = before.values();
            layout.all().into_iter().for_each(|at| expected[at] = value);
            rows.push(
                over(Row::new(format!("const_set_{word}")), &layout)
                    .scalar(kind, value)
                    .output(Output::exact(kind, expected).over(before)),
            );
        }
    }
    rows
}

/// Launches of all of ternary.cu.
pub fn ternary(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [F8, BF16, F16, F32, F64, U8, U32, I64] {
        let wide: &[Type] = if kind == F8 { &[I16, I32] } else { &[] };
        for &ids in [I64, U32, U8].iter().chain(wide) {
            for (about, left, right) in pairs() {
                let (yes, no) = (&left, &right);
                let choice = Layout::contiguous(&left.dims);
                let chosen = Data::whole(ids, (0..choice.storage()).map(|_| random.below(2) * 3));
                let x = Data::random(kind, yes.storage(), 0., 100., random);
                let y = Data::random(kind, no.storage(), 0., 100., random);
                let picked = chosen.values();
                let expected = strided(&x, yes).zip(strided(&y, no)).zip(picked);
                let expected: Vec<f64> = expected
                    .map(|((x, y), c)| if c != 0. { x } else { y })
                    .collect();
                let strides = [&choice.strides, &yes.strides, &no.strides];
                let sizes: Vec<u64> = choice
                    .dims
                    .iter()
                    .chain(strides.into_iter().flatten())
                    .map(|&n| n as u64)
                    .collect();
                let word = if kind == F8 { "fp8_e4m3" } else { kind.word() };
                rows.push(
                    Row::new(format!("where_{}_{word}", ids.word()))
                        .steps(choice.elements())
                        .sizes(&[choice.elements(), choice.dims.len()])
                        .input(&Data::sizes(&sizes))
                        .input(&chosen)
                        .input(&x)
                        .input(&y)
                        .output(Output::exact(kind, expected))
                        .about(about),
                );
            }
        }
    }
    rows
}
