//! People in maps of joints and fields of limbs, as OpenPose (arXiv:1611.08050) assembles them: the peaks of each map,
//! pairs of them along which the field points, and greedily people of such pairs.

use super::{DRAWN, JOINTS, LIMBS};
use crate::preprocess::planes::Numbers;
use rayon::prelude::*;

/// Least height of a peak.
const PEAK: f32 = 0.1;
/// Least agreement of a field with a pair's direction at a point between.
const AGREEMENT: f64 = 0.05;
/// Points between that are looked at.
const POINTS: usize = 10;
/// Standard deviation in pixels by which maps are smoothed, and the reach of that.
const SIGMA: f32 = 3.0;
const REACH: usize = 12;
/// Most peaks of a map, the highest: a picture of noise has many.
const MOST_PEAKS: usize = 128;
/// Least joints of a person, and the least score of each on average.
const LEAST: (usize, f64) = (4, 0.4);

/// Where a person's joints are, in pixels.
pub type Person = [Option<(f64, f64)>; JOINTS];

#[derive(Debug, Clone, Copy)]
struct Peak {
    x: usize,
    y: usize,
    score: f64,
}

/// A person while they are put together.
#[derive(Debug, Clone)]
struct Row {
    /// Numbers of peaks.
    joints: [Option<usize>; JOINTS],
    score: f64,
    count: usize,
}

/// The people in maps of joints and fields of limbs, all of one size.
pub fn people(maps: &[Numbers], fields: &[Numbers]) -> Vec<Person> {
    let found: Vec<Vec<Peak>> = maps.par_iter().take(JOINTS).map(peaks).collect();
    let first: Vec<usize> = found
        .iter()
        .scan(0, |sum, peaks| {
            let first = *sum;
            *sum += peaks.len();
            Some(first)
        })
        .collect();
    let all: Vec<Peak> = found.iter().flatten().copied().collect();
    let mut rows: Vec<Row> = Vec::new();
    for (limb, (a, b, field)) in LIMBS.into_iter().enumerate() {
        let (Some(from), Some(to)) = (found.get(a), found.get(b)) else {
            continue;
        };
        let Some([across, down]) = fields.get(field..field + 2) else {
            continue;
        };
        for (i, j, score) in pairs(from, to, across, down) {
            join(&mut rows, limb, (first[a] + i, first[b] + j), score, &all);
        }
    }
    rows.retain(|row| row.count >= LEAST.0 && row.score / row.count as f64 >= LEAST.1);
    let place = |peak: usize| all.get(peak).map(|peak| (peak.x as f64, peak.y as f64));
    rows.iter()
        .map(|row| row.joints.map(|joint| joint.and_then(place)))
        .collect()
}

/// Smoothed by a Gaussian, mirrored at the edges.
fn smoothed(map: &Numbers) -> Vec<f32> {
    let weight = |i: usize| (-((i * i) as f32) / (2.0 * SIGMA * SIGMA)).exp();
    let half: Vec<f32> = (0..=REACH).map(weight).collect();
    let sum = half[0] + 2.0 * half[1..].iter().sum::<f32>();
    let (width, height) = (map.width, map.height);
    // Edges are repeated: the pixel beyond the outermost is the outermost.
    let seen = |i: isize, size: usize| {
        let i = i.rem_euclid(2 * size as isize) as usize;
        i.min(2 * size - 1 - i)
    };
    let along = |values: &[f32], step: usize, size: usize, at: usize, place: usize| {
        let line = at - place * step;
        let value = |i: isize| values[line + seen(place as isize + i, size) * step];
        let sides = half.iter().enumerate().skip(1);
        let sides = sides.map(|(i, w)| w * (value(i as isize) + value(-(i as isize))));
        (half[0] * values[at] + sides.sum::<f32>()) / sum
    };
    let pixels = 0..width * height;
    let down: Vec<f32> = (pixels.clone())
        .map(|i| along(&map.values, width, height, i, i / width))
        .collect();
    pixels
        .map(|i| along(&down, 1, width, i, i % width))
        .collect()
}

/// The peaks of a map: as high as their four neighbours at least, once it is smoothed; beyond its edges it is zero.
fn peaks(map: &Numbers) -> Vec<Peak> {
    let (width, height) = (map.width, map.height);
    let smooth = smoothed(map);
    let mut found = Vec::new();
    for x in 0..width {
        for y in 0..height {
            let here = smooth[y * width + x];
            let at = |inside: bool, i: usize| if inside { smooth[i] } else { 0.0 };
            let i = y * width + x;
            let highest = here >= at(y > 0, i.wrapping_sub(width))
                && here >= at(y + 1 < height, i + width)
                && here >= at(x > 0, i.wrapping_sub(1))
                && here >= at(x + 1 < width, i + 1);
            if here > PEAK && highest {
                let score = f64::from(map.values[i]);
                found.push(Peak { x, y, score });
            }
        }
    }
    // Row by row, as they are counted.
    found.sort_by_key(|peak| (peak.y, peak.x));
    if found.len() > MOST_PEAKS {
        let mut scores: Vec<f64> = found.iter().map(|peak| peak.score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        let least = scores[MOST_PEAKS - 1];
        found.retain(|peak| peak.score >= least);
        found.truncate(MOST_PEAKS);
    }
    found
}

/// Pairs of peaks that belong together, each peak in one at most, the best first.
fn pairs(from: &[Peak], to: &[Peak], across: &Numbers, down: &Numbers) -> Vec<(usize, usize, f64)> {
    let mut likely = Vec::new();
    for (i, a) in from.iter().enumerate() {
        for (j, b) in to.iter().enumerate() {
            let (dx, dy) = (b.x as f64 - a.x as f64, b.y as f64 - a.y as f64);
            let length = (dx * dx + dy * dy).sqrt().max(0.001);
            let agrees = |point: usize| {
                let share = point as f64 / (POINTS - 1) as f64;
                let at =
                    |from: usize, way: f64| (from as f64 + share * way).round_ties_even() as usize;
                let i = at(a.y, dy) * across.width + at(a.x, dx);
                let (x, y) = (f64::from(across.values[i]), f64::from(down.values[i]));
                x * dx / length + y * dy / length
            };
            let points: Vec<f64> = (0..POINTS).map(agrees).collect();
            // What is longer than half of the picture is less likely.
            let long = (0.5 * across.height as f64 / length - 1.0).min(0.0);
            let score = points.iter().sum::<f64>() / POINTS as f64 + long;
            let agreeing = points.iter().filter(|point| **point > AGREEMENT).count();
            if agreeing as f64 > 0.8 * POINTS as f64 && score > 0.0 {
                likely.push((i, j, score));
            }
        }
    }
    likely.sort_by(|a, b| b.2.total_cmp(&a.2));
    let mut chosen: Vec<(usize, usize, f64)> = Vec::new();
    for (i, j, score) in likely {
        if !chosen.iter().any(|(a, b, _)| *a == i || *b == j) {
            chosen.push((i, j, score));
        }
    }
    chosen
}

/// Adds a pair to the people so far.
fn join(rows: &mut Vec<Row>, limb: usize, (a, b): (usize, usize), score: f64, all: &[Peak]) {
    let (first, second, _) = LIMBS[limb];
    let has = |row: &Row| row.joints[first] == Some(a) || row.joints[second] == Some(b);
    let mut whose = (0..rows.len()).filter(|i| has(&rows[*i]));
    let of = |peak: usize| all.get(peak).map_or(0.0, |peak| peak.score);
    match (whose.next(), whose.next()) {
        (None, _) if limb < DRAWN => {
            let mut joints = [None; JOINTS];
            (joints[first], joints[second]) = (Some(a), Some(b));
            rows.push(Row {
                joints,
                score: of(a) + of(b) + score,
                count: 2,
            });
        }
        (None, _) => {}
        (Some(one), None) => {
            let row = &mut rows[one];
            if row.joints[second] != Some(b) {
                row.joints[second] = Some(b);
                row.count += 1;
                row.score += of(b) + score;
            }
        }
        (Some(one), Some(other)) => {
            let both = |i: usize| rows[one].joints[i].is_some() && rows[other].joints[i].is_some();
            if (0..JOINTS).any(both) {
                let row = &mut rows[one];
                row.joints[second] = Some(b);
                row.count += 1;
                row.score += of(b) + score;
            } else {
                let other = rows.remove(other);
                let row = &mut rows[one];
                for (joint, theirs) in row.joints.iter_mut().zip(other.joints) {
                    *joint = joint.or(theirs);
                }
                row.count += other.count;
                row.score += other.score + score;
            }
        }
    }
}
