//! Code objects that callers hand over as a pointer alone: how long they are is in them.

use code_object::{TargetId, COMPRESSED_HEADER};
use hip_abi::error::{HipError, HipResult};
use std::borrow::Cow;

const ELF_MAGIC: &[u8] = b"\x7fELF";
const BUNDLE_MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED_MAGIC: &[u8] = b"CCOB";

/// Bytes of an ELF file's header.
const ELF_HEADER: usize = 64;
/// Entries of a bundle that are looked at: clang knows fewer targets.
const MOST_ENTRIES: u64 = 256;
/// Bytes of an object, and of an entry's name, above which a header is taken for corrupt.
const LARGEST: u64 = 1 << 31;
const LONGEST_NAME: u64 = 4096;

/// Memory that begins somewhere and ends nobody knows where.
struct Unbounded(*const u8);

impl Unbounded {
    /// Bytes of it.
    ///
    /// # Safety
    /// They are there.
    unsafe fn bytes<'a>(&self, at: u64, count: u64) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(at as usize), count as usize) }
    }

    /// A little-endian number of `count` bytes.
    ///
    /// # Safety
    /// They are there.
    unsafe fn number(&self, at: u64, count: u64) -> u64 {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.bytes(at, count) };
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Whether it begins with these bytes. Reads no further than the first that differs.
    ///
    /// # Safety
    /// Bytes up to the first that differs are there.
    unsafe fn begins_with(&self, magic: &[u8]) -> bool {
        // SAFETY: the caller's promise.
        (0u64..)
            .zip(magic)
            .all(|(at, byte)| unsafe { self.bytes(at, 1)[0] } == *byte)
    }
}

/// The code object at `image` that runs on a GPU: the file itself, or one of a bundle, compressed or not.
///
/// # Errors
/// [`HipError::InvalidImage`] if it is neither; [`HipError::NoBinaryForGpu`] for a bundle with nothing for the GPU;
/// [`HipError::NotSupported`] for a compressed one that does not tell how long it is.
///
/// # Safety
/// `image` is null or points to a whole file, which stays as long as the result is used.
pub(crate) unsafe fn object<'a>(image: *const u8, gpu: &TargetId) -> HipResult<Cow<'a, [u8]>> {
    if image.is_null() {
        return Err(HipError::InvalidValue);
    }
    let image = Unbounded(image);
    // SAFETY: the caller's file is whole, so that what a magic announces is there.
    let bytes = unsafe {
        if image.begins_with(ELF_MAGIC) {
            elf(&image)
        } else if image.begins_with(BUNDLE_MAGIC) {
            bundle(&image)
        } else if image.begins_with(COMPRESSED_MAGIC) {
            compressed(&image)
        } else {
            Err(HipError::InvalidImage)
        }
    }?;
    if bytes > LARGEST {
        return Err(HipError::InvalidImage);
    }
    // SAFETY: the file is whole, and has so many bytes.
    let file = unsafe { image.bytes(0, bytes) };
    let object = code_object::select(file, gpu).map_err(told)?;
    object.ok_or(HipError::NoBinaryForGpu)
}

/// What is wrong with a bundle, on stderr: HIP has but numbers.
fn told(error: code_object::Error) -> HipError {
    eprintln!("hip-on-kfd: {error}");
    HipError::InvalidImage
}

/// Bytes of an ELF file, as far as its tables tell. Linkers write the table of sections last; what is cut off before it
/// is refused when the object is read.
///
/// # Safety
/// It is whole.
unsafe fn elf(image: &Unbounded) -> HipResult<u64> {
    // SAFETY: the header is there.
    let number = |offset, count| unsafe { image.number(offset, count) };
    let tables = [
        (number(32, 8), number(54, 2), number(56, 2)),
        (number(40, 8), number(58, 2), number(60, 2)),
    ];
    let ends = tables.map(|(offset, entry_bytes, entries)| {
        // Two numbers of 16 bits each.
        offset.saturating_add(entry_bytes * entries)
    });
    Ok(ends.into_iter().fold(ELF_HEADER as u64, u64::max))
}

/// Bytes of a bundle: to the end of the last of its entries.
///
/// # Safety
/// It is whole.
unsafe fn bundle(image: &Unbounded) -> HipResult<u64> {
    let mut at = BUNDLE_MAGIC.len() as u64;
    // SAFETY: the bundle is whole: its header and the entries that this names are there.
    let number = |at| unsafe { image.number(at, 8) };
    let entries = number(at);
    if entries > MOST_ENTRIES {
        return Err(HipError::InvalidImage);
    }
    at += 8;
    let mut end = at;
    for _ in 0..entries {
        let [offset, bytes, name_bytes] = [number(at), number(at + 8), number(at + 16)];
        if name_bytes > LONGEST_NAME {
            return Err(HipError::InvalidImage);
        }
        at += 24 + name_bytes;
        end = end.max(at).max(offset.saturating_add(bytes));
    }
    Ok(end)
}

/// Bytes of a compressed bundle.
///
/// # Safety
/// It is whole.
unsafe fn compressed(image: &Unbounded) -> HipResult<u64> {
    // SAFETY: no compressed bytes are shorter than what the header of the first version is short of that of the last.
    let begin = unsafe { image.bytes(0, COMPRESSED_HEADER as u64) };
    match code_object::compressed_bytes(begin).map_err(told)? {
        Some(bytes) => Ok(bytes.max(COMPRESSED_HEADER as u64)),
        None => {
            eprintln!(
                "hip-on-kfd: a compressed bundle of version 1 does not tell how long it is; unpack it \
                 (clang-offload-bundler -unbundle), compile with --no-offload-compress, or with clang 19 or later"
            );
            Err(HipError::NotSupported)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gpu(name: &str) -> TargetId {
        TargetId::parse(name).unwrap()
    }

    fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let header = 32
            + entries
                .iter()
                .map(|(name, _)| 24 + name.len())
                .sum::<usize>();
        let mut bundle = BUNDLE_MAGIC.to_vec();
        bundle.extend((entries.len() as u64).to_le_bytes());
        let mut offset = header;
        for (name, object) in entries {
            for number in [offset, object.len(), name.len()] {
                bundle.extend((number as u64).to_le_bytes());
            }
            bundle.extend(name.as_bytes());
            offset += object.len();
        }
        entries
            .iter()
            .for_each(|(_, object)| bundle.extend(*object));
        bundle
    }

    #[test]
    fn a_bundle_gives_the_object_of_the_processor() {
        let bundle = bundle(&[
            ("host-x86_64-unknown-linux-gnu-", b""),
            ("hipv4-amdgcn-amd-amdhsa--gfx11-generic", b"generic"),
            ("hipv4-amdgcn-amd-amdhsa--gfx1100", b"own"),
        ]);
        // SAFETY: whole.
        let of = |name| unsafe { object(bundle.as_ptr(), &gpu(name)) };
        assert_eq!(of("gfx1100").unwrap()[..], b"own"[..]);
        assert_eq!(of("gfx1101").unwrap()[..], b"generic"[..]);
        assert_eq!(of("gfx942"), Err(HipError::NoBinaryForGpu));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for other in [&b"CCOX"[..], b"MZ", b"\x7fEXF", b""] {
            let mut file = other.to_vec();
            file.push(0);
            // SAFETY: the zero ends every comparison.
            let refused = unsafe { object(file.as_ptr(), &gpu("gfx1100")) };
            assert_eq!(refused, Err(HipError::InvalidImage));
        }
        // SAFETY: null is allowed.
        let null = unsafe { object(std::ptr::null(), &gpu("gfx1100")) };
        assert_eq!(null, Err(HipError::InvalidValue));
        let mut corrupt = bundle(&[("hipv4-amdgcn-amd-amdhsa--gfx1100", b"")]);
        corrupt[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        // SAFETY: the count of entries is read first.
        let refused = unsafe { object(corrupt.as_ptr(), &gpu("gfx1100")) };
        assert_eq!(refused, Err(HipError::InvalidImage));
        // An entry that would make the file larger than any is.
        let mut large = bundle(&[("hipv4-amdgcn-amd-amdhsa--gfx1100", b"")]);
        large[40..48].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        // SAFETY: the header is read first.
        let refused = unsafe { object(large.as_ptr(), &gpu("gfx1100")) };
        assert_eq!(refused, Err(HipError::InvalidImage));
    }

    /// A compressed bundle, as clang writes it: version, method, sizes, a hash that nobody checks.
    fn packed(version: u16, bundle: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bundle).unwrap();
        let compressed = encoder.finish().unwrap();
        let mut file = COMPRESSED_MAGIC.to_vec();
        file.extend(version.to_le_bytes());
        file.extend(0u16.to_le_bytes());
        let bytes = bundle.len() as u64;
        match version {
            1 => file.extend((bytes as u32).to_le_bytes()),
            2 => {
                file.extend((24 + compressed.len() as u32).to_le_bytes());
                file.extend((bytes as u32).to_le_bytes());
            }
            _ => {
                file.extend((32 + compressed.len() as u64).to_le_bytes());
                file.extend(bytes.to_le_bytes());
            }
        }
        file.extend([0; 8]);
        file.extend(compressed);
        file
    }

    #[test]
    fn a_compressed_bundle_is_unpacked() {
        let plain = bundle(&[
            ("host-x86_64-unknown-linux-gnu-", b""),
            ("hipv4-amdgcn-amd-amdhsa--gfx942", b"another"),
            ("hipv4-amdgcn-amd-amdhsa--gfx1100", b"own"),
        ]);
        for version in [2, 3] {
            let file = packed(version, &plain);
            // SAFETY: whole.
            let of = |name| unsafe { object(file.as_ptr(), &gpu(name)) };
            assert_eq!(of("gfx1100").unwrap()[..], b"own"[..], "{version}");
            assert_eq!(of("gfx942").unwrap()[..], b"another"[..], "{version}");
            assert_eq!(of("gfx1201"), Err(HipError::NoBinaryForGpu), "{version}");
        }
        // SAFETY: whole, all of them.
        let of = |file: &[u8]| unsafe { object(file.as_ptr(), &gpu("gfx1100")) };
        // How long it is is not known, and what is not known is not read.
        assert_eq!(of(&packed(1, &plain)), Err(HipError::NotSupported));
        assert_eq!(of(&packed(4, &plain)), Err(HipError::InvalidImage));
        assert_eq!(
            of(&packed(2, b"no bundle at all")),
            Err(HipError::InvalidImage)
        );
        let mut huge = packed(3, &plain);
        huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of(&huge), Err(HipError::InvalidImage));
        let mut bomb = packed(3, &plain);
        bomb[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of(&bomb), Err(HipError::InvalidImage));
    }
}
