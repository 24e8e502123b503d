//! Where packets go in a ring.

/// A ring of bytes behind pointers that never wrap, as the engine counts them. A packet is never cut at the ring's end:
/// what is left there is padded with words of zero, each of which is a packet without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Bytes of the ring, a power of two.
    ring: u64,
    /// Bytes written so far, with padding.
    written: u64,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes of padding before it, which begin at `padding_at` of the ring.
    pub padding: u64,
    /// Where the padding begins in the ring.
    pub padding_at: u64,
    /// Where the packet begins in the ring.
    pub at: u64,
    /// The pointer behind the packet.
    pub end: u64,
}

impl Cursor {
    /// Of a ring in which nothing was written yet, with an engine that will read from `start` on.
    pub fn new(ring: u64, start: u64) -> Self {
        Cursor {
            ring,
            written: start,
        }
    }

    /// The write pointer.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Where the next packet goes; nothing is changed.
    pub fn place(&self, bytes: u64) -> Place {
        let at = self.written % self.ring;
        let left = self.ring - at;
        let padding = if bytes > left { left } else { 0 };
        Place {
            padding,
            padding_at: at,
            at: (at + padding) % self.ring,
            end: self.written + padding + bytes,
        }
    }

    /// Whether an engine that has read so far leaves room for a packet. The ring is never filled: pointers that are a
    /// whole ring apart would look like none.
    pub fn has_room(&self, place: Place, read: u64) -> bool {
        place.end.wrapping_sub(read) < self.ring
    }

    /// The packet was written.
    pub fn advance(&mut self, place: Place) {
        self.written = place.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_not_cut() {
        let mut cursor = Cursor::new(64, 0);
        let mut seen = Vec::new();
        for bytes in [28, 28, 28, 8, 28] {
            let place = cursor.place(bytes);
            assert!(place.at + bytes <= 64, "{place:?}");
            seen.push((place.padding, place.at, place.end));
            cursor.advance(place);
        }
        assert_eq!(
            seen,
            [
                (0, 0, 28),
                (0, 28, 56),
                (8, 0, 92),
                (0, 28, 100),
                (0, 36, 128)
            ]
        );
        // Exactly at the end: the next one begins anew, without padding.
        assert_eq!(cursor.place(4).at, 0);
        assert_eq!(cursor.place(4).padding, 0);
    }

    #[test]
    fn a_ring_is_never_filled() {
        let mut cursor = Cursor::new(64, 0);
        cursor.advance(cursor.place(40));
        assert!(cursor.has_room(cursor.place(20), 0));
        assert!(!cursor.has_room(cursor.place(24), 0));
        assert!(cursor.has_room(cursor.place(24), 4));
        // With padding it does not fit before the engine is past the ring's begin.
        assert!(!cursor.has_room(cursor.place(28), 24));
        assert!(cursor.has_room(cursor.place(28), 40));
    }

    #[test]
    fn pointers_go_on_for_ever() {
        let mut cursor = Cursor::new(64, u64::from(u32::MAX) - 3);
        for _ in 0..100 {
            let place = cursor.place(20);
            assert!(cursor.has_room(place, cursor.written()));
            cursor.advance(place);
        }
        assert!(cursor.written() > u64::from(u32::MAX) + 2000);
    }
}
