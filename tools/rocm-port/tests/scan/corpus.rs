//! Crates of the registry: all their kernels are found, and nine of ten go over.

use rocm_port::model::{Project, SourceFile, Verdict};
use rocm_port::parse::Options;
use rocm_port::report::Sums;
use rocm_port::source::{open, Sources};
use std::collections::BTreeSet;
use std::process::Command;

/// Crates, with how many kernels their files bring in (headers count with every file), read for `__CUDA_ARCH__` 890.
const CRATES: &[(&str, usize)] = &[
    ("candle-kernels@0.11.1", 1032),
    ("candle-layer-norm@0.0.1", 1),
    ("candle-rotary@0.0.1", 1),
    ("mistralrs-paged-attn@0.8.1", 48),
    ("mistralrs-core@0.8.1", 20),
    ("mistralrs-quant@0.8.1", 84),
];

/// Counts kernels without a grammar: `__global__` before a `{`, in what the compiler's preprocessor gives for empty
/// files in the place of headers that are not the crate's.
fn counted(sources: &Sources, project: &Project, file: &SourceFile) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let names: BTreeSet<String> = sources
        .cuda
        .iter()
        .chain(&sources.headers)
        .flat_map(|name| {
            let text = sources.read(name).unwrap();
            let lines = text.lines().filter_map(|line| {
                let rest = line.trim().strip_prefix("#include")?.trim();
                Some(rest.get(1..)?.split(['>', '"']).next()?.to_string())
            });
            lines.collect::<Vec<_>>()
        })
        .filter(|name| !name.contains(".."))
        .collect();
    for name in names {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    let compiler = ["g++", "clang++-22", "clang++", "c++"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
        .expect("a C++ compiler");
    // candle's mistral crates add this for GPUs of 8.0 and later.
    let fp8 = project.builds.iter().any(|build| {
        let mut conditional = build.conditional.iter();
        conditional.any(|(_, option)| option == "-DENABLE_FP8")
    });
    let output = Command::new(compiler)
        .args([
            "-E",
            "-P",
            "-w",
            "-x",
            "c++",
            "-std=c++17",
            "-nostdinc",
            "-D__CUDACC__",
            "-DCUDART_VERSION=12040",
        ])
        .args([
            "-DCUDA_VERSION=12040",
            "-D__CUDACC_VER_MAJOR__=12",
            "-D__CUDACC_VER_MINOR__=4",
            "-D__NVCC__",
        ])
        .arg("-D__CUDA_FP8_TYPES_EXIST__")
        .arg(format!("-D__CUDA_ARCH__={}", file.cuda_arch))
        .args(fp8.then_some("-DENABLE_FP8"))
        .arg("-isystem")
        .arg(folder.path())
        .arg(&file.path)
        .current_dir(&sources.root)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.match_indices("__global__")
        .filter(|(at, _)| {
            let rest = &text[*at..];
            let (body, end) = (rest.find('{'), rest.find(';'));
            body.is_some_and(|body| end.is_none_or(|end| body < end))
        })
        .count()
}

#[test]
fn all_kernels_of_the_corpus_are_found() {
    let mut all = Vec::new();
    for (name, expected) in CRATES {
        let sources = open(name).unwrap();
        let options = Options {
            cuda_arch: 890,
            ..Options::default()
        };
        let scan = rocm_port::rules::scan(&sources, &options).unwrap();
        for file in &scan.project.files {
            let found = scan
                .kernels
                .iter()
                .filter(|kernel| kernel.file == file.path)
                .count();
            assert_eq!(
                found,
                counted(&sources, &scan.project, file),
                "{name} {}",
                file.path
            );
            let problems: Vec<_> = file.problems.iter().map(|(_, problem)| problem).collect();
            assert!(problems.is_empty(), "{name} {}: {problems:?}", file.path);
        }
        let sums = Sums::of(&scan.kernels);
        assert_eq!(sums.kernels, *expected, "{name}");
        println!("{name}: {sums:?}, {:.1} %", sums.percent());
        all.extend(scan.kernels);
    }
    let sums = Sums::of(&all);
    println!("all: {sums:?}, {:.1} %", sums.percent());
    // Without CUTLASS, Marlin and matrix instructions in PTX, nine of ten have to go over.
    let hard = all
        .iter()
        .filter(|kernel| kernel.used && matches!(kernel.verdict, Verdict::Mapped { .. }))
        .count();
    let easy = sums.kernels - sums.unused - hard;
    assert!(
        10 * (sums.portable + sums.with_edits) >= 9 * easy,
        "{sums:?}"
    );
}

#[test]
fn instances_of_the_corpus() {
    let read = |name: &str, file: &str| {
        let sources = open(name).unwrap();
        rocm_port::parse::file(&sources, file, &Options::default()).unwrap()
    };
    let instances = |file: &SourceFile, kernel: &str| {
        let kernel = file
            .kernels
            .iter()
            .find(|found| found.name.ends_with(kernel))
            .unwrap();
        kernel.instances.len()
    };
    let rotary = read("candle-rotary@0.0.1", "kernels/rotary.cu");
    assert_eq!(instances(&rotary, "rotary_embedding_kernel"), 6);
    // 14 sizes, 10 combinations of types, four switches.
    let norm = read("candle-layer-norm@0.0.1", "kernels/ln_api.cu");
    assert_eq!(instances(&norm, "ln_fwd_kernel"), 14 * 10 * 16);
    // 16 tiles, with and without a check of bounds.
    let products = read("candle-kernels@0.11.1", "src/mmq_gguf/mmq_instance_q4_k.cu");
    assert_eq!(products.cuda_arch, 610);
    assert_eq!(instances(&products, "mul_mat_q"), 32);
    let gptq = read("mistralrs-quant@0.8.1", "kernels/gptq/q_gemm.cu");
    for bits in [2, 3, 4, 8] {
        assert_eq!(
            instances(&gptq, &format!("gemm_half_q_half_gptq_{bits}bit_kernel")),
            8
        );
    }
}
