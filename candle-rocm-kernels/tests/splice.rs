//! Sources become one translation unit each.

use candle_rocm_kernels::{embedded, embedded_archs, translation_unit, Family, SpliceError};
use std::collections::BTreeSet;
use std::io::Write;
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

/// Names of the kernels in each of the sources once macros are expanded, by the C++ compiler that hip-sim takes, too. Headers guard
/// themselves, so one run of it does for all.
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
fn parts_together_are_the_family_and_have_the_kernels_named_after_them() {
    for family in Family::ALL.iter().filter(|family| family.is_in_parts()) {
        let part_of = |kernel: &String| family.part_of(kernel).expect("a part");
        let whole = &kernels(&[family.source().to_string()])[0];
        let parts: BTreeSet<_> = whole.iter().map(part_of).collect();
        assert!(parts.len() > 1, "{family:?}");
        let sources: Vec<String> = parts.iter().map(|part| family.part(part)).collect();
        for (part, kernels) in parts.iter().zip(kernels(&sources)) {
            let expected = whole
                .iter()
                .filter(|kernel| [*part, ""].contains(&part_of(kernel)));
            assert_eq!(kernels, expected.cloned().collect(), "{part} of {family:?}");
        }
    }
    assert_eq!(Family::Fill.part_of("fill_f32"), None);
    assert_eq!(Family::Unary.part_of("nothing"), Some(""));
}
