//! Sources become one translation unit each.

use candle_rocm_kernels::{embedded, embedded_archs, translation_unit, Family, SpliceError};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn family_sources_have_no_local_includes_left() {
    for family in Family::ALL {
        let source = family.source();
        assert!(
            source.contains(&format!("#line 1 \"{}\"", family.file_name())),
            "{family:?} is not the source of {}",
            family.file_name()
        );
        for line in source.lines() {
            assert!(
                !line.trim_start().starts_with("#include"),
                "{family:?}: {line}"
            );
        }
    }
}

#[test]
fn every_family_has_its_own_file_and_source() {
    let files: BTreeSet<_> = Family::ALL.iter().map(|f| f.file_name()).collect();
    let sources: BTreeSet<_> = Family::ALL.iter().map(|f| f.source()).collect();
    assert_eq!(files.len(), Family::ALL.len());
    assert_eq!(sources.len(), Family::ALL.len());
}

#[test]
fn headers_are_spliced_once_and_lines_keep_their_numbers() {
    let source = "#include \"device.h\"\n  #  include \"device.h\" // again\nint third;\n";
    let unit = translation_unit("mine.hip", source).unwrap();
    assert_eq!(unit.matches("#line 1 \"device.h\"").count(), 1);
    assert!(unit.contains("#line 2 \"mine.hip\"\n#line 3 \"mine.hip\"\nint third;\n"));
    assert!(!unit.contains("#pragma once"));
}

#[test]
fn headers_beside_the_file_come_first() {
    let unit = translation_unit("quantized/mine.hip", "#include \"blocks.h\"\n").unwrap();
    assert!(unit.contains("#line 1 \"quantized/blocks.h\""));
    let unit = translation_unit("mine.hip", "#include \"quantized/blocks.h\"\n").unwrap();
    assert!(unit.contains("#line 1 \"quantized/blocks.h\""));
}

/// Device files below `folder`, relative to `hip`, with their texts.
fn device_files(folder: &Path, files: &mut BTreeMap<String, String>) {
    let hip = Path::new(env!("CARGO_MANIFEST_DIR")).join("hip");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            device_files(&path, files);
            continue;
        }
        let name = path.strip_prefix(&hip).unwrap().to_string_lossy();
        let name = name.replace('\\', "/");
        files.insert(name, std::fs::read_to_string(&path).unwrap());
    }
}

fn includes(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut depth = 0;
    text.lines().filter_map(move |line| {
        let directive = line.trim_start().strip_prefix('#')?.trim_start();
        if directive.starts_with("if") {
            depth += 1;
        } else if directive.starts_with("endif") {
            depth -= 1;
        }
        let name = directive.strip_prefix("include")?.trim().trim_matches('"');
        Some((depth, name))
    })
}

/// Each header is spliced once: within a condition, what it includes would be missing where the condition does not
/// hold.
#[test]
fn headers_under_a_condition_include_nothing() {
    let mut files = BTreeMap::new();
    device_files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("hip"),
        &mut files,
    );
    let mut conditional = 0;
    for (file, text) in &files {
        // A header's own guard is no condition.
        let guards = usize::from(file.ends_with(".h"));
        for (_, name) in includes(text).filter(|(depth, _)| *depth > guards) {
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            let beside = format!("{folder}/{name}");
            let header = files.get(&beside).or_else(|| files.get(name));
            let header = header.unwrap_or_else(|| panic!("{file}: {name}"));
            assert_eq!(includes(header).count(), 0, "{file} includes {name}");
            conditional += 1;
        }
    }
    assert!(conditional >= 3, "the targets of device.h are conditional");
}

#[test]
fn an_unknown_header_is_an_error_with_its_place() {
    let error = translation_unit("mine.hip", "int first;\n#include \"absent.h\"\n").unwrap_err();
    assert_eq!(
        error,
        SpliceError::UnknownHeader {
            file: "mine.hip".into(),
            line: 2,
            include: "absent.h".into()
        }
    );
    assert!(error.to_string().starts_with("mine.hip:2: "), "{error}");
}

#[test]
fn embedded_objects_are_those_asked_for_at_build_time() {
    for family in Family::ALL {
        assert!(embedded(*family, "gfx000").is_none());
        for arch in embedded_archs() {
            let object = embedded(*family, arch).unwrap();
            assert!(object.starts_with(b"\x7fELF"), "{family:?} {arch}");
            let with_features = format!("{arch}:sramecc+:xnack-");
            assert_eq!(embedded(*family, &with_features), Some(object));
        }
    }
}

/// Names of the kernels in each of the sources once macros are expanded, by the C++ compiler that hip-sim takes, too.
/// Headers guard themselves, so one run of it does for all.
fn kernels(sources: &[String]) -> Vec<BTreeSet<String>> {
    const BETWEEN: &str = "\nbetween_two_sources\n";
    let compiler = std::env::var_os("HIP_SIM_CXX").unwrap_or_else(|| "c++".into());
    let mut preprocessor = Command::new(compiler)
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
    let name = |kernel: &str| {
        let (_, signature) = kernel.split_once(" void ").expect("a kernel's name");
        signature.split('(').next().unwrap().trim().to_string()
    };
    text.split(BETWEEN.trim())
        .map(|source| source.split("extern \"C\"").skip(1).map(name).collect())
        .collect()
}

#[test]
fn parts_together_are_the_family() {
    let mut in_parts = 0;
    for family in Family::ALL {
        let parts = family.parts();
        if parts.is_empty() {
            continue;
        }
        in_parts += 1;
        assert!(parts.len() > 1, "{family:?}");
        let sources: Vec<String> = [family.source().to_string(), family.part("")]
            .into_iter()
            .chain(parts.iter().map(|part| family.part(part)))
            .collect();
        let [whole, common, kernels @ ..] = &kernels(&sources)[..] else {
            panic!("{family:?}");
        };
        let mut together = common.clone();
        for (part, kernels) in parts.iter().zip(kernels) {
            assert!(kernels.is_superset(common), "{part} of {family:?}");
            for kernel in kernels.difference(common) {
                assert!(
                    together.insert(kernel.clone()),
                    "{kernel} of {family:?} is in two parts"
                );
            }
        }
        assert_eq!(&together, whole, "{family:?}");
    }
    assert!(in_parts > 0);
}

#[test]
fn lines_of_other_parts_leave_the_numbers_of_lines() {
    let (whole, part) = (Family::Unary.source(), Family::Unary.part("f16"));
    assert_eq!(part.lines().count(), whole.lines().count());
    for (kept, line) in part.lines().zip(whole.lines()) {
        assert!(
            kept == line || kept.is_empty() && line.starts_with("PART("),
            "{line}"
        );
    }
}

#[test]
fn what_is_shared_is_a_header_of_each_module() {
    use candle_rocm_kernels::shared::{self, Shared};

    let header = shared::rope::header();
    assert!(header.contains("struct Rope {\n"), "{header}");
    assert!(
        header.contains("    u32 pairs;\n    u32 half;\n"),
        "{header}"
    );
    assert!(shared::rand::header().contains("u32 k[10][2];\n"));
    let quantized = shared::quantized::header();
    for line in [
        "constexpr u32 K_STEP = 128;\n",
        "struct alignas(8) ActivationScale {\n",
        "    const ActivationScale *scales;\n",
        "    void *y;\n",
    ] {
        assert!(quantized.contains(line), "{line}{quantized}");
    }
    assert_eq!(<[[f32; 3]; 2]>::declare("m"), "float m[2][3]");
    let names: BTreeSet<_> = shared::headers()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(names.contains("shared/dims.h"));
    for family in Family::ALL {
        assert!(
            family.source().contains("#line 1 \"shared/dims.h\""),
            "{family:?}"
        );
    }
}
