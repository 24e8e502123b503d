//! Code objects as ELF files.

use crate::kernel::Metadata;
use crate::{occupancy, Descriptor, Error, Kernel, Kind, Processor, TargetId};
use object::elf::{self, FileHeader64, ProgramHeader64, Sym64};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader, SectionHeader, Sym, SymbolTable};
use object::LittleEndian;
use serde::Serialize;
use std::collections::HashMap;

/// `NT_AMDGPU_METADATA`.
const NOTE_METADATA: u32 = 32;
/// `ELFOSABI_AMDGPU_HSA`.
const SYSTEM_HSA: u8 = 64;
/// `ELFABIVERSION_AMDGPU_HSA_V4` to `_V6` less the versions of code objects.
const ABI_BEHIND_VERSION: u8 = 2;
/// Notes that are looked at: an object has one or two.
const MOST_NOTES: usize = 64;
/// Bytes of a symbol's name: those of templates reach some thousands.
const LONGEST_NAME: usize = 64 << 10;

const ENDIAN: LittleEndian = LittleEndian;
type Header = FileHeader64<LittleEndian>;
type Symbols<'data> = SymbolTable<'data, Header>;

/// A code object: what it is for and what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodeObject {
    /// Version of its format, 4 to 6.
    pub version: u8,
    /// The processor that it is for, with its features.
    pub target: TargetId,
    /// Its kernels, in the metadata's order.
    pub kernels: Vec<Kernel>,
    /// Symbols that it needs and does not have, sorted.
    pub undefined: Vec<String>,
    /// Size of the file.
    pub bytes: usize,
}

impl CodeObject {
    /// Reads a code object; [`read`](crate::read) takes bundles, too.
    ///
    /// # Errors
    /// [`Error::NotACodeObject`] if this is another kind of file, [`Error::Version`] for an unsupported version, others
    /// where the file is corrupt.
    pub fn parse(file: &[u8]) -> Result<CodeObject, Error> {
        match Kind::of(file) {
            Kind::CodeObject => {}
            other => return Err(Error::NotACodeObject(other)),
        }
        let header = Header::parse(file)?;
        if header.e_ident().data != elf::ELFDATA2LSB {
            return Err(Error::Malformed("it is big-endian".to_string()));
        }
        let version = version(header)?;
        let segments = header.program_headers(ENDIAN, file)?;
        let metadata = metadata(header, segments, file)?;
        let target = target(header, metadata.target.as_deref())?;
        let symbols = header
            .sections(ENDIAN, file)?
            .symbols(ENDIAN, file, elf::SHT_DYNSYM)?;
        let addresses = addresses(&symbols)?;
        let mut kernels = Vec::with_capacity(metadata.kernels.len());
        for kernel in metadata.kernels {
            let descriptor = match addresses.get(kernel.symbol.as_bytes()) {
                Some(&address) => Some(descriptor(segments, file, address, &target)?),
                None => None,
            };
            let mut kernel = kernel.into_kernel(descriptor)?;
            kernel.waves_per_simd = target
                .known()
                .map(|processor| occupancy::waves(&kernel, &processor.simd));
            kernels.push(kernel);
        }
        Ok(CodeObject {
            version,
            target,
            kernels,
            undefined: undefined(&symbols, file.len())?,
            bytes: file.len(),
        })
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

fn version(header: &Header) -> Result<u8, Error> {
    let ident = header.e_ident();
    match (ident.os_abi, ident.abi_version) {
        (SYSTEM_HSA, abi @ 2..=4) => Ok(abi + ABI_BEHIND_VERSION),
        (SYSTEM_HSA, abi) => Err(Error::Version(abi.saturating_add(ABI_BEHIND_VERSION))),
        (other, _) => Err(Error::Malformed(format!(
            "it is for the system {other} instead of HSA ({SYSTEM_HSA})"
        ))),
    }
}

/// The first note with metadata: of the segments, which runtimes read, or of the sections.
fn metadata(
    header: &Header,
    segments: &[ProgramHeader64<LittleEndian>],
    file: &[u8],
) -> Result<Metadata, Error> {
    let mut left = MOST_NOTES;
    for segment in segments {
        if let Some(notes) = segment.notes(ENDIAN, file)? {
            if let Some(found) = first(notes, &mut left)? {
                return Metadata::decode(found);
            }
        }
    }
    for section in header.sections(ENDIAN, file)?.iter() {
        if let Some(notes) = section.notes(ENDIAN, file)? {
            if let Some(found) = first(notes, &mut left)? {
                return Metadata::decode(found);
            }
        }
    }
    Err(Error::NoMetadata)
}

fn first<'data>(
    mut notes: NoteIterator<'data, Header>,
    left: &mut usize,
) -> Result<Option<&'data [u8]>, Error> {
    while let Some(note) = notes.next()? {
        if note.name() == b"AMDGPU" && note.n_type(ENDIAN) == NOTE_METADATA {
            return Ok(Some(note.desc()));
        }
        *left = left
            .checked_sub(1)
            .ok_or_else(|| Error::Malformed(format!("it has more than {MOST_NOTES} notes")))?;
    }
    Ok(None)
}

/// What the metadata says, which the flags of the ELF header must bear out as far as they are known.
fn target(header: &Header, metadata: Option<&str>) -> Result<TargetId, Error> {
    let flags = header.e_flags(ENDIAN);
    let machine = (flags & 0xff) as u8;
    let processor = Processor::numbered(machine);
    let Some(text) = metadata else {
        return Err(Error::Metadata("it names no target".to_string()));
    };
    let target = TargetId::parse(text)
        .ok_or_else(|| Error::Metadata(format!("{text:?} is no target of AMD GPUs")))?;
    match processor {
        Some(processor) if processor.name != target.processor() => Err(Error::Malformed(format!(
            "its flags are those of {}, its metadata is that of {target}",
            processor.name
        ))),
        _ => Ok(target),
    }
}

/// Addresses of defined symbols.
fn addresses<'data>(symbols: &Symbols<'data>) -> Result<HashMap<&'data [u8], u64>, Error> {
    let mut addresses = HashMap::new();
    for symbol in symbols.iter().skip(1) {
        if !symbol.is_undefined(ENDIAN) {
            addresses.insert(name(symbols, symbol)?, symbol.st_value(ENDIAN));
        }
    }
    Ok(addresses)
}

/// Names that many symbols share are not copied over and over: all together have no more bytes than the file.
fn undefined(symbols: &Symbols<'_>, file_bytes: usize) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    let mut bytes = 0;
    for symbol in symbols.iter().skip(1) {
        if !symbol.is_undefined(ENDIAN) {
            continue;
        }
        let name = name(symbols, symbol)?;
        bytes += name.len();
        if bytes > file_bytes {
            return Err(Error::Malformed("names of symbols overlap".to_string()));
        }
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

fn name<'data>(
    symbols: &Symbols<'data>,
    symbol: &Sym64<LittleEndian>,
) -> Result<&'data [u8], Error> {
    let name = symbol.name(ENDIAN, symbols.strings())?;
    if name.len() > LONGEST_NAME {
        return Err(Error::Malformed(format!(
            "a symbol's name has {} bytes",
            name.len()
        )));
    }
    Ok(name)
}

/// The descriptor at an address of the loaded object.
fn descriptor(
    segments: &[ProgramHeader64<LittleEndian>],
    file: &[u8],
    address: u64,
    target: &TargetId,
) -> Result<Descriptor, Error> {
    for segment in segments {
        if segment.p_type(ENDIAN) != elf::PT_LOAD {
            continue;
        }
        let found = segment.data_range(ENDIAN, file, address, Descriptor::BYTES as u64);
        if let Ok(Some(bytes)) = found {
            if let Ok(bytes) = bytes.try_into() {
                return Ok(Descriptor::decode(bytes, target.processor()));
            }
        }
    }
    Err(Error::Malformed(format!(
        "a kernel's descriptor at {address:#x} is outside of what is loaded"
    )))
}
