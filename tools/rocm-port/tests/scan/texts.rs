//! Texts that nobody meant well with.

use super::{folder, open, scan, scan_files};
use proptest::prelude::*;
use rocm_port::model::Scan;
use rocm_port::parse::Options;

fn raw() -> Options {
    Options {
        raw: true,
        ..Options::default()
    }
}

fn names(scan: &Scan) -> Vec<&str> {
    scan.kernels
        .iter()
        .map(|kernel| kernel.kernel.as_str())
        .collect()
}

#[test]
fn broken_text_keeps_the_rest() {
    let found = scan("__global__ void a() {}\nint (((= ;;;\n__global__ void b() {}\n");
    assert!(names(&found).contains(&"a"));
    assert!(found
        .findings
        .iter()
        .any(|finding| finding.rule == "R1" && finding.place.line > 1));
}

#[test]
fn line_ends_of_windows() {
    let found = scan("__global__ void a()\r\n{\r\n  __syncwarp();\r\n}\r\n");
    assert_eq!(names(&found), ["a"]);
    assert_eq!(found.findings[0].place.line, 3);
    let found = scan_files(
        &[(
            "a.cu",
            b"__global__ void a()\r\n{\r\n  __syncwarp();\r\n}\r\n",
        )],
        &raw(),
    );
    let place = &found
        .findings
        .iter()
        .find(|finding| finding.rule == "W4")
        .unwrap()
        .place;
    assert_eq!((place.line, place.column), (3, 3));
}

#[test]
fn bytes_that_are_no_text() {
    let found = scan_files(
        &[("a.cu", b"// \xff\xfe\n__global__ void a() {}\n")],
        &Options::default(),
    );
    assert_eq!(names(&found), ["a"]);
    let found = scan_files(&[("a.cu", b"\xff\xfe__global__ void a() {}\n\0\0")], &raw());
    assert_eq!(found.project.files.len(), 1);
}

#[test]
fn deep_nesting() {
    for (open, close) in [
        ("{", "}"),
        ("(", ")"),
        ("[", "]"),
        ("a<", ">"),
        ("if (x) ", ""),
    ] {
        let text = format!(
            "__global__ void a() {{ {}{} }}\n__global__ void b() {{}}",
            open.repeat(20_000),
            close.repeat(20_000)
        );
        let found = scan_files(&[("a.cu", text.as_bytes())], &raw());
        assert_eq!(found.project.files.len(), 1);
    }
    let namespaces = |depth: usize| {
        "namespace a { ".repeat(depth) + "__global__ void k() {}" + &"}".repeat(depth)
    };
    let found = scan_files(&[("a.cu", namespaces(500).as_bytes())], &raw());
    assert_eq!(found.kernels.len(), 1);
    let found = scan_files(&[("a.cu", namespaces(5_000).as_bytes())], &raw());
    let problem = found
        .findings
        .iter()
        .find(|finding| finding.message.contains("nested"));
    assert!(problem.unwrap().message.ends_with("1 kernels are lost"));
}

#[test]
fn includes_that_never_end() {
    let found = scan_files(
        &[
            ("a.cu", b"#include \"b.h\"\n__global__ void a() {}\n"),
            ("b.h", b"#include \"a.cu\"\n"),
        ],
        &Options::default(),
    );
    assert!(found.findings.iter().any(|finding| finding.rule == "R1"));
}

#[test]
fn macros_that_explode() {
    let mut text = String::from("#define A0 x x x x x x x x x x\n");
    for level in 1..10 {
        let times = format!(" A{}", level - 1).repeat(10);
        text += &format!("#define A{level}{times}\n");
    }
    text += "__global__ void a() { }\nint y = A9;\n";
    let found = scan(&text);
    let problem = found
        .findings
        .iter()
        .find(|finding| finding.rule == "R1")
        .unwrap();
    assert!(
        problem.message.contains("not preprocessed"),
        "{}",
        problem.message
    );
    assert_eq!(names(&found), ["a"]);
}

#[test]
fn includes_of_what_is_not_the_projects() {
    let outside = folder(&[("secret.h", b"__global__ void secret() {}\n")]);
    let inside = folder(&[(
        "p/a.cu",
        b"#include \"../../x/secret.h\"\n__global__ void a() {}\n",
    )]);
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    let text = format!("#include \"../../{name}/secret.h\"\n__global__ void a() {{}}\n");
    std::fs::write(inside.path().join("p/a.cu"), &text).unwrap();
    let found =
        rocm_port::rules::scan(&open(&inside.path().join("p")), &Options::default()).unwrap();
    assert_eq!(names(&found), ["a"]);
    let text = format!(
        "#include \"{}/secret.h\"\n__global__ void a() {{}}\n",
        outside.path().display()
    );
    std::fs::write(inside.path().join("p/a.cu"), &text).unwrap();
    let found =
        rocm_port::rules::scan(&open(&inside.path().join("p")), &Options::default()).unwrap();
    assert_eq!(names(&found), ["a"]);
}

#[test]
fn without_a_compiler_it_is_said() {
    let found = scan_files(&[("a.cu", b"__global__ void a() {}\n")], &raw());
    assert_eq!(names(&found), ["a"]);
    assert!(found.findings[0].message.contains("not preprocessed"));
    let options = Options {
        compiler: Some("/no/such/compiler".into()),
        ..Options::default()
    };
    let found = scan_files(&[("a.cu", b"__global__ void a() {}\n")], &options);
    assert_eq!(names(&found), ["a"]);
    assert!(found.findings[0].message.contains("not preprocessed"));
}

/// Pieces that CUDA is made of.
fn piece() -> impl Strategy<Value = String> {
    let pieces = [
        "__global__",
        "void",
        "k",
        "(",
        ")",
        "{",
        "}",
        "<",
        ">",
        "<<<",
        ">>>",
        "template",
        "typename",
        "T",
        "int",
        ",",
        ";",
        "=",
        "float",
        "*",
        "&",
        "x",
        "__shared__",
        "[",
        "]",
        "32",
        "asm(\"",
        "mma.sync",
        "\")",
        ":",
        "::",
        "\"",
        "'",
        "//",
        "/*",
        "*/",
        "\n",
        "#define",
        "#if",
        "#include \"a.cu\"",
        "__launch_bounds__(",
        "constexpr",
        "using",
        "namespace",
        "struct",
        "operator",
        "[&]",
        "auto",
        "kernel",
        "0xffffffff",
        "__shfl_sync",
        "é",
        "R\"(",
        "\\",
        "extern \"C\"",
        "cudaLaunchKernel",
        "static_cast<",
        "__attribute__((",
        "decltype(",
        "...",
        "@p",
        "%laneid",
    ];
    prop_oneof![
        8 => prop::sample::select(pieces.to_vec()).prop_map(String::from),
        1 => "\\PC{0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gives_an_answer(pieces in prop::collection::vec(piece(), 0..120)) {
        let text = pieces.join(" ");
        let found = scan_files(&[("a.cu", text.as_bytes())], &raw());
        prop_assert_eq!(found.project.files.len(), 1);
        for finding in &found.findings {
            prop_assert!(finding.place.line >= 1 && finding.place.column >= 1);
        }
    }

    #[test]
    fn any_rust_gives_an_answer(text in "\\PC{0,200}") {
        let folder = folder(&[("build.rs", text.as_bytes()), ("src/lib.rs", text.as_bytes())]);
        let sources = open(folder.path());
        sources.builds();
        sources.rust_uses();
    }
}
