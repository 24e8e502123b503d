//! Code objects as they lie in a GPU's memory.
//!
//! Segments lie at their addresses from a base on, relocations are what LLVM's AMDGPUUsage calls dynamic ones, whose
//! numbers its table "Relocation Records" has.

use crate::{CodeObject, Error, Kind};
use object::elf::{self, FileHeader64, ProgramHeader64, Rela64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela, Sym};
use object::LittleEndian;
use std::collections::HashMap;

const ENDIAN: LittleEndian = LittleEndian;
type Header = FileHeader64<LittleEndian>;
type Segment = ProgramHeader64<LittleEndian>;

/// Bytes that an object may have in memory beyond those of its file: variables that begin as zeros.
pub const MAX_ZEROS: u64 = 256 << 20;
/// What the address of an object is a multiple of.
pub const IMAGE_ALIGNMENT: u64 = 4096;

/// `R_AMDGPU_…`.
mod relocation {
    pub const NONE: u32 = 0;
    pub const ABS32_LO: u32 = 1;
    pub const ABS32_HI: u32 = 2;
    pub const ABS64: u32 = 3;
    pub const REL32: u32 = 4;
    pub const REL64: u32 = 5;
    pub const RELATIVE64: u32 = 13;
}

/// A symbol: where it lies behind the image's begin, and how many bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Bytes behind the image's begin.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A code object as it lies in memory, at an address that is not yet known.
#[derive(Clone, Debug)]
pub struct Image<'data> {
    parts: Vec<Part<'data>>,
    relocations: Vec<Relocation>,
    symbols: HashMap<String, Symbol>,
    bytes: usize,
}

/// What is loaded: where it goes, and what is there.
type Part<'data> = (usize, &'data [u8]);

/// A place that depends on the image's address.
#[derive(Clone, Copy, Debug)]
struct Relocation {
    at: usize,
    form: Form,
    /// What is referred to, from the image's begin on.
    target: u64,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Low32,
    High32,
    Absolute64,
    Relative32,
    Relative64,
}

impl Form {
    fn bytes(self) -> usize {
        match self {
            Form::Low32 | Form::High32 | Form::Relative32 => 4,
            Form::Absolute64 | Form::Relative64 => 8,
        }
    }
}

impl<'data> Image<'data> {
    /// Reads segments, relocations and symbols of a code object, not of a bundle.
    ///
    /// # Errors
    /// [`Error::NotACodeObject`] if this is another kind of file, [`Error::Relocation`] and [`Error::Undefined`] for
    /// references that cannot be followed, others where the file is corrupt.
    pub fn parse(file: &'data [u8]) -> Result<Image<'data>, Error> {
        match Kind::of(file) {
            Kind::CodeObject => {}
            other => return Err(Error::NotACodeObject(other)),
        }
        let header = Header::parse(file)?;
        let segments = header.program_headers(ENDIAN, file)?;
        let (parts, bytes) = parts(segments, file)?;
        let mut image = Image {
            parts,
            relocations: Vec::new(),
            symbols: HashMap::new(),
            bytes,
        };
        let table = header
            .sections(ENDIAN, file)?
            .symbols(ENDIAN, file, elf::SHT_DYNSYM)?;
        let mut name_bytes = 0;
        for symbol in table.iter().skip(1) {
            if symbol.is_undefined(ENDIAN) {
                continue;
            }
            let name = symbol.name(ENDIAN, table.strings())?;
            // As of undefined ones: names that overlap are not copied over and over.
            name_bytes += name.len();
            if name_bytes > file.len() {
                return Err(Error::Malformed("names of symbols overlap".to_string()));
            }
            let (offset, bytes) = (symbol.st_value(ENDIAN), symbol.st_size(ENDIAN));
            if !image.holds(offset, bytes) {
                return Err(Error::Malformed(format!(
                    "the symbol {} is outside of what is loaded",
                    String::from_utf8_lossy(name)
                )));
            }
            image.symbols.insert(
                String::from_utf8_lossy(name).into_owned(),
                Symbol { offset, bytes },
            );
        }
        for rela in relocations(segments, file)? {
            let index = rela.r_sym(ENDIAN, false);
            let symbol = match index {
                0 => 0,
                index => {
                    let symbol = table.symbol(object::SymbolIndex(index as usize))?;
                    if symbol.is_undefined(ENDIAN) {
                        let name = symbol.name(ENDIAN, table.strings())?;
                        return Err(Error::Undefined(String::from_utf8_lossy(name).into_owned()));
                    }
                    symbol.st_value(ENDIAN)
                }
            };
            image.relocate(rela, symbol)?;
        }
        Ok(image)
    }

    fn relocate(&mut self, rela: &Rela64<LittleEndian>, symbol: u64) -> Result<(), Error> {
        let form = match rela.r_type(ENDIAN, false) {
            relocation::NONE => return Ok(()),
            relocation::ABS32_LO => Form::Low32,
            relocation::ABS32_HI => Form::High32,
            relocation::ABS64 | relocation::RELATIVE64 => Form::Absolute64,
            relocation::REL32 => Form::Relative32,
            relocation::REL64 => Form::Relative64,
            other => return Err(Error::Relocation(other)),
        };
        let at = rela.r_offset(ENDIAN);
        if !self.holds(at, form.bytes() as u64) {
            return Err(Error::Malformed(format!(
                "a relocation at {at:#x} is outside of what is loaded"
            )));
        }
        self.relocations.push(Relocation {
            at: at as usize,
            form,
            target: symbol.wrapping_add_signed(rela.r_addend(ENDIAN)),
        });
        Ok(())
    }

    fn holds(&self, offset: u64, bytes: u64) -> bool {
        offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes as u64)
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The symbol of a name: a variable, a function, or `<kernel>.kd`, a kernel's descriptor.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }

    /// All symbols with their names, in no order.
    pub fn symbols(&self) -> impl Iterator<Item = (&str, Symbol)> {
        self.symbols
            .iter()
            .map(|(name, &symbol)| (name.as_str(), symbol))
    }

    /// Its [`bytes`](Self::bytes) as they are at an address, a multiple of [`IMAGE_ALIGNMENT`].
    pub fn at(&self, address: u64) -> Vec<u8> {
        let mut memory = vec![0; self.bytes];
        for &(at, part) in &self.parts {
            memory[at..at + part.len()].copy_from_slice(part);
        }
        for relocation in &self.relocations {
            let target = address.wrapping_add(relocation.target);
            let here = address.wrapping_add(relocation.at as u64);
            let value = match relocation.form {
                Form::Low32 | Form::Absolute64 => target,
                Form::High32 => target >> 32,
                Form::Relative32 | Form::Relative64 => target.wrapping_sub(here),
            };
            let bytes = relocation.form.bytes();
            memory[relocation.at..relocation.at + bytes]
                .copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
        memory
    }
}

/// What is loaded: where it goes and what is there; and how many bytes all of it spans.
fn parts<'data>(
    segments: &[Segment],
    file: &'data [u8],
) -> Result<(Vec<Part<'data>>, usize), Error> {
    let malformed = |what: &str| Error::Malformed(format!("a segment {what}"));
    let mut parts = Vec::new();
    let mut span = 0;
    for segment in segments {
        if segment.p_type(ENDIAN) != elf::PT_LOAD {
            continue;
        }
        let (at, in_memory) = (segment.p_vaddr(ENDIAN), segment.p_memsz(ENDIAN));
        let data = segment
            .data(ENDIAN, file)
            .map_err(|()| malformed("is outside of the file"))?;
        if data.len() as u64 > in_memory {
            return Err(malformed("is larger in the file than in memory"));
        }
        if segment.p_align(ENDIAN) > IMAGE_ALIGNMENT {
            return Err(malformed("asks for more than a page of alignment"));
        }
        // Also keeps segments apart, which ELF wants in the order of their addresses.
        if at < span {
            return Err(malformed("lies before the one before it, or in it"));
        }
        span = at
            .checked_add(in_memory)
            .filter(|&end| end <= file.len() as u64 + MAX_ZEROS)
            .ok_or_else(|| malformed("takes more memory than an object may"))?;
        parts.push((at as usize, data));
    }
    match span {
        0 => Err(Error::Malformed("nothing in it is loaded".to_string())),
        span => Ok((parts, span as usize)),
    }
}

/// The dynamic relocations.
fn relocations<'data>(
    segments: &[Segment],
    file: &'data [u8],
) -> Result<&'data [Rela64<LittleEndian>], Error> {
    let (mut table, mut bytes) = (0, 0);
    for segment in segments {
        for entry in segment.dynamic(ENDIAN, file)?.unwrap_or_default() {
            match entry.d_tag(ENDIAN) {
                tag if tag == elf::DT_RELA => table = entry.d_val(ENDIAN),
                tag if tag == elf::DT_RELASZ => bytes = entry.d_val(ENDIAN),
                _ => {}
            }
        }
    }
    if bytes == 0 {
        return Ok(&[]);
    }
    let outside = || Error::Malformed("its relocations are outside of what is loaded".to_string());
    for segment in segments {
        if segment.p_type(ENDIAN) != elf::PT_LOAD {
            continue;
        }
        if let Ok(Some(data)) = segment.data_range(ENDIAN, file, table, bytes) {
            let count = data.len() / size_of::<Rela64<LittleEndian>>();
            return object::slice_from_bytes(data, count)
                .map(|(relocations, _)| relocations)
                .map_err(|()| outside());
        }
    }
    Err(outside())
}

/// The object and its image.
///
/// # Errors
/// Those of [`CodeObject::parse`] and [`Image::parse`]; [`Error::Malformed`] if a kernel has no descriptor.
pub fn load(file: &[u8]) -> Result<(CodeObject, Image<'_>), Error> {
    let object = CodeObject::parse(file)?;
    let image = Image::parse(file)?;
    for kernel in &object.kernels {
        if kernel.descriptor.is_none() || image.symbol(&kernel.symbol).is_none() {
            return Err(Error::Malformed(format!(
                "the kernel {} has no descriptor",
                kernel.name
            )));
        }
    }
    Ok((object, image))
}
