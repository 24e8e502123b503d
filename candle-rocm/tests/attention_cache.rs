//! The paged cache: what is written, and attention that reads it in place.

mod attention_oracle;
mod common;

use attention_oracle::{run, textbook, Case, Extras, Values, NMSE_LIMIT};
use candle_rocm::ops::attention::kv_cache::{self, KvCache, Rotary, Tokens};
use candle_rocm::ops::attention::{Attention, Lengths, Tier, SCORE_BYTES};
use candle_rocm::{contiguous_strides, Buffer, DType, Device, Error, View};
use common::{assert_close, assert_exact, device, download, upload, Element, HostTensor, Rng};
use half::{bf16, f16};

const SCALED: usize = 32;

/// How the cache is ordered in memory.
#[derive(Clone, Copy, Debug)]
enum Memory {
    /// A head's entries together.
    HeadsFirst,
    /// As candle-flash-attn has it.
    EntriesFirst,
}

/// Half of a cache, keys or values, with its geometry.
struct Half {
    buffer: Buffer,
    scales: Option<Buffer>,
    dtype: DType,
    dims: [usize; 4],
    strides: [usize; 4],
    scale_dims: [usize; 4],
    scale_strides: [usize; 4],
}

impl Half {
    /// All bits set: NaN in every format, so that reading what was not written shows.
    fn new(device: &Device, dtype: DType, dims: [usize; 4], memory: Memory) -> Self {
        let [blocks, size, heads, width] = dims;
        let strides = match memory {
            Memory::HeadsFirst => kv_cache::strides(size, heads, width),
            Memory::EntriesFirst => contiguous_strides(&dims).try_into().unwrap(),
        };
        let count = blocks * size * heads * width;
        let ones = |bytes| device.upload(&vec![0xff; bytes]).unwrap();
        let [a, b, c, _] = strides.map(|stride| stride / SCALED);
        Half {
            buffer: ones(count * dtype.size_in_bytes()),
            scales: (dtype == DType::U8).then(|| ones(count / SCALED * 2)),
            dtype,
            dims,
            strides,
            scale_dims: [blocks, size, heads, width / SCALED],
            scale_strides: [a, b, c, 1],
        }
    }

    fn view(&self) -> View<'_> {
        View {
            buffer: &self.buffer,
            dtype: self.dtype,
            offset: 0,
            dims: &self.dims,
            strides: &self.strides,
        }
    }

    fn scales(&self) -> Option<View<'_>> {
        Some(View {
            buffer: self.scales.as_ref()?,
            dtype: DType::F16,
            offset: 0,
            dims: &self.scale_dims,
            strides: &self.scale_strides,
        })
    }

    /// The vector of an entry.
    fn read(&self, device: &Device, slot: usize, head: usize) -> Vec<f64> {
        let [_, size, _, width] = self.dims;
        let start =
            slot / size * self.strides[0] + slot % size * self.strides[1] + head * self.strides[2];
        let range = start..start + width;
        match self.dtype {
            DType::F16 => widen(&download::<f16>(device, &self.buffer)[range]),
            DType::BF16 => widen(&download::<bf16>(device, &self.buffer)[range]),
            DType::F32 => widen(&download::<f32>(device, &self.buffer)[range]),
            _ => {
                let bytes = download::<u8>(device, &self.buffer);
                let scales = download::<f16>(device, self.scales.as_ref().unwrap());
                range
                    .map(|i| f64::from(bytes[i] as i8) * scales[i / SCALED].to_f64())
                    .collect()
            }
        }
    }
}

fn widen<T: Element>(values: &[T]) -> Vec<f64> {
    values.iter().map(|x| x.to_f64()).collect()
}

fn scales_of<'a>(k: &'a Half, v: &'a Half) -> Option<(View<'a>, View<'a>)> {
    k.scales().zip(v.scales())
}

/// Blocks of sequences in a shuffled order, and for each key its slot.
fn place(keys: &[usize], size: usize, seed: u64) -> (Vec<u32>, usize, usize, Vec<u32>) {
    let width = keys.iter().map(|n| n.div_ceil(size)).max().unwrap() + 1;
    let used: usize = keys.iter().map(|n| n.div_ceil(size)).sum();
    let blocks = used + 2;
    let mut order: Vec<u32> = (0..blocks as u32).collect();
    let mut rng = Rng::new(seed);
    for i in (1..blocks).rev() {
        order.swap(i, rng.below(i + 1));
    }
    let mut free = order.into_iter();
    let (mut table, mut slots) = (Vec::new(), Vec::new());
    for &n in keys {
        let own: Vec<u32> = free.by_ref().take(n.div_ceil(size)).collect();
        slots.extend((0..n).map(|j| own[j / size] * size as u32 + (j % size) as u32));
        // Entries beyond the sequence name no block.
        table.extend((0..width).map(|b| own.get(b).copied().unwrap_or(u32::MAX)));
    }
    (table, width, blocks, slots)
}

/// Fills a cache through the kernel, then compares attention over it with the textbook over what the cache holds.
fn decode<T: Element>(device: &Device, case: &Case, dtype: DType, size: usize, memory: Memory) {
    let what = format!("{} over {dtype} {memory:?} {size} {case:?}", T::DTYPE);
    let values = Values::<T>::random(case, 13);
    let (table, table_width, blocks, slots) = place(&case.keys, size, 3);
    let k = Half::new(
        device,
        dtype,
        [blocks, size, case.kv_heads, case.width],
        memory,
    );
    let v = Half::new(
        device,
        dtype,
        [blocks, size, case.kv_heads, case.v_width],
        memory,
    );
    let total = slots.len();
    let new_k = HostTensor::contiguous(values.k.clone(), &case.k_dims());
    let new_v = HostTensor::contiguous(values.v.clone(), &case.v_dims());
    let slots_dim = [total];
    let slots_host = HostTensor::contiguous(slots.clone(), &slots_dim);
    let (kb, vb, sb) = (
        new_k.upload(device),
        new_v.upload(device),
        slots_host.upload(device),
    );
    let cache = KvCache {
        k: k.view(),
        v: v.view(),
        scales: scales_of(&k, &v),
    };
    let tokens = Tokens {
        q: None,
        k: new_k.view(&kb),
        v: new_v.view(&vb),
        slots: slots_host.view(&sb),
    };
    assert!(kv_cache::write(device, &cache, &tokens, None)
        .unwrap()
        .is_none());

    let held = |half: &Half| -> Vec<f64> {
        slots
            .iter()
            .flat_map(|slot| {
                (0..case.kv_heads).flat_map(|head| half.read(device, *slot as usize, head))
            })
            .collect()
    };
    let seen = Values {
        q: widen(&values.q),
        k: held(&k),
        v: held(&v),
        mask: Vec::new(),
    };
    // Eight bits lose half a step of the largest of 32.
    let limit = if dtype == DType::U8 { 1e-4 } else { 1e-5 };
    assert_close(&seen.k, &widen(&values.k), limit, &what);
    assert_close(&seen.v, &widen(&values.v), limit, &what);

    let q = HostTensor::contiguous(values.q.clone(), &case.q_dims());
    let extras = Extras::new(case);
    let table = HostTensor::contiguous(table, &[case.rows.len(), table_width]);
    let (qb, tb, rb, cb, pb) = (
        q.upload(device),
        table.upload(device),
        extras.cu_rows.upload(device),
        extras.cu_keys.upload(device),
        extras.prefix.upload(device),
    );
    let ib = extras.sinks.upload(device);
    let lengths = Lengths::Paged {
        cu_rows: extras.cu_rows.view(&rb),
        cu_keys: extras.cu_keys.view(&cb),
        max_rows: *case.rows.iter().max().unwrap(),
        max_keys: *case.keys.iter().max().unwrap(),
        blocks: table.view(&tb),
    };
    for tier in [Tier::Tiled, Tier::Naive] {
        let mut problem = Attention::new(q.view(&qb), k.view(), v.view(), case.scale);
        problem.scales = scales_of(&k, &v);
        problem.prefix = (!case.prefix.is_empty()).then(|| extras.prefix.view(&pb));
        problem.sinks = case.sinks.then(|| extras.sinks.view(&ib));
        let got = run(device, case, tier, SCORE_BYTES, problem, lengths);
        let got = got.unwrap_or_else(|error| panic!("{what} {tier}: {error}"));
        let (want, _) = textbook(case, &seen);
        assert_close(&download::<T>(device, &got.out), &want, NMSE_LIMIT, &what);
    }
}

#[test]
fn decoding() {
    let device = device();
    for (keys, size) in [
        (vec![1, 33, 300], 16),
        (vec![64, 7, 0], 32),
        (vec![50, 51, 52], 5),
    ] {
        let case = Case {
            rows: vec![1; 3],
            keys,
            ..Case::new(1, 1, 64).heads(6, 2).causal()
        };
        for memory in [Memory::HeadsFirst, Memory::EntriesFirst] {
            decode::<f16>(&device, &case, DType::F16, size, memory);
            decode::<bf16>(&device, &case, DType::BF16, size, memory);
            decode::<f32>(&device, &case, DType::U8, size, memory);
            decode::<f32>(&device, &case, DType::F16, size, memory);
        }
        decode::<f32>(&device, &case, DType::F32, size, Memory::HeadsFirst);
    }
}

#[test]
fn head_sizes() {
    let device = device();
    for (width, v_width) in [(32, 32), (96, 96), (128, 64), (160, 160), (288, 512)] {
        let case = Case {
            rows: vec![1, 2],
            keys: vec![40, 70],
            v_width,
            ..Case::new(1, 1, width).heads(4, 1).causal()
        };
        decode::<f16>(&device, &case, DType::F16, 16, Memory::HeadsFirst);
        decode::<bf16>(&device, &case, DType::U8, 16, Memory::EntriesFirst);
    }
}

/// Few rows and many keys, which are split and joined, and keys of one part; rows in the middle of chunks.
#[test]
fn sinks_and_chunks() {
    let device = device();
    for keys in [vec![1, 33, 300], vec![40, 7, 9]] {
        let case = Case {
            rows: vec![1; 3],
            keys,
            sinks: true,
            ..Case::new(1, 1, 64).heads(6, 2).causal()
        };
        for chunk in [None, Some(24), Some(150)] {
            let case = Case {
                chunk,
                ..case.clone()
            };
            decode::<f32>(&device, &case, DType::F16, 16, Memory::HeadsFirst);
            decode::<bf16>(&device, &case, DType::U8, 16, Memory::HeadsFirst);
        }
    }
}

/// New tokens behind an old context, and ranges that see each other.
#[test]
fn prefill() {
    let device = device();
    let case = Case {
        rows: vec![40, 3, 0],
        keys: vec![90, 3, 8],
        ..Case::new(1, 1, 32).heads(4, 2).window(Some(20), Some(0))
    };
    decode::<f16>(&device, &case, DType::F16, 16, Memory::HeadsFirst);
    decode::<f16>(&device, &case, DType::U8, 16, Memory::HeadsFirst);
    let with_ranges = Case {
        prefix: vec![[0, 30], [60, 75]],
        ..case
    };
    decode::<f32>(&device, &with_ranges, DType::F16, 16, Memory::EntriesFirst);
}

/// Queries and keys turn as the textbook has it, values do not, and a slot of `u32::MAX` writes nothing.
fn turn<T: Element>(device: &Device, dtype: DType, width: usize, rotary: usize, interleaved: bool) {
    let what = format!(
        "{} in {dtype}, {rotary} of {width}, interleaved {interleaved}",
        T::DTYPE
    );
    let (heads, kv_heads, v_width, size) = (3, 2, 32, 4);
    let positions = [5u32, 0, 17, 2];
    let slots = [9u32, u32::MAX, 0, 6];
    let mut rng = Rng::new(21);
    // Views of a fused projection: queries, keys and values behind each other.
    let row = heads * width + kv_heads * (width + v_width);
    let fused: Vec<T> = rng.vec(4 * row, -1.0, 1.0);
    let angles: Vec<f64> = (0..18 * rotary / 2)
        .map(|_| rng.uniform(-3.0, 3.0))
        .collect();
    let table = |f: fn(f64) -> f64| -> Vec<f32> { angles.iter().map(|&a| f(a) as f32).collect() };
    let table_dims = [18, rotary / 2];
    let (cos, sin) = (
        HostTensor::contiguous(table(f64::cos), &table_dims),
        HostTensor::contiguous(table(f64::sin), &table_dims),
    );
    let (fb, cb, sb) = (
        upload(device, &fused),
        cos.upload(device),
        sin.upload(device),
    );
    let (pb, lb) = (upload(device, &positions), upload(device, &slots));
    let part = |offset, heads, width: usize| HostTensor::<T> {
        storage: Vec::new(),
        offset,
        dims: vec![4, heads, width],
        strides: vec![row, width, 1],
    };
    let q = part(0, heads, width);
    let k = part(heads * width, kv_heads, width);
    let v = part((heads + kv_heads) * width, kv_heads, v_width);
    let four = [4];
    let (k_half, v_half) = (
        Half::new(
            device,
            dtype,
            [3, size, kv_heads, width],
            Memory::HeadsFirst,
        ),
        Half::new(
            device,
            dtype,
            [3, size, kv_heads, v_width],
            Memory::HeadsFirst,
        ),
    );
    let before = download::<u8>(device, &k_half.buffer);
    let cache = KvCache {
        k: k_half.view(),
        v: v_half.view(),
        scales: scales_of(&k_half, &v_half),
    };
    let tokens = Tokens {
        q: Some(q.view(&fb)),
        k: k.view(&fb),
        v: v.view(&fb),
        slots: View::contiguous(&lb, DType::U32, &four, &[1]),
    };
    let embedding = Rotary {
        cos: cos.view(&cb),
        sin: sin.view(&sb),
        interleaved,
        positions: View::contiguous(&pb, DType::U32, &four, &[1]),
    };
    let turned_q = kv_cache::write(device, &cache, &tokens, Some(&embedding))
        .unwrap()
        .unwrap();

    let vector = |part: &HostTensor<T>, token: usize, head: usize, turn: bool| -> Vec<f64> {
        let width = part.dims[2];
        let start = part.offset + token * row + head * width;
        let x = widen(&fused[start..start + width]);
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
    let want: Vec<f64> = (0..4)
        .flat_map(|token| (0..heads).map(move |head| (token, head)))
        .flat_map(|(token, head)| vector(&q, token, head, true))
        .collect();
    assert_close(&download::<T>(device, &turned_q), &want, 1e-5, &what);
    let limit = if dtype == DType::U8 { 1e-4 } else { 1e-5 };
    for (token, slot) in slots
        .iter()
        .enumerate()
        .filter(|(_, slot)| **slot != u32::MAX)
    {
        for head in 0..kv_heads {
            let got_k = k_half.read(device, *slot as usize, head);
            assert_close(&got_k, &vector(&k, token, head, true), limit, &what);
            let got_v = v_half.read(device, *slot as usize, head);
            assert_close(&got_v, &vector(&v, token, head, false), limit, &what);
        }
    }
    // Nothing else was touched.
    let after = download::<u8>(device, &k_half.buffer);
    let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(
        changed <= 3 * kv_heads * width * dtype.size_in_bytes(),
        "{what}: {changed} bytes"
    );
}

#[test]
fn rotary_embedding() {
    let device = device();
    for interleaved in [false, true] {
        turn::<f16>(&device, DType::F16, 64, 64, interleaved);
        turn::<bf16>(&device, DType::BF16, 40, 16, interleaved);
        turn::<f32>(&device, DType::F16, 80, 32, interleaved);
        turn::<f32>(&device, DType::U8, 96, 64, interleaved);
        turn::<bf16>(&device, DType::U8, 32, 32, interleaved);
    }
}

/// A block of zeros stays zeros, and the largest element keeps its sign.
#[test]
fn eight_bits() {
    let device = device();
    let mut values = vec![0f32; 64];
    values[40] = -12.7;
    values[41] = 0.1;
    let k = HostTensor::contiguous(values, &[1, 1, 64]);
    let kb = k.upload(&device);
    let slot = upload(&device, &[1u32]);
    let half = Half::new(&device, DType::U8, [1, 2, 1, 64], Memory::HeadsFirst);
    let other = Half::new(&device, DType::U8, [1, 2, 1, 64], Memory::HeadsFirst);
    let cache = KvCache {
        k: half.view(),
        v: other.view(),
        scales: scales_of(&half, &other),
    };
    let tokens = Tokens {
        q: None,
        k: k.view(&kb),
        v: k.view(&kb),
        slots: View::contiguous(&slot, DType::U32, &[1], &[1]),
    };
    kv_cache::write(&device, &cache, &tokens, None).unwrap();
    let bytes = download::<u8>(&device, &half.buffer)[64..].to_vec();
    let mut want = vec![0u8; 64];
    want[40] = -127i8 as u8;
    want[41] = 1;
    assert_exact(&bytes, &want, "quants");
    let scales = download::<f16>(&device, half.scales.as_ref().unwrap())[2..].to_vec();
    assert_exact(&scales, &[f16::ZERO, f16::from_f32(12.7 / 127.0)], "scales");
}

#[test]
fn what_is_refused() {
    let device = device();
    let half = Half::new(&device, DType::F16, [2, 4, 2, 32], Memory::HeadsFirst);
    let bytes = Half::new(&device, DType::U8, [2, 4, 2, 32], Memory::HeadsFirst);
    let cache = KvCache {
        k: half.view(),
        v: half.view(),
        scales: None,
    };
    let k = HostTensor::contiguous(vec![f16::ONE; 3 * 2 * 32], &[3, 2, 32]);
    let narrow = HostTensor::contiguous(vec![f16::ONE; 3 * 2 * 24], &[3, 2, 24]);
    let (kb, nb, sb) = (
        k.upload(&device),
        narrow.upload(&device),
        upload(&device, &[0u32, 1, 2]),
    );
    let slots = View::contiguous(&sb, DType::U32, &[3], &[1]);
    let tokens = Tokens {
        q: None,
        k: k.view(&kb),
        v: k.view(&kb),
        slots,
    };
    let write = |cache: &KvCache, tokens: &Tokens| kv_cache::write(&device, cache, tokens, None);
    assert!(write(&cache, &tokens).is_ok());
    let other_size = Tokens {
        v: narrow.view(&nb),
        ..tokens
    };
    assert!(matches!(
        write(&cache, &other_size),
        Err(Error::ShapeMismatch { .. })
    ));
    let few = Tokens {
        slots: View::contiguous(&sb, DType::U32, &[2], &[1]),
        ..tokens
    };
    assert!(matches!(
        write(&cache, &few),
        Err(Error::ShapeMismatch { .. })
    ));
    let no_scales = KvCache {
        k: bytes.view(),
        v: bytes.view(),
        scales: None,
    };
    assert!(matches!(
        write(&no_scales, &tokens),
        Err(Error::InvalidArgument { .. })
    ));
    let ints = Tokens { k: slots, ..tokens };
    assert!(matches!(
        write(&cache, &ints),
        Err(Error::UnsupportedDType { .. })
    ));
    let table = HostTensor::contiguous(vec![1f32; 5 * 12], &[5, 12]);
    let tb = table.upload(&device);
    let rotary = Rotary {
        cos: table.view(&tb),
        sin: table.view(&tb),
        interleaved: false,
        positions: slots,
    };
    assert!(matches!(
        kv_cache::write(&device, &cache, &tokens, Some(&rotary)),
        Err(Error::InvalidArgument { .. })
    ));
}
