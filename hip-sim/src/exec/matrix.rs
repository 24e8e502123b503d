//! Matrix instructions: a wave multiplies a 16 x K by a K x 16 matrix and adds a 16 x 16 matrix; nvptx's have 8
//! columns.
//!
//! Every lane brings its registers and takes its share of the result, as the ISA documents lay them out ("AMD Instinct
//! MI200", "MI300" and "CDNA4", "RDNA3" and "RDNA4 Instruction Set Architecture", "PTX ISA"): code that puts an element
//! elsewhere gets a wrong product. Sums are formed in f32, one product after another by places of K, and rounded to
//! nearest even after each; products of 8 and 16 bits are exact in f32. The order and the rounding inside the hardware
//! are not documented.
//!
//! 8-bit floats are e4m3: as the Open Compute Project defines them ("OCP 8-bit Floating Point Specification"), on gfx942
//! with another bias and one NaN (FNUZ). What a lane holds of operands with scales is in `scaled.rs`.

mod scaled;

use crate::sim::sim;
use crate::wrong::MATRIX_LAYOUT;
use half::{bf16, f16};
use std::ffi::c_void;
use std::ops::{Add, Mul};

/// Lanes that hold a row of A each, in most layouts.
const TILE: usize = 16;
/// Most rows of A and columns of B.
const MOST: usize = 32;
/// Longest inner dimension.
const MAX_K: usize = 64;

/// What one lane hands in; mirrors `hip_sim_matrix` of the prelude.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Operands {
    /// The instruction, as an index into [`INSTRUCTIONS`].
    pub instruction: u32,
    /// Whether the bytes of A (bit 0) and B (bit 1) are signed; of operands with scales, their formats.
    pub signs: u32,
    pub a: *const c_void,
    pub b: *const c_void,
    pub c: *const c_void,
    pub d: *mut c_void,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    F16,
    Bf16,
    I8,
    /// e4m3 as OCP has it.
    F8,
    /// e4m3 as gfx942 has it.
    Fnuz,
    /// Floats of 4 or 8 bits with a scale for each 32.
    Scaled,
}

/// How operands and results lie in the lanes of a wave. On AMD, lane `l` always holds row (of A) or column (of B, C, D)
/// `l % 16`, or `l % 32` where there are 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// 64 lanes: the quarters of the wave hold consecutive quarters of K, and of the rows of C.
    Mfma,
    /// 64 lanes, 32 rows and columns: the halves hold consecutive halves of K; of the rows of C, each has four of eight.
    Mfma32,
    /// 32 lanes: both halves hold all of K, equal; even rows of C in the lower half, odd ones in the upper.
    Wmma11,
    /// 32 lanes: the halves hold consecutive halves of K, and of the rows of C.
    Wmma12,
    /// 32 lanes, 8 columns. With `g = l / 4` and `q = l % 4`: rows `g` and `g + 8` of A and of C, column `g` of B,
    /// columns `2 q` and `2 q + 1` of C; of K the q-th 4 bytes of each half.
    Mma,
}

struct Instruction {
    name: &'static str,
    layout: Layout,
    element: Element,
    k: usize,
}

const fn instruction(
    name: &'static str,
    layout: Layout,
    element: Element,
    k: usize,
) -> Instruction {
    Instruction {
        name,
        layout,
        element,
        k,
    }
}

/// The instructions in the order of `hip_sim_instruction` in the prelude.
const INSTRUCTIONS: [Instruction; 23] = {
    use Element::{Bf16, Fnuz, Scaled, F16, F8, I8};
    use Layout::{Mfma, Mfma32, Mma, Wmma11, Wmma12};
    [
        instruction("v_mfma_f32_16x16x16_f16", Mfma, F16, 16),
        instruction("v_mfma_f32_16x16x16_bf16", Mfma, Bf16, 16),
        instruction("v_mfma_i32_16x16x16_i8", Mfma, I8, 16),
        instruction("v_mfma_i32_16x16x32_i8", Mfma, I8, 32),
        instruction("v_mfma_f32_16x16x32_f16", Mfma, F16, 32),
        instruction("v_mfma_f32_16x16x32_bf16", Mfma, Bf16, 32),
        instruction("v_mfma_i32_16x16x64_i8", Mfma, I8, 64),
        instruction("v_wmma_f32_16x16x16_f16 (gfx11)", Wmma11, F16, 16),
        instruction("v_wmma_f32_16x16x16_bf16 (gfx11)", Wmma11, Bf16, 16),
        instruction("v_wmma_i32_16x16x16_iu8 (gfx11)", Wmma11, I8, 16),
        instruction("v_wmma_f32_16x16x16_f16 (gfx12)", Wmma12, F16, 16),
        instruction("v_wmma_f32_16x16x16_bf16 (gfx12)", Wmma12, Bf16, 16),
        instruction("v_wmma_i32_16x16x16_iu8 (gfx12)", Wmma12, I8, 16),
        instruction("mma.m16n8k16.f32.f16", Mma, F16, 16),
        instruction("mma.m16n8k16.f32.bf16", Mma, Bf16, 16),
        instruction("mma.m16n8k32.s32.s8", Mma, I8, 32),
        instruction("v_mfma_f32_16x16x32_fp8_fp8", Mfma, F8, 32),
        instruction("v_mfma_f32_16x16x32_fp8_fp8 (gfx942)", Mfma, Fnuz, 32),
        instruction("v_mfma_f32_32x32x16_fp8_fp8", Mfma32, F8, 16),
        instruction("v_mfma_f32_32x32x16_fp8_fp8 (gfx942)", Mfma32, Fnuz, 16),
        instruction("v_wmma_f32_16x16x16_fp8_fp8 (gfx12)", Wmma12, F8, 16),
        instruction("mma.m16n8k32.f32.e4m3", Mma, F8, 32),
        instruction("v_mfma_scale_f32_16x16x128_f8f6f4", Mfma, Scaled, 128),
    ]
};

impl Layout {
    fn lanes(self) -> usize {
        match self {
            Layout::Mfma | Layout::Mfma32 => 64,
            Layout::Wmma11 | Layout::Wmma12 | Layout::Mma => 32,
        }
    }

    /// Rows of A, C and D.
    fn rows(self) -> usize {
        match self {
            Layout::Mfma32 => 32,
            _ => TILE,
        }
    }

    /// Columns of B, C and D.
    fn columns(self) -> usize {
        match self {
            Layout::Mma => 8,
            Layout::Mfma32 => 32,
            Layout::Mfma | Layout::Wmma11 | Layout::Wmma12 => TILE,
        }
    }

    /// Elements of A that a lane holds; of B it holds one for each column of A's rows.
    fn elements(self, k: usize) -> usize {
        match self {
            Layout::Wmma11 => k,
            Layout::Mfma | Layout::Mfma32 | Layout::Wmma12 | Layout::Mma => {
                k * self.rows() / self.lanes()
            }
        }
    }

    /// Row and place in K of the `i`-th element that a lane holds of A.
    fn of_a(self, lane: usize, i: usize, k: usize) -> (usize, usize) {
        if self == Layout::Mma {
            // Registers of `word` elements: the lower and the upper row, first of the lower half of K.
            let word = k / 8;
            let register = i / word;
            let (row, half) = (register % 2, register / 2);
            return (
                lane / 4 + 8 * row,
                half * k / 2 + lane % 4 * word + i % word,
            );
        }
        // Lanes beyond those that make up K repeat what others hold.
        let part = lane / self.rows() * self.elements(k) % k;
        (lane % self.rows(), part + i)
    }

    /// Column and place in K of the `i`-th element that a lane holds of B.
    fn of_b(self, lane: usize, i: usize, k: usize) -> (usize, usize) {
        if self == Layout::Mma {
            let word = k / 8;
            return (lane / 4, i / word * k / 2 + lane % 4 * word + i % word);
        }
        self.of_a(lane, i, k)
    }

    /// Row and column of C that register `i` of a lane holds.
    fn of_c(self, lane: usize, i: usize) -> (usize, usize) {
        let group = lane / TILE;
        let row = match self {
            Layout::Mfma => 4 * group + i,
            Layout::Mfma32 => return (i / 4 * 8 + lane / 32 * 4 + i % 4, lane % 32),
            Layout::Wmma11 => 2 * i + group,
            Layout::Wmma12 => 8 * group + i,
            Layout::Mma => return (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2),
        };
        (row, lane % TILE)
    }

    /// Where an injected wrong layout leaves what [`Self::of_c`] says: as an arch has it that takes the same operands
    /// otherwise.
    fn of_another_c(self, lane: usize, i: usize) -> (usize, usize) {
        let group = lane / TILE;
        match self {
            Layout::Mfma => (4 * i + group, lane % TILE),
            Layout::Mfma32 => (lane / 32 * 16 + i, lane % 32),
            Layout::Wmma11 => Layout::Wmma12.of_c(lane, i),
            Layout::Wmma12 => Layout::Wmma11.of_c(lane, i),
            Layout::Mma => (lane / 4 + i % 2 * 8, lane % 4 * 2 + i / 2),
        }
    }
}

/// The name of an instruction that a lane of the present exchange executes.
pub(super) fn name(instruction: u32) -> &'static str {
    INSTRUCTIONS[instruction as usize].name
}

/// How elements are stored and summed.
trait Format {
    type Bits: Copy;
    type Sum: Copy + Default + Add<Output = Self::Sum> + Mul<Output = Self::Sum>;
    fn decode(bits: Self::Bits, signed: bool) -> Self::Sum;
    fn multiply_add(a: Self::Sum, b: Self::Sum, c: Self::Sum) -> Self::Sum {
        a * b + c
    }
}

struct Half;
impl Format for Half {
    type Bits = u16;
    type Sum = f32;
    fn decode(bits: u16, _: bool) -> f32 {
        f16::from_bits(bits).to_f32()
    }
}

struct Brain;
impl Format for Brain {
    type Bits = u16;
    type Sum = f32;
    fn decode(bits: u16, _: bool) -> f32 {
        bf16::from_bits(bits).to_f32()
    }
}

struct Byte;
impl Format for Byte {
    type Bits = u8;
    type Sum = i32;
    fn decode(bits: u8, signed: bool) -> i32 {
        if signed {
            i32::from(bits as i8)
        } else {
            i32::from(bits)
        }
    }
    fn multiply_add(a: i32, b: i32, c: i32) -> i32 {
        a.wrapping_mul(b).wrapping_add(c)
    }
}

/// Floats of 8 bits, in f32.
struct Eight<const FNUZ: bool>;
impl<const FNUZ: bool> Format for Eight<FNUZ> {
    type Bits = u8;
    type Sum = f32;
    fn decode(bits: u8, _: bool) -> f32 {
        let value = match (FNUZ, bits) {
            (false, 0x7f | 0xff) | (true, 0x80) => f32::NAN,
            _ => scaled::magnitude(bits & 0x7f, 3, if FNUZ { 8 } else { 7 }),
        };
        if bits & 0x80 != 0 {
            -value
        } else {
            value
        }
    }
}

/// Executes an instruction for the lanes of a wave; `Err` says what the ISA forbids.
///
/// # Safety
/// Every element points to the operands of a suspended lane, all of the same instruction, with as many registers as it
/// has.
pub(super) unsafe fn execute(lanes: &[*const Operands]) -> Result<(), String> {
    // SAFETY: the caller's promise.
    let first = unsafe { &*lanes[0] };
    let instruction = &INSTRUCTIONS[first.instruction as usize];
    if lanes.len() != instruction.layout.lanes() {
        return Err(format!(
            "{} in a wave of {} lanes",
            instruction.name,
            lanes.len()
        ));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match instruction.element {
            Element::F16 => multiply::<Half>(lanes, instruction),
            Element::Bf16 => multiply::<Brain>(lanes, instruction),
            Element::I8 => multiply::<Byte>(lanes, instruction),
            Element::F8 => multiply::<Eight<false>>(lanes, instruction),
            Element::Fnuz => multiply::<Eight<true>>(lanes, instruction),
            Element::Scaled => scaled::multiply(lanes),
        }
    }
}

/// D = A B + C with operands gathered from, and results scattered to, the lanes.
///
/// # Safety
/// As for [`execute`].
unsafe fn multiply<F: Format>(
    lanes: &[*const Operands],
    instruction: &Instruction,
) -> Result<(), String> {
    let Instruction { layout, k, .. } = *instruction;
    let per_lane = layout.elements(k);
    if layout == Layout::Wmma11 {
        // SAFETY: the caller's promise.
        unsafe { check_replication::<F>(lanes, instruction.name, per_lane)? };
    }
    let mut a = [[F::Sum::default(); MAX_K]; MOST];
    let mut b = [[F::Sum::default(); MOST]; MAX_K];
    for (lane, operands) in lanes.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let operands = &**operands;
            let (row, column) = (operands.a.cast::<F::Bits>(), operands.b.cast::<F::Bits>());
            for i in 0..per_lane {
                let (at, place) = layout.of_a(lane, i, k);
                a[at][place] = F::decode(*row.add(i), operands.signs & 1 != 0);
            }
            for i in 0..per_lane * layout.columns() / layout.rows() {
                let (at, place) = layout.of_b(lane, i, k);
                b[place][at] = F::decode(*column.add(i), operands.signs & 2 != 0);
            }
        }
    }
    let mut d = [[F::Sum::default(); MOST]; MOST];
    // SAFETY: the caller's promise.
    unsafe { sums_of(lanes, layout, &mut d) };
    for (row, sums) in a.iter().zip(&mut d).take(layout.rows()) {
        for (&factor, column) in row[..k].iter().zip(&b) {
            for (sum, &other) in sums.iter_mut().zip(column) {
                *sum = F::multiply_add(factor, other, *sum);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store(lanes, layout, &d) };
    Ok(())
}

/// Gathers C.
///
/// # Safety
/// As for [`execute`].
unsafe fn sums_of<S: Copy>(
    lanes: &[*const Operands],
    layout: Layout,
    sums: &mut [[S; MOST]; MOST],
) {
    for (lane, operands) in lanes.iter().enumerate() {
        for i in 0..layout.rows() * layout.columns() / lanes.len() {
            let (row, column) = layout.of_c(lane, i);
            // SAFETY: the caller's promise.
            sums[row][column] = unsafe { *(**operands).c.cast::<S>().add(i) };
        }
    }
}

/// Scatters D.
///
/// # Safety
/// As for [`execute`].
unsafe fn store<S: Copy>(lanes: &[*const Operands], layout: Layout, sums: &[[S; MOST]; MOST]) {
    let wrong = sim().config.wrong.is_on(MATRIX_LAYOUT);
    for (lane, operands) in lanes.iter().enumerate() {
        for i in 0..layout.rows() * layout.columns() / lanes.len() {
            let (row, column) = match wrong {
                false => layout.of_c(lane, i),
                true => layout.of_another_c(lane, i),
            };
            // SAFETY: the caller's promise.
            unsafe { *(**operands).d.cast::<S>().add(i) = sums[row][column] };
        }
    }
}

/// The upper half of the wave must hold the same operands as the lower.
///
/// # Safety
/// As for [`execute`], with `per_lane` elements in each operand.
unsafe fn check_replication<F: Format>(
    lanes: &[*const Operands],
    name: &str,
    per_lane: usize,
) -> Result<(), String> {
    let bytes = per_lane * std::mem::size_of::<F::Bits>();
    let (lower, upper) = lanes.split_at(TILE);
    for (lane, (low, high)) in lower.iter().zip(upper).enumerate() {
        // SAFETY: the caller's promise.
        let [a, b, also_a, also_b] = unsafe {
            [(**low).a, (**low).b, (**high).a, (**high).b]
                .map(|p| std::slice::from_raw_parts(p.cast::<u8>(), bytes))
        };
        if a != also_a || b != also_b {
            let which = if a != also_a { "A" } else { "B" };
            return Err(format!(
                "{name}: lanes {lane} and {} hold different values of {which}",
                lane + TILE
            ));
        }
    }
    Ok(())
}
