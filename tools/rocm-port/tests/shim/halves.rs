//! `__half` and `__nv_bfloat16`: every value of one operand, many of two and three, all conversions in all modes, bit
//! for bit.

use crate::exact::{words, Exact, Format, Mode, BF16, F16, F32, MODES};
use crate::units::{check, unit};
use rocm_port::check::{Case, DType, Fill};

/// The text for both types, by the part of names that they have.
const TEXT: &str = r#"
#define BITS(v) canonical(__NAME_as_ushort(v))
namespace NAMEspace {
// One NaN is as good as another.
__device__ unsigned canonical(unsigned short b) { return (b & 0x7fffu) > INFINITE ? 0x7fffu : b; }
}
__global__ void NAME_unary(const unsigned short* x, unsigned* y, int n) {
    using namespace NAMEspace;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const TYPE v = __ushort_as_NAME(x[i]);
    const float f = __NAME2float(v);
    unsigned* o = y + i;
#define OUT(value) (*o = (unsigned)(value), o += n)
    OUT(f != f ? 0x7fc00000u : __float_as_uint(f));
    OUT(BITS(-v));
    OUT(BITS(__habs(v)));
    OUT(__hisnan(v));
    OUT(__hisinf(v));
    OUT(BITS(hsqrt(v)));
    OUT(BITS(hrcp(v)));
    OUT(BITS(hfloor(v)));
    OUT(BITS(hceil(v)));
    OUT(BITS(htrunc(v)));
    OUT(BITS(hrint(v)));
    OUT(__NAME2int_rn(v));
    OUT(__NAME2int_rz(v));
    OUT(__NAME2int_ru(v));
    OUT(__NAME2int_rd(v));
    OUT(__NAME2uint_rz(v));
    OUT(__NAME2short_rn(v));
    OUT(__NAME2ushort_rn(v));
    OUT((unsigned)(__NAME2ll_rz(v) >> 32));
    OUT((unsigned)(__NAME2ull_rz(v) >> 32));
    OUT((bool)v);
    OUT((signed char)v);
    OUT((unsigned char)v);
}
__global__ void NAME_binary(const unsigned short* x, const unsigned short* w, const unsigned short* z, unsigned* y, int n) {
    using namespace NAMEspace;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const TYPE a = __ushort_as_NAME(x[i]), b = __ushort_as_NAME(w[i]), c = __ushort_as_NAME(z[i]);
    unsigned* o = y + i;
    OUT(BITS(a + b));
    OUT(BITS(a - b));
    OUT(BITS(a * b));
    OUT(BITS(a / b));
    OUT(BITS(__hfma(a, b, c)));
    OUT(BITS(__hfma_relu(a, b, c)));
    OUT(BITS(__hmin(a, b)));
    OUT(BITS(__hmax(a, b)));
    OUT(BITS(__hmin_nan(a, b)));
    OUT(BITS(__hmax_nan(a, b)));
    OUT((a == b) | (a != b) << 1 | (a < b) << 2 | (a <= b) << 3 | (a > b) << 4 | (a >= b) << 5 | __hequ(a, b) << 6 | __hgtu(a, b) << 7 |
        __hne(a, b) << 8);
    OUT(BITS(__hadd_sat(a, b)));
    TYPE d = a;
    d += b;
    d *= c;
    OUT(BITS(d));
    // Pairs do what their halves do.
    TYPE2 p = __halves2TWO(a, b), q = __halves2TWO(b, c), r = __hfma2(p, q, __halves2TWO(c, a));
    OUT(BITS(r.x) | BITS(r.y) << 16);
    r = p * q - __TWO2TWO(c);
    OUT(BITS(__low2NAME(r)) | BITS(__high2NAME(r)) << 16);
}
__global__ void NAME_narrow(const float* x, unsigned* y, int n) {
    using namespace NAMEspace;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned* o = y + i;
    OUT(BITS(__float2NAME_rn(x[i])));
    OUT(BITS(__float2NAME_rz(x[i])));
    OUT(BITS(__float2NAME_ru(x[i])));
    OUT(BITS(__float2NAME_rd(x[i])));
}
__global__ void NAME_double(const double* x, unsigned* y, int n) {
    using namespace NAMEspace;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = BITS(TYPE(x[i]));
}
__global__ void NAME_integer(const long long* x, unsigned* y, int n) {
    using namespace NAMEspace;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned* o = y + i;
    OUT(BITS(__ll2NAME_rn(x[i])));
    OUT(BITS(__ll2NAME_rz(x[i])));
    OUT(BITS(__ll2NAME_ru(x[i])));
    OUT(BITS(__ll2NAME_rd(x[i])));
    OUT(BITS(__ull2NAME_rn((unsigned long long)x[i])));
    OUT(BITS(__int2NAME_rn((int)x[i])));
    OUT(BITS(TYPE((unsigned short)x[i])));
#undef OUT
}
#undef BITS
"#;

/// A type: its name in functions, itself, its pair, the pair's name, its format.
type Kind = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Format,
);
const KINDS: [Kind; 2] = [
    ("half", "__half", "__half2", "half2", F16),
    (
        "bfloat16",
        "__nv_bfloat16",
        "__nv_bfloat162",
        "bfloat162",
        BF16,
    ),
];

fn text() -> String {
    let of = |(name, kind, pair, two, format): Kind| {
        // `__half2half2` and `__bfloat162bfloat162` make a pair of one.
        TEXT.replace("__TWO2TWO", &format!("__{name}2{two}"))
            .replace("TWO", two)
            .replace("TYPE2", pair)
            .replace("TYPE", kind)
            .replace("NAME", name)
            .replace("INFINITE", &format!("{}", format.infinity()))
    };
    KINDS.map(of).concat()
}

fn bytes<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

fn case(kernel: String, inputs: Vec<(DType, Vec<u8>)>, outputs: usize) -> Case {
    let n = inputs[0].1.len() / inputs[0].0.size();
    let mut case = Case::new(format!("rocm_{kernel}"))
        .size("n", [n as i64])
        .grid("ceil(n / 256)")
        .block(256);
    for (i, (dtype, bytes)) in inputs.into_iter().enumerate() {
        case = case.input(["x", "w", "z"][i], dtype, "n", Fill::Bytes(bytes));
    }
    case.output("y", DType::U32, format!("{outputs} * n"))
        .value("n", DType::I32, "n")
}

/// An operation on values that are not finite, or gives zero: by doubles; else exactly.
fn result(format: Format, operands: &[u64], double: f64, exact: impl Fn() -> Exact) -> u64 {
    let finite = operands.iter().all(|bits| format.is_finite(*bits));
    if !finite || double.is_nan() || double.is_infinite() {
        return format.of(double, Mode::Nearest);
    }
    let exact = exact();
    match exact.magnitude {
        0 => format.of(0f64.copysign(double), Mode::Nearest),
        _ => format.round(exact, Mode::Nearest),
    }
}

fn clamped(value: f64, mode: Mode, low: i128, high: i128, nan: i128) -> i128 {
    let whole = match mode {
        Mode::Nearest => value.round_ties_even(),
        Mode::Zero => value.trunc(),
        Mode::Up => value.ceil(),
        Mode::Down => value.floor(),
    };
    match whole.is_nan() {
        true => nan,
        false => (whole as i128).clamp(low, high),
    }
}

fn unary(name: &str, format: Format) -> Case {
    let all = bytes((0..=u16::MAX).map(u16::to_le_bytes));
    case(format!("{name}_unary"), vec![(DType::U16, all)], 23).reference(move |io| {
        let each = |bits: u64| -> Vec<u32> {
            let v = format.value(bits);
            let canonical = |b: u64| if format.is_nan(b) { format.nan() } else { b } as u32;
            let whole = |w: f64| format.of(w, Mode::Nearest) as u32;
            let int = |mode| clamped(v, mode, i32::MIN.into(), i32::MAX.into(), 0) as u32;
            let (i64_low, i64_high) = (i128::from(i64::MIN), i128::from(i64::MAX));
            let root = || format.exact(bits).root();
            let inverse = || Exact::integer(1).over(format.exact(bits));
            vec![
                if v.is_nan() {
                    0x7fc0_0000
                } else {
                    (v as f32).to_bits()
                },
                canonical(bits ^ format.sign()),
                canonical(bits & !format.sign()),
                v.is_nan().into(),
                if v.is_infinite() {
                    v.signum() as i32 as u32
                } else {
                    0
                },
                result(format, &[bits], v.sqrt(), root) as u32,
                match v == 0.0 {
                    true => format.of(1.0 / v, Mode::Nearest) as u32,
                    false => result(format, &[bits], 1.0 / v, inverse) as u32,
                },
                whole(v.floor()),
                whole(v.ceil()),
                whole(v.trunc()),
                whole(v.round_ties_even()),
                int(Mode::Nearest),
                int(Mode::Zero),
                int(Mode::Up),
                int(Mode::Down),
                clamped(v, Mode::Zero, 0, u32::MAX.into(), 0) as u32,
                clamped(v, Mode::Nearest, i16::MIN.into(), i16::MAX.into(), 0) as u32,
                clamped(v, Mode::Nearest, 0, u16::MAX.into(), 0) as u32,
                (clamped(v, Mode::Zero, i64_low, i64_high, i64_low) >> 32) as u32,
                (clamped(v, Mode::Zero, 0, u64::MAX.into(), 1 << 63) >> 32) as u32,
                u32::from(v != 0.0),
                clamped(v, Mode::Zero, i8::MIN.into(), i8::MAX.into(), 0) as u32,
                clamped(v, Mode::Zero, 0, u8::MAX.into(), 0) as u32,
            ]
        };
        let results: Vec<Vec<u32>> = (0..=u64::from(u16::MAX)).map(each).collect();
        let by_output = (0..23).flat_map(|o| results.iter().map(move |r| r[o]));
        io.set_integers("y", by_output.collect::<Vec<u32>>());
    })
}

/// Operands of all kinds: random bits, neighbours in size, and special values with each other.
fn operands(format: Format, seed: u64) -> Vec<u16> {
    let infinity = format.infinity() as u16;
    let special = [
        0,
        1,
        2,
        infinity - 1,
        infinity,
        infinity + 1,
        0x3c00,
        0x3f80,
        1 << format.mantissa,
    ];
    let mut all: Vec<u16> = Vec::new();
    for (i, word) in words(seed, 24_000).into_iter().enumerate() {
        let random = word as u16;
        all.push(match i % 4 {
            0 => special[word as usize >> 16 & 7] | random & 0x8000,
            // Near one, so that sums and products are normal numbers.
            1 => {
                (random & 0x83ff).wrapping_add(((format.bias() as u16) << format.mantissa) - 0x200)
            }
            _ => random,
        });
    }
    all
}

fn binary(name: &str, format: Format) -> Case {
    let inputs: Vec<Vec<u16>> = (1..4)
        .map(|seed| {
            let mut operands = operands(format, seed);
            // So that kinds meet in all combinations.
            operands.rotate_left(seed as usize * seed as usize);
            operands
        })
        .collect();
    let buffers = inputs
        .iter()
        .map(|o| (DType::U16, bytes(o.iter().map(|v| v.to_le_bytes()))))
        .collect();
    case(format!("{name}_binary"), buffers, 15).reference(move |io| {
        let value = |bits| format.value(bits);
        let exact = |bits| format.exact(bits);
        let add = |a, b| {
            result(format, &[a, b], value(a) + value(b), || {
                exact(a).plus(exact(b))
            })
        };
        let minus = |bits: u64| bits ^ format.sign();
        let mul = |a, b| {
            result(format, &[a, b], value(a) * value(b), || {
                exact(a).times(exact(b))
            })
        };
        let div = |a, b| match value(b) == 0.0 {
            true => format.of(value(a) / value(b), Mode::Nearest),
            false => result(format, &[a, b], value(a) / value(b), || {
                exact(a).over(exact(b))
            }),
        };
        let fma = |a, b, c| {
            let double = value(a).mul_add(value(b), value(c));
            result(format, &[a, b, c], double, || {
                exact(a).times(exact(b)).plus(exact(c))
            })
        };
        let nan = format.nan();
        let pick = |a: u64, b: u64, larger: bool, keep: bool| {
            let (x, y) = (value(a), value(b));
            if x.is_nan() || y.is_nan() {
                return if keep || (x.is_nan() && y.is_nan()) {
                    nan
                } else if x.is_nan() {
                    b
                } else {
                    a
                };
            }
            let below = x < y || (x == y && a & format.sign() != 0);
            if below != larger {
                a
            } else {
                b
            }
        };
        let each = |a: u64, b: u64, c: u64| -> Vec<u32> {
            let (x, y) = (value(a), value(b));
            let unordered = x.is_nan() || y.is_nan();
            let fused = fma(a, b, c);
            let relu = match format.is_nan(fused) {
                true => nan,
                false => {
                    if fused & format.sign() != 0 {
                        0
                    } else {
                        fused
                    }
                }
            };
            let compared = [
                x == y,
                x != y,
                x < y,
                x <= y,
                x > y,
                x >= y,
                unordered || x == y,
                unordered || x > y,
                !unordered && x != y,
            ];
            let sum = add(a, b);
            let one = format.of(1.0, Mode::Nearest);
            // NaN becomes zero.
            let saturated = match value(sum) {
                v if v > 1.0 => one,
                v if v > 0.0 => sum,
                _ => 0,
            };
            vec![
                sum as u32,
                add(a, if format.is_nan(b) { b } else { minus(b) }) as u32,
                mul(a, b) as u32,
                div(a, b) as u32,
                fused as u32,
                relu as u32,
                pick(a, b, false, false) as u32,
                pick(a, b, true, false) as u32,
                pick(a, b, false, true) as u32,
                pick(a, b, true, true) as u32,
                compared
                    .iter()
                    .enumerate()
                    .map(|(i, c)| u32::from(*c) << i)
                    .sum(),
                saturated as u32,
                mul(sum, c) as u32,
                (fma(a, b, c) | fma(b, c, a) << 16) as u32,
                (add(mul(a, b), minus(c)) | add(mul(b, c), minus(c)) << 16) as u32,
            ]
        };
        let at = |i: usize, k: usize| u64::from(inputs[k][i]);
        let results: Vec<Vec<u32>> = (0..inputs[0].len())
            .map(|i| each(at(i, 0), at(i, 1), at(i, 2)))
            .collect();
        let by_output = (0..15).flat_map(|o| results.iter().map(move |r| r[o]));
        io.set_integers("y", by_output.collect::<Vec<u32>>());
    })
}

/// Floats at, and right beside, all values of a format and the middles between them; and others.
fn beside(format: Format) -> Vec<f32> {
    let mut all: Vec<f32> = Vec::new();
    let step = (F32.mantissa - format.mantissa - 1) as u64;
    for code in (0..=format.infinity()).step_by(if format.exponent == 8 { 3 } else { 1 }) {
        let bits = (format.value(code) as f32).to_bits();
        // The middle above, where floats are as evenly spaced as the format's values.
        let middle = match format.exponent == 8 {
            true => bits.wrapping_add(1 << step),
            false => ((format.value(code) + format.value(code + 1)) as f32 / 2.0).to_bits(),
        };
        let sign = (code as u32 & 1) << 31;
        all.extend(
            [bits, middle.wrapping_sub(1), middle, middle + 1].map(|b| f32::from_bits(b | sign)),
        );
    }
    all.extend(words(7, 8000).into_iter().map(|w| f32::from_bits(w as u32)));
    all.extend([
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        65519.996,
        65520.0,
    ]);
    all
}

fn narrow(name: &str, format: Format) -> Case {
    let x = beside(format);
    let buffer = bytes(x.iter().map(|v| v.to_le_bytes()));
    case(format!("{name}_narrow"), vec![(DType::F32, buffer)], 4).reference(move |io| {
        let modes = MODES.into_iter();
        let y = modes.flat_map(|mode| x.iter().map(move |v| format.of(f64::from(*v), mode) as u32));
        io.set_integers("y", y.collect::<Vec<u32>>());
    })
}

fn double(name: &str, format: Format) -> Case {
    // A trifle beside the middles, which a float does not show.
    let near = |v: f32| {
        [
            f64::from(v),
            f64::from(v) * (1.0 + 1e-14),
            f64::from(v) * (1.0 - 1e-14),
        ]
    };
    let mut x: Vec<f64> = beside(format)
        .into_iter()
        .step_by(5)
        .flat_map(near)
        .collect();
    x.extend(words(9, 4000).into_iter().map(f64::from_bits));
    let buffer = bytes(x.iter().map(|v| v.to_le_bytes()));
    case(format!("{name}_double"), vec![(DType::F64, buffer)], 1).reference(move |io| {
        let y: Vec<u32> = x
            .iter()
            .map(|v| format.of(*v, Mode::Nearest) as u32)
            .collect();
        io.set_integers("y", y);
    })
}

fn integer(name: &str, format: Format) -> Case {
    let mut x: Vec<i64> = (-3000..3000)
        .chain([i64::MIN, i64::MAX, i64::MIN + 1])
        .collect();
    for (i, word) in words(11, 12_000).into_iter().enumerate() {
        let shift = i % 64;
        x.push(word as i64 >> shift);
        // Middles between values, and beside them.
        x.push(
            (1i64 << (shift % 63))
                .wrapping_add(1 << (shift.saturating_sub(format.mantissa as usize + 1)))
                .wrapping_add(word as i64 % 2),
        );
    }
    let buffer = bytes(x.iter().map(|v| v.to_le_bytes()));
    case(format!("{name}_integer"), vec![(DType::I64, buffer)], 7).reference(move |io| {
        let rounded = |v: i128, mode| format.round(Exact::integer(v), mode) as u32;
        let mut y: Vec<u32> = Vec::new();
        for mode in MODES {
            y.extend(x.iter().map(|v| rounded((*v).into(), mode)));
        }
        y.extend(x.iter().map(|v| rounded((*v as u64).into(), Mode::Nearest)));
        y.extend(x.iter().map(|v| rounded((*v as i32).into(), Mode::Nearest)));
        y.extend(x.iter().map(|v| rounded((*v as u16).into(), Mode::Nearest)));
        io.set_integers("y", y);
    })
}

#[test]
fn half_and_bfloat16_bit_for_bit() {
    let mut kernels: Vec<(String, usize)> = Vec::new();
    let mut cases = Vec::new();
    for (name, _, _, _, format) in KINDS {
        for (kernel, parameters) in [
            ("unary", 3),
            ("binary", 5),
            ("narrow", 3),
            ("double", 3),
            ("integer", 3),
        ] {
            kernels.push((format!("{name}_{kernel}"), parameters));
        }
        cases.extend([
            unary(name, format),
            binary(name, format),
            narrow(name, format),
            double(name, format),
            integer(name, format),
        ]);
    }
    let kernels: Vec<(&str, usize)> = kernels.iter().map(|(n, p)| (n.as_str(), *p)).collect();
    check(&unit(&text(), &kernels), &["gfx1100"], 1, cases);
}
