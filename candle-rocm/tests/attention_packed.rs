//! Packed caches: keys and values each in a format of its own, turned or not, written by the kernel and attended to in
//! place.

mod attention_oracle;
mod common;

use attention_oracle::{run, textbook, Case, Extras, Values, NMSE_LIMIT};
use candle_rocm::ops::attention::kv_cache::{self, Rotary, Tokens};
use candle_rocm::ops::attention::packed::{rotation, Format, Half, PackedCache};
use candle_rocm::ops::attention::{Attention, Lengths, Tier, SCORE_BYTES};
use candle_rocm::{Device, Error};
use common::{assert_close, device, download, nmse, upload, Element, HostTensor, Rng};
use float8::F8E4M3;
use half::{bf16, f16};

/// Elements of a factor, but for F8, and what rows end with.
const SCALED: usize = 32;
const BLOCK: usize = 16;
/// The levels of ggml's IQ4_NL.
const LEVELS: [i32; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Turns neighbours as caches have it, which turns them back, too.
fn turned(x: &[f64]) -> Vec<f64> {
    let size = rotation(x.len());
    let sign = |i: usize, j: usize| [1.0, -1.0][(i & j).count_ones() as usize % 2];
    let few = |x: &[f64]| -> Vec<f64> {
        let sum = |i: usize| {
            x.iter()
                .enumerate()
                .map(|(j, x)| sign(i, j) * x)
                .sum::<f64>()
        };
        (0..size).map(|i| sum(i) / (size as f64).sqrt()).collect()
    };
    x.chunks(size).flat_map(few).collect()
}

/// What a half has in memory.
struct Held {
    format: Format,
    width: usize,
    heads: usize,
    elements: Vec<u8>,
    factors: Vec<u8>,
    turns: bool,
}

impl Held {
    fn of(device: &Device, half: &Half, format: Format, case: (usize, usize, bool)) -> Self {
        let (width, heads, turns) = case;
        let bytes = half.blocks().map(|(buffer, _)| match buffer.len() {
            0 => Vec::new(),
            _ => download::<u8>(device, buffer),
        });
        let [elements, factors] = bytes;
        Held {
            format,
            width,
            heads,
            elements,
            factors,
            turns,
        }
    }

    /// The vector of an entry, turned back.
    fn read(&self, slot: usize, head: usize) -> Vec<f64> {
        let row = self.width.next_multiple_of(SCALED);
        let vector = (slot / BLOCK * self.heads + head) * BLOCK + slot % BLOCK;
        let stored: Vec<f64> = (0..self.width)
            .map(|i| self.element(vector * row + i))
            .collect();
        match self.turns {
            true => turned(&stored),
            false => stored,
        }
    }

    fn element(&self, at: usize) -> f64 {
        let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
        let record = |bytes: usize| &self.factors[at / SCALED * bytes..][..bytes];
        let nibble = || {
            let byte = self.elements[at / 8 * 4 + at % 4];
            i32::from(if at % 8 < 4 { byte & 15 } else { byte >> 4 })
        };
        let fifth =
            |bytes: &[u8]| nibble() | i32::from(bytes[at % SCALED / 8] >> (at % 8) & 1) << 4;
        match self.format {
            Format::F16 => half(&self.elements[2 * at..]),
            Format::Bf16 => {
                bf16::from_le_bytes([self.elements[2 * at], self.elements[2 * at + 1]]).to_f64()
            }
            Format::Q8_0 => half(record(2)) * f64::from(self.elements[at] as i8),
            Format::Q4_0 => half(record(2)) * f64::from(nibble() - 8),
            Format::Q4_1 => half(record(4)) * f64::from(nibble()) + half(&record(4)[2..]),
            Format::Q5_0 => half(record(6)) * f64::from(fifth(&record(6)[2..]) - 16),
            Format::Q5_1 => {
                half(record(8)) * f64::from(fifth(&record(8)[4..])) + half(&record(8)[2..])
            }
            Format::Iq4Nl => half(record(2)) * f64::from(LEVELS[nibble() as usize]),
            Format::F8 => {
                let row = self.width.next_multiple_of(SCALED);
                let shared = 1 << row.trailing_zeros().min(7);
                let factor = half(&self.factors[at / shared * 2..]);
                factor * F8E4M3::from_bits(self.elements[at]).to_f64()
            }
        }
    }
}

/// The normalised error that a format makes of uniform elements, turned or not, at most.
fn rounding(format: Format) -> f64 {
    match format {
        Format::F16 => 1e-6,
        Format::Bf16 => 1e-5,
        Format::Q8_0 => 1e-4,
        Format::F8 => 1e-3,
        Format::Q5_0 | Format::Q5_1 => 4e-3,
        Format::Q4_0 | Format::Q4_1 | Format::Iq4Nl => 1.5e-2,
    }
}

struct Pair {
    formats: [Format; 2],
    turns: [bool; 2],
}

/// Writes a cache, compares what it holds with what it was given, and attention to it with the textbook.
fn compare<T: Element>(device: &Device, case: &Case, pair: &Pair) {
    let what = format!(
        "{} over {:?} {:?}: {case:?}",
        T::DTYPE,
        pair.formats,
        pair.turns
    );
    let values = Values::<T>::random(case, 13);
    let width = case.keys.iter().map(|n| n.div_ceil(BLOCK)).max().unwrap();
    let blocks = case.keys.len() * width;
    // Blocks of a sequence from the last to the first.
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let slots: Vec<u32> = (case.keys.iter().enumerate())
        .flat_map(|(sequence, keys)| {
            let table = &table[sequence * width..];
            (0..*keys).map(|key| table[key / BLOCK] * BLOCK as u32 + (key % BLOCK) as u32)
        })
        .collect();
    let half = |i: usize, width: usize| {
        let dims = [blocks, BLOCK, case.kv_heads, width];
        Half::new(device, pair.formats[i], dims, pair.turns[i]).unwrap()
    };
    let (k, v) = (half(0, case.width), half(1, case.v_width));
    for (buffer, _) in [k.blocks(), v.blocks()].concat() {
        // NaN in every format, so that reading what was not written shows.
        device
            .upload_into(&vec![0xff; buffer.len()], buffer, 0)
            .unwrap();
    }
    let cache = PackedCache::new(&k, &v);
    let new_k = HostTensor::contiguous(values.k.clone(), &case.k_dims());
    let new_v = HostTensor::contiguous(values.v.clone(), &case.v_dims());
    let places = HostTensor::contiguous(slots.clone(), &[slots.len()]);
    let (kb, vb, sb) = (
        new_k.upload(device),
        new_v.upload(device),
        places.upload(device),
    );
    let tokens = Tokens {
        q: None,
        k: new_k.view(&kb),
        v: new_v.view(&vb),
        slots: places.view(&sb),
    };
    assert!(kv_cache::write_packed(device, &cache, &tokens, None)
        .unwrap()
        .is_none());

    let held = |half: &Half, i: usize, width: usize| -> Vec<f64> {
        let held = Held::of(
            device,
            half,
            pair.formats[i],
            (width, case.kv_heads, pair.turns[i]),
        );
        let entries = slots
            .iter()
            .flat_map(|slot| (0..case.kv_heads).map(move |head| (slot, head)));
        entries
            .flat_map(|(slot, head)| held.read(*slot as usize, head))
            .collect()
    };
    let wide = |x: &[T]| -> Vec<f64> { x.iter().map(|x| x.to_f64()).collect() };
    let seen = Values {
        q: wide(&values.q),
        k: held(&k, 0, case.width),
        v: held(&v, 1, case.v_width),
        mask: Vec::new(),
    };
    for (i, (got, want)) in [(&seen.k, &values.k), (&seen.v, &values.v)]
        .into_iter()
        .enumerate()
    {
        let error = nmse(got, &wide(want));
        assert!(
            error <= rounding(pair.formats[i]),
            "{what}: half {i} is {error:e} off"
        );
    }

    let q = HostTensor::contiguous(values.q.clone(), &case.q_dims());
    let extras = Extras::new(case);
    let table = HostTensor::contiguous(table, &[case.keys.len(), width]);
    let (qb, tb, rb, cb) = (
        q.upload(device),
        table.upload(device),
        extras.cu_rows.upload(device),
        extras.cu_keys.upload(device),
    );
    let lengths = Lengths::Paged {
        cu_rows: extras.cu_rows.view(&rb),
        cu_keys: extras.cu_keys.view(&cb),
        max_rows: *case.rows.iter().max().unwrap(),
        max_keys: *case.keys.iter().max().unwrap(),
        blocks: table.view(&tb),
    };
    let (want, _) = textbook(case, &seen);
    for tier in [Tier::Tiled, Tier::Naive] {
        let problem = Attention {
            packed: Some(cache),
            ..Attention::new(q.view(&qb), k.view(), v.view(), case.scale)
        };
        let got = run(device, case, tier, SCORE_BYTES, problem, lengths);
        let got = got.unwrap_or_else(|error| panic!("{what} {tier}: {error}"));
        assert_close(&download::<T>(device, &got.out), &want, NMSE_LIMIT, &what);
    }
}

/// One new token of each sequence: kernels for one, four and eight rows, one part and several.
#[test]
fn decoding() {
    let device = device();
    let widths = [64, 80, 96, 128, 256, 40, 192];
    for (i, format) in Format::ALL.into_iter().enumerate() {
        let other = Format::ALL[(i + 4) % Format::ALL.len()];
        let (heads, kv_heads) = [(2, 2), (6, 2), (7, 1)][i % 3];
        let width = widths[i % widths.len()];
        let case = Case {
            rows: vec![1; 2],
            keys: if i % 2 == 0 {
                vec![300, 33]
            } else {
                vec![20, 1]
            },
            ..Case::new(1, 1, width).heads(heads, kv_heads).causal()
        };
        let turns = |i: usize| [i.is_multiple_of(2), i.is_multiple_of(3)];
        for (formats, turns) in [([format; 2], turns(i)), ([format, other], turns(i + 1))] {
            compare::<f32>(&device, &case, &Pair { formats, turns });
        }
    }
}

/// Heads that are wider than a wave of 32 has lanes for, and keys that are wider than values.
#[test]
fn wide_heads() {
    let device = device();
    let case = Case {
        rows: vec![1],
        keys: vec![70],
        v_width: 128,
        ..Case::new(1, 1, 320).heads(4, 1).causal()
    };
    let pair = |formats, turns| Pair { formats, turns };
    compare::<f16>(
        &device,
        &case,
        &pair([Format::Q4_1, Format::Q5_0], [true; 2]),
    );
    let case = Case {
        v_width: 512,
        ..case
    };
    compare::<bf16>(
        &device,
        &case,
        &pair([Format::F8, Format::Iq4Nl], [true; 2]),
    );
}

/// New tokens behind an old context, in tiles.
#[test]
fn prefill() {
    let device = device();
    for (i, format) in Format::ALL.into_iter().enumerate() {
        let case = Case {
            rows: vec![20, 3],
            keys: vec![40, 3],
            ..Case::new(1, 1, [64, 96][i % 2])
                .heads(4, 2)
                .window(Some(20), Some(0))
        };
        let formats = [format, Format::ALL[(i + 2) % Format::ALL.len()]];
        let turns = [i % 3 == 0, i % 2 == 0];
        compare::<f32>(&device, &case, &Pair { formats, turns });
    }
}

/// Queries turn by their positions only; keys then as the cache says, from a part of a fused projection, and a slot of
/// `u32::MAX` writes nothing.
#[test]
fn rotary_embedding() {
    let device = device();
    let (heads, kv_heads, width, v_width, rotary) = (3, 2, 64, 32, 32);
    let (positions, slots) = ([5u32, 0, 17], [9u32, u32::MAX, 18]);
    let mut rng = Rng::new(21);
    let row = heads * width + kv_heads * (width + v_width);
    let fused: Vec<f32> = rng.vec(3 * row, -1.0, 1.0);
    let angles: Vec<f64> = (0..18 * rotary / 2)
        .map(|_| rng.uniform(-3.0, 3.0))
        .collect();
    let table = |f: fn(f64) -> f64| {
        let values = angles.iter().map(|&a| f(a) as f32).collect();
        HostTensor::contiguous(values, &[18, rotary / 2])
    };
    let (cos, sin) = (table(f64::cos), table(f64::sin));
    let (fb, cb, sb) = (
        upload(&device, &fused),
        cos.upload(&device),
        sin.upload(&device),
    );
    let ids = |values: &[u32]| HostTensor::contiguous(values.to_vec(), &[3]);
    let (p, s) = (ids(&positions), ids(&slots));
    let (pb, lb) = (p.upload(&device), s.upload(&device));
    let part = |offset, heads, width: usize| HostTensor::<f32> {
        storage: Vec::new(),
        offset,
        dims: vec![3, heads, width],
        strides: vec![row, width, 1],
    };
    let q = part(0, heads, width);
    let k = part(heads * width, kv_heads, width);
    let v = part((heads + kv_heads) * width, kv_heads, v_width);
    for interleaved in [false, true] {
        let half = |format, width| {
            let half = Half::new(&device, format, [2, BLOCK, kv_heads, width], true).unwrap();
            for (buffer, _) in half.blocks() {
                device
                    .upload_into(&vec![0xff; buffer.len()], buffer, 0)
                    .unwrap();
            }
            half
        };
        let (k_half, v_half) = (half(Format::Q5_1, width), half(Format::F8, v_width));
        let tokens = Tokens {
            q: Some(q.view(&fb)),
            k: k.view(&fb),
            v: v.view(&fb),
            slots: s.view(&lb),
        };
        let embedding = Rotary {
            cos: cos.view(&cb),
            sin: sin.view(&sb),
            interleaved,
            positions: p.view(&pb),
        };
        let cache = PackedCache::new(&k_half, &v_half);
        let queries = kv_cache::write_packed(&device, &cache, &tokens, Some(&embedding)).unwrap();
        let vector = |part: &HostTensor<f32>, token: usize, head: usize, turn: bool| -> Vec<f64> {
            let width = part.dims[2];
            let start = part.offset + token * row + head * width;
            let x: Vec<f64> = fused[start..start + width]
                .iter()
                .map(|x| f64::from(*x))
                .collect();
            let mut out = x.clone();
            for i in 0..if turn { rotary / 2 } else { 0 } {
                let (a, b) = match interleaved {
                    true => (2 * i, 2 * i + 1),
                    false => (i, i + rotary / 2),
                };
                let angle = angles[positions[token] as usize * rotary / 2 + i];
                out[a] = x[a] * angle.cos() - x[b] * angle.sin();
                out[b] = x[a] * angle.sin() + x[b] * angle.cos();
            }
            out
        };
        let want: Vec<f64> = (0..3)
            .flat_map(|token| (0..heads).map(move |head| (token, head)))
            .flat_map(|(token, head)| vector(&q, token, head, true))
            .collect();
        let queries = download::<f32>(&device, &queries.unwrap());
        assert_close(&queries, &want, 1e-9, "queries");
        let held_k = Held::of(&device, &k_half, Format::Q5_1, (width, kv_heads, true));
        let held_v = Held::of(&device, &v_half, Format::F8, (v_width, kv_heads, true));
        for (token, slot) in [(0, 9), (2, 18)] {
            for head in 0..kv_heads {
                let errors = [
                    nmse(&held_k.read(slot, head), &vector(&k, token, head, true)),
                    nmse(&held_v.read(slot, head), &vector(&v, token, head, false)),
                ];
                let limits = [Format::Q5_1, Format::F8].map(rounding);
                let fits = errors
                    .iter()
                    .zip(limits)
                    .all(|(error, limit)| *error <= limit);
                assert!(fits, "token {token}, head {head}: {errors:?}");
            }
        }
        // Nothing else was touched.
        let changed = held_v.elements.iter().filter(|byte| **byte != 0xff).count();
        assert!(changed <= 2 * kv_heads * v_width, "{changed} bytes");
    }
}

#[test]
fn what_is_refused() {
    let device = device();
    let dims = [2, BLOCK, 1, 36];
    let refused = Half::new(&device, Format::Q4_0, dims, false);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    let half = Half::new(&device, Format::Q4_0, [2, BLOCK, 1, 64], false).unwrap();
    let q = HostTensor::contiguous(vec![1f32; 64], &[1, 1, 1, 64]);
    let qb = q.upload(&device);
    let problem = Attention {
        packed: Some(PackedCache::new(&half, &half)),
        ..Attention::new(q.view(&qb), half.view(), half.view(), 1.0)
    };
    // A packed cache is in blocks.
    let refused = candle_rocm::ops::attention::attention(&device, &problem);
    assert!(matches!(
        refused,
        Err(Error::InvalidArgument { .. } | Error::ShapeMismatch { .. })
    ));
}
