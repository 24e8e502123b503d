//! The cache in device memory.

use super::{batch::DeviceBatch, Attend, CacheDType, CacheShape, PagedBatch, Rotary, SCALED};
use candle::op::BackpropOp;
use candle::rocm_backend::{candle_rocm, RocmDevice};
use candle::{bail, Result, RocmStorage, Shape, Storage, Tensor};
use candle_rocm::ops::attention::kv_cache::{self, KvCache, Tokens};
use candle_rocm::ops::attention::latent;
use candle_rocm::ops::attention::{attention, Attention, Lengths, Window};
use candle_rocm::ops::quantized::QuantizedActivations;
use candle_rocm::{Buffer, DType, View};
use std::ops::Deref;

const OP: &str = "paged attention";

pub(super) struct Store {
    device: RocmDevice,
    keys: Half,
    /// None where the last elements of keys are the values.
    values: Option<Half>,
}

/// Keys, or values.
struct Half {
    data: Buffer,
    dtype: DType,
    dims: [usize; 4],
    strides: [usize; 4],
    scales: Option<(Buffer, [usize; 4], [usize; 4])>,
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
    fn values<'a>(&'a self, store: &'a Store, shape: &CacheShape) -> View<'a> {
        match &store.values {
            Some(own) => View {
                dims: &self.values,
                ..own.view()
            },
            None => View {
                dims: &self.values,
                offset: shape.head_size - shape.v_head_size,
                ..store.keys.view()
            },
        }
    }

    fn scales<'a>(&'a self, store: &'a Store, shape: &CacheShape) -> Option<View<'a>> {
        let (view, offset) = match &store.values {
            Some(own) => (own.scales()?, 0),
            None => (
                store.keys.scales()?,
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
    /// With values of their `own`, or in the keys.
    pub(super) fn new(
        shape: &CacheShape,
        dtype: CacheDType,
        device: &RocmDevice,
        own: bool,
    ) -> Result<Self> {
        let values = own.then(|| Half::new(shape, shape.v_head_size, dtype, device));
        Ok(Self {
            device: device.clone(),
            keys: Half::new(shape, shape.head_size, dtype, device)?,
            values: values.transpose()?,
        })
    }

    pub(super) fn has_values(&self) -> bool {
        self.values.is_some()
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
        let keys = latent::Keys {
            keys: self.keys.view(),
            scales: self.keys.scales(),
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
        let keys = latent::Keys {
            keys: self.keys.view(),
            scales: self.keys.scales(),
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

    fn value_dims(&self, size: usize) -> ValueDims {
        let [blocks, block_size, kv_heads, _] = self.keys.dims;
        ValueDims {
            values: [blocks, block_size, kv_heads, size],
            scales: [blocks, block_size, kv_heads, size / SCALED],
        }
    }

    /// The buffers of keys and values, and the bytes of a block in each.
    fn blocks(&self) -> impl Iterator<Item = (&Buffer, usize)> {
        self.keys
            .blocks()
            .chain(self.values.iter().flat_map(Half::blocks))
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.blocks().map(|(_, bytes)| bytes).sum()
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
        let places = self.value_dims(if v.is_some() { shape.v_head_size } else { 0 });
        let cache = KvCache {
            k: self.keys.view(),
            v: places.values(self, shape),
            scales: self.keys.scales().zip(places.scales(self, shape)),
        };
        with_view!(key = k);
        let device = self.device.device();
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
            None => kv_cache::write(device, &cache, &tokens, None)?,
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
                kv_cache::write(device, &cache, &tokens, Some(&rotary))?
            }
        };
        match (turned, q) {
            (Some(buffer), Some(q)) => Ok(Some(tensor(q, buffer, q.shape().clone())?)),
            _ => Ok(None),
        }
    }

    pub(super) fn turn(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        batch: &PagedBatch,
        rotary: &Rotary,
    ) -> Result<Tensor> {
        let device = self.device.device();
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
        let places = self.value_dims(shape.v_head_size);
        let cache = KvCache {
            k: self.keys.view(),
            v: places.values(self, shape),
            scales: self.keys.scales().zip(places.scales(self, shape)),
        };
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
        match kv_cache::write(device, &cache, &tokens, Some(&rotary))? {
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
        let places = self.value_dims(shape.v_head_size);
        let problem = Attention {
            scales: self.keys.scales().zip(places.scales(self, shape)),
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
            ..Attention::new(
                query,
                self.keys.view(),
                places.values(self, shape),
                scores.scale,
            )
        };
        let attended = attention(device, &problem)?;
        let (tokens, heads, _) = q.dims3()?;
        let out = Shape::from((tokens, heads, shape.v_head_size));
        Ok((tensor(q, attended.out, out)?, attended.quantized))
    }
}
