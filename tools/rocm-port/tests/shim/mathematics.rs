//! CUDA's mathematics: every function of one and two numbers against the C library's, in units in the last place; the
//! intrinsics with rounding modes bit for bit.

use crate::exact::{words, Exact, Mode, F32, MODES};
use crate::units::{check, unit};
use rocm_port::check::{Case, DType, Fill, Tolerance};

/// A function: its name without the `f` of float, its reference, and where it is tried.
type Function = (&'static str, fn(f64) -> f64, f64, f64);

const FUNCTIONS: &[Function] = &[
    ("sqrt", |x| x.sqrt(), 0.0, 1e6),
    ("cbrt", libm::cbrt, -1e6, 1e6),
    ("exp", libm::exp, -80.0, 80.0),
    ("exp2", libm::exp2, -120.0, 120.0),
    ("exp10", libm::exp10, -35.0, 35.0),
    ("expm1", libm::expm1, -5.0, 5.0),
    ("log", libm::log, 1e-30, 1e6),
    ("log2", libm::log2, 1e-30, 1e6),
    ("log10", libm::log10, 1e-30, 1e6),
    ("log1p", libm::log1p, -0.99, 100.0),
    ("sin", libm::sin, -100.0, 100.0),
    ("cos", libm::cos, -100.0, 100.0),
    ("tan", libm::tan, -10.0, 10.0),
    ("asin", libm::asin, -1.0, 1.0),
    ("acos", libm::acos, -1.0, 1.0),
    ("atan", libm::atan, -20.0, 20.0),
    ("sinh", libm::sinh, -20.0, 20.0),
    ("cosh", libm::cosh, -20.0, 20.0),
    ("tanh", libm::tanh, -5.0, 5.0),
    ("asinh", libm::asinh, -100.0, 100.0),
    ("acosh", libm::acosh, 1.0, 100.0),
    ("atanh", libm::atanh, -0.999, 0.999),
    ("erf", libm::erf, -4.0, 4.0),
    ("erfc", libm::erfc, -4.0, 8.0),
    ("tgamma", libm::tgamma, -5.4, 20.0),
    ("floor", libm::floor, -100.0, 100.0),
    ("ceil", libm::ceil, -100.0, 100.0),
    ("trunc", libm::trunc, -100.0, 100.0),
    ("round", libm::round, -100.0, 100.0),
    ("rint", libm::rint, -100.0, 100.0),
    ("nearbyint", libm::rint, -100.0, 100.0),
    ("fabs", libm::fabs, -100.0, 100.0),
    ("logb", |x| libm::ilogb(x).into(), 1e-20, 100.0),
    ("rsqrt", |x| 1.0 / x.sqrt(), 1e-10, 100.0),
    (
        "normcdf",
        |x| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        -6.0,
        6.0,
    ),
    (
        "sinpi",
        |x| libm::sin(std::f64::consts::PI * libm::remainder(x, 2.0)),
        0.1,
        0.9,
    ),
    ("cospi", |x| libm::cos(std::f64::consts::PI * x), -0.4, 0.4),
    ("erfcx", |x| libm::exp(x * x) * libm::erfc(x), -3.0, 10.0),
    // Of what they invert.
    ("IDENTITY_erfinv", |x| x, -0.999, 0.999),
    ("IDENTITY_normcdfinv", |x| x, 0.001, 0.999),
    ("IDENTITY_erfcinv", |x| x, 0.001, 1.999),
];

/// A function of two numbers.
type Pair = (&'static str, fn(f64, f64) -> f64);

/// Each is tried with x in ±20 and y in ±4.
const PAIRS: &[Pair] = &[
    ("fmod", libm::fmod),
    ("remainder", libm::remainder),
    ("atan2", libm::atan2),
    ("hypot", libm::hypot),
    ("copysign", libm::copysign),
    ("fdim", libm::fdim),
    ("fmax", libm::fmax),
    ("fmin", libm::fmin),
];

/// What invalid and extreme arguments give, by C's rules: expressions and their bits.
const SPECIAL: &[(&str, f32)] = &[
    ("sqrtf(-1.0f)", f32::NAN),
    ("logf(0.0f)", f32::NEG_INFINITY),
    ("logf(-1.0f)", f32::NAN),
    ("log2f(8.0f)", 3.0),
    ("expf(INFINITY)", f32::INFINITY),
    ("expf(-INFINITY)", 0.0),
    ("tanhf(INFINITY)", 1.0),
    ("atan2f(0.0f, -1.0f)", std::f32::consts::PI),
    ("atan2f(-0.0f, -1.0f)", -std::f32::consts::PI),
    ("atan2f(INFINITY, INFINITY)", std::f32::consts::FRAC_PI_4),
    ("asinf(2.0f)", f32::NAN),
    ("powf(0.0f, 0.0f)", 1.0),
    ("powf(-2.0f, 3.0f)", -8.0),
    ("powf(-2.0f, 0.5f)", f32::NAN),
    ("(float)pow(2, 10)", 1024.0),
    ("(float)pow(2.0f, 3)", 8.0),
    ("fmaxf(NAN, 1.0f)", 1.0),
    ("fminf(1.0f, NAN)", 1.0),
    ("max(NAN, 2.0f)", 2.0),
    ("(float)max(1, 2.5)", 2.5),
    ("(float)max(1u, -1)", u32::MAX as f32),
    ("(float)std::max(1, 2)", 2.0),
    ("hypotf(3e30f, 4e30f)", 5e30),
    ("tgammaf(5.0f)", 24.0),
    ("tgammaf(-1.0f)", f32::NAN),
    ("lgammaf(1.0f)", 0.0),
    ("lgammaf(0.0f)", f32::INFINITY),
    ("fmodf(5.5f, -2.0f)", 1.5),
    ("fmodf(1e38f, 3e-38f)", 1e38 % 3e-38),
    ("fmodf(1.0f, 0.0f)", f32::NAN),
    ("remainderf(5.0f, 2.0f)", 1.0),
    ("remainderf(7.0f, 2.0f)", -1.0),
    ("ldexpf(1.5f, -3)", 0.1875),
    ("scalbnf(1.0f, 200)", f32::INFINITY),
    ("nextafterf(1.0f, 2.0f)", 1.0 + f32::EPSILON),
    ("(float)ilogbf(0.1f)", -4.0),
    ("(float)isnan(NAN)", 1.0),
    ("(float)isinf(-INFINITY)", 1.0),
    ("(float)isfinite(1.0)", 1.0),
    ("(float)signbit(-0.0f)", 1.0),
    ("(float)std::isnan(1.0)", 0.0),
    ("(float)lrintf(2.5f)", 2.0),
    ("(float)llroundf(-2.5f)", -3.0),
    ("__saturatef(NAN)", 0.0),
    ("__saturatef(1.5f)", 1.0),
    ("cospif(0.5f)", 0.0),
    ("sinpif(1.5f)", -1.0),
    ("(float)__float2int_rz(1e20f)", i32::MAX as f32),
    ("(float)__float2int_rz(NAN)", 0.0),
    ("(float)__float2uint_rz(-1.0f)", 0.0),
    ("(float)abs(-3)", 3.0),
    ("abs(-3.5f)", 3.5),
    ("(float)floor(7)", 7.0),
    ("erfcinvf(0.0f)", f32::INFINITY),
    ("normcdfinvf(0.5f)", 0.0),
    ("(float)fma(2.0, 3.0, 4.0)", 10.0),
    ("parts(frexpf, 12.0f)", 0.75 + 4.0 * 100.0),
    ("whole(3.75f)", 0.75 + 3.0 * 100.0),
    ("quotient(7.0f, 2.0f)", -1.0 + 4.0 * 100.0),
    ("both(0.0f)", 100.0),
];

const HELPERS: &str = r#"
#define IDENTITY_erfinv(x) erf(erfinv(x))
#define IDENTITY_erfinvf(x) erff(erfinvf(x))
#define IDENTITY_erfcinv(x) erfc(erfcinv(x))
#define IDENTITY_erfcinvf(x) erfcf(erfcinvf(x))
#define IDENTITY_normcdfinv(x) normcdf(normcdfinv(x))
#define IDENTITY_normcdfinvf(x) normcdff(normcdfinvf(x))
// Two results as one.
template <typename F> __device__ float parts(F f, float x) {
    int e;
    const float m = f(x, &e);
    return m + 100.0f * (float)e;
}
__device__ float whole(float x) {
    float w;
    const float rest = modff(x, &w);
    return rest + 100.0f * w;
}
__device__ float quotient(float x, float y) {
    int q;
    const float r = remquof(x, y, &q);
    return r + 100.0f * (float)q;
}
__device__ float both(float x) {
    float s, c;
    sincosf(x, &s, &c);
    return s + 100.0f * c;
}
__global__ void rounded(const float* x, const float* w, const float* z, unsigned* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned* o = y + i;
    const float a = x[i], b = w[i], c = z[i];
#define OUT(value) (*o = __float_as_uint(value), o += n)
#define MODES(f, ...) OUT(f##_rn(__VA_ARGS__)); OUT(f##_rz(__VA_ARGS__)); OUT(f##_ru(__VA_ARGS__)); OUT(f##_rd(__VA_ARGS__));
    MODES(__fadd, a, b)
    MODES(__fsub, a, b)
    MODES(__fmul, a, b)
    MODES(__fmaf, a, b, c)
    MODES(__fdiv, a, b)
    MODES(__frcp, b)
    MODES(__fsqrt, fabsf(a))
    MODES(__double2float, (double)a * b)
    MODES(__ll2float, (long long)((double)a * 1e11))
    MODES(__uint2float, (unsigned)__float_as_uint(a))
}
"#;

/// Values over a range: even, dense near zero, and a few whole ones.
fn spread(low: f64, high: f64, n: usize) -> Vec<f64> {
    let parts = words(low.to_bits() ^ high.to_bits(), n)
        .into_iter()
        .enumerate();
    let value = |(i, w): (usize, u64)| {
        let even = low + (high - low) * (w >> 11) as f64 / (1u64 << 53) as f64;
        match i % 4 {
            0 => (even * 2f64.powi(-((w & 15) as i32))).clamp(low, high),
            1 => even.round().clamp(low, high),
            _ => even,
        }
    };
    parts.map(value).collect()
}

const POINTS: usize = 600;

fn text() -> String {
    let mut text = HELPERS.to_string();
    for (kind, suffix) in [("float", "f"), ("double", "")] {
        text += &format!("__global__ void of_one_{kind}(const {kind}* x, {kind}* y, int n) {{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;\n");
        for (k, (name, ..)) in FUNCTIONS.iter().enumerate() {
            text += &format!("    y[{k} * n + i] = {name}{suffix}(x[{k} * n + i]);\n");
        }
        text += &format!("}}\n__global__ void of_two_{kind}(const {kind}* x, const {kind}* z, {kind}* y, int n) {{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;\n");
        for (k, (name, _)) in PAIRS.iter().enumerate() {
            text += &format!("    y[{k} * n + i] = {name}{suffix}(x[i], z[i]);\n");
        }
        text += "}\n";
    }
    text += "__global__ void special(float* y) {\n";
    for (k, (expression, _)) in SPECIAL.iter().enumerate() {
        text += &format!("    y[{k}] = {expression};\n");
    }
    text + "}\n"
}

fn encode(dtype: DType, values: &[f64]) -> Fill {
    Fill::Bytes(dtype.encode_all(values.iter().copied()))
}

fn of_one(kind: &str, dtype: DType, ulps: f64) -> Case {
    let x: Vec<f64> = FUNCTIONS
        .iter()
        .flat_map(|(_, _, low, high)| spread(*low, *high, POINTS))
        .collect();
    Case::new(format!("rocm_of_one_{kind}"))
        .size("n", [POINTS as i64])
        .grid("ceil(n / 256)")
        .block(256)
        .input(
            "x",
            dtype,
            format!("{} * n", FUNCTIONS.len()),
            encode(dtype, &x),
        )
        .output("y", dtype, format!("{} * n", FUNCTIONS.len()))
        .value("n", DType::I32, "n")
        // Inverses of steep functions give back what they were given only roughly.
        .tolerance(
            "y",
            Tolerance {
                ulps,
                absolute: ulps * dtype.ulp(1.0) / 4.0,
                relative: 0.0,
            },
        )
        .reference(|io| {
            let x = io.input("x");
            let y = x
                .iter()
                .enumerate()
                .map(|(i, v)| (FUNCTIONS[i / POINTS].1)(*v));
            io.set("y", y.collect::<Vec<f64>>());
        })
}

fn of_two(kind: &str, dtype: DType) -> Case {
    let count = PAIRS.len();
    Case::new(format!("rocm_of_two_{kind}"))
        .size("n", [POINTS as i64])
        .grid("ceil(n / 256)")
        .block(256)
        .input("x", dtype, "n", encode(dtype, &spread(-20.0, 20.0, POINTS)))
        .input("z", dtype, "n", encode(dtype, &spread(-4.0, 4.0, POINTS)))
        .output("y", dtype, format!("{count} * n"))
        .value("n", DType::I32, "n")
        .tolerance("y", Tolerance::ulps(4.0))
        .reference(|io| {
            let (x, z) = (io.input("x"), io.input("z"));
            let all = |f: fn(f64, f64) -> f64| x.iter().zip(&z).map(move |(x, z)| f(*x, *z));
            let y: Vec<f64> = PAIRS.iter().flat_map(|(_, f)| all(*f)).collect();
            io.set("y", y);
        })
}

fn special() -> Case {
    Case::new("rocm_special")
        .output("y", DType::F32, SPECIAL.len())
        .tolerance("y", Tolerance::ulps(1.0))
        .reference(|io| io.set("y", SPECIAL.iter().map(|(_, v)| f64::from(*v))))
}

fn rounded() -> Case {
    let n = 4000;
    // Sums that lose digits, quotients, and numbers near the ends of the range.
    let values = |seed: u64| -> Vec<f32> {
        let word = |(i, w): (usize, u64)| match i % 3 {
            0 => f32::from_bits(w as u32 & 0x807f_ffff | 0x3f00_0000 | (w as u32 & 0x0180_0000)),
            1 => f32::from_bits(w as u32 & 0x8fff_ffff | 0x3000_0000),
            _ => (w >> 40) as f32 * if w & 1 == 0 { 1.0 } else { -1.0 },
        };
        words(seed, n).into_iter().enumerate().map(word).collect()
    };
    let inputs = [
        values(1),
        {
            let mut v = values(2);
            v.rotate_left(1);
            v
        },
        values(3),
    ];
    let mut case = Case::new("rocm_rounded")
        .size("n", [n as i64])
        .grid("ceil(n / 256)")
        .block(256);
    for (name, values) in ["x", "w", "z"].into_iter().zip(&inputs) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        case = case.input(name, DType::F32, "n", Fill::Bytes(bytes));
    }
    case.output("y", DType::U32, "40 * n")
        .value("n", DType::I32, "n")
        .reference(move |io| {
            let [x, w, z] = &inputs;
            let of = |v: f32| Exact::of(v.into());
            let zero = |e: Exact, mode: Mode| match e.magnitude {
                // An exact zero of numbers that are none is positive, but toward the negative infinity.
                0 => {
                    if mode == Mode::Down {
                        F32.sign()
                    } else {
                        0
                    }
                }
                _ => F32.round(e, mode),
            };
            let minus = |v: f32| of(-v);
            let mut y: Vec<u32> = Vec::new();
            let operations: [&dyn Fn(usize) -> Exact; 10] = [
                &|i| of(x[i]).plus(of(w[i])),
                &|i| of(x[i]).plus(minus(w[i])),
                &|i| of(x[i]).times(of(w[i])),
                &|i| of(x[i]).times(of(w[i])).plus(of(z[i])),
                &|i| of(x[i]).over(of(w[i])),
                &|i| Exact::integer(1).over(of(w[i])),
                &|i| of(x[i].abs()).root(),
                &|i| of(x[i]).times(of(w[i])),
                &|i| Exact::integer((f64::from(x[i]) * 1e11) as i64 as i128),
                &|i| Exact::integer(x[i].to_bits().into()),
            ];
            for (k, operation) in operations.iter().enumerate() {
                for mode in MODES {
                    for i in 0..x.len() {
                        let exact = operation(i);
                        // Only sums have zeros without a sign of their own; here conversions of integers are positive.
                        let signed = k > 3 && exact.magnitude == 0;
                        y.push(if signed {
                            u32::from(exact.negative) << 31
                        } else {
                            zero(exact, mode) as u32
                        });
                    }
                }
            }
            io.set_integers("y", y);
        })
}

#[test]
fn functions_are_those_of_the_c_library() {
    let kernels = [
        ("of_one_float", 3),
        ("of_one_double", 3),
        ("of_two_float", 4),
        ("of_two_double", 4),
        ("special", 1),
        ("rounded", 5),
    ];
    let cases = [
        of_one("float", DType::F32, 4.0),
        of_one("double", DType::F64, 30.0),
        of_two("float", DType::F32),
        of_two("double", DType::F64),
        special(),
        rounded(),
    ];
    check(&unit(&text(), &kernels), &["gfx950"], 1, cases);
}
