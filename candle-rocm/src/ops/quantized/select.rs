//! Which kernel multiplies, and with how many threads: tables by format, generation of the GPU and number of columns.

use super::crossovers::Crossovers;
use super::Format;
use crate::blas::refusal;
pub use crate::config::Path;
use crate::{DType, Device, Generation};
use candle_rocm_kernels::Family;
use ggml_formats::Encoding;

/// Most vectors that [`matvec`](fn@super::matvec) and [`gated_matvec`](super::gated_matvec) multiply at once.
pub const MATVEC_MAX_COLUMNS: usize = 8;
/// Most vectors that [`few`](fn@super::few) multiplies at once.
pub const FEW_MAX_COLUMNS: usize = 32;

/// The kernels of a format.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Families {
    pub(in crate::ops) matvec: Family,
    pub(in crate::ops) matmul: Family,
}

/// The families that multiply a format with 8-bit activations; none for floats.
pub(super) fn families(format: Format) -> Option<Families> {
    let (matvec, matmul) = match format.encoding() {
        Encoding::Plain | Encoding::Floats => return None,
        Encoding::Small => (Family::MatvecSmall, Family::MatmulSmall),
        Encoding::K => (Family::MatvecK, Family::MatmulK),
        Encoding::Codebook => (Family::MatvecCodebook, Family::MatmulCodebook),
        Encoding::Levels => (Family::MatvecLevels, Family::MatmulLevels),
    };
    Some(Families { matvec, matmul })
}

/// Columns up to which the one-pass kernel is the faster.
fn matvec_columns(generation: Generation, format: Format) -> usize {
    use Format::*;
    match (generation, format) {
        // The crossovers that llama.cpp measured on MI200 and MI300: unpacking K formats costs so much there that
        // tiles, which unpack once for all columns, win early.
        (Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4, Q3K | Q4K | Q5K) => 3,
        (Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4, Q2K | Q6K) => 5,
        // By analogy: looking up codebooks costs more than unpacking Q3_K.
        (
            Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4,
            IQ1S | IQ1M | IQ2XXS | IQ2XS | IQ2S | IQ3XXS | IQ3S,
        ) => 3,
        // Elsewhere the pass is bound by memory for all the columns that it takes.
        _ => MATVEC_MAX_COLUMNS,
    }
}

/// Columns above which rocBLAS on dequantized weights of 16 bits is the faster; none where it never is.
fn dequantize_above(generation: Generation, format: Format) -> Option<usize> {
    use Format::*;
    match (generation, format) {
        // What llama.cpp measured: MI200 multiplies 8 bits at the rate of 16, so that scaling decides.
        (Generation::Cdna2, Q4_0 | Q4_1 | Q5_0 | Q5_1) => None,
        (Generation::Cdna2, Q4K | Q5K) => Some(256),
        (Generation::Cdna2, _) => Some(128),
        // The same: a scale for each 16 elements halves what WMMA of depth 16 can do between scalings on RDNA3.
        (Generation::Rdna3, Q2K | Q6K | IQ2XS | IQ2S) | (Generation::Rdna35, Q2K) => Some(128),
        (Generation::Rdna35, Q6K) => Some(256),
        // rocBLAS does badly on MI300, and on RDNA4 integers always win.
        (
            Generation::Cdna3
            | Generation::Cdna4
            | Generation::Rdna3
            | Generation::Rdna35
            | Generation::Rdna4
            | Generation::Unknown,
            _,
        ) => None,
        // Without matrix instructions bf16 has no rate of its own, and packed f16 does two products where dot products
        // do four.
        (Generation::Rdna1 | Generation::Rdna2 | Generation::Gcn, _) => None,
        // Measured: docs/tuning-log.md.
        (Generation::Nvptx, _) => Some(MATVEC_MAX_COLUMNS),
    }
}

/// Whether the kernel for a few columns is the fastest, on a GPU that has it: behind what one pass takes, all it can.
pub(super) fn few_gain(device: &Device, format: Format, columns: usize) -> bool {
    let generation = device.properties().arch.generation();
    let measured = Crossovers::of(device).get(device.gpu(), format);
    let most = match (measured, generation) {
        // On this GPU bf16 was found to be the faster beyond.
        (Some(Some(above)), _) => above.min(FEW_MAX_COLUMNS),
        // Measured there: beyond, bf16 is the faster.
        (None, Generation::Nvptx) => 16,
        // Tiles of 16 columns and 32 rows would leave most of a GPU without work.
        _ => FEW_MAX_COLUMNS,
    };
    format.has_integers() && (matvec_columns(generation, format) + 1..=most).contains(&columns)
}

/// Fewest columns that the product of halves gains with: one pass unpacks the matrix for each anew.
const HALVES_MIN_COLUMNS: usize = 5;

/// Whether the product of halves is the fastest for a matrix of so many rows, on a GPU that has it.
pub(super) fn halves_gain(device: &Device, format: Format, rows: usize, columns: usize) -> bool {
    let properties = device.properties();
    // Measured there: docs/tuning-log.md. Matrices of few rows have too few tiles.
    properties.arch.generation() == Generation::Nvptx
        && format.has_integers()
        && rows >= 16 * properties.compute_units as usize
        && (HALVES_MIN_COLUMNS..=FEW_MAX_COLUMNS).contains(&columns)
}

/// Whether the product of halves has low tiles for a matrix of so many rows: as long as all of them run at once, a
/// block's way is the shorter in them.
pub(super) fn halves_in_low_tiles(device: &Device, rows: usize, columns: usize) -> bool {
    let properties = device.properties();
    if properties.arch.generation() != Generation::Nvptx {
        return false;
    }
    let at_once = if columns <= 16 { 2 } else { 1 };
    rows.div_ceil(32) <= at_once * properties.compute_units as usize
}

/// Whether products of 8-bit floats are the faster, as was measured on this GPU: they are chosen for nothing else, as
/// activations of 16 bits are more exact.
pub(super) fn float8_gain(device: &Device, format: Format, columns: usize) -> bool {
    let measured = Crossovers::of(device).float8(device.gpu(), format);
    measured.is_some_and(|from| columns >= from)
}

/// The path for `columns` columns of a dtype, unless another is forced or a [few](few_gain) gain.
pub(super) fn choose(device: &Device, format: Format, columns: usize, dtype: DType) -> Path {
    let generation = device.properties().arch.generation();
    if !format.has_integers() {
        return Path::Dequantize;
    }
    if columns <= matvec_columns(generation, format) {
        return Path::Matvec;
    }
    let measured = Crossovers::of(device).get(device.gpu(), format);
    let above = measured.unwrap_or_else(|| match refusal(device) {
        None => dequantize_above(generation, format),
        // The tables compare with rocBLAS.
        Some(_) => None,
    });
    if above.is_some_and(|most| columns > most) {
        match dtype {
            DType::F32 => Path::Bf16,
            _ => Path::Dequantize,
        }
    } else {
        Path::Matmul
    }
}

/// Vectors above which rocBLAS on a dequantized matrix of 8-bit floats is the faster; none where it never is.
fn dequantize_floats_above(generation: Generation) -> Option<usize> {
    match generation {
        // Measured: docs/tuning-log.md.
        Generation::Nvptx => Some(24),
        // Not measured: unpacking once for all of them costs little beside so many products, and rocBLAS's tiles are
        // better than ours with 16 bits. `tune` finds the number of a GPU.
        _ if generation.matrix().is_some() => Some(256),
        _ => None,
    }
}

/// The path of a matrix of 8-bit floats for `columns` vectors of a dtype, unless another is forced.
pub(super) fn choose_floats(device: &Device, columns: usize, dtype: DType) -> Path {
    let generation = device.properties().arch.generation();
    let has_matrix = generation.matrix().is_some();
    // Each few rows read all columns anew: beyond four of f32, caches give CDNA3 less than memory does. Matrix
    // instructions read them once for 16 rows.
    let one_pass = if has_matrix { 4 } else { MATVEC_MAX_COLUMNS };
    if columns <= one_pass {
        return Path::Matvec;
    }
    let measured = Crossovers::of(device).get(device.gpu(), Format::F8E4M3);
    let above = measured.unwrap_or_else(|| match refusal(device) {
        None => dequantize_floats_above(generation),
        Some(_) => None,
    });
    if above.is_some_and(|most| columns > most) {
        match dtype {
            // rocBLAS is slow with f32.
            DType::F32 => Path::Bf16,
            _ => Path::Dequantize,
        }
    } else if has_matrix && columns <= FEW_MAX_COLUMNS {
        Path::Few
    } else {
        Path::Matmul
    }
}

/// Waves that share two rows of the matrix in the one-pass kernel: llama.cpp's tables, by measurements on these GPUs.
fn waves(generation: Generation, format: Format, columns: usize) -> u32 {
    use Format::*;
    match generation {
        Generation::Gcn | Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4
            if columns <= 4 =>
        {
            2
        }
        Generation::Rdna4 | Generation::Unknown if columns == 1 => 8,
        Generation::Rdna3 if columns == 1 => match format {
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 => 8,
            Q6K => 2,
            _ => 1,
        },
        _ => 1,
    }
}

/// Fewest threads that share rows: one for each of two rows times eight columns.
const MIN_LANES: u32 = 16;
/// Threads of a block, if the waves that share rows are not more.
const BLOCK: u32 = 64;
/// Most threads of a block.
const MAX_BLOCK: u32 = 256;

/// Threads of a block, and how many of them share each of `pairs` times two rows of `units` units.
pub(in crate::ops) fn matvec_threads(
    device: &Device,
    format: Format,
    columns: usize,
    pairs: usize,
    units: usize,
) -> (u32, u32) {
    let properties = device.properties();
    let wave = properties.wave_size;
    let most = waves(properties.arch.generation(), format, columns) * wave;
    // Matrices of few rows would leave the device without work.
    let room = properties.busy_threads() / pairs.max(1);
    let filling = (room as u32 + 1).next_power_of_two() / 2;
    let most = most.max(filling.min(MAX_BLOCK));
    // Short rows would leave lanes without work.
    let useful = (units / 2 + 1).next_power_of_two() as u32;
    let lanes = useful.clamp(MIN_LANES, most);
    (lanes.max(BLOCK), lanes)
}

/// As [`matvec_threads`], of `groups` groups of rows of 8-bit floats.
pub(super) fn floats_threads(
    device: &Device,
    columns: usize,
    groups: usize,
    units: usize,
) -> (u32, u32) {
    // A lane for each total.
    let least = if columns <= 4 { MIN_LANES } else { 32 };
    let room = device.properties().busy_threads() / groups.max(1);
    let filling = (room as u32 + 1).next_power_of_two() / 2;
    // One wave, unless that would leave the device without work.
    let most = device.properties().wave_size.max(filling.min(MAX_BLOCK));
    // Short rows would leave lanes without work.
    let useful = (units / 2 + 1).next_power_of_two() as u32;
    let lanes = useful.clamp(least, most);
    (lanes.max(BLOCK), lanes)
}

/// Columns up to which tiles of 16 columns are used instead of 64. A wide tile does the work of 64 columns whatever it
/// holds; below half of that, narrow ones do less, and there are more of them.
pub(super) const NARROW_COLUMNS: usize = 32;

/// Slots of a mixture up to which each goes on its own: as for columns, but an expert rarely has more than one of few.
pub(in crate::ops) const MOE_MATVEC_SLOTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crossovers_are_those_of_the_tables() {
        use Format::*;
        assert_eq!(matvec_columns(Generation::Cdna3, Q4K), 3);
        assert_eq!(matvec_columns(Generation::Cdna2, Q6K), 5);
        assert_eq!(matvec_columns(Generation::Rdna3, Q4K), 8);
        assert_eq!(dequantize_above(Generation::Rdna3, Q6K), Some(128));
        assert_eq!(dequantize_above(Generation::Cdna2, Q4K), Some(256));
        assert_eq!(dequantize_above(Generation::Cdna2, Q4_0), None);
        assert_eq!(dequantize_above(Generation::Cdna3, Q6K), None);
        assert_eq!(waves(Generation::Rdna4, Q4K, 1), 8);
        assert_eq!(waves(Generation::Rdna3, Q4K, 1), 1);
        assert_eq!(waves(Generation::Cdna3, Q4K, 4), 2);
        assert_eq!(waves(Generation::Cdna3, Q4K, 5), 1);
    }
}
