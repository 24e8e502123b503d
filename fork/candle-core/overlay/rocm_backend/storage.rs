//! [`RocmStorage`]: device memory with an element type, and candle's operations on it.

use std::ffi::c_void;

use candle_rocm::ops::conv::{self, Conv, ConvTranspose};
use candle_rocm::ops::{self, binary, indexing, reduce, unary};
use candle_rocm::{Buffer, View};

use super::dtype::{device_dtype, device_scalar, host_storage, stored_dtype};
use super::{RocmDevice, RocmError};
use crate::backend::BackendStorage;
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::{CpuStorage, DType, Layout, Result};

/// Memory on an AMD GPU and the type of its elements.
#[derive(Debug)]
pub struct RocmStorage {
    buffer: Buffer,
    device: RocmDevice,
    dtype: DType,
    count: usize,
}

impl RocmStorage {
    /// Wraps `buffer`, which holds `count` elements of `dtype` on `device`.
    pub fn new(buffer: Buffer, device: RocmDevice, dtype: DType, count: usize) -> Self {
        Self {
            buffer,
            device,
            dtype,
            count,
        }
    }

    /// The memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Device address of the first byte, for kernels of your own. Work on it is ordered by the device's stream.
    pub fn as_ptr(&self) -> *mut c_void {
        self.buffer.as_ptr()
    }

    /// Number of elements.
    pub fn elem_count(&self) -> usize {
        self.count
    }

    /// The part of this storage that `layout` describes, as the device layer's operations take it; `op` names the
    /// caller in the error for a dtype that is only stored.
    pub fn view<'a>(&'a self, layout: &'a Layout, op: &'static str) -> Result<View<'a>> {
        Ok(View {
            buffer: &self.buffer,
            dtype: device_dtype(self.dtype, op)?,
            offset: layout.start_offset(),
            dims: layout.dims(),
            strides: layout.stride(),
        })
    }

    /// A storage on the same device with the outcome of an operation.
    pub fn with_buffer(&self, buffer: Buffer, dtype: DType, count: usize) -> Self {
        Self::new(buffer, self.device.clone(), dtype, count)
    }

    /// A copy on another device or stream, made without a detour through the host where the GPUs can reach each other.
    pub fn transfer_to_device(&self, device: &RocmDevice) -> Result<Self> {
        let buffer = device.device().alloc(self.buffer.len())?;
        device
            .device()
            .copy(&self.buffer, 0, &buffer, 0, self.buffer.len())?;
        Ok(Self::new(buffer, device.clone(), self.dtype, self.count))
    }

    fn same_shape(&self, buffer: Buffer, layout: &Layout) -> Self {
        self.with_buffer(buffer, self.dtype, layout.shape().elem_count())
    }

    /// An outcome of this dtype that fills its buffer.
    fn whole(&self, buffer: Buffer) -> Self {
        let count = buffer.len() / self.dtype.size_in_bytes();
        self.with_buffer(buffer, self.dtype, count)
    }

    /// What `run` makes of this storage's view and a kernel's: a storage of the same dtype.
    fn convolve(
        &self,
        op: &'static str,
        layout: &Layout,
        (kernel, kernel_layout): (&Self, &Layout),
        run: impl FnOnce(&candle_rocm::Device, &View, &View) -> candle_rocm::Result<Buffer>,
    ) -> Result<Self> {
        let (x, kernel) = (self.view(layout, op)?, kernel.view(kernel_layout, op)?);
        Ok(self.whole(run(self.gpu(), &x, &kernel)?))
    }

    fn gpu(&self) -> &candle_rocm::Device {
        self.device.device()
    }
}

fn not_implemented<T>(op: &'static str) -> Result<T> {
    Err(RocmError::NotImplemented { op }.into())
}

fn unary_op<B: UnaryOpT>() -> Result<unary::UnaryOp> {
    use unary::UnaryOp::*;
    Ok(match B::NAME {
        "exp" => Exp,
        "log" => Log,
        "sin" => Sin,
        "cos" => Cos,
        "abs" => Abs,
        "neg" => Neg,
        "recip" => Recip,
        "sqr" => Sqr,
        "sqrt" => Sqrt,
        "gelu" => Gelu,
        "gelu_erf" => GeluErf,
        "erf" => Erf,
        "relu" => Relu,
        "silu" => Silu,
        "tanh" => Tanh,
        "floor" => Floor,
        "ceil" => Ceil,
        "round" => Round,
        "sign" => Sign,
        op => return not_implemented(op),
    })
}

fn binary_op<B: BinaryOpT>() -> Result<binary::BinaryOp> {
    use binary::BinaryOp::*;
    Ok(match B::NAME {
        "add" => Add,
        "sub" => Sub,
        "mul" => Mul,
        "div" => Div,
        "minimum" => Minimum,
        "maximum" => Maximum,
        op => return not_implemented(op),
    })
}

impl BackendStorage for RocmStorage {
    type Device = RocmDevice;

    fn try_clone(&self, _: &Layout) -> Result<Self> {
        self.transfer_to_device(&self.device)
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn device(&self) -> &RocmDevice {
        &self.device
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        host_storage(self.dtype, self.count, |bytes| {
            Ok(self.gpu().download(&self.buffer, 0, bytes)?)
        })
    }

    fn affine(&self, l: &Layout, mul: f64, add: f64) -> Result<Self> {
        let buffer = ops::affine::affine(self.gpu(), &self.view(l, "affine")?, mul, add)?;
        Ok(self.same_shape(buffer, l))
    }

    fn powf(&self, l: &Layout, e: f64) -> Result<Self> {
        let buffer = ops::affine::powf(self.gpu(), &self.view(l, "powf")?, e)?;
        Ok(self.same_shape(buffer, l))
    }

    fn elu(&self, l: &Layout, alpha: f64) -> Result<Self> {
        let buffer = ops::affine::elu(self.gpu(), &self.view(l, "elu")?, alpha)?;
        Ok(self.same_shape(buffer, l))
    }

    fn reduce_op(&self, op: ReduceOp, l: &Layout, axes: &[usize]) -> Result<Self> {
        let (kind, dtype) = match op {
            ReduceOp::Sum => (reduce::ReduceOp::Sum, self.dtype),
            ReduceOp::Min => (reduce::ReduceOp::Min, self.dtype),
            ReduceOp::Max => (reduce::ReduceOp::Max, self.dtype),
            ReduceOp::ArgMin => (reduce::ReduceOp::ArgMin, DType::U32),
            ReduceOp::ArgMax => (reduce::ReduceOp::ArgMax, DType::U32),
        };
        let buffer = reduce::reduce(self.gpu(), kind, &self.view(l, op.name())?, axes)?;
        let kept = l
            .dims()
            .iter()
            .enumerate()
            .filter(|(i, _)| !axes.contains(i));
        Ok(self.with_buffer(buffer, dtype, kept.map(|(_, d)| d).product()))
    }

    fn cmp(&self, op: CmpOp, rhs: &Self, l: &Layout, rhs_l: &Layout) -> Result<Self> {
        let op = match op {
            CmpOp::Eq => binary::CompareOp::Eq,
            CmpOp::Ne => binary::CompareOp::Ne,
            CmpOp::Lt => binary::CompareOp::Lt,
            CmpOp::Le => binary::CompareOp::Le,
            CmpOp::Gt => binary::CompareOp::Gt,
            CmpOp::Ge => binary::CompareOp::Ge,
        };
        let (lhs, rhs) = (self.view(l, "cmp")?, rhs.view(rhs_l, "cmp")?);
        let buffer = binary::compare(self.gpu(), op, &lhs, &rhs)?;
        Ok(self.with_buffer(buffer, DType::U8, l.shape().elem_count()))
    }

    fn to_dtype(&self, l: &Layout, dtype: DType) -> Result<Self> {
        let to = device_dtype(dtype, "to_dtype")?;
        let buffer = ops::cast::cast(self.gpu(), &self.view(l, "to_dtype")?, to)?;
        Ok(self.with_buffer(buffer, dtype, l.shape().elem_count()))
    }

    fn unary_impl<B: UnaryOpT>(&self, l: &Layout) -> Result<Self> {
        crate::mended::check_unary(B::NAME, self.dtype)?;
        let buffer = unary::unary(self.gpu(), unary_op::<B>()?, &self.view(l, B::NAME)?)?;
        Ok(self.same_shape(buffer, l))
    }

    fn binary_impl<B: BinaryOpT>(&self, rhs: &Self, l: &Layout, rhs_l: &Layout) -> Result<Self> {
        let (lhs, rhs) = (self.view(l, B::NAME)?, rhs.view(rhs_l, B::NAME)?);
        let buffer = binary::binary(self.gpu(), binary_op::<B>()?, &lhs, &rhs)?;
        Ok(self.same_shape(buffer, l))
    }

    fn where_cond(
        &self,
        l: &Layout,
        on_true: &Self,
        true_l: &Layout,
        on_false: &Self,
        false_l: &Layout,
    ) -> Result<Self> {
        const OP: &str = "where_cond";
        let (t, f) = (on_true.view(true_l, OP)?, on_false.view(false_l, OP)?);
        let buffer = ops::ternary::where_cond(self.gpu(), &self.view(l, OP)?, &t, &f)?;
        Ok(on_true.same_shape(buffer, true_l))
    }

    fn conv1d(&self, l: &Layout, k: &Self, k_l: &Layout, p: &ParamsConv1D) -> Result<Self> {
        let options = Conv {
            padding: p.padding,
            stride: p.stride,
            dilation: p.dilation,
            method: None,
        };
        self.convolve("conv1d", l, (k, k_l), |device, x, kernel| {
            conv::conv1d(device, x, kernel, options)
        })
    }

    fn conv_transpose1d(
        &self,
        l: &Layout,
        k: &Self,
        k_l: &Layout,
        p: &ParamsConvTranspose1D,
    ) -> Result<Self> {
        let options = ConvTranspose {
            padding: p.padding,
            output_padding: p.output_padding,
            stride: p.stride,
            dilation: p.dilation,
            method: None,
        };
        self.convolve("conv_transpose1d", l, (k, k_l), |device, x, kernel| {
            conv::conv_transpose1d(device, x, kernel, options)
        })
    }

    fn conv2d(&self, l: &Layout, k: &Self, k_l: &Layout, p: &ParamsConv2D) -> Result<Self> {
        let options = Conv {
            padding: p.padding,
            stride: p.stride,
            dilation: p.dilation,
            method: None,
        };
        self.convolve("conv2d", l, (k, k_l), |device, x, kernel| {
            conv::conv2d(device, x, kernel, options)
        })
    }

    fn conv_transpose2d(
        &self,
        l: &Layout,
        k: &Self,
        k_l: &Layout,
        p: &ParamsConvTranspose2D,
    ) -> Result<Self> {
        let options = ConvTranspose {
            padding: p.padding,
            output_padding: p.output_padding,
            stride: p.stride,
            dilation: p.dilation,
            method: None,
        };
        self.convolve("conv_transpose2d", l, (k, k_l), |device, x, kernel| {
            conv::conv_transpose2d(device, x, kernel, options)
        })
    }

    fn avg_pool2d(&self, l: &Layout, window: (usize, usize), step: (usize, usize)) -> Result<Self> {
        let x = self.view(l, "avg_pool2d")?;
        let buffer = ops::pool::avg_pool2d(self.gpu(), &x, window, step)?;
        Ok(self.whole(buffer))
    }

    fn max_pool2d(&self, l: &Layout, window: (usize, usize), step: (usize, usize)) -> Result<Self> {
        let x = self.view(l, "max_pool2d")?;
        let buffer = ops::pool::max_pool2d(self.gpu(), &x, window, step)?;
        Ok(self.whole(buffer))
    }

    fn upsample_nearest1d(&self, l: &Layout, size: usize) -> Result<Self> {
        let x = self.view(l, "upsample_nearest1d")?;
        let buffer = ops::upsample::upsample_nearest1d(self.gpu(), &x, size)?;
        Ok(self.whole(buffer))
    }

    fn upsample_nearest2d(&self, l: &Layout, h: usize, w: usize) -> Result<Self> {
        let x = self.view(l, "upsample_nearest2d")?;
        let buffer = ops::upsample::upsample_nearest2d(self.gpu(), &x, (h, w))?;
        Ok(self.whole(buffer))
    }

    fn upsample_bilinear2d(
        &self,
        l: &Layout,
        h: usize,
        w: usize,
        align_corners: bool,
        factor_h: Option<f64>,
        factor_w: Option<f64>,
    ) -> Result<Self> {
        let x = self.view(l, "upsample_bilinear2d")?;
        let factors = (factor_h, factor_w);
        let buffer =
            ops::upsample::upsample_bilinear2d(self.gpu(), &x, (h, w), align_corners, factors)?;
        Ok(self.whole(buffer))
    }

    fn gather(&self, l: &Layout, ids: &Self, ids_l: &Layout, dim: usize) -> Result<Self> {
        let (src, index) = (self.view(l, "gather")?, ids.view(ids_l, "gather")?);
        let buffer = indexing::gather(self.gpu(), &src, &index, dim)?;
        Ok(self.same_shape(buffer, ids_l))
    }

    fn scatter_set(
        &mut self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        const OP: &str = "scatter";
        let (index, src) = (ids.view(ids_l, OP)?, src.view(src_l, OP)?);
        Ok(indexing::scatter_set(
            self.gpu(),
            &self.view(l, OP)?,
            &index,
            &src,
            dim,
        )?)
    }

    fn scatter_add_set(
        &mut self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        const OP: &str = "scatter_add";
        let (index, src) = (ids.view(ids_l, OP)?, src.view(src_l, OP)?);
        Ok(indexing::scatter_add(
            self.gpu(),
            &self.view(l, OP)?,
            &index,
            &src,
            dim,
        )?)
    }

    fn index_select(&self, ids: &Self, l: &Layout, ids_l: &Layout, dim: usize) -> Result<Self> {
        const OP: &str = "index_select";
        let index = ids.view(ids_l, OP)?;
        let buffer = indexing::index_select(self.gpu(), &self.view(l, OP)?, &index, dim)?;
        let kept: usize = l
            .dims()
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != dim)
            .map(|(_, d)| d)
            .product();
        Ok(self.with_buffer(buffer, self.dtype, kept * ids_l.shape().elem_count()))
    }

    fn index_add(
        &self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        const OP: &str = "index_add";
        let (index, src) = (ids.view(ids_l, OP)?, src.view(src_l, OP)?);
        let buffer = indexing::index_add(self.gpu(), &self.view(l, OP)?, &index, &src, dim)?;
        Ok(self.same_shape(buffer, l))
    }

    fn matmul(
        &self,
        rhs: &Self,
        (b, m, n, k): (usize, usize, usize, usize),
        l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        let (lhs, rhs) = (self.view(l, "matmul")?, rhs.view(rhs_l, "matmul")?);
        let buffer = candle_rocm::blas::matmul(self.gpu(), lhs.dtype, (b, m, n, k), &lhs, &rhs)?;
        Ok(self.with_buffer(buffer, self.dtype, b * m * n))
    }

    fn copy_strided_src(&self, dst: &mut Self, dst_offset: usize, l: &Layout) -> Result<()> {
        let src = View {
            buffer: &self.buffer,
            dtype: stored_dtype(self.dtype, "copy_strided")?,
            offset: l.start_offset(),
            dims: l.dims(),
            strides: l.stride(),
        };
        Ok(ops::copy::copy_strided(
            self.gpu(),
            &src,
            &dst.buffer,
            dst_offset,
        )?)
    }

    fn copy2d(
        &self,
        dst: &mut Self,
        d1: usize,
        d2: usize,
        src_stride1: usize,
        dst_stride1: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Result<()> {
        let dtype = stored_dtype(self.dtype, "copy2d")?;
        Ok(ops::copy::copy2d(
            self.gpu(),
            dtype,
            &self.buffer,
            &dst.buffer,
            d1,
            d2,
            src_stride1,
            dst_stride1,
            src_offset,
            dst_offset,
        )?)
    }

    fn const_set(&mut self, value: Scalar, l: &Layout) -> Result<()> {
        let dst = self.view(l, "const_set")?;
        Ok(ops::fill::fill(self.gpu(), &dst, device_scalar(value))?)
    }
}
