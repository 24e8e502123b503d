//! Attention to latent vectors, the choice of its keys, and that of experts.

use super::definition::shared;

shared! {
    /// Elements of a latent vector at most: lanes of a wave share one.
    const MAX_LATENT: u32 = 512;
    /// Elements of a key that turn at most.
    const MAX_TURNING: u32 = 64;
    /// Threads of a block of attention.
    const LATENT_THREADS: u32 = 256;
    /// Heads that a block takes, in waves of 64 and of 32.
    const HEADS_OF_64: u32 = 8;
    /// See HEADS_OF_64.
    const HEADS_OF_32: u32 = 4;
    /// Elements of an indexer's queries for one token at most.
    const MAX_RANKING: u32 = 8192;
    /// Heads of an indexer at most.
    const MAX_RANKERS: u32 = 256;
    /// Keys that a block of an indexer ranks for one token, and threads of its blocks.
    const RANKED: u32 = 256;
    /// In place of a chosen key: none.
    const NO_KEY: u32 = u32::MAX;
    /// Experts that one block chooses among at most.
    const MAX_EXPERTS: u32 = 1024;
    /// Experts of a token at most.
    const MAX_USED: u32 = 64;
    /// What a router's numbers become: the softmax over all.
    const SOFTMAX: u32 = 0;
    /// Sigmoids.
    const SIGMOID: u32 = 1;
    /// Nothing; weights are the softmax over the chosen ones.
    const CHOSEN: u32 = 2;

    /// Sizes of a problem, and strides in elements.
    #[derive(Default)]
    struct Latent {
        k_block: u64,
        tokens: u32,
        sequences: u32,
        heads: u32,
        /// Elements of a key that turn, at its beginning.
        turning: u32,
        /// Elements of a latent vector.
        rank: u32,
        q_format: u32,
        q_token: u32,
        q_head: u32,
        k_entry: u32,
        block_size: u32,
        /// Entries of a sequence in the block table.
        table_row: u32,
        /// Keys that may be chosen for a token; 0: all are looked at.
        most: u32,
        scale: f32,
        /// Parts of the keys, of blocks of their own.
        splits: u32,
    }

    /// Sizes of an indexer's problem.
    #[derive(Default)]
    struct Ranking {
        k_block: u64,
        tokens: u32,
        sequences: u32,
        heads: u32,
        size: u32,
        q_format: u32,
        q_token: u32,
        q_head: u32,
        k_entry: u32,
        block_size: u32,
        table_row: u32,
        /// Scores of a token: keys of the longest sequence at most.
        keys: u32,
        /// Keys that are chosen for a token at most.
        most: u32,
    }

    /// How experts are chosen.
    #[derive(Default)]
    struct Router {
        tokens: u32,
        experts: u32,
        used: u32,
        /// SOFTMAX, SIGMOID or CHOSEN.
        scores: u32,
        /// Groups of experts, 1 if there are none, and how many of them a token uses.
        groups: u32,
        groups_used: u32,
        /// Of how many experts the scores make a group's.
        best_of_group: u32,
        normalised: u32,
        epsilon: f32,
        scale: f32,
    }
}
