//! What there is to know of a compiler's target: its generic processor, and the version of its objects.

/// What `CANDLE_ROCM_ARCHS=common` stands for: the GPUs that most have, in few objects. Those of RDNA run on all
/// processors of their generation.
#[allow(dead_code)] // Of the build only.
pub const COMMON: &[&str] = &[
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx10-3-generic",
    "gfx11-generic",
    "gfx12-generic",
];

/// The generic processors and their members: an object for the former runs on all of the latter, from ROCm 6.3 on. From
/// LLVM's guide (<https://llvm.org/docs/AMDGPUUsage.html#amdgpu-generic-processor-table>).
const GENERIC: &[(&str, &[&str])] = &[
    (
        "gfx9-generic",
        &["gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"],
    ),
    ("gfx9-4-generic", &["gfx942", "gfx950"]),
    (
        "gfx10-1-generic",
        &["gfx1010", "gfx1011", "gfx1012", "gfx1013"],
    ),
    (
        "gfx10-3-generic",
        &[
            "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036",
        ],
    ),
    (
        "gfx11-generic",
        &[
            "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153",
        ],
    ),
    ("gfx12-generic", &["gfx1200", "gfx1201"]),
];

/// The generic processor whose objects run on a processor such as `gfx1103`; gfx908 and gfx90a have none.
#[allow(dead_code)] // Not of the build.
pub fn generic_of(processor: &str) -> Option<&'static str> {
    let row = GENERIC
        .iter()
        .find(|(_, members)| members.contains(&processor));
    row.map(|(generic, _)| *generic)
}

/// Asks the compiler for the version of objects that the target needs: ROCm reads the newer one, which generic
/// processors need, from 6.3 on.
pub fn object_version(arch: &str) -> &'static str {
    let processor = arch.split(':').next().unwrap_or(arch);
    match processor.ends_with("-generic") {
        true => "-mcode-object-version=6",
        false => "-mcode-object-version=5",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_the_generic_one_of_their_instructions() {
        for (processor, generic) in [
            ("gfx906", Some("gfx9-generic")),
            ("gfx908", None),
            ("gfx90a", None),
            ("gfx942", Some("gfx9-4-generic")),
            ("gfx950", Some("gfx9-4-generic")),
            ("gfx1012", Some("gfx10-1-generic")),
            ("gfx1036", Some("gfx10-3-generic")),
            ("gfx1103", Some("gfx11-generic")),
            ("gfx1153", Some("gfx11-generic")),
            ("gfx1200", Some("gfx12-generic")),
            ("gfx1250", None),
            ("gfx11-generic", None),
        ] {
            assert_eq!(generic_of(processor), generic, "{processor}");
        }
    }

    #[test]
    fn objects_of_generic_processors_are_of_the_newer_version() {
        assert_eq!(
            object_version("gfx942:sramecc+:xnack-"),
            "-mcode-object-version=5"
        );
        assert_eq!(object_version("gfx11-generic"), "-mcode-object-version=6");
        assert_eq!(
            object_version("gfx9-4-generic:xnack-"),
            "-mcode-object-version=6"
        );
    }

    #[test]
    fn what_is_common_covers_the_generations_once() {
        for processor in [
            "gfx90a", "gfx942", "gfx950", "gfx1032", "gfx1101", "gfx1151", "gfx1201",
        ] {
            let generic = generic_of(processor);
            let covering = COMMON
                .iter()
                .filter(|&&arch| arch == processor || Some(arch) == generic);
            assert_eq!(covering.count(), 1, "{processor}");
        }
    }
}
