//! The matrix product behind rocBLAS: `d = alpha * op(a) * op(b) + beta * c`, column-major, on the `gemm` crate.
//!
//! Half precision operands are widened to f32, multiplied there, and rounded once.

use crate::error::{HipError, HipResult};
use crate::exec::{describe, workers};
use crate::memory::Fault;
use crate::sim::Sim;
use crate::wrong::spoiled;
use ::gemm::Parallelism;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use std::ffi::{c_int, c_void};

/// Batches whose matrices need fewer multiplications than this are spread over the cores one matrix per core.
const SMALL_PRODUCT: usize = 1 << 18;
/// Elements that one task widens.
const WIDEN_CHUNK: usize = 1 << 14;

/// Element types that products are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    F16,
    Bf16,
    F32,
    F64,
}

impl Type {
    /// By the value of `rocblas_datatype`.
    pub fn from_code(code: c_int) -> Option<Type> {
        Some(match code {
            150 => Type::F16,
            151 => Type::F32,
            152 => Type::F64,
            168 => Type::Bf16,
            _ => return None,
        })
    }

    /// As `HIP_SIM_WRONG` names it.
    fn name(self) -> &'static str {
        match self {
            Type::F16 => "f16",
            Type::Bf16 => "bf16",
            Type::F32 => "f32",
            Type::F64 => "f64",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Type::F16 | Type::Bf16 => 2,
            Type::F32 => 4,
            Type::F64 => 8,
        }
    }
}

/// Which combinations of types rocBLAS has: all alike with f32 compute for the short ones, or short inputs and f32
/// output.
pub(super) fn supports(a: Type, b: Type, c: Type, d: Type, compute: Type) -> bool {
    let short = matches!(a, Type::F16 | Type::Bf16);
    let output = c == d && (c == a || (short && c == Type::F32));
    a == b && output && (compute == a && a != Type::Bf16 || short && compute == Type::F32)
}

/// `alpha` or `beta`: a value from the host, or one that lies on the device when the product runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar {
    Value(f64),
    OnDevice(usize, Type),
}

impl Scalar {
    /// # Safety
    /// `pointer` points to a value of type `kind`, for as long as the product may run if it is on the device.
    pub unsafe fn new(pointer: *const c_void, kind: Type, on_device: bool) -> Scalar {
        match on_device {
            true => Scalar::OnDevice(pointer as usize, kind),
            // SAFETY: the caller's promise.
            false => Scalar::Value(unsafe { read(pointer as usize, kind) }),
        }
    }

    /// Whether it is known to be zero.
    pub fn is_zero(self) -> bool {
        matches!(self, Scalar::Value(v) if v == 0.0)
    }

    fn get(self) -> f64 {
        match self {
            Scalar::Value(value) => value,
            // SAFETY: promised when it was made.
            Scalar::OnDevice(address, kind) => unsafe { read(address, kind) },
        }
    }
}

/// # Safety
/// `address` holds a value of type `kind`.
unsafe fn read(address: usize, kind: Type) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            Type::F16 => (*(address as *const f16)).to_f64(),
            Type::Bf16 => (*(address as *const bf16)).to_f64(),
            Type::F32 => *(address as *const f32) as f64,
            Type::F64 => *(address as *const f64),
        }
    }
}

/// Makes the value at `address` a wrong one.
///
/// # Safety
/// `address` holds a value of type `kind` that nobody else uses.
unsafe fn spoil(address: usize, kind: Type) {
    // SAFETY: the caller's promise.
    unsafe {
        let value = spoiled(read(address, kind));
        match kind {
            Type::F16 => *(address as *mut f16) = f16::from_f64(value),
            Type::Bf16 => *(address as *mut bf16) = bf16::from_f64(value),
            Type::F32 => *(address as *mut f32) = value as f32,
            Type::F64 => *(address as *mut f64) = value,
        }
    }
}

/// A batch of column-major matrices in memory; `stride` and `ld` are in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub address: usize,
    pub kind: Type,
    pub rows: usize,
    pub cols: usize,
    pub ld: usize,
    pub stride: isize,
}

impl Matrix {
    /// The `index`-th matrix of the batch alone.
    fn at(&self, index: usize) -> Matrix {
        let offset = self.stride * index as isize * self.kind.bytes() as isize;
        Matrix {
            address: self.address.wrapping_add_signed(offset),
            stride: 0,
            ..*self
        }
    }

    fn column(&self, col: usize) -> usize {
        self.address + col * self.ld * self.kind.bytes()
    }

    /// From the first to the last element, in bytes.
    fn span(&self) -> usize {
        match self.rows * self.cols {
            0 => 0,
            _ => ((self.cols - 1) * self.ld + self.rows) * self.kind.bytes(),
        }
    }

    /// Reports what the library would have read or written outside of an allocation, or read before it was written.
    fn check(&self, sim: &Sim, device: usize, what: &str, reads: bool) -> HipResult {
        if let Some(peer) = sim.closed_peer(device, self.address) {
            sim.reports.add_memory_fault(format!(
                "rocBLAS gemm: matrix {what} lies on device {peer}, to which device {device} has no access; \
                 hipDeviceEnablePeerAccess gives it"
            ));
            return Err(HipError::IllegalAddress);
        }
        if sim.memory.is_device(self.address) && !sim.memory.holds(self.address, self.span()) {
            let Matrix { rows, cols, ld, .. } = self;
            let place = describe(&sim.memory, self.address);
            sim.reports.add_memory_fault(format!(
                "rocBLAS gemm: matrix {what} ({rows}x{cols}, leading dimension {ld}, {} bytes from {place}) leaves its allocation",
                self.span()
            ));
            return Err(HipError::IllegalAddress);
        }
        if reads && sim.config.check {
            for col in 0..self.cols {
                if let Err(Fault::Uninitialised(at)) =
                    sim.memory
                        .check(self.column(col), self.rows * self.kind.bytes(), true)
                {
                    let place = describe(&sim.memory, at);
                    sim.reports.add(format!(
                        "rocBLAS gemm: matrix {what} is read but was never written at {place}"
                    ));
                    break;
                }
            }
        }
        Ok(())
    }

    /// The values in f32, column after column without gaps.
    ///
    /// # Safety
    /// The matrix is readable memory.
    unsafe fn widen(&self) -> Vec<f32> {
        let mut out = vec![0f32; self.rows * self.cols];
        // Long columns are cut, so that one of them is work for several cores.
        let part = |col: usize, first: usize, values: &mut [f32]| {
            let address = self.column(col) + first * self.kind.bytes();
            // SAFETY: the caller's promise; `values` is no longer than the rest of the column.
            unsafe {
                match self.kind {
                    Type::F16 => std::slice::from_raw_parts(address as *const f16, values.len())
                        .convert_to_f32_slice(values),
                    Type::Bf16 => std::slice::from_raw_parts(address as *const bf16, values.len())
                        .convert_to_f32_slice(values),
                    Type::F32 => values.copy_from_slice(std::slice::from_raw_parts(
                        address as *const f32,
                        values.len(),
                    )),
                    Type::F64 => unreachable!("f64 is never narrowed to f32"),
                }
            }
        };
        let column = |(col, values): (usize, &mut [f32])| {
            values
                .chunks_mut(WIDEN_CHUNK)
                .enumerate()
                .for_each(|(i, chunk)| part(col, i * WIDEN_CHUNK, chunk))
        };
        if self.rows * self.cols < WIDEN_CHUNK {
            out.chunks_mut(self.rows.max(1))
                .enumerate()
                .for_each(column);
        } else {
            let columns = (WIDEN_CHUNK / self.rows.max(1)).max(1);
            out.par_chunks_mut(self.rows)
                .with_min_len(columns)
                .enumerate()
                .for_each(column);
        }
        out
    }

    /// Rounds f32 values, column after column without gaps, into the matrix.
    ///
    /// # Safety
    /// The matrix is writable memory that nobody else uses.
    unsafe fn narrow(&self, values: &[f32]) {
        for (col, values) in values.chunks(self.rows).enumerate() {
            let address = self.column(col);
            // SAFETY: the caller's promise.
            unsafe {
                match self.kind {
                    Type::F16 => std::slice::from_raw_parts_mut(address as *mut f16, values.len())
                        .convert_from_f32_slice(values),
                    Type::Bf16 => {
                        std::slice::from_raw_parts_mut(address as *mut bf16, values.len())
                            .convert_from_f32_slice(values)
                    }
                    Type::F32 => std::slice::from_raw_parts_mut(address as *mut f32, values.len())
                        .copy_from_slice(values),
                    Type::F64 => unreachable!("f64 is never made from f32"),
                }
            }
        }
    }
}

/// A checked call of a gemm function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm {
    pub trans_a: bool,
    pub trans_b: bool,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub alpha: Scalar,
    pub beta: Scalar,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub d: Matrix,
    pub batch: usize,
    /// Computes in f64 instead of f32.
    pub double: bool,
}

impl Gemm {
    /// Runs the products of the batch on a device.
    pub fn run(&self, sim: &'static Sim, device: usize) -> HipResult {
        let (alpha, beta) = (self.alpha.get(), self.beta.get());
        // rocBLAS does not read what a zero factor makes irrelevant.
        let multiplies = alpha != 0.0 && self.k > 0;
        for i in 0..self.batch {
            if multiplies {
                self.a.at(i).check(sim, device, "A", true)?;
                self.b.at(i).check(sim, device, "B", true)?;
            }
            if beta != 0.0 {
                self.c.at(i).check(sim, device, "C", true)?;
            }
            self.d.at(i).check(sim, device, "D", false)?;
        }
        let k = if multiplies { self.k } else { 0 };
        let one = |i: usize, parallelism: Parallelism| {
            // SAFETY: operands inside the simulator's memory were just checked; others are the caller's promise.
            unsafe {
                match self.double {
                    true => self.product_f64(i, k, alpha, beta, parallelism),
                    false => self.product_f32(i, k, alpha as f32, beta as f32, parallelism),
                }
            }
        };
        let small = self.m * self.n * self.k < SMALL_PRODUCT;
        let pool = workers();
        if small && self.batch == 1 {
            one(0, Parallelism::None);
        } else if small {
            pool.install(|| {
                (0..self.batch)
                    .into_par_iter()
                    .for_each(|i| one(i, Parallelism::None))
            });
        } else {
            pool.install(|| (0..self.batch).for_each(|i| one(i, Parallelism::Rayon(0))));
        }
        let transposed = (self.trans_a, self.trans_b);
        if (sim.config.wrong).spoils_product(self.a.kind.name(), transposed) {
            let d = self.d.at(self.batch - 1);
            let last = d.column(d.cols - 1) + (d.rows - 1) * d.kind.bytes();
            // SAFETY: the last element of the last product, which was just written.
            unsafe { spoil(last, d.kind) };
        }
        for i in 0..self.batch {
            let d = self.d.at(i);
            (0..d.cols).for_each(|col| {
                sim.memory
                    .mark_initialised(d.column(col), d.rows * d.kind.bytes())
            });
        }
        Ok(())
    }

    /// # Safety
    /// All operands that are read are readable, and `d` is writable and used by nobody else.
    unsafe fn product_f64(
        &self,
        index: usize,
        k: usize,
        alpha: f64,
        beta: f64,
        parallelism: Parallelism,
    ) {
        let (a, b, c, d) = (
            self.a.at(index),
            self.b.at(index),
            self.c.at(index),
            self.d.at(index),
        );
        if beta != 0.0 && (c.address, c.ld) != (d.address, d.ld) {
            for col in 0..self.n {
                // SAFETY: the caller's promise.
                unsafe {
                    std::ptr::copy(
                        c.column(col) as *const f64,
                        d.column(col) as *mut f64,
                        self.m,
                    )
                };
            }
        }
        let pointers = (
            d.address as *mut f64,
            a.address as *const f64,
            b.address as *const f64,
        );
        // SAFETY: the caller's promise.
        unsafe {
            self.multiply(
                k,
                pointers,
                d.ld,
                a.ld,
                b.ld,
                beta != 0.0,
                beta,
                alpha,
                parallelism,
            )
        }
    }

    /// # Safety
    /// As for `product_f64`.
    unsafe fn product_f32(
        &self,
        index: usize,
        k: usize,
        alpha: f32,
        beta: f32,
        parallelism: Parallelism,
    ) {
        let (a, b, c, d) = (
            self.a.at(index),
            self.b.at(index),
            self.c.at(index),
            self.d.at(index),
        );
        let reads = |m: &Matrix, read: bool| {
            // SAFETY: the caller's promise.
            (read && m.kind != Type::F32).then(|| unsafe { m.widen() })
        };
        let (wide_a, wide_b) = (reads(&a, k > 0), reads(&b, k > 0));
        let in_place =
            d.kind == Type::F32 && (beta == 0.0 || (c.address, c.ld) == (d.address, d.ld));
        let mut wide_d = match (in_place, beta != 0.0) {
            (true, _) => None,
            // SAFETY: the caller's promise.
            (false, true) => Some(unsafe { c.widen() }),
            (false, false) => Some(vec![0f32; self.m * self.n]),
        };
        fn operand(wide: &Option<Vec<f32>>, m: &Matrix) -> (*const f32, usize) {
            match wide {
                Some(values) => (values.as_ptr(), m.rows),
                None => (m.address as *const f32, m.ld),
            }
        }
        let ((lhs, lda), (rhs, ldb)) = (operand(&wide_a, &a), operand(&wide_b, &b));
        let (dst, ldd) = match &mut wide_d {
            Some(values) => (values.as_mut_ptr(), self.m),
            None => (d.address as *mut f32, d.ld),
        };
        // SAFETY: the caller's promise.
        unsafe {
            self.multiply(
                k,
                (dst, lhs, rhs),
                ldd,
                lda,
                ldb,
                beta != 0.0,
                beta,
                alpha,
                parallelism,
            )
        };
        if let Some(values) = wide_d {
            // SAFETY: the caller's promise.
            unsafe { d.narrow(&values) };
        }
    }

    /// `dst = beta * dst + alpha * op(lhs) * op(rhs)` in one type; `dst` is not read if `reads` is false.
    ///
    /// # Safety
    /// As for `product_f64`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn multiply<T: 'static>(
        &self,
        k: usize,
        (dst, lhs, rhs): (*mut T, *const T, *const T),
        ldd: usize,
        lda: usize,
        ldb: usize,
        reads: bool,
        beta: T,
        alpha: T,
        parallelism: Parallelism,
    ) {
        let strides = |ld: usize, transposed| {
            if transposed {
                (1, ld as isize)
            } else {
                (ld as isize, 1)
            }
        };
        let ((lhs_cs, lhs_rs), (rhs_cs, rhs_rs)) =
            (strides(lda, self.trans_a), strides(ldb, self.trans_b));
        // SAFETY: the caller's promise.
        unsafe {
            ::gemm::gemm(
                self.m,
                self.n,
                k,
                dst,
                ldd as isize,
                1,
                reads,
                lhs,
                lhs_cs,
                lhs_rs,
                rhs,
                rhs_cs,
                rhs_rs,
                beta,
                alpha,
                false,
                false,
                false,
                parallelism,
            )
        }
    }
}
