//! Units of a model dealt to shards: as even as they come out, in proportion to shares.

use std::cmp::Ordering;
use std::ops::Range;

/// Pieces of a width, the largest first: kernels like whole ones.
const PIECES: [usize; 9] = [256, 128, 64, 32, 16, 8, 4, 2, 1];
/// Rows of the output matrix come in pieces of so many.
const ROWS: usize = 64;
/// Pieces of each shard at least, so that uneven shares are met well.
const FINE: usize = 16;

/// So many units behind each other, one at least for each shard; none if there are fewer units than shards.
pub(crate) fn deal(units: usize, shares: &[f32]) -> Option<Vec<Range<usize>>> {
    if shares.is_empty() || units < shares.len() {
        return None;
    }
    let total: f64 = shares.iter().map(|share| f64::from(*share)).sum();
    let ideal: Vec<f64> = (shares.iter())
        .map(|share| units as f64 * f64::from(*share) / total)
        .collect();
    let mut counts: Vec<usize> = ideal.iter().map(|ideal| (*ideal as usize).max(1)).collect();
    loop {
        let dealt: usize = counts.iter().sum();
        let missing = |shard: &usize| ideal[*shard] - counts[*shard] as f64;
        let by_missing = |a: &usize, b: &usize| missing(a).total_cmp(&missing(b));
        let all = 0..counts.len();
        match dealt.cmp(&units) {
            Ordering::Equal => break,
            Ordering::Less => {
                // The first of those that miss most.
                let poorest = all.rev().max_by(by_missing)?;
                counts[poorest] += 1;
            }
            Ordering::Greater => {
                let several = all.filter(|shard| counts[*shard] > 1);
                let richest = several.min_by(by_missing)?;
                counts[richest] -= 1;
            }
        }
    }
    let mut start = 0;
    let range = |count: usize| {
        start += count;
        start - count..start
    };
    Some(counts.into_iter().map(range).collect())
}

/// The same in elements, of units of so many.
fn scaled(ranges: Vec<Range<usize>>, unit: usize) -> Vec<Range<usize>> {
    let scaled = |range: Range<usize>| range.start * unit..range.end * unit;
    ranges.into_iter().map(scaled).collect()
}

/// A width in whole blocks of so many elements, in larger pieces where these come out as well.
pub(crate) fn deal_width(width: usize, block: usize, shares: &[f32]) -> Option<Vec<Range<usize>>> {
    if !width.is_multiple_of(block) {
        return None;
    }
    let even = shares.windows(2).all(|two| two[0] == two[1]);
    let comes_out = |piece: &usize| {
        let pieces = width / piece;
        let whole = piece.is_multiple_of(block) && width.is_multiple_of(*piece);
        whole
            && match even {
                true => pieces.is_multiple_of(shares.len()),
                false => pieces >= FINE * shares.len(),
            }
    };
    let piece = PIECES.into_iter().find(comes_out).unwrap_or(block);
    Some(scaled(deal(width / piece, shares)?, piece))
}

/// Rows of a matrix whose outputs are gathered.
pub(crate) fn deal_rows(rows: usize, shares: &[f32]) -> Option<Vec<Range<usize>>> {
    let piece = match rows / ROWS >= FINE * shares.len() {
        true => ROWS,
        false => 1,
    };
    let mut ranges = scaled(deal(rows / piece, shares)?, piece);
    ranges.last_mut()?.end = rows;
    Some(ranges)
}

/// Heads of queries in whole `unit`s, where in some blocks as many share a head of keys as `groups` says: whole groups
/// for each shard, or where there are fewer groups than shards, parts of one group.
pub(crate) fn deal_heads(
    heads: usize,
    unit: usize,
    groups: &[usize],
    shares: &[f32],
) -> Option<Vec<Range<usize>>> {
    let whole = groups.iter().fold(unit, |all, group| lcm(all, *group));
    if heads.is_multiple_of(whole) {
        if let Some(ranges) = deal(heads / whole, shares) {
            return Some(scaled(ranges, whole));
        }
    }
    let mut sizes = groups.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    let parts = sizes.iter().flat_map(|group| {
        let smaller = sizes.iter().filter(move |size| *size < group);
        let finer = smaller.fold(unit, |all, size| lcm(all, *size));
        [finer, unit].map(|unit| parts_of_groups(heads, *group, unit, shares))
    });
    let suits = |ranges: &Vec<Range<usize>>| {
        let of_all = |group: &usize| ranges.iter().all(|range| shares_keys(range, *group));
        sizes.iter().all(of_all)
    };
    parts.flatten().find(suits)
}

/// Heads of which each shard has a part of one group.
fn parts_of_groups(
    heads: usize,
    group: usize,
    unit: usize,
    shares: &[f32],
) -> Option<Vec<Range<usize>>> {
    if !group.is_multiple_of(unit) {
        return None;
    }
    let of_groups = deal(shares.len(), &vec![1.0; heads / group])?;
    let mut ranges = Vec::new();
    for (number, shards) in of_groups.into_iter().enumerate() {
        let of_group = scaled(deal(group / unit, &shares[shards])?, unit);
        let first = number * group;
        ranges.extend(of_group.into_iter().map(|r| first + r.start..first + r.end));
    }
    Some(ranges)
}

/// Whether heads of queries share heads of keys evenly among themselves.
fn shares_keys(heads: &Range<usize>, group: usize) -> bool {
    let whole = heads.start.is_multiple_of(group) && heads.end.is_multiple_of(group);
    whole || heads.start / group == (heads.end - 1) / group
}

/// The heads of keys of some heads of queries.
pub(crate) fn key_heads(heads: &Range<usize>, group: usize) -> Range<usize> {
    heads.start / group..(heads.end - 1) / group + 1
}

/// The least common multiple.
pub(crate) fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(ranges: Option<Vec<Range<usize>>>) -> Vec<usize> {
        let ranges = ranges.unwrap();
        assert!(ranges.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!(ranges[0].start, 0);
        ranges.iter().map(|range| range.len()).collect()
    }

    #[test]
    fn units_are_dealt_by_shares() {
        assert_eq!(sizes(deal(8, &[1.0; 4])), [2, 2, 2, 2]);
        assert_eq!(sizes(deal(3, &[1.0; 2])), [2, 1]);
        assert_eq!(sizes(deal(10, &[3.0, 1.0])), [8, 2]);
        // Nobody goes without.
        assert_eq!(sizes(deal(4, &[100.0, 1.0, 1.0])), [2, 1, 1]);
        assert_eq!(deal(2, &[1.0; 3]), None);
    }

    #[test]
    fn widths_come_in_blocks() {
        assert_eq!(sizes(deal_width(14336, 256, &[1.0; 2])), [7168, 7168]);
        assert_eq!(sizes(deal_width(2880, 32, &[1.0; 4])), [736, 736, 704, 704]);
        assert_eq!(sizes(deal_width(96, 32, &[1.0; 2])), [64, 32]);
        assert_eq!(sizes(deal_width(96, 1, &[1.0; 2])), [48, 48]);
        assert_eq!(sizes(deal_width(4096, 32, &[3.0, 1.0])), [3072, 1024]);
        assert_eq!(deal_width(256, 256, &[1.0; 2]), None);
        assert_eq!(deal_width(100, 32, &[1.0; 2]), None);
        assert_eq!(sizes(deal_rows(33, &[1.0; 2])), [17, 16]);
        assert_eq!(sizes(deal_rows(49153, &[1.0; 2])), [24576, 24577]);
    }

    #[test]
    fn heads_stay_with_their_keys() {
        // 9 heads of queries for 3 of keys.
        assert_eq!(sizes(deal_heads(9, 1, &[3], &[1.0; 2])), [6, 3]);
        // Fewer heads of keys than shards.
        assert_eq!(sizes(deal_heads(4, 1, &[2], &[1.0; 4])), [1; 4]);
        assert_eq!(sizes(deal_heads(4, 1, &[2], &[1.0; 3])), [1, 1, 2]);
        assert_eq!(sizes(deal_heads(32, 1, &[8, 2], &[1.0; 8])), [4; 8]);
        assert_eq!(deal_heads(4, 1, &[2], &[1.0; 5]), None);
        // A block of 256 elements is 4 heads of 64.
        assert_eq!(sizes(deal_heads(32, 4, &[1], &[1.0; 4])), [8; 4]);
        assert_eq!(deal_heads(8, 4, &[2], &[1.0; 4]), None);
        assert_eq!(deal_heads(9, 2, &[3], &[1.0; 2]), None);
        assert_eq!(key_heads(&(4..8), 2), 2..4);
        assert_eq!(key_heads(&(5..6), 4), 1..2);
    }
}
