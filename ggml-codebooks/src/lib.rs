//! The codebooks of ggml's IQ formats, kept once for host and device code.
//!
//! An IQ block stores indices; the entries are part of the file format, so these are numbers that everyone has to agree on
//! (they equal those of the PyPI package `gguf`, as `candle-core`'s tests verify). They are packed: an entry is one u16, an eighth of
//! what bytes would take, so that the largest table is 4 KiB and stays in a GPU's vector cache. Signs are not stored: those formats
//! that keep 7 of 8 sign bits choose the last so that the number of negative elements is even.

mod iq1;
mod iq2;
mod iq3;

pub use iq1::IQ1;
pub use iq2::{IQ2_S, IQ2_XS, IQ2_XXS};
pub use iq3::{IQ3_S, IQ3_XXS};

/// What the 2-bit codes of the IQ2 codebooks stand for.
pub const IQ2_VALUES: [i8; 3] = [8, 25, 43];

/// What the 3-bit codes of [`IQ3_XXS`] stand for.
pub const IQ3_XXS_VALUES: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// The levels of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the levels of e2m1, the 4-bit floats of MXFP4 and NVFP4.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The codebooks and levels as a header for device code, in namespace `codebooks`: entries as arrays of `u16` in constant memory,
/// levels as constants of four bytes each (`<NAME>_LEVELS`), the first level lowest.
pub fn header() -> String {
    let books: [(&str, &[u16]); 6] = [
        ("IQ1", &IQ1),
        ("IQ2_XXS", &IQ2_XXS),
        ("IQ2_XS", &IQ2_XS),
        ("IQ2_S", &IQ2_S),
        ("IQ3_XXS", &IQ3_XXS),
        ("IQ3_S", &IQ3_S),
    ];
    let levels: [(&str, &[i8]); 4] = [
        ("IQ2", &IQ2_VALUES),
        ("IQ3_XXS", &IQ3_XXS_VALUES),
        ("IQ4", &IQ4_VALUES),
        ("E2M1", &E2M1_DOUBLED),
    ];
    let mut text = String::from("// Made from the crate ggml-codebooks.\nnamespace codebooks {\n");
    for (name, levels) in levels {
        let words: Vec<u32> = levels
            .chunks(4)
            .map(|word| {
                word.iter()
                    .rev()
                    .fold(0, |w, level| w << 8 | u32::from(*level as u8))
            })
            .collect();
        text += &array(&format!("constexpr u32 {name}_LEVELS"), &words, 8);
    }
    for (name, entries) in books {
        let entries: Vec<u32> = entries.iter().map(|entry| u32::from(*entry)).collect();
        text += &array(
            &format!("static __constant__ const u16 {name}"),
            &entries,
            4,
        );
    }
    text + "}  // namespace codebooks\n"
}

fn array(declaration: &str, values: &[u32], digits: usize) -> String {
    let mut text = format!("{declaration}[{}] = {{\n", values.len());
    for line in values.chunks(16) {
        let line: Vec<String> = line.iter().map(|v| format!("0x{v:0digits$x}")).collect();
        text += &format!("    {},\n", line.join(", "));
    }
    text + "};\n"
}
