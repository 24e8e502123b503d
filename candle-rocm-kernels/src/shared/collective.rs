//! Of collectives over memory that several GPUs reach.

use super::definition::shared;

shared! {
    /// Ranks of a group at most.
    const MAX_RANKS: u32 = 8;
    /// Threads of a block.
    const MEETING_BLOCK: u32 = 256;
    /// Blocks of a collective at most, each with a part of the staging memory of its own.
    const MEETING_BLOCKS: u32 = 64;
    /// Bytes of a block's part of one half of the staging memory.
    const PIECE_BYTES: u32 = 65536;
    /// Blocks of a message between two ranks at most.
    const MESSAGE_BLOCKS: u32 = 32;
    /// Bytes of a message that a block moves.
    const MESSAGE_PIECE_BYTES: u32 = 32768;

    /// Where in an area, in bytes from its start, each block's number of calls is.
    const CALLS_AT: u32 = 0;
    /// Each block's flags, one for each rank, which sets it.
    const FLAGS_AT: u32 = 4096;
    /// For each other rank and block, how many messages were sent there.
    const SENT_AT: u32 = 8192;
    /// How many from there were taken.
    const TAKEN_AT: u32 = 10240;
    /// How many have come from there, which the other rank writes.
    const COME_AT: u32 = 12288;
    /// How many were taken there, which the other rank writes.
    const FREED_AT: u32 = 14336;
    /// The staging memory: two halves.
    const STAGING_AT: u32 = 16384;
    /// Two places for messages from each rank.
    const MAILBOX_AT: u32 = 8404992;

    /// The word of the control memory with the rank, counted from 1, that has ended the group.
    const ABORT_WORD: u32 = 0;
    /// How long to wait, in ticks of the device's clock.
    const LIMIT_WORD: u32 = 1;
    /// The first of a word for each rank: the rank that did not come to it, counted from 1.
    const LATE_WORDS: u32 = 2;

    /// A group as one of its ranks sees it.
    struct Peers {
        /// Address of each rank's area.
        areas: [u64; 8],
        /// Address of the control memory, which all ranks and the host share.
        control: u64,
        rank: u32,
        size: u32,
    }
}
