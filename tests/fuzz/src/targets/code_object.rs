//! Compiled kernels, as the cache and `rocm-doctor code-object` read them, alone and in bundles, and as candle-kfd lays
//! them out in a GPU's memory.

use crate::target::{Target, Verdict};
use crate::{mutate, Random};
use std::io::Write;

/// An object for gfx1100.
const OBJECT: &[u8] = include_bytes!("../../../../code-object/tests/fixtures/gfx1100.elf");

/// Its zeros in memory that are laid out here at most, in bytes: reading them allows 256 MiB.
const MOST_ZEROS: usize = 1 << 20;

/// What a damaged bundle may take to be unpacked: zstd's reader sets aside the window that a frame announces, 100 MiB at
/// most.
const TO_UNPACK: usize = 192 << 20;

struct Objects;

struct Bundles {
    plain: Vec<u8>,
    /// The same behind headers of version 3, by zlib and by zstd.
    packed: [Vec<u8>; 2],
}

struct Images;

pub(crate) fn target() -> Box<dyn Target> {
    Box::new(Objects)
}

pub(crate) fn image() -> Box<dyn Target> {
    Box::new(Images)
}

pub(crate) fn bundle() -> Box<dyn Target> {
    let ids = [
        "host-x86_64-unknown-linux-gnu-",
        "hipv4-amdgcn-amd-amdhsa--gfx1100",
        "hipv4-amdgcn-amd-amdhsa--gfx11-generic",
    ];
    let mut plain = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    plain.extend((ids.len() as u64).to_le_bytes());
    let mut offset = plain.len() + ids.iter().map(|id| 24 + id.len()).sum::<usize>();
    for (at, id) in ids.iter().enumerate() {
        // The host's part is empty.
        let bytes = if at == 0 { 0 } else { OBJECT.len() };
        for number in [offset, bytes, id.len()] {
            plain.extend((number as u64).to_le_bytes());
        }
        plain.extend(id.as_bytes());
        offset += bytes;
    }
    plain.extend(OBJECT);
    plain.extend(OBJECT);
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing to a vector cannot fail.
    let _ = zlib.write_all(&plain);
    let zstd =
        ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    let packed = [zlib.finish().unwrap_or_default(), zstd];
    let mut method = 0u16..;
    let packed = packed.map(|bytes| {
        let mut file = b"CCOB".to_vec();
        file.extend(3u16.to_le_bytes());
        file.extend(method.next().unwrap_or_default().to_le_bytes());
        file.extend((32 + bytes.len() as u64).to_le_bytes());
        file.extend((plain.len() as u64).to_le_bytes());
        file.extend([0; 8]);
        file.extend(bytes);
        file
    });
    Box::new(Bundles { plain, packed })
}

/// The object, damaged mostly where the structure is: in the first half.
fn damaged(random: &mut Random) -> Vec<u8> {
    let mut input = OBJECT.to_vec();
    let end = if random.one_in(3) {
        input.len()
    } else {
        input.len() / 2
    };
    mutate::bytes(&mut input, end, random);
    input
}

impl Target for Objects {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        damaged(random)
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        Verdict::of(code_object::read(input))
    }

    fn memory(&self, bytes: usize) -> usize {
        // serde sets aside up to 1 MiB for an array of announced length, of kernels and of the arguments of one.
        16 * bytes + (2 << 20) + (64 << 10)
    }
}

impl Target for Bundles {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let mut input = match random.below(4) {
            0 => self.packed[0].clone(),
            1 => self.packed[1].clone(),
            _ => self.plain.clone(),
        };
        // Headers and ids more often than what they are of.
        let end = if random.one_in(2) { 200 } else { input.len() };
        let end = end.min(input.len());
        mutate::bytes(&mut input, end, random);
        input
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        for name in ["gfx1100", "gfx1201"] {
            let Some(gpu) = code_object::TargetId::parse(name) else {
                return Verdict::Fault(format!("{name} is not known"));
            };
            // What one of the two finds, the other knows of.
            let selected = code_object::select(input, &gpu);
            if selected.is_err() && code_object::read(input).is_ok() {
                return Verdict::Fault(format!("nothing is selected for {name}"));
            }
        }
        Verdict::of(code_object::read(input))
    }

    fn memory(&self, bytes: usize) -> usize {
        // And as above for each object in it.
        32 * bytes + TO_UNPACK + (8 << 20)
    }
}

impl Target for Images {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        damaged(random)
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let (object, image) = match code_object::load(input) {
            Ok(loaded) => loaded,
            Err(_) => return Verdict::Refused,
        };
        let bytes = image.bytes();
        let lies_in = |symbol: code_object::Symbol| {
            (symbol.offset.checked_add(symbol.bytes)).is_some_and(|end| end <= bytes as u64)
        };
        let kernels = object.kernels.iter().map(|kernel| kernel.symbol.as_str());
        for name in kernels.chain(image.symbols().map(|(name, _)| name)) {
            if !image.symbol(name).is_some_and(lies_in) {
                return Verdict::Fault(format!("{name} lies outside of the image"));
            }
        }
        if bytes <= input.len() + MOST_ZEROS && image.at(1 << 32).len() != bytes {
            return Verdict::Fault(format!("the image does not have its {bytes} bytes"));
        }
        Verdict::Accepted
    }

    fn memory(&self, bytes: usize) -> usize {
        // As above, and symbols and relocations once more, and the image itself.
        32 * bytes + (2 << 20) + (64 << 10) + MOST_ZEROS
    }
}
