//! `d = alpha * scale_a * scale_b * (aᵀ b) + bias`, column-major, of 8-bit floats: products and sums in f32, in the order
//! of k, rounded once.

use super::objects::{
    description, layout, Layout, BIAS, BIAS_TYPE, EPILOGUE, SCALE_A, SCALE_B, SCALE_MODE_A,
    SCALE_MODE_B, TRANSPOSE_A, TRANSPOSE_B,
};
use super::{Status, INVALID_VALUE, NOT_SUPPORTED};
use crate::error::{HipError, HipResult};
use crate::exec::describe;
use crate::sim::Sim;
use crate::wrong::{spoiled, HIPBLASLT};
use half::{bf16, f16};
use std::ffi::{c_int, c_void};
use std::time::Duration;

const F32: c_int = 0;
const F16: c_int = 2;
const BF16: c_int = 14;
const F8E4M3: c_int = 28;
const F8E4M3_FNUZ: c_int = 1000;
const TRANSPOSED: u64 = 112;
const NOT_TRANSPOSED: u64 = 111;
const EPILOGUE_DEFAULT: u64 = 1;
const EPILOGUE_BIAS: u64 = 4;
const SCALE_SCALAR: u64 = 0;
const SCALE_VECTOR: u64 = 3;
/// All sizes are multiples of this.
const MULTIPLE: usize = 16;

/// How an architecture reads 8-bit floats.
fn encoding(arch: &str) -> Option<c_int> {
    match arch {
        "gfx942" => Some(F8E4M3_FNUZ),
        "gfx950" | "gfx1200" | "gfx1201" => Some(F8E4M3),
        _ => None,
    }
}

/// A checked product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    a: Layout,
    b: Layout,
    d: Layout,
    /// Addresses of scales, and whether each row of the result, or column, has one.
    scales: [(usize, bool); 2],
    bias: Option<usize>,
}

impl Product {
    pub fn new(
        arch: &str,
        desc: *mut c_void,
        [a, b, c, d]: [*mut c_void; 4],
    ) -> Result<Self, Status> {
        let set = description(desc).ok_or(INVALID_VALUE)?;
        let get = |attribute| set.get(&attribute).copied();
        let matrix = |raw| layout(raw).ok_or(INVALID_VALUE);
        let (a, b, c, d) = (matrix(a)?, matrix(b)?, matrix(c)?, matrix(d)?);
        let fits = a.rows == b.rows
            && (d.rows, d.columns) == (a.columns, b.columns)
            && (c.rows, c.columns, c.kind, c.ld) == (d.rows, d.columns, d.kind, d.ld);
        if !fits {
            return Err(INVALID_VALUE);
        }
        let vector = |attribute| match get(attribute).unwrap_or(SCALE_SCALAR) {
            SCALE_SCALAR => Ok(false),
            SCALE_VECTOR => Ok(true),
            _ => Err(NOT_SUPPORTED),
        };
        let modes = [vector(SCALE_MODE_A)?, vector(SCALE_MODE_B)?];
        let bias = match get(EPILOGUE).unwrap_or(EPILOGUE_DEFAULT) {
            EPILOGUE_DEFAULT => None,
            EPILOGUE_BIAS => Some(get(BIAS).ok_or(INVALID_VALUE)? as usize),
            _ => return Err(NOT_SUPPORTED),
        };
        let address = |attribute| get(attribute).map_or(0, |address| address as usize);
        let has_scales = address(SCALE_A) != 0 && address(SCALE_B) != 0;
        let of_gpu = encoding(arch);
        let is_there = of_gpu == Some(a.kind)
            && of_gpu == Some(b.kind)
            && matches!(d.kind, F32 | F16 | BF16)
            && get(TRANSPOSE_A) == Some(TRANSPOSED)
            && get(TRANSPOSE_B).unwrap_or(NOT_TRANSPOSED) == NOT_TRANSPOSED
            && modes[0] == modes[1]
            && has_scales
            && (bias.is_none() || get(BIAS_TYPE) == Some(d.kind as u64))
            && [a.rows, a.columns, b.columns]
                .iter()
                .all(|size| *size > 0 && size.is_multiple_of(MULTIPLE));
        match is_there {
            true => Ok(Product {
                a,
                b,
                d,
                scales: [(address(SCALE_A), modes[0]), (address(SCALE_B), modes[1])],
                bias,
            }),
            false => Err(NOT_SUPPORTED),
        }
    }

    /// Runs it on a device, with the matrices at these addresses.
    pub fn run(
        &self,
        sim: &'static Sim,
        device: usize,
        [a, b, d]: [usize; 3],
        alpha: f32,
    ) -> HipResult {
        let (m, n, k) = (self.d.rows, self.d.columns, self.a.rows);
        let size = bytes_of(self.d.kind);
        let span =
            |layout: &Layout, size: usize| ((layout.columns - 1) * layout.ld + layout.rows) * size;
        let scales = |(address, is_vector): (usize, bool), count: usize| {
            (address, 4 * if is_vector { count } else { 1 })
        };
        let (scale_a, scale_b) = (scales(self.scales[0], m), scales(self.scales[1], n));
        let bias = self.bias.map(|address| ("bias", address, m * size));
        let operands = [
            ("A", a, span(&self.a, 1)),
            ("B", b, span(&self.b, 1)),
            ("scale A", scale_a.0, scale_a.1),
            ("scale B", scale_b.0, scale_b.1),
        ];
        for (what, address, bytes) in operands.into_iter().chain(bias) {
            check(sim, device, what, (address, bytes), true)?;
        }
        check(sim, device, "D", (d, span(&self.d, size)), false)?;
        if let Some(delay) = sim.config.wrong.hipblaslt_delay() {
            std::thread::sleep(Duration::from_millis(delay));
        }
        // SAFETY: checked to lie in the simulator's memory.
        let (a, b) = unsafe { (floats(&self.a, a), floats(&self.b, b)) };
        let is_wrong = sim.config.wrong.is_on(HIPBLASLT);
        for column in 0..n {
            for row in 0..m {
                let terms = (0..k).map(|i| a[row * k + i] * b[column * k + i]);
                let sum: f32 = terms.sum();
                let at = |(address, is_vector): (usize, bool), index: usize| {
                    let index = if is_vector { index } else { 0 };
                    // SAFETY: checked to lie in the simulator's memory.
                    unsafe { ((address + 4 * index) as *const f32).read_unaligned() }
                };
                let scaled = alpha * sum * at(self.scales[0], row) * at(self.scales[1], column);
                // SAFETY: as before.
                let bias = self
                    .bias
                    .map_or(0.0, |bias| unsafe { read(self.d.kind, bias + size * row) });
                let mut value = scaled + bias;
                if is_wrong && (row, column) == (m - 1, n - 1) {
                    value = spoiled(value.into()) as f32;
                }
                // SAFETY: as before.
                unsafe { write(self.d.kind, d + size * (column * self.d.ld + row), value) };
            }
            let start = d + size * column * self.d.ld;
            sim.memory.mark_initialised(start, m * size);
        }
        Ok(())
    }
}

fn bytes_of(kind: c_int) -> usize {
    match kind {
        F16 | BF16 => 2,
        _ => 4,
    }
}

/// Reports what the library would have read or written outside of an allocation, or read before it was written.
fn check(
    sim: &'static Sim,
    device: usize,
    what: &str,
    (address, bytes): (usize, usize),
    reads: bool,
) -> HipResult {
    let place = || describe(&sim.memory, address);
    if let Some(peer) = sim.closed_peer(device, address) {
        sim.reports.add_memory_fault(format!(
            "hipBLASLt: {what} lies on device {peer}, to which device {device} has no access"
        ));
        return Err(HipError::IllegalAddress);
    }
    if !sim.memory.holds(address, bytes) {
        let place = place();
        sim.reports.add_memory_fault(format!(
            "hipBLASLt: {what} ({bytes} bytes from {place}) leaves its allocation"
        ));
        return Err(HipError::IllegalAddress);
    }
    if reads && sim.config.check && sim.memory.check(address, bytes, true).is_err() {
        let place = place();
        sim.reports.add(format!(
            "hipBLASLt: {what} is read but was never written at {place}"
        ));
    }
    Ok(())
}

/// The numbers of a matrix, column after column without gaps.
///
/// # Safety
/// It lies in readable memory.
unsafe fn floats(layout: &Layout, address: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(layout.rows * layout.columns);
    for column in 0..layout.columns {
        let start = (address + column * layout.ld) as *const u8;
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(start, layout.rows) };
        values.extend(bytes.iter().map(|&bits| decode(bits, layout.kind)));
    }
    values
}

/// An 8-bit float of 4 bits of exponent and 3 of mantissa.
fn decode(bits: u8, kind: c_int) -> f32 {
    let is_fnuz = kind == F8E4M3_FNUZ;
    let is_nan = if is_fnuz {
        bits == 0x80
    } else {
        bits & 0x7f == 0x7f
    };
    if is_nan {
        return f32::NAN;
    }
    let bias = if is_fnuz { 8 } else { 7 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-2 - bias),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 3 - bias),
    };
    if bits & 0x80 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

/// # Safety
/// `address` holds a value of the kind.
unsafe fn read(kind: c_int, address: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            F16 => (address as *const f16).read_unaligned().to_f32(),
            BF16 => (address as *const bf16).read_unaligned().to_f32(),
            _ => (address as *const f32).read_unaligned(),
        }
    }
}

/// # Safety
/// `address` is writable memory for a value of the kind, that nobody else uses.
unsafe fn write(kind: c_int, address: usize, value: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            F16 => (address as *mut f16).write_unaligned(f16::from_f32(value)),
            BF16 => (address as *mut bf16).write_unaligned(bf16::from_f32(value)),
            _ => (address as *mut f32).write_unaligned(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{decode, F8E4M3, F8E4M3_FNUZ};

    #[test]
    fn both_encodings_have_their_largest_numbers_and_nan() {
        assert_eq!(decode(0x7e, F8E4M3), 448.0);
        assert_eq!(decode(0x7f, F8E4M3_FNUZ), 240.0);
        assert_eq!(decode(0x01, F8E4M3), 2f32.powi(-9));
        assert_eq!(decode(0x01, F8E4M3_FNUZ), 2f32.powi(-10));
        assert_eq!(
            (decode(0x38, F8E4M3), decode(0xb8, F8E4M3_FNUZ)),
            (1.0, -0.5)
        );
        assert!(decode(0xff, F8E4M3).is_nan() && decode(0x80, F8E4M3_FNUZ).is_nan());
        assert!(decode(0x80, F8E4M3).is_sign_negative());
        // The same bits stand for halves.
        for bits in (0..=255).filter(|bits| bits & 0x7f != 0x7f && *bits != 0x80) {
            assert_eq!(decode(bits, F8E4M3), 2.0 * decode(bits, F8E4M3_FNUZ));
        }
    }
}
