//! Packets of PM4 that a packet of HSA leads to, as Linux' `soc15d.h` and `nvd.h` number them: those that only keep
//! caches in order, of which there are none here. Others are refused.

use super::aql::{error, Packet};
use super::{Halt, Processor};

/// The low byte of AMD's own packets that lead to others (ROCr's `amd_aql_pm4_ib.h`).
pub(super) const INDIRECT: u8 = 1;
/// What such a packet has to say besides: so many words follow (`dw_cnt_remain`).
const REMAINING_WORDS: u32 = 10;
/// Bits of the last word of `PACKET3_INDIRECT_BUFFER`: its length in words, and that it is valid.
const LENGTH: u32 = (1 << 20) - 1;
const VALID: u32 = 1 << 23;

/// `PACKET3_…`.
mod op {
    pub const NOP: u32 = 0x10;
    pub const INDIRECT_BUFFER: u32 = 0x3f;
    pub const RELEASE_MEM: u32 = 0x49;
    pub const ACQUIRE_MEM: u32 = 0x58;
}

/// The operation of a packet of type 3, and how many words follow its header.
fn header(word: u32) -> Option<(u32, usize)> {
    (word >> 30 == 3).then_some((word >> 8 & 0xff, (word >> 16 & 0x3fff) as usize + 1))
}

impl Processor {
    /// Follows a packet to a buffer of PM4's.
    pub(super) fn indirect(&self, packet: &Packet) -> Result<(), Halt> {
        let wrong = Err(Halt::Packet(error::VENDOR));
        let last = packet.u32(16);
        let leads = header(packet.u32(4)) == Some((op::INDIRECT_BUFFER, 3)) && last & VALID != 0;
        if !leads || packet.u32(20) != REMAINING_WORDS {
            self.complain("AMD's own packet leads to no buffer");
            return wrong;
        }
        let at = packet.u64(8);
        let words = (last & LENGTH) as usize;
        let mut bytes = vec![0; 4 * words];
        self.view.read(at, &mut bytes)?;
        let mut index = 0;
        while index < words {
            let word = u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[4 * index + i]));
            let (op, following) = match header(word) {
                Some((op::NOP, 0x4000)) => (op::NOP, 0),
                Some(header) => header,
                None => (0, 0),
            };
            index += 1 + following;
            if !matches!(op, op::NOP | op::ACQUIRE_MEM | op::RELEASE_MEM) || index > words {
                self.complain(&format!(
                    "the buffer at {at:#x} has a packet with header {word:#010x}"
                ));
                return wrong;
            }
        }
        Ok(())
    }
}
