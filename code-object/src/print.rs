//! Code objects for people and for programs.

use crate::{Argument, CodeObject, Entry, Kernel};
use serde::Serialize;

/// What is printed of a file.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// The file's name.
    pub file: String,
    /// Its code objects.
    pub objects: Vec<CodeObject>,
}

impl Facts {
    /// Of a file's entries.
    pub fn new(file: impl Into<String>, entries: Vec<Entry>) -> Self {
        Facts {
            file: file.into(),
            objects: entries.into_iter().map(|entry| entry.object).collect(),
        }
    }
}

/// An array with an object for each file; the fields are those of [`CodeObject`] and [`Kernel`].
///
/// # Errors
/// None that a program can cause: the text is made in memory.
pub fn json(files: &[Facts]) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(files)
}

const COLUMNS: [&str; 11] = [
    "Kernel",
    "VGPRs",
    "AGPRs",
    "SGPRs",
    "Spilled",
    "LDS",
    "Scratch",
    "Wave",
    "Block",
    "Waves/SIMD",
    "Arguments",
];

/// For each code object a table with a line for each kernel. LDS and scratch are in bytes, arguments are
/// `bytes@offset`, addresses with a `*`.
pub fn text(files: &[Facts]) -> String {
    let mut text = String::new();
    for facts in files {
        for object in &facts.objects {
            text += &format!(
                "{}: {}, code object version {}, {} bytes, {} kernels\n",
                facts.file,
                object.target,
                object.version,
                object.bytes,
                object.kernels.len()
            );
            if !object.undefined.is_empty() {
                text += &format!("undefined: {}\n", object.undefined.join(" "));
            }
            text += &table(&object.kernels);
        }
        if facts.objects.is_empty() {
            text += &format!("{}: no code object for AMD GPUs\n", facts.file);
        }
    }
    text
}

fn table(kernels: &[Kernel]) -> String {
    let mut rows = vec![COLUMNS.map(str::to_string)];
    rows.extend(kernels.iter().map(row));
    let widths: [usize; COLUMNS.len()] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let [first, numbers @ .., last] = row;
        text += &format!("  {first:<width$}", width = widths[0]);
        for (number, width) in numbers.iter().zip(&widths[1..]) {
            text += &format!("  {number:>width$}");
        }
        text += &format!("  {last}\n");
    }
    text
}

fn row(kernel: &Kernel) -> [String; COLUMNS.len()] {
    let arguments: Vec<String> = kernel.arguments.iter().map(argument).collect();
    let scratch = match kernel.dynamic_stack {
        true => format!("{}+stack", kernel.scratch_bytes),
        false => kernel.scratch_bytes.to_string(),
    };
    [
        kernel.name.clone(),
        kernel.vgprs.to_string(),
        kernel.agprs.to_string(),
        kernel.sgprs.to_string(),
        kernel.spills().to_string(),
        kernel.lds_bytes.to_string(),
        scratch,
        kernel.wave_size.to_string(),
        kernel.max_block.to_string(),
        kernel
            .waves_per_simd
            .map_or("?".to_string(), |waves| waves.to_string()),
        arguments.join(" "),
    ]
}

fn argument(argument: &Argument) -> String {
    let star = match argument.value_kind == "global_buffer" {
        true => "*",
        false => "",
    };
    format!("{star}{}@{}", argument.size, argument.offset)
}
