//! Kernels without faults, in the ways that cases can be written.

use crate::units::{simulated, unit};
use rocm_port::check::{dims, gradient, Case, DType, Field, Fill, Role, Targets, Tolerance};

const UNIT: &str = r#"
#ifdef __AMDGCN__
// What bare clang does not have; the simulator has it.
#define __global__ __attribute__((global, amdgpu_flat_work_group_size(1, 256)))
#define __shared__ __attribute__((shared))
struct Index { unsigned x, y; };
#define threadIdx (Index{__builtin_amdgcn_workitem_id_x(), 0})
#define blockIdx (Index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y()})
#define blockDim (Index{__builtin_amdgcn_workgroup_size_x(), 1})
#define __syncthreads __builtin_amdgcn_s_barrier
#define atomicAdd(p, v) __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
#endif
extern "C" __global__ void square_f32(unsigned long n, const float *x, float *y) {
    unsigned long i = blockIdx.x * (unsigned long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
extern "C" __global__ void square_backward_f32(unsigned long n, const float *x, const float *dy, float *dx) {
    unsigned long i = blockIdx.x * (unsigned long)blockDim.x + threadIdx.x;
    if (i < n) dx[i] = 2.0f * x[i] * dy[i];
}
extern "C" __global__ void gather_i64(int rows, int columns, const long *ids, const float *table, float *out) {
    int row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && column < columns) out[row * columns + column] = table[ids[row] * columns + column];
}
struct Both { const int *from; int scale; int *to; };
extern "C" __global__ void scale_both(Both p, int *const *more, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        p.to[i] = p.from[i] * p.scale;
        more[1][i] = more[0][i] + 1;
    }
}
extern "C" __global__ void even_only(int *x, int *y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (i % 2 == 0) x[i] += 1;
        if (i % 2 == 0) y[i] = i;
    }
}
extern "C" __global__ void compact(const int *x, int *out, unsigned *count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > 0) out[atomicAdd(count, 1u)] = x[i];
}
extern "C" __global__ void block_sum(const float *x, float *out, int n) {
    extern __shared__ float part[];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = part[0];
}
"#;

fn square() -> Case {
    Case::new("square_f32")
        .size("n", [1, 31, 1000])
        .grid("ceil(n / 256)")
        .block(256)
        .value("n", DType::U64, "n")
        .input("x", DType::F32, "n", Fill::uniform(-2.0, 2.0))
        .output("y", DType::F32, "n")
        .reference(|io| {
            let x = io.input("x");
            io.set("y", x.iter().map(|v| v * v));
        })
}

#[test]
fn kernels_without_faults_pass() {
    let unit = unit(UNIT);
    let backward = Case::new("square_backward_f32")
        .size("n", [1, 100])
        .grid("ceil(n / 64)")
        .block(64)
        .value("n", DType::U64, "n")
        .input("x", DType::F32, "n", Fill::Normal(0.0, 1.0))
        .input("dy", DType::F32, "n", Fill::Normal(0.0, 1.0))
        .output("dx", DType::F32, "n")
        .reference(|io| {
            let forward = |x: &[f64]| x.iter().map(|v| v * v).collect();
            io.set("dx", gradient(forward, &io.input("x"), &io.input("dy")));
        });
    let gather = Case::new("gather_i64")
        .together(["rows", "columns"], [[1, 1], [5, 70]])
        .with("vocabulary", 9)
        .grid(dims("ceil(columns / 32)", "rows", 1))
        .block(32)
        .value("rows", DType::I32, "rows")
        .value("columns", DType::I32, "columns")
        .input("ids", DType::I64, "rows", Fill::ints(0, "vocabulary - 1"))
        .input(
            "table",
            DType::F32,
            "vocabulary * columns",
            Fill::Normal(0.0, 1.0),
        )
        .output("out", DType::F32, "rows * columns")
        .tolerance("out", Tolerance::EXACT)
        .reference(|io| {
            let (columns, table) = (io.size("columns"), io.input("table"));
            let rows = io.indices("ids").into_iter();
            let all: Vec<f64> = rows
                .flat_map(|id| table[id * columns..][..columns].to_vec())
                .collect();
            io.set("out", all);
        });
    let both = Case::new("scale_both")
        .size("n", [3])
        .block(64)
        .structure(
            "p",
            [
                Field::address("from"),
                Field::number(DType::I32, "n + 1"),
                Field::address("to"),
            ],
        )
        .input(
            "more",
            DType::U64,
            2,
            Fill::Addresses(vec!["from".into(), "plus".into()]),
        )
        .value("n", DType::I32, "n")
        .memory("from", DType::I32, "n", Role::In, Fill::Iota)
        .memory("to", DType::I32, "n", Role::Out, Fill::Zeros)
        .memory("plus", DType::I32, "n", Role::Out, Fill::Zeros)
        .reference(|io| {
            io.set_integers("to", [0, 4, 8]);
            io.set_integers("plus", [1, 2, 3]);
        });
    let even = Case::new("even_only")
        .size("n", [1, 70])
        .block(64)
        .inout("x", DType::I32, "n + 4", Fill::ints(-9, 9))
        .keep("x", "n", "n + 4")
        .output("y", DType::I32, "n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let (n, x) = (io.size("n"), io.integers("x"));
            let plus = |(i, v): (usize, &i64)| v + i64::from(i < n && i % 2 == 0);
            io.set_integers("x", x.iter().enumerate().map(plus).collect::<Vec<_>>());
            io.set_integers("y", 0..n as i64);
            io.ignore("y", (1..n).step_by(2));
        });
    let compact = Case::new("compact")
        .size("n", [100])
        .grid("ceil(n / 64)")
        .block(64)
        .input("x", DType::I32, "n", Fill::ints(-3, 3))
        .inout("out", DType::I32, "n", Fill::Zeros)
        .any_order("out")
        .inout("count", DType::U32, 1, Fill::Zeros)
        .value("n", DType::I32, "n")
        .reference(|io| {
            let mut out = io.integers("x");
            let count = out.iter().filter(|v| **v > 0).count();
            out.iter_mut().for_each(|v| *v = (*v).max(0));
            io.set_integers("out", out);
            io.set_integers("count", [count as i64]);
        });
    let sum = Case::new("block_sum")
        .size("n", [1, 500])
        .size("threads", [64, 256])
        .block("threads")
        .shared("threads * 4")
        .input("x", DType::F32, "n", Fill::uniform(0.0, 1.0))
        .output("out", DType::F32, 1)
        .value("n", DType::I32, "n")
        .reference(|io| {
            let sum = io.input("x").iter().sum();
            io.set("out", [sum]);
        });
    let check = simulated(&unit).cases([square(), backward, gather, both, even, compact, sum]);
    let report = check
        .compile_for(Targets::Only(vec!["gfx1100".into(), "gfx942".into()]))
        .run()
        .unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.archs, ["gfx1100", "gfx942"]);
    for kernel in &report.kernels {
        assert!(kernel.is_clean && kernel.has_reference, "{kernel:?}");
        assert_eq!(kernel.widths, [32, 64], "{kernel:?}");
    }
    let square = report
        .kernels
        .iter()
        .find(|kernel| kernel.entry == "square_f32")
        .unwrap();
    assert_eq!(square.launches, 3 * 4);
    if report.compiler.is_some() {
        let waves: Vec<u32> = square
            .resources
            .iter()
            .map(|resources| resources.wave)
            .collect();
        assert_eq!(waves, [32, 64]);
        assert_eq!(square.resources[0].arguments, [(0, 8), (8, 8), (16, 8)]);
    }
    let (json, table) = (report.json(), report.markdown());
    let again: rocm_port::check::Report = serde_json::from_str(&json).unwrap();
    assert_eq!(again, report);
    assert!(
        table.contains("| `square_f32` |")
            && table.contains("| 32 and 64 | 12 | reference | right |"),
        "{table}"
    );
}
