//! Planted faults.

use crate::units::{only, simulated, unit};
use rocm_port::check::{Case, Check, DType, Fill, Kind, Targets};

/// A case of `kernel(const int *x, int *y, int n)` with one block.
fn plain(kernel: &str, sizes: &[i64]) -> Case {
    Case::new(kernel)
        .size("n", sizes.iter().copied())
        .block(128)
        .input("x", DType::I32, "n", Fill::ints(-9, 9))
        .output("y", DType::I32, "n")
        .value("n", DType::I32, "n")
}

#[test]
fn a_ballot_of_32_lanes_is_wrong_in_waves_of_64() {
    let unit = unit(
        r#"
extern "C" __global__ void positive(const int *x, int *y, int n) {
    int i = threadIdx.x;
    bool yes = i < n && x[i] > 0;
    // Right for lanes of a wave of 32 only.
    unsigned mask = (unsigned)__ballot(yes);
    if (i < n) y[i] = mask >> (i % 32) & 1;
}
"#,
    );
    let case = plain("positive", &[10, 100]).reference(|io| {
        let x = io.integers("x");
        io.set_integers("y", x.iter().map(|v| i64::from(*v > 0)).collect::<Vec<_>>());
    });
    let report = simulated(&unit).case(case).run().unwrap();
    let finding = only(&report, Kind::Reference);
    assert_eq!(finding.archs, ["gfx942"]);
    assert!(
        finding.sizes["n"] > 32 && finding.sizes["n"] < 64,
        "{finding}"
    );
    // The smallest input can be run again, and shows the same.
    let input = finding.input.as_ref().unwrap();
    let cases = rocm_port::check::parse_cases(input, std::path::Path::new("")).unwrap();
    let again = simulated(&unit)
        .cases(cases)
        .without_shrinking()
        .run()
        .unwrap();
    let again = only(&again, Kind::Reference);
    assert_eq!(
        (&again.difference, &again.archs),
        (&finding.difference, &finding.archs)
    );
}

#[test]
fn a_race_shows_in_some_orders_only() {
    let unit = unit(
        r#"
extern "C" __global__ void from_below(const int *x, int *y, int n) {
    __shared__ int all[128];
    int i = threadIdx.x;
    if (i < n) all[i] = x[i];
    // Without a barrier: in ascending order the thread below was here.
    if (i < n) y[i] = i > 0 ? all[i - 1] : 0;
}
"#,
    );
    let case = plain("from_below", &[1, 90]).reference(|io| {
        let x = io.integers("x");
        io.set_integers(
            "y",
            [0].into_iter()
                .chain(x)
                .take(io.size("n"))
                .collect::<Vec<i64>>(),
        );
    });
    let report = simulated(&unit).orders(3).case(case).run().unwrap();
    let finding = only(&report, Kind::Reference);
    assert!(
        !finding.orders.contains(&"ascending".to_string()),
        "{finding}"
    );
    // Two threads are enough, and a value that is not 0.
    assert!(finding.sizes["n"] < 10, "{finding}");
}

#[test]
fn without_a_reference_orders_must_agree() {
    let source = r#"
extern "C" __global__ void arrivals(const int *x, int *y, int n) {
    __shared__ int next;
    if (threadIdx.x == 0) next = 0;
    __syncthreads();
    if (threadIdx.x < n) y[atomicAdd(&next, 1)] = threadIdx.x;
}
extern "C" __global__ void widths(const int *x, int *y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = warpSize;
}
"#;
    let unit = unit(source);
    let report = simulated(&unit)
        .orders(3)
        .case(plain("arrivals", &[50]))
        .run()
        .unwrap();
    let finding = only(&report, Kind::Order);
    assert!(finding.sizes["n"] <= 4, "{finding}");
    let any = plain("arrivals", &[50]).any_order("y");
    assert!(simulated(&unit)
        .orders(3)
        .case(any)
        .run()
        .unwrap()
        .is_clean());
    let report = simulated(&unit).case(plain("widths", &[50])).run().unwrap();
    let finding = only(&report, Kind::Width);
    let found = finding.difference.as_ref().unwrap();
    assert_eq!((found.got.as_str(), found.want.as_str()), ("64", "32"));
    assert_eq!(
        (finding.sizes["n"], finding.archs.len()),
        (2, 2),
        "50 is a multiple of 2"
    );
}

#[test]
fn a_load_beyond_the_end_at_odd_sizes_is_found() {
    let unit = unit(
        r#"
extern "C" __global__ void pairs(const int *x, int *y, int n) {
    for (int i = 2 * threadIdx.x; i < n; i += 2 * blockDim.x) {
        y[i] = x[i];
        y[i + 1] = x[i + 1];
    }
}
"#,
    );
    let report = simulated(&unit)
        .case(plain("pairs", &[64, 101]))
        .run()
        .unwrap();
    let finding = only(&report, Kind::OutOfBounds);
    assert_eq!(finding.sizes["n"], 1, "{finding}");
    assert!(
        finding.message.contains("4 bytes out of bounds"),
        "{finding}"
    );
    let even = plain("pairs", &[64, 100, 101]).when("n % 2 == 0");
    assert!(simulated(&unit).case(even).run().unwrap().is_clean());
}

#[test]
fn what_was_never_written_is_found() {
    let unit = unit(
        r#"
extern "C" __global__ void adds(const int *x, int *y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] += x[threadIdx.x];
}
extern "C" __global__ void leaves_the_last(const int *x, int *y, int n) {
    if (threadIdx.x + 1 < n || n < 8) y[threadIdx.x % n] = 1;
}
"#,
    );
    let check = simulated(&unit)
        .case(plain("adds", &[20]))
        .case(plain("leaves_the_last", &[3, 64]));
    let report = check.run().unwrap();
    let kinds: Vec<Kind> = report.failures().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::Uninitialised; 2], "{report}");
    assert!(
        report.findings[0].message.contains("kernel adds"),
        "{report}"
    );
    assert_eq!(report.findings[0].sizes["n"], 4, "20 is a multiple of 4");
    assert_eq!(report.findings[1].sizes["n"], 8, "{report}");
}

#[test]
fn kernels_that_end_the_process_or_do_not_end_are_found() {
    let unit = unit(
        r#"
extern "C" __global__ void wild(const int *x, int *y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] > 5 ? *(volatile int *)16 : 0;
}
extern "C" __global__ void endless(const int *x, int *y, int n) {
    volatile int left = n;
    while (left != 3) left = left > 3 ? left : left + 1;
    if (threadIdx.x < n) y[threadIdx.x] = 0;
}
extern "C" __global__ void apart(const int *x, int *y, int n) {
    if (threadIdx.x < n) {
        y[threadIdx.x] = 0;
        __syncthreads();
    } else {
        __syncthreads();
        __syncthreads();
    }
}
extern "C" __global__ void fine(const int *x, int *y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x];
}
"#,
    );
    let cases = ["wild", "endless", "apart", "fine"].map(|kernel| plain(kernel, &[3, 40]));
    let check = simulated(&unit)
        .limit(std::time::Duration::from_secs(3))
        .cases(cases);
    let report = check.archs(["gfx1100"]).run().unwrap();
    let of = |kernel: &str| {
        let found: Vec<_> = report
            .failures()
            .filter(|finding| finding.kernel == kernel)
            .collect();
        assert_eq!(found.len(), 1, "{kernel}: {report}");
        found[0]
    };
    let wild = of("wild");
    assert_eq!(wild.kind, Kind::Crash, "{wild}");
    assert!(wild.message.contains("0x0000000000000010"), "{wild}");
    // One element that is above 5 is left.
    let input =
        rocm_port::check::parse_cases(wild.input.as_ref().unwrap(), std::path::Path::new(""))
            .unwrap();
    let Some((_, rocm_port::check::Argument::Buffer(x))) = input[0].arguments.first() else {
        panic!("{wild}");
    };
    let Fill::Values(values) = &x.fill else {
        panic!("{wild}")
    };
    assert_eq!(
        values
            .iter()
            .filter(|value| value.to_string() != "0")
            .count(),
        1,
        "{wild}"
    );
    let endless = of("endless");
    assert_eq!(
        (endless.kind, endless.sizes["n"] > 3),
        (Kind::Hang, true),
        "{endless}"
    );
    assert_eq!(of("apart").kind, Kind::Divergence);
    let fine = report
        .kernels
        .iter()
        .find(|kernel| kernel.entry == "fine")
        .unwrap();
    assert!(fine.is_clean && fine.launches == 4, "{fine:?}");
}

#[test]
fn one_wrong_dtype_of_a_table_is_found() {
    let unit = unit(
        r#"
#define HALF_OF(name, T) \
    extern "C" __global__ void name(const T *x, T *y, int n) { \
        if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] / 2; \
    }
HALF_OF(half_of_f32, float)
HALF_OF(half_of_f64, float)
HALF_OF(half_of_i16, short)
HALF_OF(half_of_u16, short)
"#,
    );
    let table = [
        ("half_of_f32", DType::F32),
        ("half_of_f64", DType::F64),
        ("half_of_i16", DType::I16),
        ("half_of_u16", DType::U16),
    ];
    let cases = table.map(|(kernel, dtype)| {
        let fill = match dtype.is_float() {
            true => Fill::Normal(0.0, 1.0),
            false => Fill::Bits,
        };
        Case::new(kernel)
            .size("n", [1, 77])
            .block(128)
            .input("x", dtype, "n", fill)
            .output("y", dtype, "n")
            .value("n", DType::I32, "n")
            .reference(move |io| {
                let half = |v: f64| {
                    if dtype.is_float() {
                        v / 2.0
                    } else {
                        (v / 2.0).trunc()
                    }
                };
                let values: Vec<f64> = io.input("x").into_iter().map(half).collect();
                io.set("y", values);
            })
    });
    let report = simulated(&unit).cases(cases).run().unwrap();
    let mut wrong: Vec<&str> = report
        .failures()
        .map(|finding| finding.kernel.as_str())
        .collect();
    wrong.dedup();
    assert_eq!(wrong, ["half_of_f64", "half_of_u16"], "{report}");
    let clean = report
        .kernels
        .iter()
        .filter(|kernel| kernel.is_clean)
        .count();
    assert_eq!(clean, 2);
}

#[test]
fn what_must_stay_is_looked_at() {
    let unit = unit(
        r#"
extern "C" __global__ void spoils(int *x, int *y, int n) {
    if (threadIdx.x < n) { y[threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = 70; }
}
extern "C" __global__ void beyond(const int *x, int *y, int n) {
    if (threadIdx.x <= n) y[threadIdx.x] = x[threadIdx.x % n];
}
"#,
    );
    let beyond = Case::new("beyond")
        .size("n", [5])
        .block(64)
        .input("x", DType::I32, "n", Fill::ints(1, 9))
        .inout("y", DType::I32, "n + 3", Fill::Zeros)
        .keep("y", "n", "n + 3")
        .value("n", DType::I32, "n");
    let report = simulated(&unit)
        .case(plain("spoils", &[9]))
        .case(beyond)
        .run()
        .unwrap();
    let found: Vec<(Kind, &str, usize)> = report
        .failures()
        .map(|finding| {
            let difference = finding.difference.as_ref().unwrap();
            (finding.kind, difference.buffer.as_str(), difference.element)
        })
        .collect();
    let last = report.findings[1].sizes["n"] as usize;
    assert_eq!(
        found,
        [(Kind::Changed, "x", 0), (Kind::Changed, "y", last)],
        "{report}"
    );
}

#[test]
fn known_faults_are_told_with_their_reason() {
    let source =
        "extern \"C\" __global__ void zero(const int *x, int *y, int n) { y[n - 1 + threadIdx.x / 127] = 0; }";
    let unit = unit(source);
    let known = plain("zero", &[1]).known(Kind::OutOfBounds, "it was written for padded buffers");
    let report = simulated(&unit).case(known).run().unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(
        report.findings[0].known.as_deref(),
        Some("it was written for padded buffers")
    );
    assert!(report.to_string().contains("written for padded buffers"));
    let wrong = plain("zero", &[1])
        .known(Kind::Crash, "it crashes")
        .block(1);
    let report = simulated(&unit).case(wrong).run().unwrap();
    only(&report, Kind::NotFound);
}

#[test]
fn too_much_shared_memory_is_found() {
    let source = |bytes: usize| {
        format!(
            r#"
#ifdef __AMDGCN__
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define threadIdx (Index{{__builtin_amdgcn_workitem_id_x()}})
#define BARRIER __builtin_amdgcn_s_barrier
struct Index {{ unsigned x; }};
#else
#define BARRIER __syncthreads
#endif
extern "C" __global__ void tile(const int *x, int *y, int n) {{
    __shared__ int part[{bytes} / 4];
    int i = threadIdx.x;
    if (i < n) part[x[i] * ({bytes} / 4 / n)] = i;
    BARRIER();
    if (i < n) y[i] = part[i * ({bytes} / 4 / n)];
}}
"#
        )
    };
    let targets = || Targets::Only(vec!["gfx942".into(), "gfx950".into()]);
    let large = unit(&source(80 << 10));
    let report = Check::new(&large).compile_for(targets()).run().unwrap();
    if report.compiler.is_none() {
        // Without clang nothing says how much static LDS there is.
        assert!(report.notes[0].contains("not compiled"), "{report}");
        return;
    }
    let finding = only(&report, Kind::Lds);
    assert_eq!(finding.archs, ["gfx942"], "gfx950 has 160 KiB");
    let small = unit(&source(40 << 10));
    let case = || {
        Case::new("tile")
            .size("n", [64])
            .block(64)
            .input("x", DType::I32, "n", Fill::Permutation)
            .output("y", DType::I32, "n")
            .value("n", DType::I32, "n")
            .reference(|io| {
                let mut y = vec![0i64; io.len("y")];
                io.indices("x")
                    .into_iter()
                    .zip(0..)
                    .for_each(|(x, i)| y[x] = i);
                io.set_integers("y", y);
            })
    };
    let check = Check::new(&small).compile_for(targets()).orders(1);
    let report = check
        .clone()
        .case(case().shared("40 * 1024"))
        .run()
        .unwrap();
    assert!(
        only(&report, Kind::Lds)
            .message
            .contains("81920 bytes of LDS"),
        "{report}"
    );
    let report = check.clone().case(case()).run().unwrap();
    assert!(report.is_clean(), "{report}");
    // The compilers know what the kernel takes.
    let narrow = Case::new("tile")
        .value("x", DType::U64, 0)
        .null("y")
        .value("n", DType::I64, 1);
    let report = check.clone().case(narrow).run().unwrap();
    let message = &only(&report, Kind::Case).message;
    assert!(
        message.contains("argument n has 8 bytes; the kernel takes 4"),
        "{report}"
    );
    let other = Case::new("tiles").named("nobody's");
    let report = check.case(other).run().unwrap();
    assert!(
        only(&report, Kind::Case).message.contains("no such kernel"),
        "{report}"
    );
}
