//! Caches of latent vectors (multi-head latent attention, "DeepSeek-V2", 2024, 2.1): each token has one key for all
//! heads, whose last elements are its value, too, and are stored once; and attention to chosen keys only, for which
//! an indexer ranks them ("DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse Attention", 2025).

use super::cpu::{self, last_elements, with_rows, Shared};
use super::format::SCALED;
use super::rocm;
use super::simd::{self, Line, Scale};
use super::{Attend, CacheDType, CacheShape, PagedBatch, PagedCache, Rotary, Store};
use candle::utils::barrier_pool;
use candle::{bail, DType, Device, Result, Tensor};
use std::cmp::Ordering;

/// In place of a chosen key: none.
pub const NO_KEY: u32 = u32::MAX;

/// Chosen keys that are taken into a row's sums at once.
const AT_ONCE: usize = 16;

impl PagedCache {
    /// As [`PagedCache::new`], but that the last `v_head_size` elements of a key are its value: only keys are stored.
    /// What turns by a rotary embedding are the first elements of a key.
    ///
    /// # Errors
    /// Those of [`PagedCache::new`]; for values that are larger than keys, types other than f32, f16, bf16 and q8_0,
    /// and in 8 bits for keys whose other elements are no multiple of 32.
    pub fn latent(shape: CacheShape, dtype: CacheDType, device: &Device) -> Result<Self> {
        let CacheShape {
            head_size,
            v_head_size,
            ..
        } = shape;
        if v_head_size > head_size || v_head_size == 0 {
            bail!("values of {v_head_size} elements in keys of {head_size}")
        }
        if dtype.is_quantized() && dtype != CacheDType::Q8_0 {
            bail!("latent vectors are stored in f32, f16, bf16 or q8_0, not in {dtype:?}")
        }
        let scaled = [head_size, v_head_size].iter().all(|s| s % SCALED == 0);
        if dtype == CacheDType::Q8_0 && !scaled {
            bail!("a q8_0 cache takes keys and values of a multiple of {SCALED} elements, not {head_size} and {v_head_size}; use f16")
        }
        if shape.block_size == 0 || shape.kv_heads == 0 {
            bail!("a cache of {shape:?} holds nothing")
        }
        let store = match device {
            Device::Cpu => Store::Cpu(cpu::Store::new(&shape, dtype.into(), false)),
            Device::Rocm(device) => {
                Store::Rocm(Box::new(rocm::Store::latent(&shape, dtype, device)?))
            }
            device => bail!("there is no paged cache on {:?}", device.location()),
        };
        Ok(Self { shape, store })
    }

    /// As [`PagedCache::write`] for a [latent](PagedCache::latent) cache: keys have the values.
    ///
    /// # Errors
    /// Those of [`PagedCache::write`]; for a cache that has values of their own.
    pub fn write_latent(
        &mut self,
        q: Option<&Tensor>,
        k: &Tensor,
        batch: &PagedBatch,
        rotary: Option<&Rotary>,
    ) -> Result<Option<Tensor>> {
        if self.has_values() {
            bail!("this cache has values of their own; use write")
        }
        self.write_parts(q, k, None, batch, rotary)
    }

    /// The keys of one head that suit each token best: those up to its own whose sum over heads of
    /// `weight * max(0, query * key)` is largest, the earlier one where two are the same. `q` is
    /// `(tokens, heads, head_size)`, `weights` f32 `(tokens, heads)`. Gives u32 `(tokens, most)`, positions in
    /// ascending order, behind them [`NO_KEY`].
    ///
    /// # Errors
    /// For shapes that do not fit the cache and the batch, and a cache of several heads.
    pub fn choose(
        &self,
        q: &Tensor,
        weights: &Tensor,
        batch: &PagedBatch,
        most: usize,
    ) -> Result<Tensor> {
        self.check_queries(q, batch, &Attend::new(1.0))?;
        let (tokens, heads, _) = q.dims3()?;
        if weights.dims() != [tokens, heads] || self.shape.kv_heads != 1 || most == 0 {
            bail!(
                "weights {:?} do not fit queries {:?} and a cache of {:?}",
                weights.dims(),
                q.dims(),
                self.shape
            )
        }
        match &self.store {
            Store::Cpu(store) => store.choose(&self.shape, q, weights, batch, most),
            Store::Rocm(store) => store.choose(q, weights, batch, most),
        }
    }

    /// As [`PagedCache::attend`], to the `chosen` keys of each token only, as [`PagedCache::choose`] gives them.
    ///
    /// # Errors
    /// For shapes that do not fit the cache and the batch, and a cache of several heads.
    pub fn attend_chosen(
        &self,
        q: &Tensor,
        batch: &PagedBatch,
        scale: f32,
        chosen: &Tensor,
    ) -> Result<Tensor> {
        self.check_queries(q, batch, &Attend::new(scale))?;
        let fits = matches!(*chosen.dims(), [tokens, most] if tokens == batch.tokens() && most > 0);
        if !fits || chosen.dtype() != DType::U32 || self.shape.kv_heads != 1 {
            bail!(
                "chosen keys {:?} of {:?} do not fit {} tokens and a cache of {:?}",
                chosen.dims(),
                chosen.dtype(),
                batch.tokens(),
                self.shape
            )
        }
        match &self.store {
            Store::Cpu(store) => store.attend_chosen(&self.shape, q, batch, scale, chosen),
            Store::Rocm(store) => store.attend_latent(&self.shape, q, batch, scale, Some(chosen)),
        }
    }
}

/// The tokens of a batch with the sequences that they belong to, and their positions.
fn tokens(batch: &PagedBatch) -> Vec<(&[u32], usize)> {
    let of_sequence = batch.sequences.iter().flat_map(|sequence| {
        let first = sequence.keys - sequence.rows;
        (first..sequence.keys).map(move |position| (&sequence.blocks[..], position))
    });
    of_sequence.collect()
}

/// Where the only head's key of a position is, in vectors.
fn place(shape: &CacheShape, blocks: &[u32], position: usize) -> usize {
    let block = blocks[position / shape.block_size] as usize;
    cpu::entry(
        shape,
        block * shape.block_size + position % shape.block_size,
        0,
    )
}

/// The positions of the largest scores, ascending.
fn best(scores: &[f32], most: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    if most < order.len() {
        let before = |a: &u32, b: &u32| -> Ordering {
            let of = |i: &u32| scores[*i as usize];
            of(b).total_cmp(&of(a)).then(a.cmp(b))
        };
        order.select_nth_unstable_by(most, before);
        order.truncate(most);
        order.sort_unstable();
    }
    order
}

impl cpu::Store {
    fn choose(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        weights: &Tensor,
        batch: &PagedBatch,
        most: usize,
    ) -> Result<Tensor> {
        let (count, heads, size) = q.dims3()?;
        let weights = weights
            .to_dtype(DType::F32)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        let of_tokens = tokens(batch);
        let chosen = with_rows(q, |q, row| {
            let mut chosen = vec![NO_KEY; count * most];
            let shared = Shared(chosen.as_mut_ptr());
            barrier_pool().execute_chunked(count, |range| {
                let mut scratch = Vec::new();
                for token in range {
                    let (blocks, position) = of_tokens[token];
                    let queries = &q[token * row..token * row + heads * size];
                    let weights = &weights[token * heads..(token + 1) * heads];
                    let scores: Vec<f32> = (0..=position)
                        .map(|key| {
                            let at = place(shape, blocks, key) * size;
                            let key = self.keys.read(at..at + size, &mut scratch);
                            let each = queries.chunks_exact(size).zip(weights);
                            // Plus 0, so that a sum of nothing is not minus 0.
                            each.map(|(query, weight)| weight * simd::product(query, key).max(0.0))
                                .sum::<f32>()
                                + 0.0
                        })
                        .collect();
                    let best = best(&scores, most);
                    // SAFETY: each token's range lies in `chosen` and belongs to one thread.
                    let to = unsafe { { &shared }.range(token * most, best.len()) };
                    to.copy_from_slice(&best);
                }
            });
            chosen
        })?;
        Tensor::from_vec(chosen, (count, most), &Device::Cpu)
    }

    fn attend_chosen(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        batch: &PagedBatch,
        scale: f32,
        chosen: &Tensor,
    ) -> Result<Tensor> {
        let (count, heads, size) = q.dims3()?;
        let v_size = shape.v_head_size;
        let chosen = chosen.to_vec2::<u32>()?;
        let of_tokens = tokens(batch);
        let beyond = chosen.iter().zip(&of_tokens).find(|(keys, (_, position))| {
            let mut keys = keys.iter().filter(|key| **key != NO_KEY);
            keys.any(|key| *key as usize > *position)
        });
        if let Some((_, (_, position))) = beyond {
            bail!("a chosen key lies behind position {position}")
        }
        let scale = Scale {
            scale,
            softcap: None,
        };
        let out = with_rows(q, |q, row| {
            let mut out = vec![0.0; count * heads * v_size];
            let shared = Shared(out.as_mut_ptr());
            barrier_pool().execute_chunked(count, |range| {
                let (mut scratch, mut values) = (Vec::new(), Vec::new());
                let mut keys = Vec::new();
                let mut weights = [0.0; AT_ONCE];
                for token in range {
                    // SAFETY: each token's range lies in `out` and belongs to one thread.
                    let out = unsafe { { &shared }.range(token * heads * v_size, heads * v_size) };
                    let queries = &q[token * row..token * row + heads * size];
                    let mut lines: Vec<Line> = queries
                        .chunks_exact(size)
                        .zip(out.chunks_exact_mut(v_size))
                        .map(|(query, out)| Line {
                            query,
                            out,
                            max: f32::NEG_INFINITY,
                            sum: 0.0,
                        })
                        .collect();
                    let (blocks, _) = of_tokens[token];
                    let seen: Vec<u32> = chosen[token]
                        .iter()
                        .copied()
                        .filter(|key| *key != NO_KEY)
                        .collect();
                    for few in seen.chunks(AT_ONCE) {
                        keys.clear();
                        for key in few {
                            let at = place(shape, blocks, *key as usize) * size;
                            keys.extend_from_slice(self.keys.read(at..at + size, &mut scratch));
                        }
                        let values = last_elements(&keys, (size, v_size), &mut values);
                        for line in &mut lines {
                            simd::attend(line, &keys, values, scale, &mut weights[..few.len()]);
                        }
                    }
                    for line in lines {
                        let factor = if line.sum == 0.0 { 0.0 } else { 1.0 / line.sum };
                        line.out.iter_mut().for_each(|x| *x *= factor);
                    }
                }
            });
            out
        })?;
        Tensor::from_vec(out, (count, heads, v_size), &Device::Cpu)?.to_dtype(q.dtype())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paged::PagedSequence;

    const SHAPE: CacheShape = CacheShape {
        blocks: 4,
        block_size: 16,
        kv_heads: 1,
        head_size: 40,
        v_head_size: 32,
    };

    fn numbers(shape: (usize, usize, usize), seed: usize) -> Tensor {
        let count = shape.0 * shape.1 * shape.2;
        let values = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0);
        Tensor::from_vec(values.collect::<Vec<f32>>(), shape, &Device::Cpu).unwrap()
    }

    /// What keys and values that are stored apart give, bit for bit, for one sequence or several.
    #[test]
    fn values_in_keys_are_values() {
        let (tokens, heads) = (23, 6);
        let keys = numbers((tokens, 1, SHAPE.head_size), 1);
        let values = keys.narrow(2, 8, 32).unwrap().contiguous().unwrap();
        let queries = numbers((tokens, heads, SHAPE.head_size), 2);
        let sequences = [
            PagedSequence {
                blocks: &[2],
                keys: 5,
                rows: 5,
            },
            PagedSequence {
                blocks: &[3, 0],
                keys: 18,
                rows: 18,
            },
        ];
        let batch = PagedBatch::new(&sequences, 16, &Device::Cpu).unwrap();
        for dtype in [CacheDType::F32, CacheDType::F16, CacheDType::BF16] {
            let mut apart = PagedCache::new(SHAPE, dtype, &Device::Cpu).unwrap();
            apart.write(None, &keys, &values, &batch, None).unwrap();
            let mut once = PagedCache::latent(SHAPE, dtype, &Device::Cpu).unwrap();
            once.write_latent(None, &keys, &batch, None).unwrap();
            let of = |cache: &PagedCache| {
                let out = cache.attend(&queries, &batch, &Attend::new(0.2)).unwrap();
                out.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            assert_eq!(of(&apart), of(&once), "{dtype:?}");
            assert!(once.write(None, &keys, &values, &batch, None).is_err());
            assert!(apart.write_latent(None, &keys, &batch, None).is_err());
        }
        assert!(PagedCache::latent(SHAPE, CacheDType::Q8_0, &Device::Cpu).is_err());
    }

    #[test]
    fn few_keys_are_all_chosen_and_many_by_their_scores() {
        let (tokens, heads) = (18, 3);
        let sequence = PagedSequence {
            blocks: &[3, 0],
            keys: tokens,
            rows: tokens,
        };
        let batch = PagedBatch::new(&[sequence], 16, &Device::Cpu).unwrap();
        let keys = numbers((tokens, 1, SHAPE.head_size), 1);
        let mut cache = PagedCache::latent(SHAPE, CacheDType::F32, &Device::Cpu).unwrap();
        cache.write_latent(None, &keys, &batch, None).unwrap();
        let queries = numbers((tokens, heads, SHAPE.head_size), 2);
        let weights = numbers((1, tokens, heads), 3).squeeze(0).unwrap();
        let chosen = cache.choose(&queries, &weights, &batch, 32).unwrap();
        let some = cache.attend_chosen(&queries, &batch, 0.2, &chosen).unwrap();
        let all = cache.attend(&queries, &batch, &Attend::new(0.2)).unwrap();
        let difference = (some - &all).unwrap().abs().unwrap().flatten_all().unwrap();
        assert!(difference.max(0).unwrap().to_scalar::<f32>().unwrap() < 1e-6);

        let most = 5;
        let chosen = cache.choose(&queries, &weights, &batch, most).unwrap();
        let chosen = chosen.to_vec2::<u32>().unwrap();
        let vectors = |t: &Tensor| t.to_vec3::<f32>().unwrap();
        let (q, k) = (vectors(&queries), vectors(&keys));
        let w = weights.to_vec2::<f32>().unwrap();
        for (token, chosen) in chosen.iter().enumerate() {
            let score = |key: usize| -> f64 {
                let of_head = |head: usize| {
                    let pairs = q[token][head].iter().zip(&k[key][0]);
                    let dot: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    f64::from(w[token][head]) * dot.max(0.0)
                };
                (0..heads).map(of_head).sum()
            };
            let mut want: Vec<usize> = (0..=token).collect();
            want.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
            want.truncate(most);
            want.sort_unstable();
            let got: Vec<usize> = chosen
                .iter()
                .filter(|key| **key != NO_KEY)
                .map(|key| *key as usize)
                .collect();
            assert_eq!(got, want, "token {token}");
        }
        let wrong = Tensor::full(99u32, (tokens, 1), &Device::Cpu).unwrap();
        assert!(cache.attend_chosen(&queries, &batch, 0.2, &wrong).is_err());
    }

    #[test]
    fn of_equal_scores_the_earlier_ones_are_best() {
        assert_eq!(best(&[0.0, 2.0, 0.0, 1.0, 0.0], 3), [0, 1, 3]);
        assert_eq!(best(&[0.0, 0.0], 3), [0, 1]);
    }
}
