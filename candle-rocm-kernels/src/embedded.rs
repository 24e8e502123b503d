//! What the build script put into this binary: spliced sources, headers, and code objects if asked for.

use crate::ck::CkInstance;
use crate::family::Family;
use crate::splice::{splice, SpliceError};

/// `(path below hip/, text)` of every header.
type Header = (&'static str, &'static str);
/// `(family, arch, code object)`.
type Object = (Family, &'static str, &'static [u8]);

/// `(kernel, arch, code object)` of Composable Kernel's attention.
type CkObject = (&'static str, &'static str, &'static [u8]);

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

/// The code object that was built in for a family and an arch as HIP's `gcnArchName` gives it.
///
/// An object built for a plain processor (`gfx942`) also serves its feature settings
/// (`gfx942:sramecc+:xnack-`).
pub fn embedded(family: Family, arch: &str) -> Option<&'static [u8]> {
    for_arch(OBJECTS, |of| *of == family, arch)
}

/// The same for an instance of Composable Kernel's attention; none without the feature `ck`.
pub fn embedded_ck(instance: CkInstance, arch: &str) -> Option<&'static [u8]> {
    if CK_OBJECTS.is_empty() {
        return None;
    }
    let name = instance.kernel_name();
    for_arch(CK_OBJECTS, |of| **of == name, arch)
}

/// The archs that this binary carries Composable Kernel's attention for.
pub fn embedded_ck_archs() -> Vec<&'static str> {
    let mut archs: Vec<_> = CK_OBJECTS.iter().map(|(_, arch, _)| *arch).collect();
    archs.sort_unstable();
    archs.dedup();
    archs
}

/// Tells the device sources of this binary from those of others.
pub fn sources_digest() -> u64 {
    SOURCES_DIGEST
}

fn for_arch<Name>(
    objects: &[(Name, &'static str, &'static [u8])],
    is_wanted: impl Fn(&Name) -> bool,
    arch: &str,
) -> Option<&'static [u8]> {
    let processor = arch.split(':').next().unwrap_or(arch);
    [arch, processor].into_iter().find_map(|wanted| {
        objects
            .iter()
            .find(|(name, built_for, _)| is_wanted(name) && *built_for == wanted)
            .map(|(_, _, object)| *object)
    })
}

/// The archs that this binary carries code objects for: the value of `CANDLE_ROCM_ARCHS` when it was built.
pub fn embedded_archs() -> &'static [&'static str] {
    ARCHS
}
