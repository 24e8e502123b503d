//! Compiled kernels, as the cache and `rocm-doctor code-object` read them, and as candle-kfd lays them out in a GPU's
//! memory.

use crate::target::{Target, Verdict};
use crate::{mutate, Random};

/// An object for gfx1100.
const OBJECT: &[u8] = include_bytes!("../../../../code-object/tests/fixtures/gfx1100.elf");

/// Its zeros in memory that are laid out here at most, in bytes: reading them allows 256 MiB.
const MOST_ZEROS: usize = 1 << 20;

struct Objects;

struct Images;

pub(crate) fn target() -> Box<dyn Target> {
    Box::new(Objects)
}

pub(crate) fn image() -> Box<dyn Target> {
    Box::new(Images)
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
