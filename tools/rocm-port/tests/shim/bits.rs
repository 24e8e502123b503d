//! Bits and bytes: counting, permuting, shifting, multiplying, and the numbers in a word.

use crate::exact::words;
use crate::units::{check, unit};
use rocm_port::check::{Case, DType, Fill};

const SCALARS: &str = r#"
__global__ void scalars(const unsigned* x, const unsigned* w, const unsigned* z, unsigned* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned a = x[i], b = w[i], c = z[i];
    const unsigned long long l = (unsigned long long)a << 32 | b;
    unsigned* o = y + i;
#define OUT(value) (*o = (unsigned)(value), o += n)
    OUT(__popc(a));
    OUT(__popcll(l));
    OUT(__clz(a >> (b & 31)));
    OUT(__clzll(l >> (c & 63)));
    OUT(__ffs(a << (b & 31)));
    OUT(__ffsll(l << (c & 63)));
    OUT(__brev(a));
    OUT(__brevll(l) >> 16);
    OUT(__byte_perm(a, b, c));
    OUT(__funnelshift_l(a, b, c));
    OUT(__funnelshift_r(a, b, c));
    OUT(__funnelshift_lc(a, b, c & 63));
    OUT(__funnelshift_rc(a, b, c & 63));
    OUT(__mulhi((int)a, (int)b));
    OUT(__umulhi(a, b));
    OUT(__umul64hi(l, l ^ c));
    OUT(__mul64hi((long long)l, (long long)(l ^ c)));
    OUT(__mul24((int)a, (int)b));
    OUT(__umul24(a, b));
    OUT(__sad((int)a, (int)b, c));
    OUT(__usad(a, b, c));
    OUT(__hadd((int)a, (int)b));
    OUT(__rhadd((int)a, (int)b));
    OUT(__uhadd(a, b));
    OUT(__urhadd(a, b));
    OUT(__dp4a((int)a, (int)b, (int)c));
    OUT(__dp4a(a, b, c));
    OUT(__dp2a_lo((int)a, (int)b, (int)c));
    OUT(__dp2a_hi((int)a, (int)b, (int)c));
    OUT(__dp2a_lo(a, b, c));
    OUT(__dp2a_hi(a, b, c));
    OUT(__fns(a, b & 31, (int)(c % 9) - 4));
    OUT(min(a, b));
    OUT(max((int)a, (int)b));
    OUT(min((unsigned long long)a, l));
    OUT(abs((int)a));
}
"#;

/// A function on the numbers in a word: name, and what it does with two of so many bits.
type Packed = (&'static str, fn(i64, i64, u32) -> i64);

fn signed(v: i64, bits: u32) -> i64 {
    v << (64 - bits) >> (64 - bits)
}

fn clamp(v: i64, bits: u32) -> i64 {
    v.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
}

/// Of unsigned numbers, unless `signed` is called.
const PACKED: &[Packed] = &[
    ("add", |a, b, _| a + b),
    ("sub", |a, b, _| a - b),
    ("addss", |a, b, n| clamp(signed(a, n) + signed(b, n), n)),
    ("subss", |a, b, n| clamp(signed(a, n) - signed(b, n), n)),
    ("addus", |a, b, n| (a + b).min((1 << n) - 1)),
    ("subus", |a, b, _| (a - b).max(0)),
    ("mins", |a, b, n| signed(a, n).min(signed(b, n))),
    ("maxs", |a, b, n| signed(a, n).max(signed(b, n))),
    ("minu", |a, b, _| a.min(b)),
    ("maxu", |a, b, _| a.max(b)),
    ("avgu", |a, b, _| (a + b + 1) >> 1),
    ("haddu", |a, b, _| (a + b) >> 1),
    ("absdiffs", |a, b, n| (signed(a, n) - signed(b, n)).abs()),
    ("absdiffu", |a, b, _| (a - b).abs()),
    ("cmpeq", |a, b, _| -i64::from(a == b)),
    ("cmpne", |a, b, _| -i64::from(a != b)),
    ("cmpges", |a, b, n| -i64::from(signed(a, n) >= signed(b, n))),
    ("cmpgtu", |a, b, _| -i64::from(a > b)),
    ("cmples", |a, b, n| -i64::from(signed(a, n) <= signed(b, n))),
    ("cmpltu", |a, b, _| -i64::from(a < b)),
    ("setgts", |a, b, n| i64::from(signed(a, n) > signed(b, n))),
    ("setleu", |a, b, _| i64::from(a <= b)),
];

fn packed_text() -> String {
    let mut text = "__global__ void packed(const unsigned* x, const unsigned* w, const unsigned* z, unsigned* y, int n) {\n    \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;\n    \
        const unsigned a = x[i], b = w[i], c = z[i];\n    unsigned* o = y + i;\n"
        .to_string();
    for lanes in [4, 2] {
        for (name, _) in PACKED {
            text += &format!("    OUT(__v{name}{lanes}(a, b));\n");
        }
        text += &format!("    OUT(__vneg{lanes}(a));\n    OUT(__vabsss{lanes}(a));\n    OUT(__vsads{lanes}(a, b));\n    OUT(__vsadu{lanes}(a, c));\n");
    }
    text + "}\n"
}

fn apply(a: u32, b: u32, bits: u32, f: impl Fn(i64, i64) -> i64) -> u32 {
    let mask = (1u64 << bits) - 1;
    (0..32 / bits).fold(0, |word, lane| {
        let field = |v: u32| (u64::from(v) >> (lane * bits) & mask) as i64;
        word | (((f(field(a), field(b)) as u64) & mask) << (lane * bits)) as u32
    })
}

fn packed(a: u32, b: u32, c: u32) -> Vec<u32> {
    let mut y = Vec::new();
    for bits in [8, 16] {
        y.extend(
            PACKED
                .iter()
                .map(|(_, f)| apply(a, b, bits, |p, q| f(p, q, bits))),
        );
        y.push(apply(0, a, bits, |p, q| p - q));
        y.push(apply(a, 0, bits, |p, _| clamp(signed(p, bits).abs(), bits)));
        let sum = |a, b, f: &dyn Fn(i64, i64) -> i64| {
            let total = std::cell::Cell::new(0i64);
            apply(a, b, bits, |p, q| {
                total.set(total.get() + f(p, q));
                0
            });
            total.get() as u32
        };
        y.push(sum(a, b, &|p, q| (signed(p, bits) - signed(q, bits)).abs()));
        y.push(sum(a, c, &|p, q| (p - q).abs()));
    }
    y
}

fn scalars(a: u32, b: u32, c: u32) -> Vec<u32> {
    let l = u64::from(a) << 32 | u64::from(b);
    let (p, q) = (a as i32, b as i32);
    let m = l ^ u64::from(c);
    let pair = u64::from(b) << 32 | u64::from(a);
    let first = |v: u64| if v == 0 { 0 } else { v.trailing_zeros() + 1 };
    // Three bits of a nibble, whatever the fourth is.
    let perm = (0..4).fold(0u32, |word, i| {
        let byte = (pair >> (8 * (c >> (4 * i) & 7))) as u8;
        word | u32::from(byte) << (8 * i)
    });
    let bytes = |v: u32| v.to_le_bytes();
    let short = |v: u32, i: u32| (v >> (16 * i)) as u16;
    let dot2 = |from: usize| -> (i32, u32) {
        let s = (0..2)
            .map(|i| i32::from(short(a, i as u32) as i16) * i32::from(bytes(b)[from + i] as i8));
        let u = (0..2).map(|i| u32::from(short(a, i as u32)) * u32::from(bytes(b)[from + i]));
        (
            s.fold(c as i32, i32::wrapping_add),
            u.fold(c, u32::wrapping_add),
        )
    };
    let low24 = |v: i32| i64::from(v << 8 >> 8);
    let fns = |base: i32, n: i32| -> u32 {
        if n == 0 {
            return if a >> base & 1 == 1 { base as u32 } else { !0 };
        }
        let order: Vec<i32> = if n > 0 {
            (base..32).collect()
        } else {
            (0..=base).rev().collect()
        };
        let mut set = order.into_iter().filter(|i| a >> i & 1 == 1);
        set.nth(n.unsigned_abs() as usize - 1)
            .map_or(!0, |i| i as u32)
    };
    let dot4 = (0..4).map(|i| i32::from(bytes(a)[i] as i8) * i32::from(bytes(b)[i] as i8));
    let dot4u = (0..4).map(|i| u32::from(bytes(a)[i]) * u32::from(bytes(b)[i]));
    vec![
        a.count_ones(),
        l.count_ones(),
        (a >> (b & 31)).leading_zeros(),
        (l >> (c & 63)).leading_zeros(),
        first(u64::from(a << (b & 31))),
        first(l << (c & 63)),
        a.reverse_bits(),
        (l.reverse_bits() >> 16) as u32,
        perm,
        (pair << (c & 31) >> 32) as u32,
        (pair >> (c & 31)) as u32,
        if c & 63 >= 32 {
            a
        } else {
            (pair << (c & 63) >> 32) as u32
        },
        if c & 63 >= 32 {
            b
        } else {
            (pair >> (c & 63)) as u32
        },
        ((i64::from(p) * i64::from(q)) >> 32) as u32,
        ((u64::from(a) * u64::from(b)) >> 32) as u32,
        ((u128::from(l) * u128::from(m)) >> 64) as u32,
        ((i128::from(l as i64) * i128::from(m as i64)) >> 64) as u32,
        (low24(p) * low24(q)) as u32,
        (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff),
        p.abs_diff(q).wrapping_add(c),
        a.abs_diff(b).wrapping_add(c),
        ((i64::from(p) + i64::from(q)) >> 1) as u32,
        ((i64::from(p) + i64::from(q) + 1) >> 1) as u32,
        ((u64::from(a) + u64::from(b)) >> 1) as u32,
        ((u64::from(a) + u64::from(b) + 1) >> 1) as u32,
        dot4.fold(c as i32, i32::wrapping_add) as u32,
        dot4u.fold(c, u32::wrapping_add),
        dot2(0).0 as u32,
        dot2(2).0 as u32,
        dot2(0).1,
        dot2(2).1,
        fns((b & 31) as i32, (c % 9) as i32 - 4),
        a.min(b),
        p.max(q) as u32,
        u64::from(a).min(l) as u32,
        p.wrapping_abs() as u32,
    ]
}

fn case(kernel: &str, reference: fn(u32, u32, u32) -> Vec<u32>) -> Case {
    // Random words, some of them with bytes that are equal, zero or the largest.
    let values = |seed: u64| -> Vec<u32> {
        let pairs = words(seed, 3000).into_iter().enumerate();
        let word = |(i, w): (usize, u64)| match i % 5 {
            0 => w as u32 & (w >> 32) as u32 & 0x8f8f_8f8f,
            1 => (w as u32 | (w >> 32) as u32) | 0x7f80_807f,
            2 => w as u32 >> (w >> 59),
            _ => w as u32,
        };
        pairs.map(word).collect()
    };
    let inputs = [values(1), values(2), values(3)];
    let outputs = reference(1, 2, 3).len();
    let mut case = Case::new(format!("rocm_{kernel}"))
        .size("n", [3000])
        .grid("ceil(n / 256)")
        .block(256);
    for (name, values) in ["x", "w", "z"].into_iter().zip(&inputs) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        case = case.input(name, DType::U32, "n", Fill::Bytes(bytes));
    }
    case.output("y", DType::U32, format!("{outputs} * n"))
        .value("n", DType::I32, "n")
        .reference(move |io| {
            let [x, w, z] = &inputs;
            let all: Vec<Vec<u32>> = (0..x.len()).map(|i| reference(x[i], w[i], z[i])).collect();
            let y = (0..outputs).flat_map(|o| all.iter().map(move |each| each[o]));
            io.set_integers("y", y.collect::<Vec<u32>>());
        })
}

#[test]
fn bits_and_bytes() {
    let text = SCALARS.to_string() + &packed_text();
    let unit = unit(&text, &[("scalars", 5), ("packed", 5)]);
    let cases = [case("scalars", scalars), case("packed", packed)];
    check(&unit, &["gfx90a", "gfx1030"], 1, cases);
}
