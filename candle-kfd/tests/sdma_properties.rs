//! Random packets of a copy engine, against what they are to do to memory.

mod random;

use candle_kfd::mock::Mock;
use candle_kfd::sdma::{Compare, Engine, SdmaQueue};
use candle_kfd::{Displays, Kfd, Kind};
use random::Random;
use std::time::Duration;

const BYTES: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A range within the memory: short ones as often as long ones.
fn range(random: &mut Random, alignment: usize) -> (usize, usize) {
    let most = [8, 300, 5000, BYTES / 2][random.below(4)];
    let bytes = (random.below(most) + 1).next_multiple_of(alignment);
    let at = random.below(BYTES - bytes + 1) / alignment * alignment;
    (at, bytes)
}

#[test]
fn packets_do_to_memory_what_they_say() {
    for arch in ["gfx942", "gfx1030", "gfx1201"] {
        let mock = Mock::new(&[arch]);
        let gpu = Kfd::with(mock.clone())
            .unwrap()
            .gpu(0, Displays::Refuse)
            .unwrap();
        // A ring that wraps many times.
        let queue = SdmaQueue::with_ring(&gpu, Engine::Any, 4096).unwrap();
        let memory = gpu.allocate(BYTES, Kind::Gtt).unwrap();
        let host = memory.host().unwrap();
        let base = memory.address();
        let mut random = Random(arch.len() as u64 * 77);
        let mut model: Vec<u8> = (0..BYTES).map(|_| random.below(256) as u8).collect();
        host.write(0, &model).unwrap();
        for round in 0..15 {
            let mut packets = queue.packets();
            for _ in 0..random.below(12) + 1 {
                let at = |offset: usize| base + offset as u64;
                match random.below(5) {
                    0 | 1 => {
                        let (from, bytes) = range(&mut random, 1);
                        let to = random.below(BYTES - bytes + 1);
                        if to < from + bytes && from < to + bytes {
                            continue;
                        }
                        packets.copy(at(to), at(from), bytes as u64);
                        model.copy_within(from..from + bytes, to);
                    }
                    2 => {
                        let (to, bytes) = range(&mut random, 4);
                        let value = random.below(u32::MAX as usize) as u32;
                        packets.fill(at(to), value, bytes as u64 / 4);
                        model[to..to + bytes]
                            .copy_from_slice(&value.to_le_bytes().repeat(bytes / 4));
                    }
                    3 => {
                        let to = random.below(BYTES / 8) * 8;
                        let value = random.below(1 << 40) as i64 - (1 << 39);
                        packets.add(at(to), value);
                        let word = &mut model[to..to + 8];
                        let old = i64::from_le_bytes((&*word).try_into().unwrap());
                        word.copy_from_slice(&old.wrapping_add(value).to_le_bytes());
                    }
                    _ => {
                        let to = random.below(BYTES / 4) * 4;
                        let value = random.below(u32::MAX as usize) as u32;
                        packets
                            .fence(at(to), value)
                            .poll(at(to), u32::MAX, Compare::Equal, value);
                        model[to..to + 4].copy_from_slice(&value.to_le_bytes());
                    }
                }
                packets.barrier();
            }
            // SAFETY: all ranges lie in the memory, which lives until the engine is through.
            unsafe { queue.run(&packets, TIMEOUT) }.unwrap();
            let mut now = vec![0; BYTES];
            host.read(0, &mut now).unwrap();
            let wrong = now.iter().zip(&model).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{arch}, round {round}");
        }
        assert_eq!(mock.complaints(), [""; 0], "{arch}");
    }
}
