//! Why a queue stopped.
//!
//! The firmware leaves bits in the queue's inactive signal (ROCr's `AqlQueue::DynamicQueueEventsHandler`), a newer kernel
//! driver leaves exception codes where the save area's header says (`EC_QUEUE_…` of its `kfd_ioctl.h`, one bit each).

/// The firmware sets this when the queue runs empty, as AMD's emulator shows it.
const IDLE: u64 = 0x10;

const FIRMWARE: &[(u64, &str)] = &[
    (0x401, "it needs more scratch memory than the queue has"),
    (0x2, "its grid or block has no threads or too many"),
    (0x4, "it needs more LDS than there is"),
    (0x8, "it names no code"),
    (0x20, "the packet's kind is not known"),
    (0x40, "its block is too large"),
    (0x80, "it needs more registers than there are"),
    (0x100, "the vendor's packet is not known"),
    (0x2000_0000, "an address is beyond all memory"),
    (0x4000_0000, "an instruction is illegal"),
    (0x8000_0000, "it ran into a trap"),
];

const EXCEPTIONS: &[(u32, &str)] = &[
    (1, "it aborted"),
    (2, "it ran into a trap"),
    (3, "an arithmetic exception"),
    (4, "an instruction is illegal"),
    (5, "it touched memory that is not mapped or not its own"),
    (6, "an address is beyond all memory"),
    (16, "its grid or block has no threads or too many"),
    (17, "it needs more LDS than there is"),
    (18, "it names no code"),
    (19, "the packet is reserved"),
    (20, "the packet's kind is not known"),
    (21, "its block is too large"),
    (22, "it needs more registers than there are"),
    (23, "the vendor's packet is not known"),
    (30, "it could not be made to pause"),
];

/// What the two values say; nothing if neither tells of a failure.
pub(crate) fn reason(inactive: i64, exceptions: i64) -> Option<String> {
    let firmware = inactive as u64 & !IDLE;
    let exceptions = exceptions as u64;
    let known = (FIRMWARE.iter())
        .find(|(bits, _)| firmware & bits != 0)
        .map(|(_, text)| *text)
        .or_else(|| {
            let found = (EXCEPTIONS.iter()).find(|(code, _)| exceptions >> (code - 1) & 1 != 0);
            found.map(|(_, text)| *text)
        });
    match (known, firmware | exceptions) {
        (_, 0) => None,
        (Some(text), _) => Some(text.to_string()),
        (None, _) => Some(format!(
            "firmware {firmware:#x}, exceptions {exceptions:#x}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn both_sources_are_read() {
        assert_eq!(reason(0, 0), None);
        assert_eq!(reason(0x10, 0), None);
        assert_eq!(reason(0x42, 0), reason(0, 1 << 15));
        assert_eq!(reason(0x20, 0), reason(0x30, 0));
        assert!(reason(0, 1 << 3).unwrap().contains("illegal"));
        assert!(reason(1, 0).unwrap().contains("scratch") && reason(0x400, 0) == reason(1, 0));
        assert_eq!(
            reason(0, 1 << 40).unwrap(),
            "firmware 0x0, exceptions 0x10000000000"
        );
        assert!(reason(-1, 0).is_some());
    }
}
