//! Code objects that callers hand over as a pointer alone: how long they are is in them.

use code_object::TargetId;
use hip_abi::error::{HipError, HipResult};

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

/// The code object at `image` that runs on a GPU: the file itself, or one of a bundle.
///
/// # Errors
/// [`HipError::InvalidImage`] if it is neither; [`HipError::NoBinaryForGpu`] for a bundle with nothing for the GPU.
///
/// # Safety
/// `image` is null or points to a whole file, which stays as long as the result is used.
pub(crate) unsafe fn object<'a>(image: *const u8, gpu: &TargetId) -> HipResult<&'a [u8]> {
    if image.is_null() {
        return Err(HipError::InvalidValue);
    }
    let image = Unbounded(image);
    // SAFETY: the caller's file is whole, so that what a magic announces is there.
    unsafe {
        if image.begins_with(ELF_MAGIC) {
            elf(&image, 0)
        } else if image.begins_with(BUNDLE_MAGIC) {
            entry(&image, gpu)
        } else if image.begins_with(COMPRESSED_MAGIC) {
            eprintln!(
                "hip-on-kfd: a compressed bundle of code objects cannot be loaded; unpack it \
                 (clang-offload-bundler -unbundle), or compile with --no-offload-compress"
            );
            Err(HipError::NotSupported)
        } else {
            Err(HipError::InvalidImage)
        }
    }
}

/// The ELF file at an offset.
///
/// # Safety
/// It is whole.
unsafe fn elf<'a>(image: &Unbounded, at: u64) -> HipResult<&'a [u8]> {
    // SAFETY: the header is there.
    let number = |offset, count| unsafe { image.number(at + offset, count) };
    let mut end = ELF_HEADER as u64;
    let tables = [
        (number(32, 8), number(54, 2), number(56, 2)),
        (number(40, 8), number(58, 2), number(60, 2)),
    ];
    for (offset, entry_bytes, entries) in tables {
        end = end.max(offset.saturating_add(entry_bytes * entries));
    }
    if end > LARGEST {
        return Err(HipError::InvalidImage);
    }
    // Linkers write the table of sections last; what is cut off before it is refused when the object is read.
    // SAFETY: the file is whole, and its tables are in it.
    Ok(unsafe { image.bytes(at, end) })
}

/// The entry of a bundle that runs on a GPU; one for exactly its processor goes before a generic one.
///
/// # Safety
/// The bundle is whole.
unsafe fn entry<'a>(image: &Unbounded, gpu: &TargetId) -> HipResult<&'a [u8]> {
    let mut at = BUNDLE_MAGIC.len() as u64;
    // SAFETY: the bundle is whole: its header and the entries that this names are there.
    let number = |at| unsafe { image.number(at, 8) };
    let entries = number(at);
    if entries > MOST_ENTRIES {
        return Err(HipError::InvalidImage);
    }
    at += 8;
    let mut generic = None;
    for _ in 0..entries {
        let [offset, bytes, name_bytes] = [number(at), number(at + 8), number(at + 16)];
        if offset > LARGEST || bytes > LARGEST || name_bytes > LONGEST_NAME {
            return Err(HipError::InvalidImage);
        }
        // SAFETY: as above.
        let name = unsafe { image.bytes(at + 24, name_bytes) };
        at += 24 + name_bytes;
        let name = String::from_utf8_lossy(name);
        let Some(target) = TargetId::parse(&name).filter(|target| target.runs_on(gpu)) else {
            continue;
        };
        // SAFETY: as above.
        let object = unsafe { image.bytes(offset, bytes) };
        if target.processor() == gpu.processor() {
            return Ok(object);
        }
        generic = Some(object);
    }
    generic.ok_or(HipError::NoBinaryForGpu)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(of("gfx1100"), Ok(&b"own"[..]));
        assert_eq!(of("gfx1101"), Ok(&b"generic"[..]));
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
    }
}
