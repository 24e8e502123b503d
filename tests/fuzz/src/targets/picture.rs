//! Pictures, and the text in them.

use crate::target::{Target, Verdict};
use crate::{corpus, mutate, Random};
use sd_worker_rocm::image_io::{self, DecodeLimits};
use sd_worker_rocm::parameters::Parameters;
use worker::picture::Animation;

struct Pictures(Vec<Vec<u8>>);

pub(crate) fn target() -> Box<dyn Target> {
    let files = corpus::files("picture").into_iter();
    Box::new(Pictures(files.map(|(_, bytes)| bytes).collect()))
}

impl Target for Pictures {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let mut input = random.pick(&self.0).clone();
        mutate::bytes(&mut input, usize::MAX, random);
        // Decoders stop at a chunk whose checksum is wrong: mostly it is made right, so that they read on.
        if !random.one_in(4) {
            mend_png(&mut input);
        }
        input
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let text = image_io::parameters_of(input);
        if let Ok(Some(text)) = &text {
            let _ = Parameters::parse(text).to_string();
        }
        let picture = image_io::decode(input, &DecodeLimits::default());
        if let Ok(picture) = &picture {
            let _ = image_io::to_rgb(picture);
            let _ = image_io::to_mask(picture);
            let _ = image_io::transparency_mask(picture);
        }
        // The same file as a video, if it moves: of small frames, as each is decoded twice.
        let limits = DecodeLimits {
            max_pixels: 1 << 20,
            ..DecodeLimits::default()
        };
        if let Ok(animation) = Animation::open(input, &limits) {
            let last = animation.frames - 1;
            let _ = animation.each(&[last / 2, last], |_| Ok(()));
        }
        Verdict::of(picture)
    }

    fn memory(&self, bytes: usize) -> usize {
        // Pixels of 16 bits and four channels of the largest picture that is allowed, twice, and what is made of them.
        32 * bytes + (1 << 30)
    }
}

/// Makes the checksums of PNG's chunks right, as far as there are chunks.
fn mend_png(input: &mut [u8]) {
    let mut at = 8;
    while input.starts_with(b"\x89PNG") && at + 12 <= input.len() {
        let length =
            u32::from_be_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]]) as usize;
        let end = (at + 8).saturating_add(length);
        if end.saturating_add(4) > input.len() {
            return;
        }
        let sum = crc32(&input[at + 4..end]).to_be_bytes();
        input[end..end + 4].copy_from_slice(&sum);
        at = end + 4;
    }
}

/// The CRC of [PNG](https://www.w3.org/TR/png-3/#D-CRCAppendix).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_png() {
        assert_eq!(crc32(b"IEND"), 0xae42_6082);
        for (name, bytes) in corpus::files("picture") {
            let mut mended = bytes.clone();
            mend_png(&mut mended);
            assert!(mended == bytes, "{name}");
        }
    }
}
