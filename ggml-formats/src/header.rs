//! The table and the codebooks as headers for device code.

use crate::{codebooks, Encoding, Format};
use std::fmt::Write;

/// Headers by their names: what readers of blocks need to know of each format, and the codebooks.
///
/// `formats.h` has a struct for each format of blocks in namespace `formats`, named by [`Format::word`], with the
/// constants `ELEMENTS`, `BYTES` and `HAS_MIN`. `codebooks.h` has namespace `codebooks`: entries as arrays of `u16` in
/// constant memory, levels as constants of four bytes each (`<NAME>_LEVELS`), the first level lowest.
pub fn headers() -> [(&'static str, String); 2] {
    [("formats.h", formats()), ("codebooks.h", books())]
}

fn formats() -> String {
    let mut text = String::from("// Made from the crate ggml-formats.\nnamespace formats {\n");
    for format in Format::ALL {
        if format.encoding() == Encoding::Plain {
            continue;
        }
        let (elements, bytes) = (format.block_size(), format.type_size());
        let (word, min) = (format.word(), format.has_min());
        // Strings take everything.
        let _ = writeln!(
            text,
            "struct {word} {{\n    static constexpr u32 ELEMENTS = {elements}, BYTES = {bytes};\n    static constexpr bool HAS_MIN = {min};\n}};"
        );
    }
    text + "}  // namespace formats\n"
}

fn books() -> String {
    let books: [(&str, &[u16]); 6] = [
        ("IQ1", &codebooks::IQ1),
        ("IQ2_XXS", &codebooks::IQ2_XXS),
        ("IQ2_XS", &codebooks::IQ2_XS),
        ("IQ2_S", &codebooks::IQ2_S),
        ("IQ3_XXS", &codebooks::IQ3_XXS),
        ("IQ3_S", &codebooks::IQ3_S),
    ];
    let levels: [(&str, &[i8]); 4] = [
        ("IQ2", &codebooks::IQ2_VALUES),
        ("IQ3_XXS", &codebooks::IQ3_XXS_VALUES),
        ("IQ4", &codebooks::IQ4_VALUES),
        ("E2M1", &codebooks::E2M1_DOUBLED),
    ];
    let mut text = String::from("// Made from the crate ggml-formats.\nnamespace codebooks {\n");
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
