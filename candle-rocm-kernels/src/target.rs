//! What there is to know of a compiler's target: the version of its objects, and which targets are common.

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
            let generic = code_object::Processor::named(processor).and_then(|p| p.generic);
            let covering = COMMON
                .iter()
                .filter(|&&arch| arch == processor || Some(arch) == generic);
            assert_eq!(covering.count(), 1, "{processor}");
        }
    }
}
