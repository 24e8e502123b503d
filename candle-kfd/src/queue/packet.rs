//! Packets of the architected queuing language (AQL), 64 bytes each, as the HSA runtime specification has them.

/// Bytes of a packet.
pub(crate) const BYTES: usize = 64;
/// Signals that a barrier waits for.
pub(crate) const BARRIER_SIGNALS: usize = 5;

/// `HSA_PACKET_TYPE_…`.
mod kind {
    pub const VENDOR_SPECIFIC: u32 = 0;
    pub const INVALID: u32 = 1;
    pub const KERNEL_DISPATCH: u32 = 2;
    pub const BARRIER_AND: u32 = 3;
}

/// Bit of the header: all packets before are done first.
const BARRIER: u32 = 1 << 8;
/// Caches are invalidated before and written back behind, up to the whole system: `HSA_FENCE_SCOPE_SYSTEM` twice.
const FENCES: u32 = 2 << 9 | 2 << 11;

/// The first word of a slot that holds no packet.
pub(crate) const INVALID: u32 = kind::INVALID;

/// A packet: its first word, which makes it valid, and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub header: u32,
    /// What lies behind the first word.
    pub body: [u8; BYTES - 4],
}

/// What a dispatch says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    pub block: [u32; 3],
    /// Threads, not blocks.
    pub grid: [u32; 3],
    pub lane_bytes: u32,
    pub lds_bytes: u32,
    pub descriptor: u64,
    pub arguments: u64,
    pub completion: u64,
    pub barrier: bool,
}

impl Packet {
    fn new(kind: u32, barrier: bool, second_half: u16) -> Packet {
        let barrier = if barrier { BARRIER } else { 0 };
        Packet {
            header: kind | barrier | FENCES | u32::from(second_half) << 16,
            body: [0; BYTES - 4],
        }
    }

    /// Puts a number at an offset of the packet.
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.body[at - 4..at - 4 + N].copy_from_slice(&bytes);
    }

    /// A kernel.
    pub fn dispatch(dispatch: &Dispatch) -> Packet {
        // Three dimensions always: those that a kernel does not use have one block.
        let mut packet = Packet::new(kind::KERNEL_DISPATCH, dispatch.barrier, 3);
        for (at, (block, grid)) in dispatch.block.iter().zip(&dispatch.grid).enumerate() {
            packet.put(4 + at * 2, (*block as u16).to_le_bytes());
            packet.put(12 + at * 4, grid.to_le_bytes());
        }
        packet.put(24, dispatch.lane_bytes.to_le_bytes());
        packet.put(28, dispatch.lds_bytes.to_le_bytes());
        packet.put(32, dispatch.descriptor.to_le_bytes());
        packet.put(40, dispatch.arguments.to_le_bytes());
        packet.put(56, dispatch.completion.to_le_bytes());
        packet
    }

    /// Waits for all packets before and for up to five signals.
    pub fn barrier(waits: &[u64], completion: u64) -> Packet {
        let mut packet = Packet::new(kind::BARRIER_AND, true, 0);
        for (at, wait) in waits.iter().take(BARRIER_SIGNALS).enumerate() {
            packet.put(8 + at * 8, wait.to_le_bytes());
        }
        packet.put(56, completion.to_le_bytes());
        packet
    }

    /// Commands of the processor's own (PM4) from a buffer, as ROCr's `ExecutePM4` has them run on gfx9 and later.
    pub fn commands(address: u64, words: u32, completion: u64) -> Packet {
        const FORMAT_COMMANDS: u16 = 1;
        const INDIRECT_BUFFER: u32 = 0x3f;
        const VALID: u32 = 1 << 23;
        /// Words of the packet behind the jump.
        const WORDS_LEFT: u32 = 10;
        let mut packet = Packet::new(kind::VENDOR_SPECIFIC, true, FORMAT_COMMANDS);
        let jump = [
            command(INDIRECT_BUFFER, 4),
            address as u32,
            (address >> 32) as u32,
            words | VALID,
            WORDS_LEFT,
        ];
        for (at, word) in jump.iter().enumerate() {
            packet.put(4 + at * 4, word.to_le_bytes());
        }
        packet.put(56, completion.to_le_bytes());
        packet
    }
}

/// The first word of a command of so many words.
fn command(operation: u32, words: u32) -> u32 {
    3 << 30 | (words - 2) << 16 | operation << 8
}

/// The command that empties caches of code: `ACQUIRE_MEM`, as ROCr's `InvalidateCodeCaches` has it.
pub(crate) fn invalidate_code(is_gfx9: bool) -> Vec<u32> {
    const ACQUIRE_MEM: u32 = 0x58;
    const EVERYWHERE: [u32; 2] = [u32::MAX, 0xff];
    if is_gfx9 {
        const INSTRUCTIONS: u32 = 1 << 29;
        const CONSTANTS: u32 = 1 << 27;
        const SECOND_LEVEL: u32 = 1 << 23;
        const SECOND_LEVEL_WRITES: u32 = 1 << 18;
        let what = INSTRUCTIONS | CONSTANTS | SECOND_LEVEL | SECOND_LEVEL_WRITES;
        vec![
            command(ACQUIRE_MEM, 7),
            what,
            EVERYWHERE[0],
            EVERYWHERE[1],
            0,
            0,
            0,
        ]
    } else {
        const INSTRUCTIONS: u32 = 1;
        const CONSTANTS: u32 = 1 << 7;
        const VECTORS: u32 = 1 << 8;
        const FIRST_LEVEL: u32 = 1 << 9;
        const SECOND_LEVEL: u32 = 1 << 14;
        let what = INSTRUCTIONS | CONSTANTS | VECTORS | FIRST_LEVEL | SECOND_LEVEL;
        vec![
            command(ACQUIRE_MEM, 8),
            0,
            EVERYWHERE[0],
            EVERYWHERE[1],
            0,
            0,
            0,
            what,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(packet: &Packet, at: usize) -> u64 {
        u64::from_le_bytes(packet.body[at - 4..at + 4].try_into().unwrap())
    }

    /// Kind, barrier and two fences of system scope, as the HSA runtime specification places them.
    #[test]
    fn packets_have_their_fields() {
        let mut dispatch = Dispatch {
            block: [256, 2, 1],
            grid: [1024, 4, 1],
            lane_bytes: 16,
            lds_bytes: 512,
            descriptor: 0x1111_2222_3333_4440,
            arguments: 0x5555_6666_7777_8880,
            completion: 0x9999_aaaa_bbbb_ccc0,
            barrier: true,
        };
        let packet = Packet::dispatch(&dispatch);
        assert_eq!(packet.header, 0x0003_1502);
        assert_eq!(packet.body[..8], [0, 1, 2, 0, 1, 0, 0, 0]);
        assert_eq!(long(&packet, 12), 4 << 32 | 1024);
        assert_eq!(long(&packet, 24), 512 << 32 | 16);
        assert_eq!(long(&packet, 32), dispatch.descriptor);
        assert_eq!(long(&packet, 40), dispatch.arguments);
        assert_eq!(
            (long(&packet, 48), long(&packet, 56)),
            (0, dispatch.completion)
        );
        dispatch.barrier = false;
        assert_eq!(Packet::dispatch(&dispatch).header, 0x0003_1402);

        let barrier = Packet::barrier(&[1, 2, 3, 4, 5], 6);
        assert_eq!(barrier.header, 0x1503);
        assert_eq!(
            [8, 16, 24, 32, 40, 48, 56].map(|at| long(&barrier, at)),
            [1, 2, 3, 4, 5, 0, 6]
        );

        let commands = Packet::commands(0x7f12_3456_7000, 8, 9);
        assert_eq!(commands.header, 0x0001_1500);
        assert_eq!(long(&commands, 4), 0x3456_7000_c002_3f00);
        assert_eq!(long(&commands, 12), 0x0080_0008_0000_7f12);
        assert_eq!((long(&commands, 20), long(&commands, 56)), (10, 9));
    }

    #[test]
    fn commands_have_their_words() {
        assert_eq!(invalidate_code(true)[..2], [0xc005_5800, 0x2884_0000]);
        assert_eq!(invalidate_code(false)[0], 0xc006_5800);
        assert_eq!(invalidate_code(false)[7], 0x4381);
        assert_eq!(
            [true, false].map(|gfx9| invalidate_code(gfx9).len()),
            [7, 8]
        );
    }
}
