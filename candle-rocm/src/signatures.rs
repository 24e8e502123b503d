//! What the kernels of a code object take, against what is declared: looked at when an object is loaded, so that a
//! kernel is refused instead of reading its arguments from the wrong places.

use crate::declared::DeclaredKernel;
use code_object::{CodeObject, Entry, Error, Kind, TargetId};
use std::collections::HashMap;

/// What is known of the kernels of a loaded object.
#[derive(Debug)]
pub(crate) enum Signatures {
    /// The sizes of each kernel's arguments.
    Known(HashMap<String, Vec<usize>>),
    /// Nothing: the object is not for AMD GPUs, as those of hip-sim and hip-on-cuda are not, or of a version that is
    /// newer than the reader. The runtime judges it alone.
    Unknown,
}

impl Signatures {
    /// Reads an object that is to be loaded on a GPU that calls itself `gpu`.
    ///
    /// # Errors
    /// Why it cannot run there, as a sentence: it is for another GPU, or corrupt.
    pub fn read(object: &[u8], gpu: &str) -> Result<Self, String> {
        match Kind::of(object) {
            Kind::CodeObject | Kind::Bundle | Kind::CompressedBundle => {}
            Kind::OtherElf(_) | Kind::Unknown => return Ok(Signatures::Unknown),
        }
        let entries = match code_object::read(object) {
            Ok(entries) => entries,
            Err(Error::Version(_)) => return Ok(Signatures::Unknown),
            Err(error) => return Err(format!("its code object cannot be read: {error}")),
        };
        let Some(gpu) = TargetId::parse(gpu) else {
            return Err(format!(
                "its code object is for AMD GPUs, which {gpu} is not"
            ));
        };
        let runs = |entry: &&Entry| entry.object.target.runs_on(&gpu);
        match entries.iter().find(runs) {
            Some(entry) => Ok(Self::of(&entry.object)),
            None => {
                let targets: Vec<String> = entries
                    .iter()
                    .map(|entry| entry.object.target.to_string())
                    .collect();
                Err(format!(
                    "its code object is for {} and does not run on {gpu}; remove it from the folder of compiled kernels, \
                     which CANDLE_ROCM_CACHE_DIR names",
                    targets.join(", ")
                ))
            }
        }
    }

    fn of(object: &CodeObject) -> Self {
        let sizes = object.kernels.iter().map(|kernel| {
            let sizes = kernel.arguments.iter().map(|a| a.size as usize);
            (kernel.name.clone(), sizes.collect())
        });
        Signatures::Known(sizes.collect())
    }

    /// Whether a kernel takes what is declared of it.
    ///
    /// # Errors
    /// What it takes instead, as a sentence.
    pub fn check(&self, kernel: &DeclaredKernel) -> Result<(), String> {
        let Signatures::Known(kernels) = self else {
            return Ok(());
        };
        let declared: Vec<usize> = kernel.arguments.iter().map(|a| a.bytes).collect();
        match kernels.get(&kernel.name) {
            Some(found) if *found == declared => Ok(()),
            Some(found) => Err(format!(
                "its code object takes arguments of {found:?} bytes, and a launch passes {declared:?}: it was made from \
                 another source; remove it from the folder of compiled kernels, which CANDLE_ROCM_CACHE_DIR names"
            )),
            None => Err("its code object has no such kernel".to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArgumentType, Family};

    const GFX1100: &[u8] = include_bytes!("../../code-object/tests/fixtures/gfx1100.elf");

    fn declared(name: &str, sizes: &[usize]) -> DeclaredKernel {
        let argument = |bytes: &usize| ArgumentType {
            name: "any",
            bytes: *bytes,
        };
        DeclaredKernel {
            family: Family::Fill,
            name: name.to_string(),
            part: None,
            only: None,
            arguments: sizes.iter().map(argument).collect(),
        }
    }

    #[test]
    fn arguments_of_other_sizes_are_refused() {
        let signatures = Signatures::read(GFX1100, "gfx1100").unwrap();
        let check = |name: &str, sizes: &[usize]| signatures.check(&declared(name, sizes));
        assert_eq!(check("scale", &[8, 8, 28, 1, 8]), Ok(()));
        assert_eq!(check("nothing", &[]), Ok(()));
        for sizes in [&[8, 8, 28, 4, 8][..], &[8, 8, 28, 1], &[8, 8, 28, 1, 8, 8]] {
            let error = check("scale", sizes).unwrap_err();
            assert!(
                error.contains("[8, 8, 28, 1, 8]") && error.contains(&format!("{sizes:?}")),
                "{error}"
            );
        }
        assert!(check("scale2", &[]).unwrap_err().contains("no such kernel"));
    }

    #[test]
    fn objects_for_other_gpus_are_refused() {
        let of = |object: &[u8], gpu| {
            Signatures::read(object, gpu).map(|s| matches!(s, Signatures::Known(_)))
        };
        assert_eq!(of(GFX1100, "gfx1100"), Ok(true));
        for gpu in ["gfx1101", "gfx942:sramecc+:xnack-", "gfx11-generic"] {
            let error = of(GFX1100, gpu).unwrap_err();
            assert!(error.contains("gfx1100") && error.contains(gpu), "{error}");
        }
        assert!(of(GFX1100, "sm_90").unwrap_err().contains("sm_90"));
        let cut = &GFX1100[..GFX1100.len() / 2];
        assert!(of(cut, "gfx1100").unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn what_is_not_for_amd_gpus_is_left_to_the_runtime() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for object in [&own[..], b".version 8.0", b""] {
            let signatures = Signatures::read(object, "gfx1100").unwrap();
            assert!(matches!(signatures, Signatures::Unknown));
            assert_eq!(signatures.check(&declared("any", &[3])), Ok(()));
        }
        let mut newer = GFX1100.to_vec();
        newer[8] = 77;
        assert!(matches!(
            Signatures::read(&newer, "gfx1100"),
            Ok(Signatures::Unknown)
        ));
    }
}
