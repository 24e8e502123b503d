//! What the build script put into this binary: spliced sources, headers, and code objects if asked for.

use crate::ck::CkInstance;
use crate::family::Family;
use crate::splice::{splice, SpliceError};
use code_object::Processor;
use std::sync::OnceLock;

/// `(path below hip/, text)` of every header.
type Header = (&'static str, &'static str);

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

impl Family {
    /// The family's source as one translation unit: its headers spliced in place of their include lines.
    pub fn source(self) -> &'static str {
        SOURCES[self as usize]
    }
}

/// Makes one translation unit of a kernel source that includes `"device.h"` or another header of this
/// crate. `name` is what compiler diagnostics will call the source.
///
/// # Errors
/// [`SpliceError::UnknownHeader`] for a quoted include that this crate does not have.
pub fn translation_unit(name: &str, source: &str) -> Result<String, SpliceError> {
    splice(name, source, &header)
}

fn header(path: &str) -> Option<&'static str> {
    HEADERS
        .iter()
        .find(|(name, _)| *name == path)
        .map(|(_, text)| *text)
}

/// A code object that was built in, compressed.
struct Object<Name> {
    name: Name,
    /// What it was compiled for.
    arch: &'static str,
    compressed: &'static [u8],
    object: OnceLock<Vec<u8>>,
}

/// Of a family, and of a kernel of Composable Kernel's.
type FamilyObject = Object<Family>;
type CkObject = Object<&'static str>;

impl<Name> Object<Name> {
    #[allow(dead_code)] // In builds that embed nothing.
    const fn new(name: Name, arch: &'static str, compressed: &'static [u8]) -> Self {
        Object {
            name,
            arch,
            compressed,
            object: OnceLock::new(),
        }
    }

    /// The object, which the first call decompresses; none if this binary is damaged.
    fn get(&'static self) -> Option<&'static [u8]> {
        let decompress = || miniz_oxide::inflate::decompress_to_vec_zlib(self.compressed);
        let object = self.object.get_or_init(|| decompress().unwrap_or_default());
        Some(object.as_slice()).filter(|object| !object.is_empty())
    }
}

/// The code object that was built in for a family and an arch as HIP's `gcnArchName` gives it.
///
/// An object built for a plain processor (`gfx942`) also serves its feature settings (`gfx942:sramecc+:xnack-`), and one
/// for a generic processor its members, if they have none of their own.
pub fn embedded(family: Family, arch: &str) -> Option<&'static [u8]> {
    for_arch(&OBJECTS, |of| *of == family, arch)?.get()
}

/// The same for an instance of Composable Kernel's attention; none without the feature `ck`.
pub fn embedded_ck(instance: CkInstance, arch: &str) -> Option<&'static [u8]> {
    if CK_OBJECTS.is_empty() {
        return None;
    }
    let name = instance.kernel_name();
    for_arch(&CK_OBJECTS, |of| **of == name, arch)?.get()
}

/// The archs that this binary carries Composable Kernel's attention for.
pub fn embedded_ck_archs() -> Vec<&'static str> {
    let mut archs: Vec<_> = CK_OBJECTS.iter().map(|object| object.arch).collect();
    archs.sort_unstable();
    archs.dedup();
    archs
}

/// Tells the device sources of this binary from those of others.
pub fn sources_digest() -> u64 {
    SOURCES_DIGEST
}

fn for_arch<'a, Name>(
    objects: &'a [Object<Name>],
    is_wanted: impl Fn(&Name) -> bool,
    arch: &str,
) -> Option<&'a Object<Name>> {
    let processor = arch.split(':').next().unwrap_or(arch);
    let generic = Processor::named(processor).and_then(|known| known.generic);
    let targets = [Some(arch), Some(processor), generic];
    targets.into_iter().flatten().find_map(|wanted| {
        objects
            .iter()
            .find(|object| is_wanted(&object.name) && object.arch == wanted)
    })
}

/// The archs that this binary carries code objects for: what `CANDLE_ROCM_ARCHS` named when it was built.
pub fn embedded_archs() -> &'static [&'static str] {
    ARCHS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_target_is_found() {
        let objects = [
            (1, "gfx942"),
            (1, "gfx942:xnack+"),
            (1, "gfx9-4-generic"),
            (1, "gfx11-generic"),
            (2, "gfx1103"),
        ];
        let objects = objects.map(|(name, arch)| Object::new(name, arch, b""));
        let found = |arch: &str| for_arch(&objects, |&of| of == 1, arch).map(|found| found.arch);
        assert_eq!(found("gfx942:xnack+"), Some("gfx942:xnack+"));
        assert_eq!(found("gfx942:sramecc+:xnack-"), Some("gfx942"));
        assert_eq!(found("gfx950:sramecc+:xnack-"), Some("gfx9-4-generic"));
        assert_eq!(found("gfx1103"), Some("gfx11-generic"));
        assert_eq!(found("gfx1201"), None);
        assert_eq!(found("gfx90a"), None);
    }

    #[test]
    fn what_was_compressed_comes_back_and_damage_is_noticed() {
        let object: Vec<u8> = (0..100_000u32)
            .flat_map(|i| (i / 7).to_le_bytes())
            .collect();
        let compressed = miniz_oxide::deflate::compress_to_vec_zlib(&object, 9);
        assert!(compressed.len() < object.len() / 2);
        let get = |compressed: Vec<u8>| {
            let built_in = Object::new((), "gfx942", compressed.leak());
            Box::leak(Box::new(built_in)).get()
        };
        assert_eq!(get(compressed.clone()), Some(object.as_slice()));
        let mut damaged = compressed;
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0x55;
        assert_eq!(get(damaged), None);
    }
}
