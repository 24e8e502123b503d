//! Prefixes are found, kept and given up.

use super::*;

const ROOT: Prefix = root(0);

fn remember_all(pool: &mut BlockPool, blocks: &[u32], tokens: &[u32]) {
    let mut prefix = ROOT;
    for (block, chunk) in blocks.iter().zip(tokens.chunks_exact(pool.block_size)) {
        prefix = pool.remember(prefix, *block, chunk).0;
    }
}

fn found(pool: &mut BlockPool, tokens: &[u32]) -> usize {
    let known = pool.take_known(ROOT, tokens);
    let count = known.blocks.len();
    pool.give_back(known.blocks);
    if let Some(slot) = known.state {
        pool.give_back_state(slot);
    }
    count
}

#[test]
fn prefixes_are_found_and_shared() {
    let mut pool = BlockPool::new(4, 2, true);
    let tokens = [1, 2, 3, 4, 5];
    let blocks: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
    remember_all(&mut pool, &blocks, &tokens);
    // While it is held, by another sequence with another end.
    let shared = pool.take_known(ROOT, &[1, 2, 9, 4]).blocks;
    assert_eq!(shared, blocks[..1]);
    pool.give_back(blocks.clone());
    assert_eq!((pool.held(), pool.kept()), (1, 1));
    pool.give_back(shared);
    // And afterwards.
    let again = pool.take_known(ROOT, &tokens).blocks;
    assert_eq!(again, blocks[..2]);
    // The same tokens elsewhere are another prefix.
    assert!(pool.take_known(ROOT, &[3, 4]).blocks.is_empty());
    pool.give_back(again);
    assert_eq!(pool.available(), 4);
    // Nobody else's.
    assert!(pool.take_known(root(1), &tokens).blocks.is_empty());
}

#[test]
fn the_longest_unused_goes_first_and_ends_before_prefixes() {
    let mut pool = BlockPool::new(3, 1, true);
    for tokens in [[7, 8], [7, 9]] {
        let mut blocks = pool.take_known(ROOT, &tokens).blocks;
        while blocks.len() < 2 {
            blocks.push(pool.take().unwrap());
        }
        remember_all(&mut pool, &blocks, &tokens);
        pool.give_back(blocks);
    }
    assert_eq!((pool.kept(), pool.held()), (3, 0));
    let one = pool.take().unwrap();
    assert_eq!(found(&mut pool, &[7, 8]), 1);
    assert_eq!(found(&mut pool, &[7, 9]), 2);
    pool.give_back(vec![one]);
    assert_eq!(pool.available(), 3);
}

#[test]
fn nothing_is_kept_if_nothing_is_to_be_kept() {
    let mut pool = BlockPool::new(2, 1, false);
    let blocks = vec![pool.take().unwrap(), pool.take().unwrap()];
    assert_eq!(pool.take(), None);
    remember_all(&mut pool, &blocks, &[1, 2]);
    pool.give_back(blocks);
    assert_eq!((pool.kept(), pool.available()), (0, 2));
}

/// A pool that knows `[1, 2, 3]` in blocks of one token, with slots of states.
fn recurrent(slots: usize) -> (BlockPool, Vec<u32>) {
    let mut pool = BlockPool::new(4, 1, true).with_states(slots, 1);
    let blocks: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
    remember_all(&mut pool, &blocks, &[1, 2, 3]);
    (pool, blocks)
}

#[test]
fn prefixes_of_recurrent_models_end_at_checkpoints() {
    let (mut pool, blocks) = recurrent(2);
    let tokens = [1, 2, 3];
    assert_eq!(found(&mut pool, &tokens), 0);
    let slot = pool.take_state().unwrap();
    assert!(pool.may_write_state(slot));
    assert!(pool.keep_state(blocks[1], slot));
    assert!(!pool.may_write_state(slot));
    pool.give_back_state(slot);
    assert_eq!(found(&mut pool, &tokens), 2);
    assert_eq!(found(&mut pool, &tokens[..1]), 0);
    // A second one for the same block is of no use.
    let other = pool.take_state().unwrap();
    assert!(!pool.keep_state(blocks[1], other));
    pool.give_back_state(other);
    // Whoever goes on from it keeps it from being taken.
    let known = pool.take_known(ROOT, &tokens);
    assert_eq!(known.state, Some(slot));
    assert_eq!(pool.take_state(), Some(other));
    assert_eq!(pool.take_state(), None);
    pool.give_back_state(slot);
    pool.give_back(known.blocks);
    assert_eq!(pool.take_state(), Some(slot));
    assert_eq!(found(&mut pool, &tokens), 0);
}

#[test]
fn checkpoints_go_with_their_blocks_and_when_they_are_given_up() {
    let (mut pool, blocks) = recurrent(2);
    let keep = |pool: &mut BlockPool, block: u32| {
        let slot = pool.take_state().unwrap();
        assert!(pool.keep_state(block, slot));
        (slot, pool.give_back_state(slot))
    };
    let (slot, since) = keep(&mut pool, blocks[2]);
    pool.drop_state(slot, since - 1);
    assert_eq!(found(&mut pool, &[1, 2, 3]), 3);
    // It was used since.
    pool.drop_state(slot, since);
    assert_eq!(found(&mut pool, &[1, 2, 3]), 3);
    let (slot, since) = keep(&mut pool, blocks[0]);
    pool.drop_state(slot, since);
    pool.give_back(blocks.clone());
    assert_eq!((pool.states.kept(), pool.states.held()), (1, 0));
    // The last block goes first, behind the free one.
    assert_eq!((pool.take(), pool.take()), (Some(3), Some(blocks[2])));
    assert_eq!(pool.states.kept(), 0);
    assert_eq!(found(&mut pool, &[1, 2, 3]), 0);
}

#[test]
fn a_block_that_is_computed_anew_takes_the_place_of_the_one_that_was_kept() {
    let (mut pool, blocks) = recurrent(1);
    let slot = pool.take_state().unwrap();
    pool.keep_state(blocks[0], slot);
    pool.give_back_state(slot);
    pool.give_back(blocks.clone());
    let anew = pool.take().unwrap();
    remember_all(&mut pool, &[anew], &[1]);
    let known = pool.take_known(ROOT, &[1, 2, 3]);
    assert_eq!((known.blocks, known.state), (vec![anew], Some(slot)));
    assert_eq!((pool.held(), pool.available()), (1, 3));
}

#[test]
fn a_prefix_is_of_use_where_the_window_before_its_end_is_known() {
    // A token sees 3 keys before its own, in blocks of 2.
    let mut pool = BlockPool::new(8, 2, true).with_windows(5, 3);
    let tokens: Vec<u32> = (0..8).collect();
    let mut prefix = ROOT;
    let mut windows = Vec::new();
    for chunk in tokens.chunks_exact(2) {
        let (block, window) = (pool.take().unwrap(), pool.take_window().unwrap());
        prefix = pool.remember(prefix, block, chunk).0;
        pool.keep_window(block, window);
        windows.push(window);
    }
    assert_eq!([0, 2, 4, 6, 8].map(|n| pool.first_seen(n)), [0, 0, 0, 1, 2]);
    // The first two are behind a window.
    windows[..2].iter().for_each(|w| pool.give_back_window(*w));
    assert_eq!((pool.windows.kept(), pool.windows.held()), (2, 2));
    let known = pool.take_known(ROOT, &tokens);
    assert_eq!((known.blocks.len(), &known.windows[..]), (4, &windows[2..]));
    // With the second one gone, three blocks are not enough of a prefix, nor are two.
    assert!(pool.take_window().is_some());
    assert_eq!(pool.take_window(), Some(windows[0]));
    assert_eq!(pool.take_window(), Some(windows[1]));
    assert_eq!(pool.take_window(), None);
    assert_eq!(pool.take_known(ROOT, &tokens[..7]).blocks.len(), 0);
    assert_eq!(pool.take_known(ROOT, &tokens).blocks.len(), 4);
}
