//! Offload bundles: several code objects in one file, as `clang-offload-bundler` packs them.
//!
//! [The format](https://clang.llvm.org/docs/ClangOffloadBundler.html): a magic string, the number of entries, and of each
//! entry where it lies, how long it is and what it is for. Compressed, this whole lies behind a header of its own.

use crate::{CodeObject, Error, Kind};
use std::io::Read;

pub(crate) const BUNDLE_MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
pub(crate) const COMPRESSED_MAGIC: &[u8] = b"CCOB";

/// Bytes that a compressed bundle may have when it is unpacked; larger ones are refused.
pub const MAX_UNPACKED: u64 = 1 << 30;

/// A code object of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the bundle says that it is for, `hipv4-amdgcn-amd-amdhsa--gfx942`; none of a file that is no bundle.
    pub id: Option<String>,
    /// What it is.
    pub object: CodeObject,
}

/// The code objects of a file: of a bundle, compressed or not, every one for AMD GPUs; else the file itself.
///
/// # Errors
/// What [`CodeObject::parse`] gives, and [`Error::Bundle`] for a corrupt bundle.
pub fn read(file: &[u8]) -> Result<Vec<Entry>, Error> {
    match Kind::of(file) {
        Kind::Bundle => unbundle(file),
        Kind::CompressedBundle => {
            let bundle = unpack(file)?;
            match Kind::of(&bundle) {
                Kind::Bundle => unbundle(&bundle),
                _ => Err(corrupt("what is compressed is no bundle")),
            }
        }
        _ => Ok(vec![Entry {
            id: None,
            object: CodeObject::parse(file)?,
        }]),
    }
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::Bundle(what.into())
}

/// Little-endian numbers and slices, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: u64) -> Result<&'a [u8], Error> {
        let split = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.0.split_at_checked(bytes));
        let (taken, rest) = split.ok_or_else(|| corrupt("it is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const BYTES: usize>(&mut self) -> Result<u64, Error> {
        let mut number = [0; 8];
        number[..BYTES].copy_from_slice(self.take(BYTES as u64)?);
        Ok(u64::from_le_bytes(number))
    }
}

fn unbundle(file: &[u8]) -> Result<Vec<Entry>, Error> {
    let mut fields = Fields(file);
    fields.take(BUNDLE_MAGIC.len() as u64)?;
    let count = fields.number::<8>()?;
    let mut entries = Vec::new();
    // Entries cannot lie upon each other, so all that is read of them has no more bytes than the file.
    let mut left = file.len() as u64;
    for _ in 0..count {
        let [offset, bytes, id_bytes] = [
            fields.number::<8>()?,
            fields.number::<8>()?,
            fields.number::<8>()?,
        ];
        let id = String::from_utf8_lossy(fields.take(id_bytes)?).into_owned();
        let outside = || corrupt(format!("the entry {id} is outside of the file"));
        let mut object = Fields(file);
        object.take(offset).map_err(|_| outside())?;
        let object = object.take(bytes).map_err(|_| outside())?;
        left = left
            .checked_sub(bytes)
            .ok_or_else(|| corrupt("its entries overlap"))?;
        // The host's part, mostly empty, and what is for other devices.
        if Kind::of(object) != Kind::CodeObject {
            continue;
        }
        entries.push(Entry {
            object: CodeObject::parse(object)?,
            id: Some(id),
        });
    }
    Ok(entries)
}

/// The bundle inside a compressed one, of which there are three versions.
fn unpack(file: &[u8]) -> Result<Vec<u8>, Error> {
    let mut fields = Fields(file);
    fields.take(COMPRESSED_MAGIC.len() as u64)?;
    let [version, method] = [fields.number::<2>()?, fields.number::<2>()?];
    let bytes = match version {
        1 => fields.number::<4>()?,
        2 => {
            fields.number::<4>()?;
            fields.number::<4>()?
        }
        3 => {
            fields.number::<8>()?;
            fields.number::<8>()?
        }
        _ => {
            return Err(corrupt(format!(
                "version {version} of compression is not known"
            )))
        }
    };
    let _hash = fields.number::<8>()?;
    if bytes > MAX_UNPACKED {
        return Err(corrupt(format!(
            "unpacked it has {bytes} bytes, more than {MAX_UNPACKED}"
        )));
    }
    match method {
        0 => inflate(flate2::read::ZlibDecoder::new(fields.0), bytes),
        1 => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(fields.0)
                .map_err(|error| corrupt(error.to_string()))?;
            inflate(decoder, bytes)
        }
        _ => Err(corrupt(format!(
            "method {method} of compression is not known"
        ))),
    }
}

fn inflate(decoder: impl Read, bytes: u64) -> Result<Vec<u8>, Error> {
    let mut unpacked = Vec::new();
    decoder
        .take(bytes)
        .read_to_end(&mut unpacked)
        .map_err(|error| corrupt(error.to_string()))?;
    if unpacked.len() as u64 != bytes {
        return Err(corrupt(format!(
            "it unpacks to {} bytes instead of {bytes}",
            unpacked.len()
        )));
    }
    Ok(unpacked)
}
