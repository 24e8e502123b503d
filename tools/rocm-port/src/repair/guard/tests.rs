//! Every way to cheat that we know of, and what has to stay possible.

use super::*;

const FILE: &str = r#"
#include "port/cuda.h"
#define WARP 32
#define SQUARE(T, NAME) extern "C" __global__ void NAME(T *y, const T *x, int n) { \
    int i = threadIdx.x; \
    if (i < n) y[i] = x[i]; \
}
template <typename T>
__device__ __forceinline__ T twice(T v) { return v + v; }
constexpr int TILE = 64;
SQUARE(float, square_f32)
template <typename T>
__global__ void sum(T *__restrict__ out, const T *__restrict__ in, unsigned n) {
    __shared__ float part[WARP];
    float v = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) v += float(in[i]);
    // over a warp
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    if (threadIdx.x == 0) out[0] = T(part[0]);
}
extern "C" PORT_KERNEL(256) void rocm_sum_f32(port::argument<0, &sum<float>> a0) { sum<float>(a0); }
"#;

fn changed(from: &str, to: &str) -> Result<(), Refusal> {
    assert!(FILE.contains(from), "{from}");
    guard(FILE, &FILE.replacen(from, to, 1))
}

fn in_body(code: &str) -> Result<(), Refusal> {
    changed("    // over a warp\n", code)
}

#[test]
fn repairs_are_allowed() {
    for (from, to) in [
        ("if (threadIdx.x == 0)", "__syncthreads();\n    if (threadIdx.x == 0)"),
        ("v += float(in[i]);", "{\n #pragma unroll 4\n for (int k = 0; k < 1; ++k) v += fmaxf(float(in[i]), 0.f);\n }"),
        ("#define WARP 32", "#define WARP (64 / 2)"),
        ("constexpr int TILE = 64", "constexpr int TILE = 128"),
        ("return v + v;", "return T(2) * v;"),
        ("if (i < n) y[i] = x[i];", "if (i < n) y[i] = x[i] * x[i];"),
        (
            "template <typename T>\n__global__",
            "template <typename T> __device__ T fix_add(T a, T b) { return a + b; }\ntemplate <typename T>\n__global__",
        ),
        ("float v = 0;", "float v = 0, rest[4] = {0, 0, 0, 0};\n    float4 wide = make_float4(0, 0, 0, 0);"),
        ("float v = 0;", "float v = 0;\n    auto add = [&](float a) { return a + v; };"),
        ("// over a warp", "// over a warp, \u{2264} 32 lanes"),
        ("float(in[i])", "static_cast<float>(__ldg(reinterpret_cast<const T *>(in) + i))"),
    ] {
        assert_eq!(changed(from, to), Ok(()), "{to}");
    }
    assert_eq!(guard(FILE, FILE), Ok(()));
    // What does not parse may be mended.
    let broken = FILE.replace("float v = 0;", "float v = 0");
    assert_eq!(guard(&broken, FILE), Ok(()));
}

#[test]
fn the_frame_stays() {
    for (from, to) in [
        (
            "#include \"port/cuda.h\"",
            "#include \"port/cuda.h\"\n#include <stdlib.h>",
        ),
        ("#include \"port/cuda.h\"", ""),
        (
            "#define WARP 32",
            "#define WARP 32\n#define __syncthreads()",
        ),
        ("#define WARP 32", "#define WARP 32\n#line 1 \"other\""),
        ("#define WARP 32", "#define WARP(x) 32"),
        (
            "template <typename T>\n__global__",
            "int leak = 1;\ntemplate <typename T>\n__global__",
        ),
        (
            "template <typename T>\n__global__",
            "static struct A { A() {} } a;\ntemplate <typename T>\n__global__",
        ),
        (
            "template <typename T>\n__global__",
            "void host() {}\ntemplate <typename T>\n__global__",
        ),
        ("PORT_KERNEL(256)", "PORT_KERNEL(1)"),
        ("rocm_sum_f32", "rocm_sum_f16"),
        ("unsigned n)", "int n)"),
        ("float v = 0;", "float v = 0;\n#if 1\n#endif"),
        ("float v = 0;", "float v = 0;\n#pragma GCC poison x"),
        ("float v = 0;", "float v = 0;\n/* */ # include <stdio.h>\n"),
        ("SQUARE(float, square_f32)", "SQUARE(double, square_f32)"),
    ] {
        let refused = changed(from, to);
        // Strings and words that have no business in a kernel are seen first.
        let seen = |r: &Refusal| {
            matches!(
                r.reason,
                Reason::Frame { .. } | Reason::Text(_) | Reason::Word(_)
            )
        };
        assert!(refused.as_ref().is_err_and(seen), "{to}: {refused:?}");
    }
}

#[test]
fn device_code_only_computes() {
    use Reason::*;
    type Case = (&'static str, fn(&Reason) -> bool);
    let cases: [Case; 27] = [
        ("asm volatile(\"nop\");", |r| matches!(r, Word(_))),
        ("system(\"id\");", |r| matches!(r, Text(_))),
        ("char c[3] = {105, 100, 0}; system(c);", |r| {
            matches!(r, Unknown(_) | Call(_))
        }),
        ("fopen(0, 0);", |r| matches!(r, Unknown(_) | Call(_))),
        ("::remove(0);", |r| matches!(r, Unknown(_) | Call(_))),
        ("std::abort();", |r| matches!(r, Unknown(_) | Call(_))),
        ("int system = 0; system(0);", |r| matches!(r, Call(_))),
        ("((void (*)())16)();", |r| {
            matches!(r, Syntax { .. } | Call(_))
        }),
        ("typedef int other;", |r| matches!(r, Word(_))),
        ("union { int a; float b; } u;", |r| matches!(r, Word(_))),
        ("struct A { int x; }; A a;", |r| matches!(r, Syntax { .. })),
        ("int v2 __attribute__((aligned(8)));", |r| {
            matches!(r, Word(_))
        }),
        ("_Pragma(\"GCC poison x\")", |r| matches!(r, Word(_))),
        ("goto end; end:;", |r| matches!(r, Word(_))),
        ("new int;", |r| matches!(r, Word(_))),
        ("printf(\"x\");", |r| matches!(r, Word(_) | Text(_))),
        ("// __HIP_SIM__\n", |r| matches!(r, Target(_))),
        ("if (hip_sim_lane() == 0) return;", |r| {
            matches!(r, Target(_))
        }),
        ("if (warpSize == 64) return;", |r| matches!(r, Target(_))),
        ("if (64 != warpSize) return;", |r| matches!(r, Target(_))),
        ("// comment \\\n v = 1;\n", |r| matches!(r, Odd(_))),
        ("int \u{e9} = 1;", |r| matches!(r, Odd(_))),
        ("%:include <x>\n", |r| matches!(r, Odd(_))),
        ("float __x = 1;", |r| matches!(r, Reserved(_) | Unknown(_))),
        ("int threadIdx = 0;", |r| matches!(r, Reserved(_))),
        ("v = = 1;", |r| matches!(r, Broken(_))),
        ("long long t = clock64();", |r| {
            matches!(r, Unknown(_) | Call(_))
        }),
    ];
    for (code, wanted) in cases {
        let refused = in_body(code);
        assert!(
            matches!(&refused, Err(r) if wanted(&r.reason)),
            "{code}: {refused:?}"
        );
    }
}

#[test]
fn kernels_keep_their_work() {
    let body = &FILE[FILE.find("    __shared__").unwrap_or(0)..FILE.find("}\nextern").unwrap_or(0)];
    let empty = guard(FILE, &FILE.replace(body, ""));
    assert!(
        matches!(
            empty,
            Err(Refusal {
                reason: Reason::Empty(_),
                ..
            })
        ),
        "{empty:?}"
    );
    let constant = guard(FILE, &FILE.replace(body, "    out[0] = T(n);\n"));
    assert!(
        matches!(
            constant,
            Err(Refusal {
                reason: Reason::Unused { .. },
                ..
            })
        ),
        "{constant:?}"
    );
    let helper = "__device__ int other(int a) { return a; }\ntemplate <typename T>\n__global__";
    let named = changed("template <typename T>\n__global__", helper);
    assert!(
        matches!(
            named,
            Err(Refusal {
                reason: Reason::Added(_),
                ..
            })
        ),
        "{named:?}"
    );
    let table = in_body(&format!(
        "float t[] = {{{}}};",
        "0.5f, ".repeat(MAX_NUMBERS + 1)
    ));
    assert!(
        matches!(
            table,
            Err(Refusal {
                reason: Reason::Numbers(129),
                ..
            })
        ),
        "{table:?}"
    );
    let grown = changed(
        "// over a warp",
        &format!("// {}", "x".repeat(MAX_GROWTH + 100)),
    );
    assert!(matches!(
        grown,
        Err(Refusal {
            reason: Reason::Grown(_),
            ..
        })
    ));
}

#[test]
fn macros_are_looked_into() {
    for (from, to) in [
        ("y[i] = x[i];", "y[i] = system(x[i]);"),
        ("y[i] = x[i];", "y[i] = x[i]; asm(\"nop\");"),
        ("#define WARP 32", "#define WARP system(0)"),
        ("#define WARP 32", "#define WARP 32; exit(1)"),
    ] {
        assert!(changed(from, to).is_err(), "{to}");
    }
}

#[test]
fn no_text_makes_it_panic() {
    let pieces = [
        "{",
        "}",
        "(",
        ")",
        "#define A(",
        "\\",
        "\"",
        "/*",
        "\u{20ac}",
        "__device__ f(",
        "template<",
        ";",
        "R\"(",
    ];
    for a in pieces {
        for b in pieces {
            for c in pieces {
                let text = format!("{a}{b}\n{c}");
                let _ = guard(FILE, &text);
                let _ = guard(&text, FILE);
            }
        }
    }
    let deep = "(".repeat(50_000);
    let _ = in_body(&deep);
}

/// One of each part.
const PARTS: &str = r#"
#include "port/cuda.h"
#define WARP 32
#define OP(T, NAME) extern "C" __global__ void NAME(T *y) { \
y[threadIdx.x] = 1; \
}
namespace a {
struct __align__(8) S { float x; __device__ float twice() const { return x + x; } };
constexpr int N = 4;
__device__ float table[2] = {1, 2};
template <typename T> __device__ __forceinline__ T twice(T v) { if (v > 0) { return v + v; } return v; }
template <typename T, int K>
__global__ void __launch_bounds__(256) scale(T *__restrict__ y, const T *x, int n = f(1, 2)) { y[0] = twice(x[0]); }
}
OP(float, op_f32)
extern "C" PORT_KERNEL(256) void rocm_scale_f32(port::argument<0, &a::scale<float, 1>> a0) { a::scale<float, 1>(a0); }
"#;

#[test]
fn finds_what_may_change() {
    let items = items(PARTS);
    let parts: Vec<(Part, &str)> = items
        .pieces
        .iter()
        .map(|p| (p.part.clone(), p.name.as_str()))
        .collect();
    assert_eq!(
        parts,
        [
            (Part::Macro, "WARP"),
            (Part::Macro, "OP"),
            (Part::Function, "twice"),
            (Part::Constant, "N"),
            (Part::Function, "twice"),
            (Part::Body, "scale"),
            (Part::Body, "rocm_scale_f32"),
        ]
    );
    assert_eq!(items.pieces[5].parameters, ["y", "x", "n"]);
    let frame: Vec<&str> = items.frame.iter().map(|(w, _)| w.as_str()).collect();
    let frame = frame.join(" ");
    assert!(frame.contains("float table [ 2 ] = { 1 , 2 } ;"), "{frame}");
    assert!(frame.contains("__launch_bounds__ ( 256 ) scale"), "{frame}");
    assert!(frame.contains("OP ( float , op_f32 ) extern"), "{frame}");
    assert!(!frame.contains("constexpr"), "{frame}");
    let op = &items.pieces[1];
    assert!(
        PARTS[op.body..op.end].starts_with("extern"),
        "{}",
        &PARTS[op.body..op.end]
    );
}

#[test]
fn frames_see_everything_else() {
    let words =
        |text: &str| -> Vec<String> { items(text).frame.into_iter().map(|(w, _)| w).collect() };
    let frame = words(PARTS);
    for (from, to) in [
        ("float table[2]", "float table[3]"),
        ("__launch_bounds__(256)", "__launch_bounds__(128)"),
        ("PORT_KERNEL(256)", "PORT_KERNEL(64)"),
        ("#include \"port/cuda.h\"", "#include \"port/cub.h\""),
        ("struct __align__(8)", "struct __align__(4)"),
        ("float x;", "float x = g();"),
        ("y[0] = twice(x[0]);", "y[0] = 1;\n#if 1\n#endif\n"),
        (
            "#define WARP 32",
            "#define WARP 32\n#define __syncthreads()",
        ),
        ("#define OP(T, NAME)", "#define OP(NAME, T)"),
    ] {
        assert_ne!(words(&PARTS.replace(from, to)), frame, "{from}");
    }
    for (from, to) in [
        ("v + v; } return v;", "2 * v; } return v;"),
        ("y[0] = twice(x[0]);", "#pragma unroll\ny[0] = 1;"),
        ("WARP 32", "WARP 64"),
        ("y[threadIdx.x] = 1;", "y[threadIdx.x] = 2;"),
    ] {
        assert_eq!(words(&PARTS.replace(from, to)), frame, "{from}");
    }
    // Braces that do not match, and no text at all.
    assert!(items("void f() { {").pieces.is_empty());
    assert!(items("").frame.is_empty());
}
