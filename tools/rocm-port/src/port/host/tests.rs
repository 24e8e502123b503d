use super::*;
use crate::model::{Argument, PortedKernel};

/// A unit with these entries: name, kernel, template arguments, and arguments as C++ types.
fn unit(entries: &[(&str, &str, &[&str], &[&str])]) -> PortedUnit {
    let strings = |list: &[&str]| list.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    let kernels = entries
        .iter()
        .map(|(entry, kernel, template, arguments)| PortedKernel {
            entry: entry.to_string(),
            kernel: kernel.to_string(),
            template: strings(template),
            arguments: arguments
                .iter()
                .enumerate()
                .map(|(at, kind)| Argument {
                    name: format!("a{at}"),
                    kind: crate::port::types::argument(kind, &[]),
                })
                .collect(),
            max_block: None,
        });
    PortedUnit {
        name: "u".into(),
        source: String::new(),
        kernels: kernels.collect(),
    }
}

fn translated(text: &str, unit: &PortedUnit) -> Launchers {
    let launchers = launchers(text, "k/u.cu", unit, "u.hip", &[]);
    if let Err(error) = syn::parse_file(&launchers.source) {
        panic!("{error}\n{}", launchers.source);
    }
    launchers
}

/// The body of a function, without indentation and comments.
fn body(launchers: &Launchers, name: &str) -> String {
    let range = function_range(&launchers.source, name)
        .unwrap_or_else(|| panic!("{name} in {launchers:?}"));
    let lines = launchers.source[range].lines();
    let lines = lines
        .skip_while(|line| !line.starts_with("pub unsafe"))
        .skip(1);
    let lines = lines
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_dispatch_over_dtypes_becomes_conditions() {
    let arguments: &[&str] = &["float*", "const int", "int64_t"];
    let unit = unit(&[
        ("rocm_k_f32_true", "ns::k", &["float", "true"], arguments),
        (
            "rocm_k_f16_true",
            "ns::k",
            &["half", "true"],
            &["half*", "const int", "int64_t"],
        ),
        ("rocm_k_f32_false", "ns::k", &["float", "false"], arguments),
    ]);
    let text = "
extern \"C\" void run(void *x, int32_t heads, int64_t tokens, bool neox, uint32_t dtype) {
  dim3 grid(tokens);
  dim3 block(std::min(heads * 64, 512));
  const cudaStream_t stream = 0;
  const bool is_neox = neox;
  if (is_neox) {
    if (dtype == 0) { ns::k<float, true><<<grid, block, 0, stream>>>(reinterpret_cast<float*>(x), heads, tokens); ; }
    else if (dtype == 1) { ns::k<__half, true><<<grid, block, 0, stream>>>(reinterpret_cast<__half*>(x), heads, tokens); }
  } else {
    ns::k<float, false><<<(tokens + 255) / 256, 256, heads * sizeof(float)>>>((float*)x, heads, tokens);
  }
}
";
    let launchers = translated(text, &unit);
    assert_eq!(launchers.refused, []);
    let launch = |entry: &str, shape: &str| {
        format!(
            "{{\nlet args = Args::new()\n.value(&x)\n.i32(heads)\n.i64(tokens);\nunsafe {{ launch(SOURCE, \"{entry}\", \
             {shape}, &args)? }};\n}}\n"
        )
    };
    let expected = format!(
        "let x = x.address()?;\nlet grid: [u32; 3] = [tokens as u32, 1, 1];\n\
         let block: [u32; 3] = [heads.wrapping_mul(64).min(512) as u32, 1, 1];\nlet is_neox: bool = neox;\n\
         if is_neox {{\nif dtype == 0 {{\n{}}}\nelse if dtype == 1 {{\n{}}}\n}}\nelse {{\n{}}}\nOk(())\n}}",
        launch("rocm_k_f32_true", "grid, block, 0"),
        launch("rocm_k_f16_true", "grid, block, 0"),
        launch(
            "rocm_k_f32_false",
            "[(tokens.wrapping_add(255) / 256) as u32, 1, 1], [256, 1, 1], (heads as u64).wrapping_mul(4) as u32"
        ),
    );
    assert_eq!(body(&launchers, "run"), expected);
}

#[test]
fn templates_of_host_code_are_followed() {
    let unit = unit(&[
        (
            "rocm_k_f32_128",
            "k",
            &["float", "128"],
            &["float*", "unsigned"],
        ),
        (
            "rocm_k_f32_64",
            "k",
            &["float", "64"],
            &["float*", "unsigned"],
        ),
    ]);
    let text = "
constexpr int BLOCK = 64;
static inline int div_up(int a, int b) { return (a + b - 1) / b; }
template <typename T, int N> void launch_it(T* x, unsigned n, cudaStream_t stream) {
  auto kernel = &k<T, N>;
  if constexpr (N > 100) { kernel<<<dim3(1, n), N, 0, stream>>>(x, n); }
  else { kernel<<<div_up(n, N), dim3{N, 2}>>>(x, n); }
}
extern \"C\" void run(float* x, unsigned n, int wide, cudaStream_t stream) {
  [&] {
    if (wide) { constexpr bool W = true; return [&] { launch_it<float, W ? 128 : 64>(x, n, stream); }(); }
    else { launch_it<float, BLOCK>(x, n, stream); }
  }();
  switch (n) { case 1: case 2: { launch_it<float, BLOCK>(x, n, stream); break; } case 3: return; default: break; }
}
";
    let launchers = translated(text, &unit);
    assert_eq!(launchers.refused, []);
    let run = body(&launchers, "run");
    assert!(
        run.contains("launch_it_f32_128(x, n, core::ptr::null())?;")
            || run.contains("launch_it_f32_128(x, n, stream)?;"),
        "{run}"
    );
    assert!(run.contains("match n {\n1 | 2 => {\nlaunch_it_f32_64(x, n, stream)?;\n}\n3 => {\nreturn Ok(());\n}\n_ => {\n}"), "{run}");
    let wide = body(&launchers, "launch_it_f32_128");
    assert!(
        wide.contains("\"rocm_k_f32_128\", [1, n, 1], [128, 1, 1], 0"),
        "{wide}"
    );
    let narrow = body(&launchers, "launch_it_f32_64");
    assert!(
        narrow.contains("[div_up(n as i32, 64)? as u32, 1, 1], [64, 2, 1]"),
        "{narrow}"
    );
    let div_up = body(&launchers, "div_up");
    assert!(
        div_up
            .starts_with("return Ok(divided(a.wrapping_add(b).wrapping_sub(1).checked_div(b))?);"),
        "{div_up}"
    );
}

#[test]
fn what_is_not_understood_is_refused_with_its_reason() {
    let unit = unit(&[("rocm_k", "k", &[], &["int*"])]);
    let text = "
extern \"C\" void a(int* x) { int* y; cudaMalloc(&y, 4); k<<<1, 1>>>(y); }
void helper(int* x) { k<<<x[0], 1>>>(x); }
extern \"C\" void b(int* x) { helper(x); }
extern \"C\" void c(int* x) { missing<<<1, 1>>>(x); }
extern \"C\" void d(int* x) { for (int i = 0; i < 3; ++i) { k<<<1, i + 1>>>(x + i); } }
";
    let launchers = translated(text, &unit);
    assert_eq!(launchers.functions, ["d"]);
    let refused = |name: &str| -> &str {
        let found = launchers
            .refused
            .iter()
            .find(|(refused, _)| refused == name);
        &found.unwrap_or_else(|| panic!("{name}")).1.reason
    };
    assert!(refused("a").contains("cudaMalloc"));
    assert!(refused("helper").contains("x[0]"));
    assert!(refused("b").contains("`helper`"));
    assert!(refused("c").contains("missing<>"));
    let body = body(&launchers, "d");
    assert!(
        body.contains("while i < 3 {") && body.contains("i = i.wrapping_add(1);"),
        "{body}"
    );
    assert!(
        body.contains("x.wrapping_byte_offset((i as i64).wrapping_mul(4) as isize)"),
        "{body}"
    );
}

#[test]
fn signatures_are_those_that_rust_declares() {
    let unit = unit(&[("rocm_k", "k", &[], &["int*", "int64_t", "bool"])]);
    let text = "
extern \"C\" int run(int* x, int64_t type, bool flag, cudaStream_t s) { k<<<1, 1>>>(x, type, flag); return 0; }";
    let declared = Declared {
        name: "run".into(),
        parameters: ["*mut c_void", "c_int", "u8", "CUstream"]
            .map(String::from)
            .into(),
        result: Some("u32".into()),
    };
    let launchers = launchers(text, "k/u.cu", &unit, "u.hip", &[declared]);
    let signature =
        "fn run(x: *mut c_void, type_: c_int, flag: u8, s: *const c_void) -> Result<u32>";
    assert!(launchers.source.contains(signature), "{}", launchers.source);
    let body = body(&launchers, "run");
    let head = "let x = x as *const c_void;\nlet type_ = type_ as i64;\nlet flag = flag != 0;\n";
    assert!(body.starts_with(head), "{body}");
    assert!(
        body.contains("return Ok(0);") && body.contains("Ok(result as u32)"),
        "{body}"
    );
}

#[test]
fn hostile_texts_end() {
    let unit = unit(&[("rocm_k", "k", &[], &["int*"])]);
    let brackets = ("(".repeat(3000), ")".repeat(3000));
    let deep = format!(
        "extern \"C\" void a(int* x) {{ k<<<{}1{}, 1>>>(x); }}",
        brackets.0, brackets.1
    );
    let blocks = ("if (x) {".repeat(3000), "}".repeat(3000));
    let nested = format!(
        "extern \"C\" void a(int* x) {{ {} k<<<1, 1>>>(x); {} }}",
        blocks.0, blocks.1
    );
    let broken = "extern \"C\" void a(int* x) { k<<<";
    let endless = "using A = B<A>; using B = A; extern \"C\" void a(A* x) { k<<<1, 1>>>(x); }";
    for text in [
        deep.as_str(),
        &nested,
        broken,
        "template <",
        "void f() { k<<<1,1>>>(); }",
        endless,
    ] {
        translated(text, &unit);
    }
}
