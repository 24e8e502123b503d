//! The cache in device memory.

use super::format::{CacheDType, CacheFormat, SCALED};
use super::{batch::DeviceBatch, Attend, CacheShape, PagedBatch, Rotary};
use candle::op::BackpropOp;
use candle::rocm_backend::{candle_rocm, RocmDevice};
use candle::{bail, Result, RocmStorage, Shape, Storage, Tensor};
use candle_rocm::ops::attention::kv_cache::{self, KvCache, Tokens};
use candle_rocm::ops::attention::latent;
use candle_rocm::ops::attention::packed::{self, Format, PackedCache};
use candle_rocm::ops::attention::{attention, Attention, Lengths, Window};
use candle_rocm::ops::quantized::QuantizedActivations;
use candle_rocm::{Buffer, DType, View};
use std::ops::Deref;

const OP: &str = "paged attention";

pub(super) struct Store {
    device: RocmDevice,
    halves: Halves,
}

/// What is stored, and in which kind of memory.
enum Halves {
    /// Keys and values of one type that has a kernel of its own; no values where the last elements of keys are them.
    Alike(Half, Option<Half>),
    /// Those of other types, of two, or that turn.
    Packed(packed::Half, packed::Half),
}

/// Keys, or values.
struct Half {
    data: Buffer,
    dtype: DType,
    dims: [usize; 4],
    strides: [usize; 4],
    scales: Option<(Buffer, [usize; 4], [usize; 4])>,
}

/// What a type is in a packed cache.
fn format(dtype: CacheDType) -> Result<Format> {
    Ok(match dtype {
        CacheDType::F32 => bail!("{OP}: on a GPU, f32 goes with f32 only; use f16 or bf16"),
        CacheDType::F16 => Format::F16,
        CacheDType::BF16 => Format::Bf16,
        CacheDType::Q8_0 => Format::Q8_0,
        CacheDType::Q4_0 => Format::Q4_0,
        CacheDType::Q4_1 => Format::Q4_1,
        CacheDType::Q5_0 => Format::Q5_0,
        CacheDType::Q5_1 => Format::Q5_1,
        CacheDType::Iq4Nl => Format::Iq4Nl,
        CacheDType::F8 => Format::F8,
    })
}

impl Half {
    fn new(
        shape: &CacheShape,
        size: usize,
        dtype: CacheDType,
        device: &RocmDevice,
    ) -> Result<Self> {
        let device = device.device();
        let CacheShape {
            blocks,
            block_size,
            kv_heads,
            ..
        } = *shape;
        let elements = blocks * block_size * kv_heads * size;
        let strides = kv_cache::strides(block_size, kv_heads, size);
        let (dtype, scales) = match dtype {
            CacheDType::F32 => (DType::F32, None),
            CacheDType::F16 => (DType::F16, None),
            CacheDType::BF16 => (DType::BF16, None),
            CacheDType::Q8_0 => {
                let [block, entry, head, last] = strides;
                let dims = [blocks, block_size, kv_heads, size / SCALED];
                let strides = [block / SCALED, entry / SCALED, head / SCALED, last];
                let buffer = device.alloc(elements / SCALED * 2)?;
                (DType::U8, Some((buffer, dims, strides)))
            }
            other => bail!("{OP}: {other:?} is stored in packed caches only"),
        };
        Ok(Self {
            data: device.alloc(elements * dtype.size_in_bytes())?,
            dtype,
            dims: [blocks, block_size, kv_heads, size],
            strides,
            scales,
        })
    }

    /// Its buffers, and the bytes of a block in each: blocks lie behind each other.
    fn blocks(&self) -> impl Iterator<Item = (&Buffer, usize)> {
        let data = (&self.data, self.strides[0] * self.dtype.size_in_bytes());
        let scales = self.scales.iter();
        let scales = scales.map(|(buffer, _, strides)| (buffer, strides[0] * 2));
        std::iter::once(data).chain(scales)
    }

    /// Dimensions of values of so many elements in it or beside it.
    fn value_dims(&self, size: usize) -> ValueDims {
        let [blocks, block_size, kv_heads, _] = self.dims;
        ValueDims {
            values: [blocks, block_size, kv_heads, size],
            scales: [blocks, block_size, kv_heads, size / SCALED],
        }
    }

    fn view(&self) -> View<'_> {
        View {
            buffer: &self.data,
            dtype: self.dtype,
            offset: 0,
            dims: &self.dims,
            strides: &self.strides,
        }
    }

    fn scales(&self) -> Option<View<'_>> {
        let (buffer, dims, strides) = self.scales.as_ref()?;
        Some(View {
            buffer,
            dtype: DType::F16,
            offset: 0,
            dims,
            strides,
        })
    }
}

/// Binds a name to the device layer's view of a tensor.
macro_rules! with_view {
    ($name:ident = $tensor:expr) => {
        let (storage, layout) = $tensor.storage_and_layout();
        let storage = rocm_storage(storage.deref())?;
        let $name = storage.view(layout, OP)?;
    };
}

fn rocm_storage(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => bail!("{OP}: the tensors must be on the device of the cache"),
    }
}

/// A tensor around a result of the device layer.
fn tensor(like: &Tensor, buffer: Buffer, shape: Shape) -> Result<Tensor> {
    let (storage, _) = like.storage_and_layout();
    let count = shape.elem_count();
    let storage = rocm_storage(storage.deref())?.with_buffer(buffer, like.dtype(), count);
    Ok(Tensor::from_storage(
        Storage::Rocm(storage),
        shape,
        BackpropOp::none(),
        false,
    ))
}

/// Dimensions of the views of values of so many elements, and of their scales.
struct ValueDims {
    values: [usize; 4],
    scales: [usize; 4],
}

impl ValueDims {
    /// Where values lie: in memory of their own or in that of the keys.
    fn values<'a>(
        &'a self,
        keys: &'a Half,
        values: Option<&'a Half>,
        shape: &CacheShape,
    ) -> View<'a> {
        match values {
            Some(own) => View {
                dims: &self.values,
                ..own.view()
            },
            None => View {
                dims: &self.values,
                offset: shape.head_size - shape.v_head_size,
                ..keys.view()
            },
        }
    }

    fn scales<'a>(
        &'a self,
        keys: &'a Half,
        values: Option<&'a Half>,
        shape: &CacheShape,
    ) -> Option<View<'a>> {
        let (view, offset) = match values {
            Some(own) => (own.scales()?, 0),
            None => (
                keys.scales()?,
                (shape.head_size - shape.v_head_size) / SCALED,
            ),
        };
        Some(View {
            dims: &self.scales,
            offset,
            ..view
        })
    }
}

pub(super) fn device_batch(batch: &PagedBatch) -> Result<&DeviceBatch> {
    match &batch.device {
        Some(batch) => Ok(batch),
        None => bail!("{OP}: the batch was made for another device"),
    }
}

impl Store {
    /// Keys and values.
    pub(super) fn new(shape: &CacheShape, cache: CacheFormat, device: &RocmDevice) -> Result<Self> {
        let CacheFormat {
            keys,
            values,
            turn_keys,
            turn_values,
        } = cache;
        let sizes = [shape.head_size, shape.v_head_size];
        let has_kernels = match keys {
            CacheDType::Q8_0 => sizes.iter().all(|size| size % SCALED == 0),
            dtype => !dtype.is_quantized(),
        };
        let halves = if keys == values && has_kernels && !turn_keys && !turn_values {
            let values = Half::new(shape, shape.v_head_size, values, device)?;
            Halves::Alike(
                Half::new(shape, shape.head_size, keys, device)?,
                Some(values),
            )
        } else {
            let half = |dtype, size, turns| {
                let dims = [shape.blocks, shape.block_size, shape.kv_heads, size];
                Ok::<_, candle::Error>(packed::Half::new(
                    device.device(),
                    format(dtype)?,
                    dims,
                    turns,
                )?)
            };
            Halves::Packed(
                half(keys, shape.head_size, turn_keys)?,
                half(values, shape.v_head_size, turn_values)?,
            )
        };
        Ok(Self {
            device: device.clone(),
            halves,
        })
    }

    /// Keys that have the values.
    pub(super) fn latent(
        shape: &CacheShape,
        dtype: CacheDType,
        device: &RocmDevice,
    ) -> Result<Self> {
        let keys = Half::new(shape, shape.head_size, dtype, device)?;
        Ok(Self {
            device: device.clone(),
            halves: Halves::Alike(keys, None),
        })
    }

    pub(super) fn has_values(&self) -> bool {
        !matches!(self.halves, Halves::Alike(_, None))
    }

    /// Keys of one type with a kernel of its own.
    fn keys(&self) -> Result<&Half> {
        match &self.halves {
            Halves::Alike(keys, _) => Ok(keys),
            Halves::Packed(..) => bail!("{OP}: a packed cache has no latent vectors"),
        }
    }

    /// Whether one kernel reads keys with their values once for all heads.
    pub(super) fn suits_latent(&self, shape: &CacheShape, scores: &Attend) -> bool {
        let turning = shape.head_size.saturating_sub(shape.v_head_size);
        !self.has_values()
            && shape.kv_heads == 1
            && scores.left.is_none()
            && scores.softcap.is_none()
            && scores.chunk.is_none()
            && scores.sinks.is_none()
            && latent::takes(turning, shape.v_head_size)
    }

    /// Attention of all heads to the only one of keys, or to the `chosen` ones.
    pub(super) fn attend_latent(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        batch: &PagedBatch,
        scale: f32,
        chosen: Option<&Tensor>,
    ) -> Result<Tensor> {
        let most = batch.positions();
        let batch = device_batch(batch)?;
        with_view!(query = q);
        with_view!(cu_rows = batch.cu_rows);
        with_view!(cu_keys = batch.cu_keys);
        with_view!(blocks = batch.table);
        // What is not there borrows the queries' place and is not used.
        with_view!(list = chosen.unwrap_or(q));
        let own = self.keys()?;
        let keys = latent::Keys {
            keys: own.view(),
            scales: own.scales(),
            cu_rows,
            cu_keys,
            blocks,
            most,
        };
        let turning = shape.head_size - shape.v_head_size;
        let list = chosen.is_some().then_some(&list);
        let device = self.device.device();
        let out = latent::attend(device, &query, &keys, turning, scale, list)?;
        let (tokens, heads, _) = q.dims3()?;
        tensor(q, out, Shape::from((tokens, heads, shape.v_head_size)))
    }

    /// See [`PagedCache::choose`](super::PagedCache::choose).
    pub(super) fn choose(
        &self,
        q: &Tensor,
        weights: &Tensor,
        batch: &PagedBatch,
        most: usize,
    ) -> Result<Tensor> {
        let longest = batch.positions();
        let batch = device_batch(batch)?;
        let weights = weights.contiguous()?;
        with_view!(query = q);
        with_view!(shares = weights);
        with_view!(cu_rows = batch.cu_rows);
        with_view!(cu_keys = batch.cu_keys);
        with_view!(blocks = batch.table);
        let own = self.keys()?;
        let keys = latent::Keys {
            keys: own.view(),
            scales: own.scales(),
            cu_rows,
            cu_keys,
            blocks,
            most: longest,
        };
        let chosen = latent::choose(self.device.device(), &query, &shares, &keys, most)?;
        let shape = Shape::from((q.dim(0)?, most));
        let count = shape.elem_count();
        let storage = RocmStorage::new(chosen, self.device.clone(), candle::DType::U32, count);
        Ok(Tensor::from_storage(
            Storage::Rocm(storage),
            shape,
            BackpropOp::none(),
            false,
        ))
    }

    /// The buffers of keys and values, and the bytes of a block in each.
    fn blocks(&self) -> Vec<(&Buffer, usize)> {
        match &self.halves {
            Halves::Alike(keys, values) => {
                let values = values.iter().flat_map(Half::blocks);
                keys.blocks().chain(values).collect()
            }
            Halves::Packed(keys, values) => [keys.blocks(), values.blocks()].concat(),
        }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.blocks().into_iter().map(|(_, bytes)| bytes).sum()
    }

    pub(super) fn read_block(&self, block: usize, out: &mut Vec<u8>) -> Result<()> {
        for (buffer, bytes) in self.blocks() {
            let start = out.len();
            out.resize(start + bytes, 0);
            let device = self.device.device();
            device.download(buffer, block * bytes, &mut out[start..])?;
        }
        Ok(())
    }

    pub(super) fn write_block(&self, block: usize, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for (buffer, bytes) in self.blocks() {
            let (first, after) = rest.split_at(bytes);
            self.device
                .device()
                .upload_into(first, buffer, block * bytes)?;
            rest = after;
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        shape: &CacheShape,
        q: Option<&Tensor>,
        k: &Tensor,
        v: Option<&Tensor>,
        batch: &PagedBatch,
        rotary: Option<&Rotary>,
    ) -> Result<Option<Tensor>> {
        let batch = device_batch(batch)?;
        let size = if v.is_some() { shape.v_head_size } else { 0 };
        with_view!(key = k);
        with_view!(given = v.unwrap_or(k));
        let no_values = [key.dims[0], key.dims[1], 0];
        // Values in keys are none that are to be written.
        let value = match v {
            Some(_) => given,
            None => View {
                dims: &no_values,
                ..given
            },
        };
        with_view!(slots = batch.slots);
        // What is not there borrows the keys' place and is not used.
        with_view!(query = q.unwrap_or(k));
        let tokens = Tokens {
            q: q.is_some().then_some(query),
            k: key,
            v: value,
            slots,
        };
        let turned = match rotary {
            None => self.write_views(shape, size, &tokens, None)?,
            Some(rotary) => {
                with_view!(cos = rotary.cos);
                with_view!(sin = rotary.sin);
                with_view!(positions = batch.positions);
                let rotary = kv_cache::Rotary {
                    cos,
                    sin,
                    interleaved: rotary.interleaved,
                    positions,
                };
                self.write_views(shape, size, &tokens, Some(&rotary))?
            }
        };
        match (turned, q) {
            (Some(buffer), Some(q)) => Ok(Some(tensor(q, buffer, q.shape().clone())?)),
            _ => Ok(None),
        }
    }

    /// Writes tokens whose values have `size` elements, or are in the keys.
    fn write_views(
        &self,
        shape: &CacheShape,
        size: usize,
        tokens: &Tokens,
        rotary: Option<&kv_cache::Rotary>,
    ) -> Result<Option<Buffer>> {
        let device = self.device.device();
        let turned = match &self.halves {
            Halves::Packed(keys, values) => {
                kv_cache::write_packed(device, &PackedCache::new(keys, values), tokens, rotary)?
            }
            Halves::Alike(keys, values) => {
                let places = keys.value_dims(size);
                let values = values.as_ref();
                let cache = KvCache {
                    k: keys.view(),
                    v: places.values(keys, values, shape),
                    scales: keys.scales().zip(places.scales(keys, values, shape)),
                };
                kv_cache::write(device, &cache, tokens, rotary)?
            }
        };
        Ok(turned)
    }

    pub(super) fn turn(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        batch: &PagedBatch,
        rotary: &Rotary,
    ) -> Result<Tensor> {
        let batch = device_batch(batch)?;
        // No token has a place: what stands in for keys and values is not read.
        let nowhere = Tensor::full(u32::MAX, q.dim(0)?, q.device())?;
        let keys = q.narrow(1, 0, shape.kv_heads)?;
        let values = keys.narrow(2, 0, shape.v_head_size)?;
        with_view!(query = q);
        with_view!(key = keys);
        with_view!(value = values);
        with_view!(slots = nowhere);
        with_view!(cos = rotary.cos);
        with_view!(sin = rotary.sin);
        with_view!(positions = batch.positions);
        let tokens = Tokens {
            q: Some(query),
            k: key,
            v: value,
            slots,
        };
        let rotary = kv_cache::Rotary {
            cos,
            sin,
            interleaved: rotary.interleaved,
            positions,
        };
        match self.write_views(shape, shape.v_head_size, &tokens, Some(&rotary))? {
            Some(buffer) => tensor(q, buffer, q.shape().clone()),
            None => bail!("{OP}: queries were given and none came back"),
        }
    }

    pub(super) fn attend(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        batch: &PagedBatch,
        scores: &Attend,
        quantized: bool,
    ) -> Result<(Tensor, Option<QuantizedActivations>)> {
        let max_keys = batch.positions();
        let batch = device_batch(batch)?;
        with_view!(query = q);
        let device = self.device.device();
        with_view!(cu_rows = batch.cu_rows);
        with_view!(cu_keys = batch.cu_keys);
        with_view!(blocks = batch.table);
        // What is not there borrows the queries' place and is not used.
        with_view!(sinks = scores.sinks.unwrap_or(q));
        let places;
        let (keys, values, scales, packed) = match &self.halves {
            Halves::Packed(keys, values) => {
                let cache = PackedCache::new(keys, values);
                (keys.view(), values.view(), None, Some(cache))
            }
            Halves::Alike(keys, values) => {
                places = keys.value_dims(shape.v_head_size);
                let own = values.as_ref();
                let scales = keys.scales().zip(places.scales(keys, own, shape));
                let values = places.values(keys, own, shape);
                (keys.view(), values, scales, None)
            }
        };
        let problem = Attention {
            scales,
            packed,
            lengths: Lengths::Paged {
                cu_rows,
                cu_keys,
                max_rows: batch.max_rows,
                max_keys,
                blocks,
            },
            window: Window {
                left: scores.left,
                ..Window::CAUSAL
            },
            chunk: scores.chunk,
            sinks: scores.sinks.is_some().then_some(sinks),
            softcap: scores.softcap,
            // Keys and values have been rounded already.
            may_round: true,
            quantized,
            ..Attention::new(query, keys, values, scores.scale)
        };
        let attended = attention(device, &problem)?;
        let (tokens, heads, _) = q.dims3()?;
        let out = Shape::from((tokens, heads, shape.v_head_size));
        Ok((tensor(q, attended.out, out)?, attended.quantized))
    }
}
