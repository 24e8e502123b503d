//! Packets of HSA.

use super::bench::{Bench, CODE, DATA, DONE};
use candle_kfd::mock::{object, MockKernel};

/// A packet of HSA.
#[derive(Clone)]
pub struct Packet(pub [u8; 64]);

impl Packet {
    pub fn new(kind: u32) -> Self {
        Packet([0; 64]).with32(0, kind)
    }

    /// Of a kernel with arguments at the beginning of the data: one dimension of blocks of 64.
    pub fn dispatch(bench: &Bench, threads: u32) -> Self {
        let file = object(
            "gfx1100",
            &[
                MockKernel::new("unused"),
                MockKernel::new("count").buffer().value(4).lds(256),
            ],
        );
        bench.memory.write(CODE, &file).unwrap();
        let read = code_object::CodeObject::parse(&file).unwrap();
        assert_eq!(read.kernels[1].argument_bytes, 12);
        // The second of the objects in `.rodata`, which begins at a multiple of 64 behind the strings.
        let descriptor = (0..file.len() as u64 - 64)
            .step_by(64)
            .find(|&at| {
                file[at as usize..][8..12] == [12, 0, 0, 0]
                    && file[at as usize..][..4] == [0, 1, 0, 0]
            })
            .unwrap();
        Packet::new(2 | 1 << 8 | 1 << 16)
            .with32(4, 64 | 1 << 16)
            .with32(8, 1)
            .with32(12, threads)
            .with32(16, 1)
            .with32(20, 1)
            .with32(28, 1024)
            .with64(32, CODE + descriptor)
            .with64(40, DATA)
            .with64(56, DONE)
    }

    pub fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    pub fn with32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub fn with64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }
}
