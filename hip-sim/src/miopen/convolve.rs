//! The convolution itself, by its definition: sums in f32, rounded once.

use crate::error::{HipError, HipResult};
use crate::exec::{describe, workers};
use crate::sim::Sim;
use crate::wrong::spoiled;
use half::{bf16, f16};
use hip_abi::miopen::{Addresses, Problem, Tensor, Type};
use rayon::prelude::*;

/// A convolution with its memory: what a stream runs and a graph keeps.
pub(super) struct Convolve {
    pub problem: Problem,
    pub element: Type,
    pub memory: Addresses,
}

impl Convolve {
    /// Runs it on a device; a graph may do so long after the call, so memory is looked at here.
    pub fn run(&self, sim: &'static Sim, device: usize) -> HipResult {
        let Problem { x, w, y, .. } = &self.problem;
        let memory = &self.memory;
        let bytes = |t: &Tensor| t.span() * self.element.bytes();
        let (input, weights, output) = (
            ("x", memory.x, bytes(x)),
            ("w", memory.w, bytes(w)),
            ("y", memory.y, bytes(y)),
        );
        let workspace = ("the workspace", memory.workspace, memory.workspace_bytes);
        for (what, address, bytes) in [input, weights, output, workspace] {
            if let Some(peer) = sim.closed_peer(device, address) {
                sim.reports.add_memory_fault(format!(
                    "MIOpen convolution: {what} lies on device {peer}, to which device {device} has no access"
                ));
                return Err(HipError::IllegalAddress);
            }
            if bytes > 0 && !sim.memory.holds(address, bytes) {
                let place = describe(&sim.memory, address);
                sim.reports.add_memory_fault(format!(
                    "MIOpen convolution: {what} ({bytes} bytes from {place}) is not inside of an allocation"
                ));
                return Err(HipError::IllegalAddress);
            }
        }
        for (what, address, bytes) in [input, weights, workspace] {
            if address < output.1 + output.2 && output.1 < address + bytes {
                sim.reports
                    .add(format!("MIOpen convolution: y overlaps {what}"));
            }
        }
        for (what, address, bytes) in [input, weights] {
            if x.is_packed() && w.is_packed() && sim.memory.check(address, bytes, true).is_err() {
                sim.reports.add(format!(
                    "MIOpen convolution: {what} is read but was never written"
                ));
            }
        }
        let mut sums = self.sums();
        let dtype = match self.element {
            Type::F16 => "f16",
            Type::Bf16 => "bf16",
            Type::F32 => "f32",
        };
        if let Some(last) = sums.last_mut() {
            if sim.config.wrong.spoils_convolution(dtype) {
                *last = spoiled(f64::from(*last)) as f32;
            }
        }
        if memory.workspace_bytes >= size_of_val(&sums[..]) {
            // SAFETY: the workspace was just found to be inside of an allocation, and is the library's during the call.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    sums.as_ptr().cast::<u8>(),
                    memory.workspace as *mut u8,
                    size_of_val(&sums[..]),
                )
            };
            sim.memory
                .mark_initialised(memory.workspace, size_of_val(&sums[..]));
        }
        for (i, position) in positions(y).into_iter().enumerate() {
            let address = memory.y + position * self.element.bytes();
            // SAFETY: the position is inside of y, which is inside of an allocation.
            unsafe { store(address, self.element, sums[i]) };
            sim.memory.mark_initialised(address, self.element.bytes());
        }
        Ok(())
    }

    /// The output in f32, row-major.
    fn sums(&self) -> Vec<f32> {
        let p = &self.problem;
        let (x, w) = (
            self.widen(&p.x, self.memory.x),
            self.widen(&p.w, self.memory.w),
        );
        let (c_in, c_out, channels) = (p.c_in(), p.c_out(), p.y.dims[1]);
        let ([in_h, in_w], [out_h, out_w]) =
            ([p.x.dims[2], p.x.dims[3]], [p.y.dims[2], p.y.dims[3]]);
        let [kernel_h, kernel_w] = p.kernel();
        let transposed = p.options.transposed;
        let mut sums = vec![0f32; p.outputs()];
        let plane = |(plane, sums): (usize, &mut [f32])| {
            let (image, channel) = (plane / channels, plane % channels);
            let group = channel / c_out;
            for ci in 0..c_in {
                let input = group * c_in + ci;
                let x = &x[(image * p.x.dims[1] + input) * in_h * in_w..][..in_h * in_w];
                let weights = match transposed {
                    true => input * c_out + channel % c_out,
                    false => channel * c_in + ci,
                };
                for tap in 0..kernel_h * kernel_w {
                    let weight = w[weights * kernel_h * kernel_w + tap];
                    let (rows, columns) = (
                        self.pairs(0, tap / kernel_w, in_h, out_h),
                        self.pairs(1, tap % kernel_w, in_w, out_w),
                    );
                    for (iy, oy) in rows {
                        for (ix, ox) in columns.clone() {
                            sums[oy * out_w + ox] += weight * x[iy * in_w + ix];
                        }
                    }
                }
            }
        };
        workers().install(|| {
            sums.par_chunks_mut(out_h * out_w)
                .enumerate()
                .for_each(plane)
        });
        sums
    }

    /// Input and output coordinates that a tap connects along an axis.
    fn pairs(
        &self,
        axis: usize,
        tap: usize,
        input: usize,
        output: usize,
    ) -> impl Iterator<Item = (usize, usize)> + Clone {
        let options = &self.problem.options;
        let (padding, stride) = (options.padding[axis], options.stride[axis]);
        let (shift, transposed) = (tap * options.dilation[axis], options.transposed);
        let (near, far) = if transposed {
            (input, output)
        } else {
            (output, input)
        };
        (0..near).filter_map(move |n| {
            let f = (n * stride + shift).checked_sub(padding)?;
            let pair = if transposed { (n, f) } else { (f, n) };
            (f < far).then_some(pair)
        })
    }

    fn widen(&self, tensor: &Tensor, address: usize) -> Vec<f32> {
        let load = |position| {
            let address = address + position * self.element.bytes();
            // SAFETY: the position is inside of the tensor, which is inside of an allocation.
            unsafe { load(address, self.element) }
        };
        positions(tensor).into_iter().map(load).collect()
    }
}

/// Where each element lies, row-major.
fn positions(tensor: &Tensor) -> Vec<usize> {
    let mut positions = vec![0];
    for (&dim, &stride) in tensor.dims.iter().zip(&tensor.strides) {
        positions = positions
            .iter()
            .flat_map(|start| (0..dim).map(move |i| start + i * stride))
            .collect();
    }
    positions
}

/// # Safety
/// `address` holds a value of this type.
unsafe fn load(address: usize, element: Type) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            Type::F16 => (*(address as *const f16)).to_f32(),
            Type::Bf16 => (*(address as *const bf16)).to_f32(),
            Type::F32 => *(address as *const f32),
        }
    }
}

/// # Safety
/// `address` has room for a value of this type.
unsafe fn store(address: usize, element: Type, value: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            Type::F16 => *(address as *mut f16) = f16::from_f32(value),
            Type::Bf16 => *(address as *mut bf16) = bf16::from_f32(value),
            Type::F32 => *(address as *mut f32) = value,
        }
    }
}
