//! Each rule: a text that it is about, and one that only looks like it.

use super::{ids, scan, scan_files};
use rocm_port::model::Verdict;
use rocm_port::parse::Options;
use rocm_port::rules::{Rule, RULES};
use std::collections::BTreeSet;

/// A rule, the body of a kernel `k(float *x, int n)` that it is about, and one that it is not about.
const IN_KERNELS: &[(&str, &str, &str)] = &[
    (
        "W1",
        "x[0] = __shfl_xor_sync(0xffffffffu, x[0], 1);",
        "x[0] = __shfl_xor_sync(0x0000ffffu, x[0], 1); unsigned all = 0xffffffff; x[1] = all;",
    ),
    ("W2", "int lane = threadIdx.x & 31; x[lane] = 0;", "int half = n & 31; x[half / 32] = 0;"),
    ("W2", "int warp = threadIdx.x >> 5; x[warp] = 0;", "x[n >> 5] = 0;"),
    ("W3", "x[0] = __popc(__ballot_sync(3, n > 0));", "x[0] = __popc(n);"),
    ("W4", "__syncwarp();", "__syncthreads(); // __syncwarp();"),
    ("W5", "__shared__ float part[32]; part[0] = 0;", "__shared__ float part[64]; part[0] = 0;"),
    ("W6", "x[0] = __shfl_xor(x[0], 1);", "x[0] = __shfl_xor_sync(3, x[0], 1);"),
    (
        "W7",
        "unsigned long long m = __ballot_sync(3, n); x[0] = m != 0;",
        "unsigned m = __ballot_sync(3, n); unsigned long long w = n; x[0] = m + w;",
    ),
    (
        "W7",
        "unsigned l; asm(\"mov.u32 %0, %%laneid;\" : \"=r\"(l)); x[l] = 0;",
        "unsigned l = n; asm(\"mov.u32 %0, %1;\" : \"=r\"(l) : \"r\"(n)); x[l] = 0;",
    ),
    (
        "P1",
        "asm volatile(\"prefetch.global.L2 [%0];\" :: \"l\"(x));",
        "// asm(\"prefetch.global.L2 [%0];\")\n",
    ),
    (
        "P2",
        "asm volatile(\"isspacep.param p, %0;\" :: \"l\"(x));",
        "const char *s = \"isspacep.param p, %0;\"; x[0] = s != nullptr;",
    ),
    (
        "M1",
        "unsigned a; asm(\"ldmatrix.sync.aligned.m8n8.x1.b16 {%0}, [%1];\" : \"=r\"(a) : \"r\"(n)); x[a] = 0;",
        "int ldmatrix = n; x[ldmatrix] = 0;",
    ),
    (
        "M3",
        "asm(\"cp.async.cg.shared.global [%0], [%1], 16;\" :: \"r\"(n), \"l\"(x));",
        "x[0] = x[1]; /* cp.async.cg.shared.global */",
    ),
    ("M4", "asm(\"mbarrier.init.shared.b64 [%0], 1;\" :: \"r\"(n));", "int mbarrier = n; x[mbarrier] = 0;"),
    (
        "M2",
        "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f; nvcuda::wmma::fill_fragment(f, 0.f);",
        "struct fragment { float x[8]; }; fragment f; x[0] = f.x[0];",
    ),
    ("C1", "cute::print(n);", "int cute = n; x[cute] = 0;"),
    (
        "L1",
        "typedef cub::BlockReduce<float, 128> R; __shared__ typename R::TempStorage t; x[0] = R(t).Sum(x[1]);",
        "int cub = n; x[cub] = 0;",
    ),
    (
        "L3",
        "cooperative_groups::thread_block b = cooperative_groups::this_thread_block(); b.sync();",
        "__syncthreads();",
    ),
    ("L4", "cooperative_groups::this_grid().sync();", "cooperative_groups::this_thread_block().sync();"),
    (
        "L5",
        "curandStatePhilox4_32_10_t s; curand_init(1, 2, 3, &s); x[0] = curand_uniform(&s);",
        "float uniform = n; x[0] = uniform;",
    ),
    ("L6", "__pipeline_memcpy_async(x, x + 4, 16);", "x[0] = x[4];"),
    ("L7", "thrust::minus<float> f; x[0] = f(x[1], x[2]);", "x[0] = x[1] - x[2];"),
    ("F1", "__nv_fp8_e4m3 a = __nv_fp8_e4m3(x[0]); x[1] = float(a);", "unsigned char fp8 = n; x[0] = fp8;"),
    ("F2", "__nv_fp4_e2m1 *a = nullptr; x[0] = a != nullptr;", "unsigned char fp4 = n; x[0] = fp4;"),
    (
        "A1",
        "__shared__ float tile[128][129]; tile[0][0] = n; x[0] = tile[0][0];",
        "__shared__ float tile[128][128]; tile[0][0] = n; x[0] = tile[0][0];",
    ),
    ("N1", "x[threadIdx.y] = 0;", "x[threadIdx.x] = 0;"),
    ("T1", "x[0] = tex1Dfetch<float>(n, 0);", "int tex = n; x[tex] = 0;"),
    ("G2", "x[0] = __isShared(x);", "x[0] = x != nullptr;"),
    ("G3", "float4 v = *reinterpret_cast<float4 *>(x); x[0] = v.x;", "float v = *reinterpret_cast<float *>(x); x[0] = v;"),
    ("G4", "printf(\"%d\", n);", "const char *printf_ = \"printf(n)\"; x[0] = printf_ != nullptr;"),
    ("G5", "x[0] = clock64();", "int clock = n; x[clock] = 0;"),
    ("S1", "x[0] = __fancy_new_intrinsic(n);", "x[0] = __popc(n);"),
    ("S1", "x[0] = erfcxyz(x[1]);", "x[0] = erfcf(x[1]);"),
];

/// A rule, a whole text that it is about, and one that it is not about.
const WHOLE: &[(&str, &str, &str)] = &[
    (
        "A2",
        "__global__ void k() {} void f() { cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536); }",
        "__global__ void k() {} void f() { cudaFuncSetAttribute(k, cudaFuncAttributePreferredSharedMemoryCarveout, 5); }",
    ),
    (
        "A3",
        "__global__ void __launch_bounds__(2048) k() {}",
        "__global__ void __launch_bounds__(1024, 2) k() {}",
    ),
    ("A4", "__global__ void __cluster_dims__(2, 1, 1) k() {}", "__global__ void k() { /* __cluster_dims__(2) */ }"),
    ("H1", "void f() { cudaMalloc(nullptr, 1); }", "void cudaOwn(int); void f() { cudaOwn(1); // cudaMalloc(1)\n }"),
    ("H2", "void f() { cuInit(0); }", "void custom(int); void f() { custom(1); }"),
    ("H3", "void f() { cublasCreate(nullptr); }", "const char *s = \"cublasCreate\"; void f() {}"),
    (
        "H4",
        "__global__ void k() {} void f() { cudaLaunchCooperativeKernel((void *)k, 1, 1, nullptr, 0, 0); }",
        "__global__ void k() {} void f() { k<<<1, 1>>>(); }",
    ),
    ("L2", "void f(int *p) { thrust::sort(p, p + 1); }", "void f(int *p) { auto q = thrust::device_pointer_cast(p); }"),
    (
        "T2",
        "__constant__ float c[2]; void f() { cudaMemcpyToSymbol(c, nullptr, 8); }",
        "__constant__ float c[2] = {1, 2}; __global__ void k(float *x) { x[0] = c[0]; }",
    ),
    (
        "T3",
        "__global__ void j() {} __global__ void k() { j<<<1, 1>>>(); }",
        "__global__ void j() {} void f() { j<<<1, 1>>>(); }",
    ),
    (
        "T4",
        "__managed__ int m; __global__ void k() { m = 1; }",
        "__device__ int m; __global__ void k() { m = 1; }",
    ),
    (
        "S2",
        "template <int N> __global__ void k() {}",
        "template <int N> __global__ void k() {} void f() { k<3><<<1, 1>>>(); }",
    ),
    ("R1", "__global__ void k() { int = ; }", "__global__ void k() { int x = 1; (void)x; }"),
];

/// Rules that no CUDA text shows by itself: found in Rust, by `port`, or by comparing architectures.
const ELSEWHERE: &[&str] = &["B1", "U1", "G1", "R2"];

fn kernel(body: &str) -> String {
    format!("__global__ void k(float *x, int n) {{\n    {body}\n}}\n")
}

#[test]
fn each_rule_is_found_and_not_mistaken() {
    let in_kernels = IN_KERNELS
        .iter()
        .map(|(id, hit, miss)| (*id, kernel(hit), kernel(miss)));
    let whole = WHOLE
        .iter()
        .map(|(id, hit, miss)| (*id, hit.to_string(), miss.to_string()));
    for (id, hit, miss) in in_kernels.chain(whole) {
        let found = scan(&hit);
        assert!(
            ids(&found).contains(&id),
            "{id} is not found in\n{hit}\n{:#?}",
            found.findings
        );
        let missed = scan(&miss);
        assert!(
            !ids(&missed).contains(&id),
            "{id} is found in\n{miss}\n{:#?}",
            missed.findings
        );
    }
}

#[test]
fn no_rule_is_without_a_test() {
    let tested: BTreeSet<&str> = IN_KERNELS
        .iter()
        .chain(WHOLE)
        .map(|(id, ..)| *id)
        .chain(ELSEWHERE.iter().copied())
        .collect();
    let all: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(tested, all);
    assert_eq!(RULES.len(), all.len(), "an id is there twice");
}

#[test]
fn near_misses_of_kernels_are_portable() {
    // What is no finding of its own rule, and of no worse one, is portable: the texts use what the shim has.
    for (id, _, miss) in IN_KERNELS {
        let scan = scan(&kernel(miss));
        let expected = match *id {
            // An asm statement that is translated stands in for one that asks for lanes.
            "W7" if miss.contains("asm") => Verdict::WithEdits,
            _ => Verdict::Portable,
        };
        assert_eq!(
            scan.kernels[0].verdict, expected,
            "{id}: {miss}\n{:#?}",
            scan.findings
        );
    }
}

#[test]
fn verdicts_go_through_what_is_reached() {
    let text = "
        __device__ void deep() { asm(\"wgmma.fence.sync.aligned;\"); }
        template <class T> struct Op { __device__ void operator()(T x) { deep(); } };
        __device__ void unused() { asm(\"nothing.known;\"); }
        __device__ void plain(int x) { asm(\"prefetch.global.L2 [%0];\" :: \"l\"(x)); }
        template <class F> __global__ void a(F f) { f(1); }
        __global__ void b() { plain(1); }
        __global__ void c() { }
        void f() { a<Op<int>><<<1, 1>>>(Op<int>()); }
    ";
    let scan = scan(text);
    let verdict = |name: &str| {
        &scan
            .kernels
            .iter()
            .find(|kernel| kernel.kernel == name)
            .unwrap()
            .verdict
    };
    assert_eq!(*verdict("a"), Verdict::ByHand);
    assert_eq!(*verdict("b"), Verdict::WithEdits);
    assert_eq!(*verdict("c"), Verdict::Portable);
}

#[test]
fn kernels_of_ours_take_the_place_of_some() {
    let matrix = "asm(\"mma.sync.aligned.m16n8k16.row.col.f32 {%0}, {%1}, {%2}, {%0};\" : \"+r\"(n) : \"r\"(n), \"r\"(n));";
    let text = format!(
        "__global__ void Marlin(int n) {{ {matrix} }} __global__ void other(int n) {{ {matrix} }}"
    );
    let scan = scan(&text);
    assert!(matches!(&scan.kernels[0].verdict, Verdict::Mapped { to } if to.contains("QMatMul")));
    assert_eq!(scan.kernels[1].verdict, Verdict::ByHand);
}

#[test]
fn an_architecture_without_matrix_instructions_is_chosen() {
    let text = "
        __device__ int dot(int a, int b) {
        #if __CUDA_ARCH__ >= 750
            asm(\"mma.sync.aligned.m8n8k16 {%0}, {%1}, {%1};\" : \"+r\"(a) : \"r\"(b));
        #else
            a = __dp4a(a, b, a);
        #endif
            return a;
        }
        __global__ void k(int *x) { x[0] = dot(x[1], x[2]); }
    ";
    let found = scan(text);
    assert_eq!(found.project.files[0].cuda_arch, 610);
    assert_eq!(ids(&found), ["R2"]);
    assert_eq!(found.kernels[0].verdict, Verdict::Portable);
    // A kernel that is empty for older architectures is no way around.
    let text = text
        .replace("a = __dp4a(a, b, a);", "")
        .replace("return a;", "")
        .replace("int dot", "void dot");
    let text = text.replace(
        "x[0] = dot(x[1], x[2]);",
        "\n#if __CUDA_ARCH__ >= 750\n dot(x[1], x[2]); x[0] = 1; x[1] = 2;\n#endif\n",
    );
    assert_eq!(scan(&text).project.files[0].cuda_arch, 800);
    // What is asked for is done.
    let options = Options {
        cuda_arch_of: vec![("a*".into(), 750)],
        ..Options::default()
    };
    let asked = scan_files(&[("a.cu", text.as_bytes())], &options);
    assert_eq!(asked.project.files[0].cuda_arch, 750);
}

#[test]
fn shared_memory_is_counted_for_instances() {
    let text = "
        constexpr int ROWS = 4 * 32;
        template <int N> __global__ void k() { __shared__ float a[ROWS][N], b; a[0][0] = 1; }
        void f() { k<SIZE><<<1, 1>>>(); }
    ";
    assert!(!ids(&scan(&text.replace("SIZE", "64"))).contains(&"A1"));
    assert!(ids(&scan(&text.replace("SIZE", "256"))).contains(&"A1"));
}

#[test]
fn ids_are_found_in_either_case() {
    assert_eq!(Rule::find("w3").unwrap().id, "W3");
    assert!(Rule::find("W99").is_none());
}
