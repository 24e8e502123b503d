//! Quantized tensors on AMD GPUs.

use candle_rocm::ops::moe::indexed_moe;
use candle_rocm::ops::quantized::{dequantize, embedding, linear, Epilogue, QuantizedMatrix};
use candle_rocm::{Buffer, DType as DeviceDType};
use ggml_formats::Format;

use super::{GgmlDType, QStorage};
use crate::backend::BackendStorage;
use crate::{CpuStorage, DType, Device, Layout, Result, RocmDevice, RocmStorage, Shape};

/// Blocks of a quantized tensor in device memory, exactly as a GGUF file holds them.
pub struct QRocmStorage {
    buffer: Buffer,
    dtype: GgmlDType,
    format: Format,
    device: RocmDevice,
}

impl QRocmStorage {
    /// `elem_count` zeros; the count is a multiple of the format's block.
    pub fn zeros(device: &RocmDevice, elem_count: usize, dtype: GgmlDType) -> Result<Self> {
        let bytes = elem_count / dtype.block_size() * dtype.type_size();
        Ok(Self {
            buffer: device.device().alloc_zeroed(bytes)?,
            dtype,
            format: dtype.try_into()?,
            device: device.clone(),
        })
    }

    /// Format of the blocks.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// Device that holds them.
    pub fn device(&self) -> &RocmDevice {
        &self.device
    }

    /// The memory, for kernels of your own.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Size of the blocks.
    pub fn storage_size_in_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// A copy of the blocks on the host.
    pub fn data(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.buffer.len()];
        self.device.device().download(&self.buffer, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn storage(&self, buffer: Buffer, dtype: DType, count: usize) -> RocmStorage {
        RocmStorage::new(buffer, self.device.clone(), dtype, count)
    }

    fn dequantize_to(&self, elem_count: usize, to: DeviceDType) -> Result<Buffer> {
        Ok(dequantize(
            self.device.device(),
            self.format,
            &self.buffer,
            0,
            elem_count,
            to,
        )?)
    }

    /// The values as f32.
    pub fn dequantize(&self, elem_count: usize) -> Result<RocmStorage> {
        let buffer = self.dequantize_to(elem_count, DeviceDType::F32)?;
        Ok(self.storage(buffer, DType::F32, elem_count))
    }

    /// Replaces the blocks by those of `quantized`, which was made on the host: the formats' searches for good scales
    /// are not worth a kernel, a model is quantized once.
    fn take(&mut self, quantized: QStorage) -> Result<()> {
        self.buffer = self.device.device().upload(&quantized.data()?)?;
        Ok(())
    }

    fn host_zeros(&self, src: &CpuStorage) -> Result<QStorage> {
        let elem_count = src.as_slice::<f32>()?.len();
        Device::Cpu.qzeros(elem_count, self.dtype)
    }

    /// Quantizes f32 values of the device.
    pub fn quantize(&mut self, src: &RocmStorage) -> Result<()> {
        self.quantize_onto(&src.to_cpu_storage()?)
    }

    /// Quantizes f32 values of the host.
    pub fn quantize_onto(&mut self, src: &CpuStorage) -> Result<()> {
        let mut quantized = self.host_zeros(src)?;
        quantized.quantize(&crate::Storage::Cpu(src.clone()))?;
        self.take(quantized)
    }

    /// Quantizes f32 values of the device, weighted by an importance matrix.
    pub fn quantize_imatrix(
        &mut self,
        src: &RocmStorage,
        imatrix_weights: &[f32],
        n_per_row: usize,
    ) -> Result<()> {
        self.quantize_imatrix_onto(&src.to_cpu_storage()?, imatrix_weights, n_per_row)
    }

    /// Quantizes f32 values of the host, weighted by an importance matrix.
    pub fn quantize_imatrix_onto(
        &mut self,
        src: &CpuStorage,
        imatrix_weights: &[f32],
        n_per_row: usize,
    ) -> Result<()> {
        let mut quantized = self.host_zeros(src)?;
        let src = crate::Storage::Cpu(src.clone());
        quantized.quantize_imatrix(&src, imatrix_weights, n_per_row)?;
        self.take(quantized)
    }

    /// Rows `ids` of a table of `rows` by `hidden` values, as f32. Only those rows are dequantized.
    pub fn embedding(
        &self,
        rows: usize,
        hidden: usize,
        ids: &RocmStorage,
        ids_l: &Layout,
    ) -> Result<RocmStorage> {
        let row_bytes = hidden / self.dtype.block_size() * self.dtype.type_size();
        if self.buffer.len() != rows.saturating_mul(row_bytes) {
            crate::bail!(
                "quantized table of {} bytes does not hold {rows} rows of {row_bytes} bytes",
                self.buffer.len()
            )
        }
        let table = self.matrix(rows, hidden);
        let view = ids.view(ids_l, "quantized embedding")?;
        let buffer = embedding(self.device.device(), &table, &view)?;
        let count = ids_l.shape().elem_count() * hidden;
        Ok(self.storage(buffer, DType::F32, count))
    }

    /// `x · selfᵀ` for `self` of shape `[n, k]` and `x` of `[.., k]`, in the dtype of `x` (f32, f16 or bf16).
    pub fn fwd(
        &self,
        shape: &Shape,
        x: &RocmStorage,
        layout: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        const OP: &str = "quantized matmul";
        let (n, k) = shape.dims2()?;
        let mut dims = layout.dims().to_vec();
        if dims.len() < 2 || dims.pop() != Some(k) {
            crate::bail!(
                "{OP}: input {:?} does not fit weights {shape:?}",
                layout.dims()
            )
        }
        let rows: usize = dims.iter().product();
        dims.push(n);
        let weights = self.matrix(n, k);
        let view = x.view(layout, OP)?;
        let buffer = linear(self.device.device(), &weights, &view, &Epilogue::default())?;
        Ok((self.storage(buffer, x.dtype(), rows * n), Shape::from(dims)))
    }

    /// The blocks as `rows` rows of `cols` values, for [`candle_rocm::ops::quantized`].
    pub fn matrix(&self, rows: usize, cols: usize) -> QuantizedMatrix<'_> {
        QuantizedMatrix::new(self.format, &self.buffer, rows, cols)
    }

    /// Each token's vector times the matrices of its experts, as f32 `[tokens, topk, n]`: `self` is `[experts, n, k]`,
    /// `x` `[tokens, topk or 1, k]` and `ids` `[tokens, topk]` of u32.
    pub fn indexed_moe_forward(
        &self,
        shape: &Shape,
        x: &RocmStorage,
        x_l: &Layout,
        ids: &RocmStorage,
        ids_l: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        const OP: &str = "indexed_moe_forward";
        let (experts, n, k) = shape.dims3()?;
        let buffer = indexed_moe(
            self.device.device(),
            self.format,
            &self.buffer,
            (experts, n, k),
            &x.view(x_l, OP)?,
            &ids.view(ids_l, OP)?,
        )?;
        let (tokens, topk) = ids_l.shape().dims2()?;
        let shape = Shape::from((tokens, topk, n));
        Ok((self.storage(buffer, DType::F32, shape.elem_count()), shape))
    }
}

/// Uploads blocks.
pub fn load_quantized<T: super::GgmlType + Send + Sync + 'static>(
    device: &RocmDevice,
    blocks: &[T],
) -> Result<QStorage> {
    let size = std::mem::size_of_val(blocks);
    // SAFETY: ggml blocks are plain data without padding.
    let bytes = unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), size) };
    load_blocks(device, bytes, T::DTYPE)
}

/// Uploads blocks as they lie in a file.
pub fn load_blocks(device: &RocmDevice, blocks: &[u8], dtype: GgmlDType) -> Result<QStorage> {
    Ok(QStorage::Rocm(QRocmStorage {
        buffer: device.device().upload(blocks)?,
        dtype,
        format: dtype.try_into()?,
        device: device.clone(),
    }))
}
