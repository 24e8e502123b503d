//! 8-bit floats: all of them as halves and floats, and floats beside all of them and their middles, in both formats,
//! with and without saturation.

use crate::exact::words;
use crate::units::{check, unit};
use rocm_port::check::{Case, DType, Fill};

const TEXT: &str = r#"
__global__ void widen(const unsigned char* x, unsigned* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_fp8_e4m3 a;
    __nv_fp8_e5m2 b;
    a.__x = x[i];
    b.__x = x[i];
    const float f = (float)a, g = float(b);
    y[i] = f != f ? 0x7fc00000u : __float_as_uint(f);
    y[n + i] = g != g ? 0x7fc00000u : __float_as_uint(g);
    y[2 * n + i] = __half_as_ushort(__nv_cvt_fp8_to_halfraw(x[i], __NV_E4M3)) == __half_as_ushort((__half)a);
    __nv_fp8x4_e4m3 four;
    four.__x = 0x01010101u * x[i];
    const float4 v = float4(four);
    y[3 * n + i] = f != f ? v.x != v.x && v.w != v.w : v.x == f && v.y == f && v.z == f && v.w == f;
}
__global__ void narrow(const float* x, unsigned char* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3);
    y[n + i] = __nv_cvt_float_to_fp8(x[i], __NV_NOSAT, __NV_E4M3);
    y[2 * n + i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2);
    y[3 * n + i] = __nv_cvt_float_to_fp8(x[i], __NV_NOSAT, __NV_E5M2);
    y[4 * n + i] = (unsigned char)(__nv_fp8x4_e5m2(make_float4(0.0f, x[i], 1.0f, 2.0f)).__x >> 8);
    // By double: a trifle above a middle is above it.
    y[5 * n + i] = __nv_fp8_e4m3((double)x[i] * (1.0 + 1e-15)).__x;
}
"#;

/// A format: bits of mantissa, and of the largest number.
#[derive(Clone, Copy)]
struct Format {
    mantissa: u32,
    bias: i32,
    top: u32,
}

const E4M3: Format = Format {
    mantissa: 3,
    bias: 7,
    top: 0x7e,
};
const E5M2: Format = Format {
    mantissa: 2,
    bias: 15,
    top: 0x7b,
};

impl Format {
    /// Of a code without sign up to the one behind the largest.
    fn magnitude(self, code: u32) -> f64 {
        let (field, fraction) = (code >> self.mantissa, code & ((1 << self.mantissa) - 1));
        let hidden = if field > 0 { 1 << self.mantissa } else { 0 };
        let exponent = field.max(1) as i32 - self.bias - self.mantissa as i32;
        f64::from(fraction | hidden) * 2f64.powi(exponent)
    }

    fn value(self, code: u8) -> f64 {
        let magnitude = u32::from(code & 0x7f);
        let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
        sign * match magnitude {
            m if m <= self.top => self.magnitude(m),
            0x7c if self.mantissa == 2 => f64::INFINITY,
            _ => f64::NAN,
        }
    }

    /// The nearest, of two the even one.
    fn narrow(self, x: f64, saturate: bool) -> u8 {
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let beyond = match (saturate, self.mantissa) {
            (true, _) => self.top,
            (false, 2) => 0x7c,
            (false, _) => 0x7f,
        };
        if x.is_nan() {
            return sign | if self.mantissa == 2 { 0x7e } else { 0x7f };
        }
        let far = |code: u32| (self.magnitude(code) - x.abs()).abs();
        let nearest = (0..=self.top + 1)
            .min_by(|a, b| far(*a).total_cmp(&far(*b)).then((a & 1).cmp(&(b & 1))))
            .unwrap();
        // Of a number far beyond, all are as far away.
        let finite = nearest <= self.top && x.abs() <= self.magnitude(self.top + 1);
        sign | if finite { nearest } else { beyond } as u8
    }
}

fn bits(value: f64) -> u32 {
    if value.is_nan() {
        0x7fc0_0000
    } else {
        (value as f32).to_bits()
    }
}

fn widen() -> Case {
    Case::new("rocm_widen")
        .size("n", [256])
        .block(256)
        .input("x", DType::U8, "n", Fill::Bytes((0..=255).collect()))
        .output("y", DType::U32, "4 * n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let all = |f: Format| (0..=255).map(move |code| bits(f.value(code)));
            let ones = std::iter::repeat_n(1, 512);
            io.set_integers(
                "y",
                all(E4M3).chain(all(E5M2)).chain(ones).collect::<Vec<u32>>(),
            );
        })
}

fn narrow() -> Case {
    let mut x: Vec<f32> = Vec::new();
    for format in [E4M3, E5M2] {
        for code in 0..=format.top {
            let low = format.magnitude(code) as f32;
            let middle = ((format.magnitude(code) + format.magnitude(code + 1)) / 2.0) as f32;
            let sign = if code % 2 == 0 { 1.0 } else { -1.0 };
            x.extend(
                [
                    low,
                    low.next_up(),
                    middle.next_down(),
                    middle,
                    middle.next_up(),
                ]
                .map(|v| v * sign),
            );
        }
    }
    x.extend(words(3, 4000).into_iter().map(|w| f32::from_bits(w as u32)));
    x.extend(
        words(4, 4000)
            .into_iter()
            .map(|w| (w as i32 as f32) * 2f32.powi(-22)),
    );
    x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40, -0.0]);
    let bytes = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    Case::new("rocm_narrow")
        .size("n", [x.len() as i64])
        .grid("ceil(n / 256)")
        .block(256)
        .input("x", DType::F32, "n", Fill::Bytes(bytes))
        .output("y", DType::U8, "6 * n")
        .value("n", DType::I32, "n")
        .reference(move |io| {
            let all = |f: Format, saturate: bool, factor: f64| {
                x.iter()
                    .map(move |v| f.narrow(f64::from(*v) * factor, saturate))
            };
            let y = all(E4M3, true, 1.0)
                .chain(all(E4M3, false, 1.0))
                .chain(all(E5M2, true, 1.0))
                .chain(all(E5M2, false, 1.0))
                .chain(all(E5M2, true, 1.0))
                .chain(all(E4M3, true, 1.0 + 1e-15));
            io.set_integers("y", y.collect::<Vec<u8>>());
        })
}

#[test]
fn eight_bit_floats_bit_for_bit() {
    let unit = unit(TEXT, &[("widen", 3), ("narrow", 3)]);
    check(&unit, &["gfx1201"], 1, [widen(), narrow()]);
}
