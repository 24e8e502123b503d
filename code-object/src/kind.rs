//! What a file is, by its first bytes.

use crate::bundle::{BUNDLE_MAGIC, COMPRESSED_MAGIC};
use object::elf;
use std::fmt;

/// What a file is, as far as its first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ELF file for AMD GPUs: a code object.
    CodeObject,
    /// Several objects, as `clang-offload-bundler` packs them.
    Bundle,
    /// The same, compressed.
    CompressedBundle,
    /// An ELF file for another machine, by ELF's number of it: hip-sim's objects are such.
    OtherElf(u16),
    /// None of these.
    Unknown,
}

impl Kind {
    /// Looks at the first bytes only.
    pub fn of(file: &[u8]) -> Kind {
        /// Of the field `e_machine`.
        const MACHINE: usize = 18;
        if file.starts_with(BUNDLE_MAGIC) {
            return Kind::Bundle;
        }
        if file.starts_with(COMPRESSED_MAGIC) {
            return Kind::CompressedBundle;
        }
        match (
            file.starts_with(&elf::ELFMAG),
            file.get(MACHINE..MACHINE + 2),
        ) {
            (true, Some(&[low, high])) => match u16::from_le_bytes([low, high]) {
                elf::EM_AMDGPU => Kind::CodeObject,
                other => Kind::OtherElf(other),
            },
            _ => Kind::Unknown,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::CodeObject => f.write_str("a code object"),
            Kind::Bundle => f.write_str("an offload bundle"),
            Kind::CompressedBundle => f.write_str("a compressed offload bundle"),
            Kind::OtherElf(elf::EM_X86_64) => f.write_str("an ELF file for x86-64"),
            Kind::OtherElf(machine) => write!(f, "an ELF file for machine {machine}"),
            Kind::Unknown => f.write_str("neither an ELF file nor an offload bundle"),
        }
    }
}
