//! Which function of `port/ptx.h` each PTX instruction is.
//!
//! A function takes an instruction's operands in PTX's own order: destinations first and by reference, vectors flattened,
//! memory as an address. Matrix instructions, TMA, clusters and `mbarrier` are none of them: their kernels are written
//! by hand.

/// The function for an instruction, as C++ calls it: `cvt.rn.f16.f32` is `cuda_port::ptx::cvt_half_f32<…>`.
///
/// `opcode` is the instruction without its predicate and operands. `None` if there is no function for it.
pub fn callee(opcode: &str) -> Option<String> {
    // Hints to caches mean nothing here. (A cache policy is an operand, and has no function.)
    let parts: Vec<&str> = opcode.split('.').filter(|part| !is_hint(part)).collect();
    let function = match *parts.first()? {
        "ld" | "st" | "ldu" => memory(&parts)?,
        "atom" | "red" => atomic(&parts)?,
        _ => TABLE
            .iter()
            .find_map(|(pattern, function)| matched(pattern, function, &parts))?,
    };
    Some(format!("cuda_port::ptx::{function}"))
}

/// The call that reads a special register: of `%laneid` (with one or two percent signs) `cuda_port::ptx::sreg_laneid()`.
pub fn special(register: &str) -> Option<String> {
    let name = register.trim_start_matches('%').replace('.', "_");
    SPECIAL
        .contains(&name.as_str())
        .then(|| format!("cuda_port::ptx::sreg_{name}()"))
}

/// Every opcode pattern of the table with its function, and the special registers: for documentation.
pub fn table() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().copied()
}

const SPECIAL: &[&str] = &[
    "laneid",
    "warpid",
    "nwarpid",
    "smid",
    "tid_x",
    "tid_y",
    "tid_z",
    "ntid_x",
    "ntid_y",
    "ntid_z",
    "ctaid_x",
    "ctaid_y",
    "ctaid_z",
    "nctaid_x",
    "nctaid_y",
    "nctaid_z",
    "lanemask_eq",
    "lanemask_lt",
    "lanemask_le",
    "lanemask_gt",
    "lanemask_ge",
    "clock",
    "clock64",
    "globaltimer",
];

/// Patterns are words of an opcode: `a|b` is either, `?a|b` may be missing, `$i` captures a type of integers, `$b` of bits,
/// `$n` of any number, `$f` of floats, `$h` of halves, `$r` and `$w` a rounding mode of floats and of whole numbers. The
/// function's `#1` is the first capture. The first pattern that fits is taken.
const TABLE: &[(&str, &str)] = &[
    ("mov.$n", "move<#1>"),
    ("add.?rn.?ftz.$n", "add<#1>"),
    ("sub.?rn.?ftz.$n", "sub<#1>"),
    ("mul.?rn.?ftz.$f", "mul_lo<#1>"),
    ("add.?rn.?ftz.$h", "half_add<#1>"),
    ("sub.?rn.?ftz.$h", "half_sub<#1>"),
    ("mul.?rn.?ftz.$h", "half_mul<#1>"),
    ("mul.lo.$i", "mul_lo<#1>"),
    ("mul.hi.$i", "mul_hi<#1>"),
    ("mul.wide.$i", "mul_wide<#1>"),
    ("mad.lo.$i", "mad_lo<#1>"),
    ("mad.hi.$i", "mad_hi<#1>"),
    ("fma.rn.?ftz.$f", "fma<#1>"),
    ("fma.rn.?ftz.$h", "half_fma<#1>"),
    ("div.?rn|full|approx.?ftz.$n", "quotient<#1>"),
    ("rem.$i", "rem<#1>"),
    ("min.?ftz.$n", "minimum<#1>"),
    ("max.?ftz.$n", "maximum<#1>"),
    ("min.?ftz.$h", "half_min<#1>"),
    ("max.?ftz.$h", "half_max<#1>"),
    ("neg.?ftz.$n", "neg<#1>"),
    ("neg.?ftz.$h", "half_neg<#1>"),
    ("abs.?ftz.$n", "absolute<#1>"),
    ("abs.?ftz.$h", "half_abs<#1>"),
    ("not.$b", "bit_not<#1>"),
    ("and.$b", "bit_and<#1>"),
    ("or.$b", "bit_or<#1>"),
    ("xor.$b", "bit_xor<#1>"),
    ("shl.$b", "shl<#1>"),
    ("shr.$n", "shr<#1>"),
    ("shf.l.wrap.b32", "shf<false, false>"),
    ("shf.l.clamp.b32", "shf<false, true>"),
    ("shf.r.wrap.b32", "shf<true, false>"),
    ("shf.r.clamp.b32", "shf<true, true>"),
    ("popc.$b", "popc<#1>"),
    ("clz.$b", "clz<#1>"),
    ("brev.$b", "brev<#1>"),
    ("prmt.b32", "prmt<unsigned>"),
    ("lop3.b32", "lop3"),
    ("bfe.$i", "bfe<#1>"),
    ("bfi.$b", "bfi<#1>"),
    ("dp4a.s32.s32", "dp4a<int>"),
    ("dp4a.u32.u32", "dp4a<unsigned>"),
    ("sad.$i", "sad<#1>"),
    ("ex2.approx.?ftz.f32", "ex2<float>"),
    ("ex2.approx.?ftz.$h", "half_ex2<#1>"),
    ("lg2.approx.?ftz.f32", "lg2<float>"),
    ("rcp.rn|approx.?ftz.$f", "rcp<#1>"),
    ("sqrt.rn|approx.?ftz.$f", "square_root<#1>"),
    ("rsqrt.approx.?ftz.$f", "rsqrt<#1>"),
    ("sin.approx.?ftz.f32", "sine<float>"),
    ("cos.approx.?ftz.f32", "cosine<float>"),
    ("tanh.approx.f32", "tangent_hyperbolic<float>"),
    ("tanh.approx.$h", "half_tanh<#1>"),
    ("cvt.?ftz.f32.f16", "cvt_f32_f16"),
    ("cvt.f32.bf16", "cvt_f32_bf16"),
    ("cvt.$r.f16.f32", "cvt_half_f32<cuda_port::__half, #1>"),
    (
        "cvt.$r.bf16.f32",
        "cvt_half_f32<cuda_port::__nv_bfloat16, #1>",
    ),
    (
        "cvt.$r.f16x2.f32",
        "cvt_halves_f32<cuda_port::__half, #1, false>",
    ),
    (
        "cvt.$r.bf16x2.f32",
        "cvt_halves_f32<cuda_port::__nv_bfloat16, #1, false>",
    ),
    (
        "cvt.$r.relu.f16x2.f32",
        "cvt_halves_f32<cuda_port::__half, #1, true>",
    ),
    (
        "cvt.$r.relu.bf16x2.f32",
        "cvt_halves_f32<cuda_port::__nv_bfloat16, #1, true>",
    ),
    (
        "cvt.rn.satfinite.e4m3x2.f16x2",
        "cvt_fp8x2_f16x2<cuda_port::__NV_E4M3>",
    ),
    (
        "cvt.rn.satfinite.e5m2x2.f16x2",
        "cvt_fp8x2_f16x2<cuda_port::__NV_E5M2>",
    ),
    (
        "cvt.rn.satfinite.e4m3x2.f32",
        "cvt_fp8x2_f32<cuda_port::__NV_E4M3>",
    ),
    (
        "cvt.rn.satfinite.e5m2x2.f32",
        "cvt_fp8x2_f32<cuda_port::__NV_E5M2>",
    ),
    (
        "cvt.rn.f16x2.e4m3x2",
        "cvt_f16x2_fp8x2<cuda_port::__NV_E4M3>",
    ),
    (
        "cvt.rn.f16x2.e5m2x2",
        "cvt_f16x2_fp8x2<cuda_port::__NV_E5M2>",
    ),
    ("cvt.rna.tf32.f32", "cvt_rna_tf32_f32"),
    ("cvt.$w.?ftz.?sat.$i.$f", "cvt<#2, #3, #1, false>"),
    ("cvt.$w.?ftz.f32.f32", "cvt_whole<float, #1>"),
    ("cvt.$w.f64.f64", "cvt_whole<double, #1>"),
    (
        "cvt.?ftz.sat.f32.f32",
        "cvt<float, float, cuda_port::port::NEAREST, true>",
    ),
    (
        "cvt.rn.$f.$i",
        "cvt<#1, #2, cuda_port::port::NEAREST, false>",
    ),
    (
        "cvt.sat.$i.$i",
        "cvt<#1, #2, cuda_port::port::NEAREST, true>",
    ),
    ("cvt.$i.$i", "cvt<#1, #2, cuda_port::port::NEAREST, false>"),
    ("cvt.$r.?ftz.f32.f64", "cvt<float, double, #1, false>"),
    (
        "cvt.?ftz.f64.f32",
        "cvt<double, float, cuda_port::port::NEAREST, false>",
    ),
    ("setp.eq|ne|lt|le|gt|ge.?ftz.$n", "setp_@<#1>"),
    ("selp.$n", "selp<#1>"),
    ("shfl.sync.bfly|idx|up|down.b32", "shfl_sync_@"),
    ("vote.sync.ballot.b32", "vote_sync_ballot"),
    ("vote.sync.any|all.pred", "vote_sync_@"),
    ("activemask.b32", "activemask"),
    ("bar.sync", "bar_sync"),
    ("barrier.sync.?aligned", "bar_sync"),
    ("bar.warp.sync", "bar_warp_sync"),
    ("membar.cta", "fence<cuda_port::port::BLOCK>"),
    ("membar.gl", "fence<cuda_port::port::DEVICE>"),
    ("membar.sys", "fence<cuda_port::port::SYSTEM>"),
    ("fence.?acq_rel|sc.cta", "fence<cuda_port::port::BLOCK>"),
    ("fence.?acq_rel|sc.gpu", "fence<cuda_port::port::DEVICE>"),
    ("fence.?acq_rel|sc.sys", "fence<cuda_port::port::SYSTEM>"),
    ("cp.async.ca|cg.shared.global", "cp_async"),
    ("cp.async.commit_group", "nothing"),
    ("cp.async.wait_group", "nothing"),
    ("cp.async.wait_all", "nothing"),
    ("prefetch.?global|local.L1|L2", "nothing"),
    ("prefetchu.L1", "nothing"),
    ("griddepcontrol.wait|launch_dependents", "nothing"),
    ("nanosleep.u32", "nanosleep"),
    ("trap", "trap"),
    ("cvta.to.shared.u32|u64", "cvta_to_shared"),
    ("cvta.shared.u32|u64", "cvta_shared"),
    ("cvta.?to.global.u64", "move<unsigned long long>"),
];

fn is_hint(part: &str) -> bool {
    let level = part.strip_prefix("L1::").or(part.strip_prefix("L2::"));
    level.is_some_and(|hint| !hint.starts_with("cache_hint"))
}

/// The C++ type of a PTX type.
fn type_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "b8" | "u8" => "unsigned char",
        "s8" => "signed char",
        "b16" | "u16" => "unsigned short",
        "s16" => "short",
        "b32" | "u32" => "unsigned",
        "s32" => "int",
        "b64" | "u64" => "unsigned long long",
        "s64" => "long long",
        "f32" => "float",
        "f64" => "double",
        "f16" => "cuda_port::__half",
        "bf16" => "cuda_port::__nv_bfloat16",
        "f16x2" => "cuda_port::__half2",
        "bf16x2" => "cuda_port::__nv_bfloat162",
        _ => return None,
    })
}

/// What a word captures, if it is of that class.
fn capture(class: &str, word: &str) -> Option<&'static str> {
    let half = word.contains("f16");
    let fits = match class {
        "i" => word.starts_with(['u', 's']),
        "b" => word.starts_with('b') && !half,
        "n" => !half,
        "f" => word.starts_with('f') && !half,
        "h" => half,
        "r" | "w" => {
            return match (class, word) {
                ("r", "rn") | ("w", "rni") => Some("cuda_port::port::NEAREST"),
                ("r", "rz") | ("w", "rzi") => Some("cuda_port::port::ZERO"),
                ("r", "rp") | ("w", "rpi") => Some("cuda_port::port::UP"),
                ("r", "rm") | ("w", "rmi") => Some("cuda_port::port::DOWN"),
                _ => None,
            }
        }
        _ => false,
    };
    type_of(word).filter(|_| fits)
}

/// The function of a pattern that fits, with what it captured; `@` is the last alternative that was chosen.
fn matched(pattern: &str, function: &str, parts: &[&str]) -> Option<String> {
    let mut captured: Vec<&str> = Vec::new();
    let mut chosen = "";
    let mut rest = parts.iter().copied().peekable();
    for word in pattern.split('.') {
        if let Some(options) = word.strip_prefix('?') {
            if rest
                .peek()
                .is_some_and(|part| options.split('|').any(|o| o == *part))
            {
                rest.next();
            }
        } else if let Some(class) = word.strip_prefix('$') {
            captured.push(capture(class, rest.next()?)?);
        } else {
            let part = rest.next()?;
            if !word.split('|').any(|option| option == part) {
                return None;
            }
            if word.contains('|') {
                chosen = part;
            }
        }
    }
    if rest.next().is_some() {
        return None;
    }
    let mut function = function.replace('@', chosen);
    for (i, text) in captured.iter().enumerate() {
        function = function.replace(&format!("#{}", i + 1), text);
    }
    Some(function)
}

/// What the modifiers of an access say, which texts write in several orders.
#[derive(Default)]
struct Access<'a> {
    shared: bool,
    scope: Option<&'static str>,
    order: Option<&'static str>,
    volatile: bool,
    rest: Vec<&'a str>,
}

fn access<'a>(parts: &[&'a str]) -> Option<Access<'a>> {
    let mut found = Access::default();
    for part in parts {
        match *part {
            "global" | "const" | "local" | "weak" | "nc" | "ca" | "cg" | "cs" | "lu" | "wb"
            | "noftz" => {}
            "shared" | "shared::cta" => found.shared = true,
            "volatile" | "cv" | "wt" => found.volatile = true,
            "cta" => found.scope = Some("BLOCK"),
            "gpu" => found.scope = Some("DEVICE"),
            "sys" => found.scope = Some("SYSTEM"),
            "relaxed" => found.order = Some("RELAXED"),
            "acquire" => found.order = Some("ACQUIRE"),
            "release" => found.order = Some("RELEASE"),
            "acq_rel" => found.order = Some("BOTH"),
            "param" | "shared::cluster" | "cluster" | "mmio" => return None,
            other => found.rest.push(other),
        }
    }
    Some(found)
}

fn memory(parts: &[&str]) -> Option<String> {
    let access = access(&parts[1..])?;
    let name = if parts[0] == "st" { "st" } else { "ld" };
    let space = if access.shared { "shared" } else { "generic" };
    let kind = match access.rest[..] {
        [kind] | ["v2" | "v4", kind] => type_of(kind)?,
        _ => return None,
    };
    match (access.order, access.volatile) {
        (None, false) => Some(format!("{name}_{space}<{kind}>")),
        (None, true) => Some(past(name, space, kind, "SYSTEM", "RELAXED")),
        (Some(order), _) => Some(past(name, space, kind, access.scope?, order)),
    }
}

fn past(name: &str, space: &str, kind: &str, scope: &str, order: &str) -> String {
    format!("{name}_past_{space}<{kind}, cuda_port::port::{scope}, cuda_port::ptx::{order}>")
}

fn atomic(parts: &[&str]) -> Option<String> {
    let access = access(&parts[1..])?;
    let [operation, kind] = access.rest[..] else {
        return None;
    };
    let kind = match (operation, kind) {
        ("add", kind) => type_of(kind)?,
        ("exch" | "cas" | "and" | "or" | "xor", "b32" | "b64") => type_of(kind)?,
        ("min" | "max", "s32" | "u32" | "s64" | "u64") | ("inc" | "dec", "u32") => type_of(kind)?,
        _ => return None,
    };
    if operation == "cas" && parts[0] == "red" {
        return None;
    }
    Some(format!(
        "{}_{operation}<{kind}, {}, cuda_port::port::{}, cuda_port::ptx::{}>",
        parts[0],
        access.shared,
        access.scope.unwrap_or("DEVICE"),
        access.order.unwrap_or("RELAXED")
    ))
}

#[cfg(test)]
mod tests {
    use super::{callee, special};

    #[test]
    fn instructions_become_functions() {
        for (opcode, function) in [
            ("cvt.rn.f16.f32", "cvt_half_f32<cuda_port::__half, cuda_port::port::NEAREST>"),
            ("cvt.rni.sat.s8.f32", "cvt<signed char, float, cuda_port::port::NEAREST, false>"),
            ("mov.b32", "move<unsigned>"),
            ("fma.rn.f16x2", "half_fma<cuda_port::__half2>"),
            ("fma.rn.ftz.f32", "fma<float>"),
            ("setp.ne.b32", "setp_ne<unsigned>"),
            ("shfl.sync.bfly.b32", "shfl_sync_bfly"),
            ("cp.async.cg.shared.global.L2::128B", "cp_async"),
            ("ld.global.nc.L1::no_allocate.v4.u32", "ld_generic<unsigned>"),
            ("ld.volatile.global.v4.b32", "ld_past_generic<unsigned, cuda_port::port::SYSTEM, cuda_port::ptx::RELAXED>"),
            ("ld.global.acquire.gpu.b32", "ld_past_generic<unsigned, cuda_port::port::DEVICE, cuda_port::ptx::ACQUIRE>"),
            ("st.release.global.sys.v4.b32", "st_past_generic<unsigned, cuda_port::port::SYSTEM, cuda_port::ptx::RELEASE>"),
            ("red.release.gpu.global.add.s32", "red_add<int, false, cuda_port::port::DEVICE, cuda_port::ptx::RELEASE>"),
            ("atom.shared.cas.b32", "atom_cas<unsigned, true, cuda_port::port::DEVICE, cuda_port::ptx::RELAXED>"),
            ("atom.global.add.noftz.f16x2", "atom_add<cuda_port::__half2, false, cuda_port::port::DEVICE, cuda_port::ptx::RELAXED>"),
            ("fence.acq_rel.gpu", "fence<cuda_port::port::DEVICE>"),
            ("prefetch.global.L2", "nothing"),
        ] {
            assert_eq!(
                callee(opcode).as_deref(),
                Some(format!("cuda_port::ptx::{function}").as_str()),
                "{opcode}"
            );
        }
    }

    #[test]
    fn what_has_no_function_is_told_apart() {
        for opcode in [
            "",
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
            "cp.async.bulk.tensor.2d.shared::cluster.global",
            "ld.global.L2::cache_hint.v4.u32",
            "add.rz.f32",
            "cvt.rn.f16",
            "cvt.rn.f16.f32.f32",
            "red.global.cas.b32",
            "atom.global.add",
            "mul.lo.f32",
            "mbarrier.init.shared.b64",
        ] {
            assert_eq!(callee(opcode), None, "{opcode}");
        }
    }

    #[test]
    fn special_registers() {
        assert_eq!(
            special("%%laneid").as_deref(),
            Some("cuda_port::ptx::sreg_laneid()")
        );
        assert_eq!(
            special("%tid.x").as_deref(),
            Some("cuda_port::ptx::sreg_tid_x()")
        );
        assert_eq!(special("%clusterid.x"), None);
    }
}
