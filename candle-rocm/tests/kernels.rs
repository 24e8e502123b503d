//! What launchers declare against what device files define.

use candle_rocm::{ops, DeclaredKernel, Family};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

/// Kernels of a family with the types of their parameters, `*` for any address.
type Kernels = BTreeMap<String, Vec<String>>;

/// The kernels that sources define once macros are expanded, by the C++ compiler that hip-sim takes, too. Headers guard
/// themselves, so one run of it does for all.
fn defined(sources: &[String]) -> Vec<Kernels> {
    const BETWEEN: &str = "\nbetween_two_sources\n";
    let compiler = std::env::var_os("HIP_SIM_CXX").unwrap_or_else(|| "c++".into());
    let mut preprocessor = Command::new(compiler)
        // No arch has every kernel, but one by two names: waves of 32, and all matrix instructions on small floats.
        .args(["-D__gfx950__", "-D__gfx1201__", "-D__GFX12__"])
        .args(["-E", "-P", "-w", "-x", "c++", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a C++ compiler");
    let mut stdin = preprocessor.stdin.take().unwrap();
    let writer = std::thread::spawn({
        let text = sources.join(BETWEEN);
        move || stdin.write_all(text.as_bytes())
    });
    let output = preprocessor.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(BETWEEN.trim())
        .map(|source| source.split("extern \"C\"").skip(1).map(kernel).collect())
        .collect()
}

/// Name and types of what begins with `… void name(type name, …) {`.
fn kernel(text: &str) -> (String, Vec<String>) {
    let (_, signature) = text.split_once(" void ").expect("a kernel's name");
    let (name, parameters) = signature.split_once('(').expect("its parameters");
    let mut depth = 0;
    let mut types = vec![String::new()];
    for c in parameters.chars() {
        match c {
            ')' if depth == 0 => break,
            ',' if depth == 0 => {
                types.push(String::new());
                continue;
            }
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            _ => {}
        }
        types.last_mut().unwrap().push(c);
    }
    let name_of_type = |parameter: &String| {
        if parameter.contains('*') {
            return "*".to_string();
        }
        let (of, _) = parameter.trim().rsplit_once(' ').expect("type and name");
        of.trim().to_string()
    };
    (
        name.trim().to_string(),
        types.iter().map(name_of_type).collect(),
    )
}

fn declared(kernels: &[&DeclaredKernel]) -> Kernels {
    let types = |kernel: &DeclaredKernel| {
        let arguments = kernel.arguments.iter();
        arguments
            .map(|argument| argument.name.to_string())
            .collect()
    };
    kernels
        .iter()
        .map(|kernel| (kernel.name.clone(), types(kernel)))
        .collect()
}

#[test]
fn what_is_declared_is_what_device_files_define() {
    let kernels = ops::kernels();
    let sources: Vec<String> = Family::ALL.iter().map(|f| f.source().to_string()).collect();
    for (family, defined) in Family::ALL.iter().zip(defined(&sources)) {
        let of: Vec<_> = kernels.iter().filter(|k| k.family == *family).collect();
        let declared = declared(&of);
        assert_eq!(declared.len(), of.len(), "{family:?} declares a name twice");
        for (name, types) in &declared {
            assert_eq!(
                defined.get(name),
                Some(types),
                "{name}, declared as a kernel of {}, and its arguments there",
                family.file_name()
            );
        }
        let unknown: Vec<_> = defined
            .keys()
            .filter(|k| !declared.contains_key(*k))
            .collect();
        assert!(
            unknown.is_empty(),
            "nobody launches {unknown:?} of {family:?}"
        );
    }
}

#[test]
fn parts_have_the_kernels_that_are_declared_to_be_in_them() {
    let kernels = ops::kernels();
    for family in Family::ALL {
        let parts = family.parts();
        let of: Vec<_> = kernels.iter().filter(|k| k.family == *family).collect();
        let named: BTreeSet<&str> = of.iter().filter_map(|k| k.part.as_deref()).collect();
        assert_eq!(named, parts, "parts of {family:?}");
        let parts: Vec<&str> = parts.into_iter().collect();
        let sources: Vec<String> = parts.iter().map(|part| family.part(part)).collect();
        if parts.is_empty() {
            continue;
        }
        for (part, defined) in parts.iter().zip(defined(&sources)) {
            let of_part: Vec<_> = of
                .iter()
                .copied()
                .filter(|kernel| kernel.part.as_deref().is_none_or(|of| of == *part))
                .collect();
            assert_eq!(defined, declared(&of_part), "part {part} of {family:?}");
        }
    }
}

#[test]
fn arguments_have_the_sizes_of_their_types() {
    let mut sizes = BTreeMap::new();
    for kernel in ops::kernels() {
        for argument in &kernel.arguments {
            let known = sizes.insert((kernel.family, argument.name), argument.bytes);
            assert!(
                known.is_none_or(|bytes| bytes == argument.bytes),
                "{} of {}",
                argument.name,
                kernel.name
            );
        }
    }
    for (family, name, bytes) in [
        (Family::Fill, "*", 8),
        (Family::Fill, "f8e4m3", 1),
        (Family::Fill, "Dims", 36),
        (Family::Rand, "double", 8),
        (Family::Norm, "Shape", 32),
        (Family::AttentionTiled, "Shape", 208),
    ] {
        assert_eq!(sizes[&(family, name)], bytes, "{name} of {family:?}");
    }
}
