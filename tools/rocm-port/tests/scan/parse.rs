//! Kernels, launches and functions of texts.

use super::{folder, open};
use rocm_port::model::{Kernel, Project};
use rocm_port::parse::{project, Options};

fn read(files: &[(&str, &str)]) -> Project {
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, text)| (*name, text.as_bytes()))
        .collect();
    let folder = folder(&files);
    project(&open(folder.path()), &Options::default()).unwrap()
}

fn kernel<'p>(project: &'p Project, name: &str) -> &'p Kernel {
    project.files[0]
        .kernels
        .iter()
        .find(|kernel| kernel.name == name)
        .unwrap_or_else(|| panic!("no {name} in {:#?}", project.files[0].kernels))
}

/// Instances as one string each.
fn instances(project: &Project, name: &str) -> Vec<String> {
    kernel(project, name)
        .instances
        .iter()
        .map(|list| list.join(", "))
        .collect()
}

#[test]
fn plain_kernels_with_their_parameters() {
    let project = read(&[(
        "a.cu",
        "namespace outer { namespace { namespace inner {\n\
         extern \"C\" __global__ void __launch_bounds__(256, 2) k(const float *__restrict__ x, unsigned long long n, \
         float (&a)[4], int) {\n}\n}}}\n// __global__ void no() {}\n__global__ void only_declared(int);\n",
    )]);
    let kernel = kernel(&project, "outer::inner::k");
    assert_eq!(project.files[0].kernels.len(), 1);
    assert!(kernel.extern_c);
    assert_eq!(kernel.launch_bounds.as_deref(), Some("256, 2"));
    assert_eq!((kernel.place.line, kernel.last_line), (2, 3));
    let parameters: Vec<(&str, &str)> = kernel
        .parameters
        .iter()
        .map(|parameter| (parameter.kind.as_str(), parameter.name.as_str()))
        .collect();
    assert_eq!(parameters[0], ("const float *", "x"));
    assert_eq!(parameters[1], ("unsigned long long", "n"));
    assert_eq!(parameters[2].1, "a");
    assert_eq!(parameters[3], ("int", ""));
    assert_eq!(kernel.instances, [Vec::<String>::new()]);
}

#[test]
fn kernels_that_macros_make() {
    let project = read(&[
        (
            "a.cu",
            "#include \"ops.cuh\"\n\nUNARY(float, usqr_f32, x * x)\nUNARY(double, usqr_f64, x * x)\n#if 0\nUNARY(int, no, x)\n#endif\n",
        ),
        (
            "ops.cuh",
            "#include <cuda_runtime.h>\n#define UNARY(T, NAME, FUNC) \\\n  extern \"C\" __global__ void NAME(T *p) { T x = p[0]; p[0] = FUNC; }\n",
        ),
    ]);
    let names: Vec<&str> = project.files[0]
        .kernels
        .iter()
        .map(|kernel| kernel.name.as_str())
        .collect();
    assert_eq!(names, ["usqr_f32", "usqr_f64"]);
    let kernel = kernel(&project, "usqr_f64");
    assert_eq!(
        (kernel.place.file.as_str(), kernel.place.line),
        ("ops.cuh", 2)
    );
    let used = kernel.expansion.as_ref().unwrap();
    assert_eq!((used.file.as_str(), used.line), ("a.cu", 4));
    let includes: Vec<(&str, Option<&str>)> = project.files[0]
        .includes
        .iter()
        .map(|include| (include.name.as_str(), include.file.as_deref()))
        .collect();
    assert_eq!(
        includes,
        [("cuda_runtime.h", None), ("ops.cuh", Some("ops.cuh"))]
    );
}

#[test]
fn template_arguments_of_launches() {
    let project = read(&[(
        "a.cu",
        "
        template <typename T, int N, bool B = false> __global__ void said(T *x) {}
        template <typename T> __global__ void deduced(const T *x, int n) {}
        template <typename T> __global__ void by_hand(T x) {}
        template __global__ void by_hand<short>(short);
        template <typename T> void launch(T *x) {
            using V = T;
            constexpr int SIZE = 8 * 2;
            said<V, SIZE><<<1, SIZE>>>(x);
            deduced<<<1, 2, 3, 0>>>((const T *)x, 1);
        }
        void start(void *x, int dtype) {
            if (dtype == 0) launch((float *)x); else launch<__half>(static_cast<__half *>(x));
        }
        ",
    )]);
    assert_eq!(
        instances(&project, "said"),
        ["__half, (8 * 2), false", "float, (8 * 2), false"]
            .map(|text| text.replace(['(', ')'], ""))
    );
    assert_eq!(instances(&project, "deduced"), ["__half", "float"]);
    assert_eq!(instances(&project, "by_hand"), ["short"]);
    let launch = &project.files[0].launches[1];
    assert_eq!(
        (launch.kernel.as_str(), launch.function.as_str()),
        ("deduced", "launch")
    );
    assert_eq!(
        (
            launch.grid.as_str(),
            launch.block.as_str(),
            launch.shared.as_str()
        ),
        ("1", "2", "3")
    );
    assert_eq!(launch.stream.as_deref(), Some("0"));
    assert_eq!(launch.instances.len(), 2);
    assert_eq!(launch.arguments, ["(const T *)x", "1"]);
}

#[test]
fn dispatch_by_switches_and_pointers() {
    let project = read(&[(
        "a.cu",
        "
        #define BOOL_SWITCH(C, NAME, ...) [&] { if (C) { constexpr bool NAME = true; return __VA_ARGS__(); } \\
            else { constexpr bool NAME = false; return __VA_ARGS__(); } }()
        template <class Traits, bool A, bool B> __global__ void k(int n) {}
        template <int N> struct Traits {};
        template <int N> void launch(bool a, bool b) {
            using Traits = Traits<N>;
            BOOL_SWITCH(a, A, [&] { BOOL_SWITCH(b, B, [&] {
                auto kernel = &k<Traits, A, B>;
                kernel<<<1, 1>>>(0);
            }); });
        }
        void one() { launch<1>(true, false); }
        void two(int n) { switch (n) { case 2: launch<2>(true, false); break; default: launch<3>(false, false); } }
        __global__ void p() {}
        __global__ void q() {}
        typedef void (*fn)();
        fn pick(int n) { return n ? p : q; }
        void three(int n) { fn f = pick(n); f<<<1, 1>>>(); }
        void four() { void *a[1]; cudaLaunchKernel((void *)p, 1, 2, a, 3, 0); }
        ",
    )]);
    assert_eq!(instances(&project, "k").len(), 12);
    assert!(instances(&project, "k").contains(&"Traits<3>, true, false".to_string()));
    let launches = &project.files[0].launches;
    let of = |function: &str| -> Vec<&str> {
        let found = launches.iter().filter(|launch| launch.function == function);
        found.map(|launch| launch.kernel.as_str()).collect()
    };
    assert_eq!(of("launch"), ["k"]);
    assert_eq!(of("three"), ["p", "q"]);
    assert_eq!(of("four"), ["p"]);
    let runtime = launches
        .iter()
        .find(|launch| launch.function == "four")
        .unwrap();
    assert_eq!((runtime.grid.as_str(), runtime.shared.as_str()), ("1", "3"));
}

#[test]
fn functions_that_are_reached() {
    let project = read(&[(
        "a.cu",
        "
        __device__ float leaf(float x) { return x; }
        template <int N> __device__ float dot(float x) { return leaf(x); }
        template <int N> struct traits { static constexpr float (*dot_function)(float) = dot<N>; };
        struct Vec { float x; __device__ float load() { return leaf(x); } };
        __host__ __device__ int both(int x) { return x; }
        void host() { both(1); }
        __global__ void a(float *x) { x[0] = traits<1>::dot_function(x[1]); }
        __global__ void b(Vec v) { v.load(); both(2); }
        ",
    )]);
    assert_eq!(kernel(&project, "a").reaches, ["dot", "leaf"]);
    assert_eq!(kernel(&project, "b").reaches, ["Vec::load", "both", "leaf"]);
    let host = project.files[0]
        .functions
        .iter()
        .find(|function| function.name == "host")
        .unwrap();
    assert!(!host.device);
    assert_eq!(host.calls, ["both"]);
}

#[test]
fn the_build_script_says_macros_and_folders() {
    let project = read(&[
        (
            "build.rs",
            "fn main() { let mut b = bindgen_cuda::Builder::default().kernel_paths(vec![\"k/a.cu\"]).arg(\"-Ik/inc\");\n\
             if cap >= 80 { b = b.arg(\"-DNEW\"); } if other() { b = b.arg(\"-DNO\"); } }",
        ),
        ("k/inc/deep/x.cuh", "#pragma once\n#ifdef NEW\n__global__ void new_one() {}\n#endif\n"),
        ("k/a.cu", "#include \"deep/x.cuh\"\n#include <deep/x.cuh>\n#ifdef NO\n__global__ void no() {}\n#endif\n"),
        ("src/lib.rs", "extern \"C\" { fn start(); fn other(); }\n"),
        ("k/b.cu", "extern \"C\" void start() {}\n"),
    ]);
    let names: Vec<&str> = project.files[0]
        .kernels
        .iter()
        .map(|kernel| kernel.name.as_str())
        .collect();
    assert_eq!(names, ["new_one"]);
    assert_eq!(project.files[0].kernels[0].place.file, "k/inc/deep/x.cuh");
    assert_eq!(
        project.files.len(),
        2,
        "headers that are included are no files of their own"
    );
    assert_eq!(project.builds[0].builder, "bindgen_cuda");
    let uses: Vec<&str> = project
        .rust
        .iter()
        .map(|found| found.what.as_str())
        .collect();
    assert_eq!(uses, ["extern fn start"]);
}

#[test]
fn headers_with_kernels_that_nobody_includes() {
    let project = read(&[("a.cuh", "__global__ void k() {}\n"), ("b.cuh", "int x;\n")]);
    assert_eq!(project.files.len(), 1);
    assert_eq!(project.files[0].path, "a.cuh");
}

#[test]
fn places_are_those_of_the_original() {
    let text =
        "\n#define N 4\n  /* é */ __global__ void k(int n) { int m = N; helper(m,\n  n); }\n";
    let project = read(&[("a.cu", text)]);
    let place = &kernel(&project, "k").place;
    assert_eq!((place.line, place.column), (3, 27));
}
