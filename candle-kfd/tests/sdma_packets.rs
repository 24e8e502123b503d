//! Packets word by word, against what Linux's and ROCr's headers make of the same.

use candle_kfd::generation::Generation;
use candle_kfd::sdma::{Compare, Packets, COPY_BYTES, FILL_BYTES};

const FROM: u64 = 0x0000_7f12_3456_7890;
const TO: u64 = 0x0000_0041_8000_0100;

fn packets(arch: &str) -> Packets {
    Packets::new(Generation::of(arch).expect("known").sdma)
}

/// One of each generation: those whose emulators there are, and the others.
const ARCHS: [&str; 6] = [
    "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201",
];

/// `sdma_v4_4_2_emit_copy_buffer`, `sdma_v6_0_emit_copy_buffer`: operation 1, bytes - 1, no swap, from, to.
#[test]
fn a_copy_is_the_same_on_all() {
    for arch in ARCHS {
        let mut packets = packets(arch);
        packets.copy(TO, FROM, 0x1234);
        assert_eq!(
            packets.words(),
            [1, 0x1233, 0, 0x3456_7890, 0x7f12, 0x8000_0100, 0x41],
            "{arch}"
        );
    }
}

#[test]
fn a_long_copy_is_cut() {
    let mut packets = packets("gfx942");
    packets.copy(TO, FROM, 2 * COPY_BYTES + 5);
    let all: Vec<&[u32]> = packets.iter().collect();
    assert_eq!(all.len(), 3);
    let address = |words: &[u32]| u64::from(words[0]) | u64::from(words[1]) << 32;
    for (i, (packet, bytes)) in all.iter().zip([COPY_BYTES, COPY_BYTES, 5]).enumerate() {
        assert_eq!(u64::from(packet[1]) + 1, bytes);
        let at = i as u64 * COPY_BYTES;
        assert_eq!(address(&packet[3..]), FROM + at);
        assert_eq!(address(&packet[5..]), TO + at);
    }
    const { assert!(COPY_BYTES <= 1 << 26 && COPY_BYTES.is_multiple_of(32)) };
}

#[test]
fn nothing_makes_no_packet() {
    let mut packets = packets("gfx1100");
    packets.copy(TO, FROM, 0).fill(TO, 1, 0);
    assert!(packets.is_empty());
    assert_eq!(packets.iter().count(), 0);
}

/// ROCr's `BuildFillCommand`: operation 11, words of 32 bits (2 in bits 30 and 31), and the bytes before the last word.
#[test]
fn a_fill_counts_to_its_last_word() {
    for arch in ARCHS {
        let mut packets = packets(arch);
        packets.fill(TO, 0xdead_beef, 1);
        packets.fill(TO, 7, FILL_BYTES / 4 + 3);
        let all: Vec<&[u32]> = packets.iter().collect();
        assert_eq!(
            all,
            [
                [0x8000_000b, 0x8000_0100, 0x41, 0xdead_beef, 0],
                [0x8000_000b, 0x8000_0100, 0x41, 7, 0x3f_ffdc],
                [0x8000_000b, 0x8040_00e0, 0x41, 7, 8],
            ],
            "{arch}"
        );
    }
}

/// `sdma_v4_4_2_ring_emit_fence` (plain), `sdma_v5_2_ring_emit_fence` (`MTYPE(3)`), ROCr's `BuildFenceCommand` for
/// gfx12 (`mtype` 3, `sys` 1).
#[test]
fn a_fence_reaches_memory_as_each_generation_needs() {
    for (arch, header) in [
        ("gfx90a", 5),
        ("gfx942", 5),
        ("gfx950", 5),
        ("gfx1030", 0x0003_0005),
        ("gfx1100", 0x0003_0005),
        ("gfx1151", 0x0003_0005),
        ("gfx1201", 0x0013_0005),
    ] {
        let mut packets = packets(arch);
        packets.fence(FROM, 0x55aa);
        assert_eq!(
            packets.words(),
            [header, 0x3456_7890, 0x7f12, 0x55aa],
            "{arch}"
        );
    }
}

#[test]
fn a_growing_value_is_never_too_large() {
    let mut packets = packets("gfx942");
    packets.fence_growing(FROM, 0x1_0000_0002);
    assert_eq!(
        packets.words(),
        [5, 0x3456_7890, 0x7f12, 2, 5, 0x3456_7894, 0x7f12, 1]
    );
}

/// `sdma_v6_0_ring_emit_pipeline_sync` and ROCr's `BuildPollCommand`: bit 31 is memory, 28 to 30 the comparison.
#[test]
fn a_poll_has_mask_and_comparison() {
    for (compare, header) in [
        (Compare::Less, 0x9000_0008),
        (Compare::LessOrEqual, 0xa000_0008),
        (Compare::Equal, 0xb000_0008),
        (Compare::NotEqual, 0xc000_0008),
        (Compare::GreaterOrEqual, 0xd000_0008),
        (Compare::Greater, 0xe000_0008_u32),
    ] {
        let mut packets = packets("gfx1201");
        packets.poll(FROM, 0xffff, compare, 3);
        assert_eq!(
            packets.words(),
            [header, 0x3456_7890, 0x7f12, 3, 0xffff, 0x0fff_0004]
        );
    }
}

/// ROCr's `BuildAtomicDecrementCommand`, `BuildGetGlobalTimestampCommand` and `BuildTrapCommand`.
#[test]
fn atomics_timestamps_and_traps() {
    let mut packets = packets("gfx1030");
    packets
        .add(FROM, -1)
        .timestamp(TO)
        .trap(0xf000_0123)
        .barrier();
    let all: Vec<&[u32]> = packets.iter().collect();
    let atomic: &[u32] = &[
        0x5e00_000a,
        0x3456_7890,
        0x7f12,
        u32::MAX,
        u32::MAX,
        0,
        0,
        0,
    ];
    assert_eq!(
        all,
        [atomic, &[0x20d, 0x8000_0100, 0x41], &[6, 0x123], &[0]]
    );
}

/// ROCr's `hdp_flush_cmd` and `BuildGCRCommand`: controls `0xc3c0` before, `0x8040` after, in the upper half of the third
/// word. gfx9 has no such packet.
#[test]
fn caches_are_told_where_engines_have_the_packet() {
    let flush: &[u32] = &[8, 0, 0x8000_0000, 0, 0, 0];
    for (arch, has) in [
        ("gfx90a", false),
        ("gfx942", false),
        ("gfx1030", true),
        ("gfx1100", true),
        ("gfx1151", true),
        ("gfx1201", true),
    ] {
        let mut packets = packets(arch);
        packets.acquire().release();
        let all: Vec<&[u32]> = packets.iter().collect();
        match has {
            false => assert_eq!(all, [flush], "{arch}"),
            true => assert_eq!(
                all,
                [
                    flush,
                    &[0x111, 0, 0xc3c0_0000, 0, 0],
                    &[0x111, 0, 0x8040_0000, 0, 0]
                ],
                "{arch}"
            ),
        }
    }
}
