//! Packets of HSA, as the HSA runtime specification (section 2.8) and LLVM's AMDGPUUsage describe them.

use super::{pm4, Halt, PacketError, Processor};
use crate::mock::clock;

/// Bytes of a packet.
const PACKET: usize = 64;
/// The bit of a header with which a packet waits for all before it.
const BARRIER: u32 = 1 << 8;

/// Types of packets.
mod kind {
    pub const VENDOR: u8 = 0;
    pub const INVALID: u8 = 1;
    pub const DISPATCH: u8 = 2;
    pub const BARRIER_AND: u8 = 3;
    pub const BARRIER_OR: u8 = 5;
}

/// AMD's own packet that compares a signal's value: `hsa_amd_barrier_value_packet_t`.
const BARRIER_VALUE: u8 = 2;

/// What may be wrong with a packet.
pub(super) mod error {
    use super::PacketError;

    const fn error(bit: u64, code: u32) -> PacketError {
        PacketError { bit, code }
    }

    pub const SCRATCH: PacketError = error(1, 16);
    pub const DIMENSIONS: PacketError = error(2, 16);
    pub const GROUP_MEMORY: PacketError = error(4, 17);
    pub const CODE: PacketError = error(8, 18);
    pub const UNSUPPORTED: PacketError = error(0x20, 20);
    pub const BLOCK: PacketError = error(0x40, 21);
    pub const VENDOR: PacketError = error(0x100, 23);
    /// The driver alone tells of it.
    pub const INSTRUCTION: PacketError = error(0, 4);
}

/// Offsets in `amd_signal_t`.
pub(super) mod signal {
    pub const KIND: u64 = 0;
    pub const VALUE: u64 = 8;
    pub const MAILBOX: u64 = 16;
    pub const EVENT: u64 = 24;
    pub const START: u64 = 32;
    pub const END: u64 = 40;
    /// The kind that the process and the GPU signal with.
    pub const USER: u64 = 1;
}

/// Offsets in `amd_queue_t`.
pub(super) mod descriptor {
    pub const RING: u64 = 8;
    pub const PACKETS: u64 = 24;
    /// From the read index on: how far behind the descriptor's beginning it is.
    pub const READ_INDEX_OFFSET: u64 = 8;
    pub const RING_SIZE_OF_SCRATCH: u64 = 140;
    pub const SCRATCH: u64 = 160;
    pub const SCRATCH_PER_LANE: u64 = 176;
    pub const INACTIVE_SIGNAL: u64 = 192;
}

/// A packet's bytes.
pub(super) struct Packet([u8; PACKET]);

impl Packet {
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes([0, 1, 2, 3].map(|i| self.0[at + i]))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    /// The signal that tells of its completion; 0 for none.
    fn completion(&self) -> u64 {
        self.u64(56)
    }
}

impl Processor {
    /// The address of the queue's `amd_queue_t`, which the firmware finds from the read index.
    pub(super) fn descriptor(&self) -> Result<u64, Halt> {
        let read_index = self.settings.read_pointer;
        let offset = self
            .view
            .load32(read_index + descriptor::READ_INDEX_OFFSET)?;
        Ok(read_index.wrapping_sub(offset.into()))
    }

    /// Takes the packet at the read index, if the doorbell has been rung for it.
    pub(super) fn step_aql(&self) -> Result<bool, Halt> {
        let settings = &self.settings;
        let read = self.view.load64(settings.read_pointer)?;
        let doorbell = self.doorbell();
        // A doorbell has the index of the last packet; -1 is one that was never rung.
        if (doorbell as i64) < read as i64 || !self.runs() {
            return Ok(false);
        }
        let header = self.view.load32(self.slot(read))?;
        let written = self.view.load64(settings.write_pointer)?;
        if header as u8 == kind::INVALID {
            return Ok(false);
        }
        if read == 0 {
            self.check_descriptor()?;
        }
        if written <= doorbell {
            self.complain(&format!(
                "rung for packet {doorbell}, but the write index is {written}"
            ));
        }
        if self.shared.injected.stalls() {
            return self.wait(|| Ok(false)).map(|()| false);
        }
        let mut taken = vec![read];
        if self.may_swap(header, read + 1, doorbell)? {
            taken.insert(0, read + 1);
        }
        let mut done = Vec::with_capacity(2);
        for &index in &taken {
            let at = self.slot(index);
            let mut packet = Packet([0; PACKET]);
            self.view.read(at, &mut packet.0)?;
            done.push((packet.completion(), clock::now()));
            self.take(&packet)?;
            // The slot is free once its header says so, and the read index has passed it.
            self.view.store32(at, kind::INVALID.into())?;
        }
        self.view
            .store64(settings.read_pointer, read + taken.len() as u64)?;
        for (signal, start) in done.into_iter().filter(|&(signal, _)| signal != 0) {
            self.complete(signal, start)?;
        }
        Ok(true)
    }

    /// The address of a packet's slot.
    fn slot(&self, index: u64) -> u64 {
        let packets = self.settings.ring_bytes / PACKET as u64;
        self.settings.ring + index % packets * PACKET as u64
    }

    /// Whether a kernel may be done after the next packet, and tests want that: that is a kernel, too, and does not wait
    /// for those before it.
    fn may_swap(&self, header: u32, next: u64, doorbell: u64) -> Result<bool, Halt> {
        if !self.shared.injected.swaps() || header as u8 != kind::DISPATCH || next > doorbell {
            return Ok(false);
        }
        let next = self.view.load32(self.slot(next))?;
        Ok(next as u8 == kind::DISPATCH && next & BARRIER == 0)
    }

    fn take(&self, packet: &Packet) -> Result<(), Halt> {
        match packet.0[0] {
            kind::DISPATCH => self.dispatch(packet),
            kind::BARRIER_AND => self.barrier(packet, |zero| zero.iter().all(|&is| is)),
            kind::BARRIER_OR => self.barrier(packet, |zero| zero.iter().any(|&is| is)),
            kind::VENDOR => self.vendor(packet),
            _ => Err(Halt::Packet(error::UNSUPPORTED)),
        }
    }

    /// Says where the process' description of the queue differs from what the driver was told.
    fn check_descriptor(&self) -> Result<(), Halt> {
        let at = self.descriptor()?;
        let ring = self.view.load64(at + descriptor::RING)?;
        let packets = self.view.load32(at + descriptor::PACKETS)?;
        if ring != self.settings.ring
            || u64::from(packets) * PACKET as u64 != self.settings.ring_bytes
        {
            self.complain(&format!(
                "its amd_queue_t has {packets} packets at {ring:#x}, the driver was told {} bytes at {:#x}",
                self.settings.ring_bytes, self.settings.ring
            ));
        }
        Ok(())
    }

    /// Waits for the signals of a barrier: until as many as `enough` wants are 0.
    fn barrier(&self, packet: &Packet, enough: impl Fn(&[bool]) -> bool) -> Result<(), Halt> {
        let signals: Vec<u64> = (0..5)
            .map(|i| packet.u64(8 + 8 * i))
            .filter(|&signal| signal != 0)
            .collect();
        if signals.is_empty() {
            return Ok(());
        }
        self.wait(|| {
            let zero = signals
                .iter()
                .map(|&at| Ok(self.view.load64(at + signal::VALUE)? == 0));
            Ok(enough(&zero.collect::<Result<Vec<bool>, Halt>>()?))
        })
    }

    /// AMD's own packets.
    fn vendor(&self, packet: &Packet) -> Result<(), Halt> {
        match packet.0[2] {
            BARRIER_VALUE => {}
            pm4::INDIRECT => return self.indirect(packet),
            _ => return Err(Halt::Packet(error::VENDOR)),
        }
        let (signal, mask) = (packet.u64(8), packet.u64(24));
        let value = packet.u64(16) as i64;
        let condition = packet.u32(32);
        if signal == 0 {
            return Ok(());
        }
        self.wait(|| {
            let now = (self.view.load64(signal + signal::VALUE)? & mask) as i64;
            // `hsa_signal_condition_t`.
            match condition {
                0 => Ok(now == value),
                1 => Ok(now != value),
                2 => Ok(now < value),
                3 => Ok(now >= value),
                _ => Err(Halt::Packet(error::VENDOR)),
            }
        })
    }

    /// Lowers a signal by one, with the times of its packet, and wakes who waits for its event.
    fn complete(&self, at: u64, start: u64) -> Result<(), Halt> {
        if self.view.load64(at + signal::KIND)? != signal::USER {
            self.complain(&format!("the signal at {at:#x} is not of kind USER"));
        }
        self.view.store64(at + signal::START, start)?;
        self.view
            .store64(at + signal::END, clock::now().max(start + 1))?;
        self.view.add64(at + signal::VALUE, u64::MAX)?;
        self.mail(at)
    }

    /// Writes a signal's event into its mailbox, and interrupts.
    fn mail(&self, at: u64) -> Result<(), Halt> {
        let mailbox = self.view.load64(at + signal::MAILBOX)?;
        if mailbox != 0 {
            let event = self.view.load32(at + signal::EVENT)?;
            self.view.store64(mailbox, event.into())?;
            self.interrupt(event);
        }
        Ok(())
    }

    /// The firmware's part of telling of a wrong packet: bits of the queue's inactive signal.
    pub(super) fn tell_packet(&self, error: PacketError) -> Result<(), Halt> {
        if error.bit == 0 {
            return Ok(());
        }
        let signal = self
            .view
            .load64(self.descriptor()? + descriptor::INACTIVE_SIGNAL)?;
        if signal != 0 {
            self.view.or64(signal + signal::VALUE, error.bit)?;
            self.mail(signal)?;
        }
        Ok(())
    }
}
