//! Compiled kernels, as the cache and `rocm-doctor code-object` read them.

use crate::target::{Target, Verdict};
use crate::{mutate, Random};

/// An object for gfx1100.
const OBJECT: &[u8] = include_bytes!("../../../../code-object/tests/fixtures/gfx1100.elf");

struct Objects;

pub(crate) fn target() -> Box<dyn Target> {
    Box::new(Objects)
}

impl Target for Objects {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let mut input = OBJECT.to_vec();
        // Mostly where the structure is: in the first half.
        let end = if random.one_in(3) {
            input.len()
        } else {
            input.len() / 2
        };
        mutate::bytes(&mut input, end, random);
        input
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        Verdict::of(code_object::read(input))
    }

    fn memory(&self, bytes: usize) -> usize {
        // serde sets aside up to 1 MiB for an array of announced length, of kernels and of the arguments of one.
        16 * bytes + (2 << 20) + (64 << 10)
    }
}
