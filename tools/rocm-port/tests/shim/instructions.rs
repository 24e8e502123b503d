//! PTX as functions: every instruction of the table, run, with what it gives.

use crate::units::{check, unit};
use rocm_port::check::{Case, DType, Fill};
use rocm_port::ptx::{callee, special, table};

/// Operands that every call finds: `a`, `b`, `c` of 32 bits, `l`, `k` of 64, `f`, `g` floats, `e` a double, `h`, `i` two
/// halves as bits, `hh` and `ii` their pairs; and destinations `d` (32), `q` (64), `s` (16), `t` (another 16), `r` (a float),
/// `w` (a double), `p` (a predicate).
const OPERANDS: &str = "unsigned a = x[0], b = x[1], c = x[2]; unsigned long long l = 0x0123456789abcdefull, k = 0xfedcba9876543210ull; \
    float f = 1.75f, g = -0.375f; double e = 2.5; unsigned short h = 0x3e00, i = 0xb800; unsigned hh = 0xb8003e00u, ii = 0x3e004000u; \
    unsigned bb = 0xbf003fc0u; unsigned short bh = 0x3fc0;";
const A: u32 = 0x89ab_cdef;
const B: u32 = 0x0123_4567;
const C: u32 = 12;

/// Opcode, operands, what is looked at, and its 32 bits.
type Example = (&'static str, &'static str, &'static str, u32);

fn f(value: f32) -> u32 {
    value.to_bits()
}

fn examples() -> Vec<Example> {
    let (sa, wide) = (A as i32, u64::from(A) * u64::from(B));
    vec![
        ("mov.b32", "d, a", "d", A),
        ("mov.f32", "r, f", "r", f(1.75)),
        ("add.u32", "d, a, b", "d", A.wrapping_add(B)),
        ("add.f32", "r, f, g", "r", f(1.375)),
        ("sub.s32", "d, a, b", "d", A.wrapping_sub(B)),
        ("mul.rn.f32", "r, f, g", "r", f(-0.65625)),
        ("add.f16", "s, h, i", "s", 0x3c00),
        ("sub.f16x2", "d, hh, ii", "d", 0xc000_b800),
        ("mul.f16x2", "d, hh, ii", "d", 0xba00_4200),
        ("add.rn.bf16x2", "d, bb, bb", "d", 0xbf80_4040),
        ("mul.lo.u32", "d, a, b", "d", A.wrapping_mul(B)),
        ("mul.hi.u32", "d, a, b", "d", (wide >> 32) as u32),
        (
            "mul.hi.s32",
            "d, a, b",
            "d",
            ((i64::from(sa) * i64::from(B)) >> 32) as u32,
        ),
        (
            "mul.wide.u32",
            "q, a, b",
            "(unsigned)(q >> 32)",
            (wide >> 32) as u32,
        ),
        (
            "mad.lo.s32",
            "d, a, b, c",
            "d",
            A.wrapping_mul(B).wrapping_add(C),
        ),
        ("mad.hi.u32", "d, a, b, c", "d", (wide >> 32) as u32 + C),
        ("fma.rn.f32", "r, f, g, f", "r", f(1.09375)),
        ("fma.rn.f16", "s, h, i, h", "s", 0x3a00),
        ("fma.rn.bf16", "s, bh, bh, bh", "s", 0x4070),
        ("div.full.f32", "r, f, g", "r", f(1.75 / -0.375)),
        ("rem.u32", "d, a, c", "d", A % C),
        ("min.s32", "d, a, b", "d", A),
        ("max.s32", "d, a, b", "d", B),
        ("min.f16", "s, h, i", "s", 0xb800),
        ("max.f16x2", "d, hh, ii", "d", 0x3e00_4000),
        ("neg.s32", "d, b", "d", B.wrapping_neg()),
        ("neg.f16x2", "d, hh", "d", 0x3800_be00),
        ("abs.s32", "d, a", "d", sa.unsigned_abs()),
        ("abs.f16x2", "d, hh", "d", 0x3800_3e00),
        ("not.b32", "d, a", "d", !A),
        ("and.b32", "d, a, b", "d", A & B),
        ("or.b32", "d, a, b", "d", A | B),
        ("xor.b32", "d, a, b", "d", A ^ B),
        ("shl.b32", "d, a, c", "d", A << C),
        ("shr.s32", "d, a, 40", "d", !0),
        ("shr.u32", "d, a, c", "d", A >> C),
        (
            "shf.l.wrap.b32",
            "d, a, b, c",
            "d",
            (B << C) | (A >> (32 - C)),
        ),
        ("shf.l.clamp.b32", "d, a, b, 40", "d", A),
        (
            "shf.r.wrap.b32",
            "d, a, b, c",
            "d",
            (A >> C) | (B << (32 - C)),
        ),
        ("shf.r.clamp.b32", "d, a, b, 40", "d", B),
        ("popc.b32", "d, a", "d", A.count_ones()),
        ("clz.b32", "d, b", "d", B.leading_zeros()),
        ("brev.b32", "d, a", "d", A.reverse_bits()),
        ("prmt.b32", "d, a, b, 0xf539", "d", 0x0045_89ff),
        ("lop3.b32", "d, a, b, c, 0xea", "d", (A & B) | C),
        ("bfe.u32", "d, a, 4, 12", "d", A >> 4 & 0xfff),
        ("bfe.s32", "d, a, 20, 12", "d", (sa >> 20) as u32),
        ("bfi.b32", "d, b, a, 8, 16", "d", 0x8945_67ef),
        ("dp4a.s32.s32", "d, a, b, c", "d", 0xffff_df60),
        ("dp4a.u32.u32", "d, a, b, c", "d", 44_896),
        ("sad.u32", "d, a, b, c", "d", A - B + C),
        ("ex2.approx.ftz.f32", "r, 3.0f", "r", f(8.0)),
        ("ex2.approx.f16", "s, (unsigned short)0x4000", "s", 0x4400),
        ("lg2.approx.ftz.f32", "r, 8.0f", "r", f(3.0)),
        ("rcp.approx.ftz.f32", "r, 4.0f", "r", f(0.25)),
        ("sqrt.approx.f32", "r, 9.0f", "r", f(3.0)),
        ("rsqrt.approx.ftz.f32", "r, 4.0f", "r", f(0.5)),
        ("sin.approx.f32", "r, 0.0f", "r", f(0.0)),
        ("cos.approx.f32", "r, 0.0f", "r", f(1.0)),
        ("tanh.approx.f32", "r, 0.0f", "r", f(0.0)),
        ("tanh.approx.f16x2", "d, 0u", "d", 0),
        ("cvt.f32.f16", "r, h", "r", f(1.5)),
        ("cvt.f32.bf16", "r, bh", "r", f(1.5)),
        ("cvt.rn.f16.f32", "s, f", "s", 0x3f00),
        ("cvt.rz.bf16.f32", "s, f", "s", 0x3fe0),
        ("cvt.rn.f16x2.f32", "d, f, g", "d", 0x3f00_b600),
        ("cvt.rn.bf16x2.f32", "d, f, g", "d", 0x3fe0_bec0),
        ("cvt.rn.relu.f16x2.f32", "d, f, g", "d", 0x3f00_0000),
        ("cvt.rn.relu.bf16x2.f32", "d, f, g", "d", 0x3fe0_0000),
        ("cvt.rn.satfinite.e4m3x2.f16x2", "s, hh", "s", 0xb03c),
        ("cvt.rn.satfinite.e5m2x2.f16x2", "s, hh", "s", 0xb83e),
        ("cvt.rn.satfinite.e4m3x2.f32", "s, f, g", "s", 0x3eac),
        ("cvt.rn.satfinite.e5m2x2.f32", "s, f, g", "s", 0x3fb6),
        (
            "cvt.rn.f16x2.e4m3x2",
            "d, (unsigned short)0xb03c",
            "d",
            0xb800_3e00,
        ),
        (
            "cvt.rn.f16x2.e5m2x2",
            "d, (unsigned short)0xb83e",
            "d",
            0xb800_3e00,
        ),
        ("cvt.rna.tf32.f32", "d, 1.0009765625f", "d", f(1.000_976_6)),
        ("cvt.rni.s32.f32", "d, 2.5f", "d", 2),
        ("cvt.rpi.f32.f32", "r, f", "r", f(2.0)),
        ("cvt.rmi.f64.f64", "w, e", "(float)w", f(2.0)),
        ("cvt.sat.f32.f32", "r, f", "r", f(1.0)),
        ("cvt.rn.f32.s32", "r, a", "r", f(sa as f32)),
        ("cvt.sat.s8.s32", "d, a", "d", (-128i32) as u32),
        ("cvt.u32.u64", "d, l", "d", 0x89ab_cdef),
        ("cvt.s32.s16", "d, i", "d", 0xffff_b800),
        ("cvt.rz.f32.f64", "r, e", "r", f(2.5)),
        ("cvt.f64.f32", "w, f", "(float)w", f(1.75)),
        ("setp.lt.s32", "p, a, b", "p", 1),
        ("setp.ne.b32", "p, a, a", "p", 0),
        ("selp.b32", "d, a, b, true", "d", A),
        (
            "shfl.sync.bfly.b32",
            "d, a + ptx::sreg_laneid(), 1, 0x1f, 0xffffffff",
            "d - a",
            1,
        ),
        (
            "shfl.sync.idx.b32",
            "r, (float)ptx::sreg_laneid(), 5, 0x1f, 0xffffffff",
            "r",
            f(5.0),
        ),
        (
            "shfl.sync.down.b32",
            "d, p, ptx::sreg_laneid(), 4, 0x181f, 0xffffffff",
            "d + p * 100u",
            104,
        ),
        (
            "shfl.sync.up.b32",
            "d, p, ptx::sreg_laneid(), 1, 0, 0xffffffff",
            "d + p * 100u",
            0,
        ),
        (
            "vote.sync.ballot.b32",
            "d, ptx::sreg_laneid() < 3, 0xffffffff",
            "d",
            7,
        ),
        (
            "vote.sync.any.pred",
            "p, ptx::sreg_laneid() == 7, 0xffffffff",
            "p",
            1,
        ),
        ("activemask.b32", "d", "d", !0),
        ("bar.sync", "0", "1u", 1),
        ("barrier.sync", "0", "1u", 1),
        ("bar.warp.sync", "0xffffffff", "1u", 1),
        ("membar.cta", "", "1u", 1),
        ("membar.gl", "", "1u", 1),
        ("membar.sys", "", "1u", 1),
        ("fence.acq_rel.cta", "", "1u", 1),
        ("fence.sc.gpu", "", "1u", 1),
        ("fence.acq_rel.sys", "", "1u", 1),
        (
            "cp.async.cg.shared.global.L2::128B",
            "(unsigned)__cvta_generic_to_shared(&lds[0]), x, 16",
            "lds[3]",
            0x0102_0304,
        ),
        (
            "cp.async.ca.shared.global",
            "(unsigned)__cvta_generic_to_shared(&dynamic[4]), x, 16, 8",
            "dynamic[5] + dynamic[6]",
            B,
        ),
        ("cp.async.commit_group", "", "1u", 1),
        ("cp.async.wait_group", "0", "1u", 1),
        ("cp.async.wait_all", "", "1u", 1),
        ("prefetch.global.L2", "x", "1u", 1),
        ("prefetchu.L1", "x", "1u", 1),
        ("griddepcontrol.wait", "", "1u", 1),
        ("nanosleep.u32", "20", "1u", 1),
        (
            "cvta.to.shared.u64",
            "q, &lds[1]",
            "*(unsigned*)__cvta_shared_to_generic(q)",
            B,
        ),
        (
            "cvta.shared.u64",
            "q, __cvta_generic_to_shared(&lds[1])",
            "*(unsigned*)q",
            B,
        ),
        ("cvta.to.global.u64", "q, x", "*(const unsigned*)q", A),
        ("ld.global.nc.L1::no_allocate.v2.u32", "d, c, x", "c", B),
        (
            "ld.shared.u8",
            "d, ptx::offset((unsigned)__cvta_generic_to_shared(lds), 1)",
            "d",
            0xcd,
        ),
        ("ld.global.s8", "d, x", "d", 0xffff_ffef),
        (
            "ld.acquire.global.sys.v4.b32",
            "d, b, c, a, x",
            "a",
            0x0102_0304,
        ),
        ("ld.volatile.global.u64", "q, x", "(unsigned)(q >> 32)", B),
        (
            "st.shared.v2.u32",
            "(unsigned)__cvta_generic_to_shared(&dynamic[8]), a, b",
            "dynamic[9]",
            B,
        ),
        ("st.release.gpu.global.u32", "own, a", "*own", A),
        ("red.relaxed.gpu.global.add.s32", "own, 5", "*own", 5),
        ("atom.global.add.u32", "d, own, 7", "d + *own", 7),
        ("atom.global.cas.b32", "d, own, 0, 9", "d + *own", 9),
        ("atom.global.exch.b32", "d, own, 3", "d + *own", 3),
        ("atom.global.max.s32", "d, own, 4", "d + *own", 4),
        ("atom.global.inc.u32", "d, own, 4", "d + *own", 1),
        ("atom.acq_rel.gpu.global.or.b32", "d, own, 6", "d + *own", 6),
        (
            "atom.global.add.noftz.f16x2",
            "d, own, hh",
            "*own",
            0xb800_3e00,
        ),
    ]
}

/// Whether an opcode of the examples is one that the pattern means.
fn is_of(pattern: &str, opcode: &str) -> bool {
    let mut parts = opcode
        .split('.')
        .filter(|part| !part.contains("::"))
        .peekable();
    for word in pattern.split('.') {
        let optional = word.starts_with('?');
        let fits = |part: &str| {
            word.starts_with('$') || word.trim_start_matches('?').split('|').any(|o| o == part)
        };
        match parts.peek() {
            Some(part) if fits(part) => {
                parts.next();
            }
            _ if optional => {}
            _ => return false,
        }
    }
    parts.next().is_none()
}

#[test]
fn every_instruction_of_the_table_is_tried() {
    let examples = examples();
    for (pattern, function) in table() {
        let tried = examples.iter().any(|(opcode, ..)| is_of(pattern, opcode));
        // A trap ends the kernel.
        assert!(tried || function == "trap", "no example of {pattern}");
    }
}

#[test]
fn instructions_give_what_ptx_says() {
    let examples = examples();
    let mut text = "__global__ void instructions(const unsigned* x, unsigned* y, unsigned* z) {\n    __shared__ alignas(16) unsigned lds[8];\n    \
        extern __shared__ unsigned dynamic[];\n    const unsigned thread = ptx::sreg_tid_x();\n    if (thread < 4) lds[thread] = x[thread];\n    \
        for (int j = thread; j < 16; j += 32) dynamic[j] = 0;\n    __syncthreads();\n".to_string();
    for (number, (opcode, operands, seen, _)) in examples.iter().enumerate() {
        let function = callee(opcode).unwrap_or_else(|| panic!("{opcode} has no function"));
        text += &format!(
            "    {{ unsigned d = 0; unsigned long long q = 0; unsigned short s = 0, t = 0; float r = 0; double w = 0; bool p = false; {OPERANDS}\n      \
             unsigned* own = z + 32 * {number} + thread; {function}({operands}); __syncthreads();\n      \
             const auto seen = {seen}; if (thread == 0) y[{number}] = ptx::as<unsigned>(seen); __syncthreads(); }}\n"
        );
    }
    text += "}\n";
    for register in [
        "%laneid",
        "%tid.x",
        "%ntid.y",
        "%ctaid.z",
        "%nctaid.x",
        "%lanemask_lt",
        "%clock64",
        "%warpid",
        "%globaltimer",
    ] {
        assert!(special(register).is_some(), "{register}");
    }
    let count = examples.len();
    let expected: Vec<u32> = examples.iter().map(|example| example.3).collect();
    let names: Vec<String> = examples
        .iter()
        .map(|(opcode, ..)| opcode.to_string())
        .collect();
    let case = Case::new("rocm_instructions")
        .block(32)
        .shared(64)
        .input(
            "x",
            DType::U32,
            4,
            Fill::values([i64::from(A), i64::from(B), i64::from(C), 0x0102_0304]),
        )
        .output("y", DType::U32, count)
        .inout("z", DType::U32, 32 * count, Fill::Zeros)
        .reference(move |io| {
            io.set_integers("y", expected.iter().copied());
            // What each thread leaves in memory of its own.
            io.ignore("z", 0..32 * count);
        });
    for (number, name) in names.iter().enumerate() {
        println!("y[{number}]: {name}");
    }
    check(
        &unit(&text, &[("instructions", 3)]),
        &["gfx942", "gfx1201"],
        1,
        [case],
    );
}
