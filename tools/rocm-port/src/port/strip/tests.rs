use super::*;

/// What is left, without blanks at the ends of lines and without empty lines.
fn left(source: &str) -> String {
    let stripped = strip(source);
    assert_eq!(
        stripped.text.matches('\n').count(),
        source.matches('\n').count(),
        "lines stay:\n{}",
        stripped.text
    );
    let lines = stripped.text.lines().map(str::trim_end);
    lines
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn host_functions_go_and_device_code_stays() {
    let source = "\
template <typename T, int N = (1 > 2)> __global__ void __launch_bounds__(256) k(T* x) { x[0] = N; }
static inline int host(int a) { return a; }
namespace a { namespace b {
__device__ __forceinline__ float f(float x);
void launch(float* x, cudaStream_t stream) {
  if (x) { k<float><<<dim3(1), 256, 0, stream>>>(x); }
}
} }
extern \"C\" {
void two(int n);
__global__ void c_name(int n) {}
}
extern \"C\" void one(int n) {
  k<half><<<n, 1>>>(nullptr);
}
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__constant__ float table[4] = {1, 2, 3, 4};
static_assert(sizeof(int) == 4, \"int\");
template void launch_it<float>(float*);
";
    assert_eq!(
        left(source),
        "\
template <typename T, int N = (1 > 2)> __global__ void __launch_bounds__(256) k(T* x) { x[0] = N; }
namespace a { namespace b {
__device__ __forceinline__ float f(float x);
} }
extern \"C\" {
__global__ void c_name(int n) {}
}
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__constant__ float table[4] = {1, 2, 3, 4};
static_assert(sizeof(int) == 4, \"int\");"
    );
    assert_eq!(
        strip(source).host,
        ["host", "launch", "two", "one", "launch_it"]
    );
}

#[test]
fn types_of_the_host_go_with_what_uses_them() {
    let source = "\
struct Params { float* x; int n; };
struct LaunchParams { Params p; cudaStream_t stream; };
using Function = std::function<void(LaunchParams&)>;
Function registered;
struct Op { __device__ float operator()(float x) const { return x; } };
enum class Kind { A, B };
typedef float value_t;
typedef float (*dequantize_t)(const void*, int);
";
    assert_eq!(
        left(source),
        "\
struct Params { float* x; int n; };
struct Op { __device__ float operator()(float x) const { return x; } };
enum class Kind { A, B };
typedef float value_t;
typedef float (*dequantize_t)(const void*, int);"
    );
}

#[test]
fn macros_that_make_functions_lose_the_host_part() {
    let source = "\
#define INLINE static __device__ inline
INLINE float g(float x) { return x; }
#define OP(T, NAME) \\
  extern \"C\" __global__ void NAME(T* x) { x[0] = 0; } \\
  extern \"C\" void run_##NAME(T* x) { \\
    NAME<<<1, 1>>>(x); \\
  }
OP(float, a)
OP(double, b);
#define CALL(T) k<T><<<1, 1>>>(x)
void host() { CALL(float); }
#define REGISTER(T) void run_##T(Params& p) { launch<T>(p); } static Registrar<T> reg(run_##T);
REGISTER(float);
";
    assert_eq!(
        left(source),
        "\
#define INLINE static __device__ inline
INLINE float g(float x) { return x; }
#define OP(T, NAME) \\
  extern \"C\" __global__ void NAME(T* x) { x[0] = 0; } \\
  \\
\\
OP(float, a)
OP(double, b);
#define CALL(T) k<T><<<1, 1>>>(x)
#define REGISTER(T)
REGISTER(float);"
    );
}

#[test]
fn directives_inside_of_host_functions_stay() {
    let source = "\
#ifdef A
void f(int a) {
#else
void f(float a) {
#endif
  #define INSIDE 1
  k<<<1, 1>>>(a);
}
__device__ int x;
";
    assert_eq!(
        left(source),
        "#ifdef A\n#else\n#endif\n#define INSIDE 1\n__device__ int x;"
    );
}

#[test]
fn broken_text_is_taken_as_it_is() {
    for source in [
        "void f(",
        "void f() {",
        "}",
        "template <",
        "namespace {",
        "extern \"C\"",
        "#define A(",
        "A(",
        "struct",
    ] {
        strip(source);
    }
    assert_eq!(left("__global__ void k() {"), "__global__ void k() {");
}
