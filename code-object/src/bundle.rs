//! Offload bundles: several code objects in one file, as `clang-offload-bundler` packs them.
//!
//! [The format](https://clang.llvm.org/docs/ClangOffloadBundler.html): a magic string, the number of entries, and of each
//! entry where it lies, how long it is and what it is for. Compressed, this whole lies behind a header of its own.

use crate::{CodeObject, Error, Kind, TargetId};
use std::borrow::Cow;
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
    let bundle = plain(file)?;
    if Kind::of(&bundle) != Kind::Bundle {
        return Ok(vec![Entry {
            id: None,
            object: CodeObject::parse(&bundle)?,
        }]);
    }
    let objects = parts(&bundle)?.into_iter();
    // The host's part, mostly empty, and what is for other devices, are none.
    objects
        .filter(|(_, object)| Kind::of(object) == Kind::CodeObject)
        .map(|(id, object)| {
            Ok(Entry {
                object: CodeObject::parse(object)?,
                id: Some(id),
            })
        })
        .collect()
}

/// The code object of a file that runs on a GPU: of a bundle, compressed or not, that for its processor before a generic
/// one; else the file itself, whatever it is for. None of a bundle that has nothing for the GPU.
///
/// # Errors
/// [`Error::Bundle`] for a corrupt bundle.
pub fn select<'a>(file: &'a [u8], gpu: &TargetId) -> Result<Option<Cow<'a, [u8]>>, Error> {
    let found = |bundle: &'a [u8]| Ok(of_bundle(bundle, gpu)?.map(Cow::Borrowed));
    match plain(file)? {
        Cow::Borrowed(file) if Kind::of(file) == Kind::Bundle => found(file),
        Cow::Borrowed(file) => Ok(Some(Cow::Borrowed(file))),
        Cow::Owned(bundle) => Ok(of_bundle(&bundle, gpu)?.map(|object| object.to_vec().into())),
    }
}

fn of_bundle<'a>(bundle: &'a [u8], gpu: &TargetId) -> Result<Option<&'a [u8]>, Error> {
    let mut generic = None;
    for (id, object) in parts(bundle)? {
        match TargetId::parse(&id).filter(|target| target.runs_on(gpu)) {
            Some(target) if target.processor() == gpu.processor() => return Ok(Some(object)),
            Some(_) => generic = Some(object),
            None => {}
        }
    }
    Ok(generic)
}

/// The file, or the bundle that is compressed in it.
fn plain(file: &[u8]) -> Result<Cow<'_, [u8]>, Error> {
    if Kind::of(file) != Kind::CompressedBundle {
        return Ok(file.into());
    }
    let bundle = unpack(file)?;
    match Kind::of(&bundle) {
        Kind::Bundle => Ok(bundle.into()),
        _ => Err(corrupt("what is compressed is no bundle")),
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

/// All entries of a bundle, each with its id.
fn parts(file: &[u8]) -> Result<Vec<(String, &[u8])>, Error> {
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
        entries.push((id, object));
    }
    Ok(entries)
}

/// Bytes of a compressed bundle's header at most.
pub const COMPRESSED_HEADER: usize = 32;

/// What stands before compressed bytes, in three versions.
struct Compressed {
    method: u64,
    /// Bytes of the file, which the first version does not tell.
    file: Option<u64>,
    /// Bytes when it is unpacked.
    bytes: u64,
}

impl Compressed {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Error> {
        fields.take(COMPRESSED_MAGIC.len() as u64)?;
        let [version, method] = [fields.number::<2>()?, fields.number::<2>()?];
        let (file, bytes) = match version {
            1 => (None, fields.number::<4>()?),
            2 => (Some(fields.number::<4>()?), fields.number::<4>()?),
            3 => (Some(fields.number::<8>()?), fields.number::<8>()?),
            _ => {
                return Err(corrupt(format!(
                    "version {version} of compression is not known"
                )))
            }
        };
        let _hash = fields.number::<8>()?;
        Ok(Compressed {
            method,
            file,
            bytes,
        })
    }
}

/// Bytes of a compressed bundle, from its first ones: as many as it has of [`COMPRESSED_HEADER`]. None if it does not
/// tell, as those of the first version, which compilers before clang 19 made.
///
/// # Errors
/// [`Error::Bundle`] if it is none, or of a version that is not known.
pub fn compressed_bytes(begin: &[u8]) -> Result<Option<u64>, Error> {
    if Kind::of(begin) != Kind::CompressedBundle {
        return Err(corrupt("it is not compressed"));
    }
    Ok(Compressed::read(&mut Fields(begin))?.file)
}

/// The bundle inside a compressed one.
fn unpack(file: &[u8]) -> Result<Vec<u8>, Error> {
    let mut fields = Fields(file);
    let Compressed { method, bytes, .. } = Compressed::read(&mut fields)?;
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
