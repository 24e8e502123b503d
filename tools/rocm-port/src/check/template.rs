//! A first case file for a unit, guessed from the parameters of its kernels.

use crate::model::{Argument, ArgumentKind, PortedKernel, PortedUnit};
use std::fmt::Write;

/// A case file with a case for each kernel of a unit. Pointers become buffers of `n` elements, integers whose names
/// sound like counts `n`; what is no more than a guess is marked `GUESS` and has to be looked at.
pub fn new_cases(unit: &PortedUnit) -> String {
    let mut text = format!(
        "# Cases of {}. Look at every line with GUESS: lengths, values and what should come out are the kernel's\n\
         # author's to know. Without `expected`, widths of waves and orders of threads must agree.\n",
        unit.name
    );
    for kernel in &unit.kernels {
        case(&mut text, kernel);
    }
    text
}

fn case(text: &mut String, kernel: &PortedKernel) {
    let block = kernel.max_block.unwrap_or(256).min(256);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n[[case]]\nkernel = \"{}\"\nsizes = {{ n = [1, 31, 64, 1000] }}\ngrid = \"ceil(n / {block})\"  # GUESS\nblock = {block}\n",
        kernel.entry
    );
    for argument in &kernel.arguments {
        let name = toml::Value::String(argument.name.clone());
        let _ = writeln!(
            text,
            "\n[[case.argument]]\nname = {name}\n{}",
            guess(argument)
        );
    }
}

/// Names that sound like the number of elements.
const COUNTS: [&str; 11] = [
    "n", "num", "numel", "count", "size", "len", "length", "total", "elements", "elem", "elems",
];

fn guess(argument: &Argument) -> String {
    match &argument.kind {
        ArgumentKind::Structure(name) => {
            format!(
                "structure = [{{ type = \"u32\", value = \"n\" }}]  # GUESS: the fields of {name}"
            )
        }
        ArgumentKind::Scalar(dtype) => {
            let name = argument.name.to_lowercase();
            let is_count = name.split('_').any(|part| COUNTS.contains(&part));
            let dtype = if dtype == "bool" { "u8" } else { dtype };
            let value = match dtype.starts_with(['f', 'b']) {
                true => "1.0  # GUESS",
                false if is_count => "\"n\"",
                false => "1  # GUESS",
            };
            format!("scalar = \"{dtype}\"\nvalue = {value}")
        }
        ArgumentKind::Pointer { element, constant } => {
            let dtype = dtype(element);
            let known = if dtype.1 {
                ""
            } else {
                "  # GUESS: its type is not known"
            };
            let fill = match dtype.0.starts_with(['f', 'b']) {
                true => "{ uniform = [-2.0, 2.0] }",
                false => "{ ints = [0, \"n - 1\"] }",
            };
            match constant {
                true => format!(
                    "input = \"{}\"{known}\nlength = \"n\"  # GUESS\nfill = {fill}",
                    dtype.0
                ),
                false => format!(
                    "inout = \"{}\"{known}\nlength = \"n\"  # GUESS\nfill = {fill}",
                    dtype.0
                ),
            }
        }
    }
}

/// The type of a C++ element, and whether it is known.
fn dtype(element: &str) -> (&'static str, bool) {
    let plain = element
        .trim()
        .trim_start_matches("const ")
        .trim_start_matches("unsigned ");
    let is_unsigned = element.contains("unsigned ");
    let dtype = match (plain.rsplit("::").next().unwrap_or(plain), is_unsigned) {
        ("float", _) => "f32",
        ("double", _) => "f64",
        ("half" | "__half", _) => "f16",
        ("bfloat16" | "__nv_bfloat16" | "nv_bfloat16" | "__hip_bfloat16", _) => "bf16",
        ("__nv_fp8_e4m3", _) => "f8e4m3",
        ("__nv_fp8_e5m2", _) => "f8e5m2",
        ("int", false) | ("int32_t", _) => "i32",
        ("int", true) | ("unsigned" | "uint32_t", _) => "u32",
        ("long" | "long long", false) | ("int64_t", _) => "i64",
        ("long" | "long long", true) | ("size_t" | "uint64_t", _) => "u64",
        ("short", false) | ("int16_t", _) => "i16",
        ("short", true) | ("uint16_t", _) => "u16",
        ("char", false) | ("int8_t" | "signed char", _) => "i8",
        ("char", true) | ("bool" | "uint8_t", _) => "u8",
        _ => return ("u8", false),
    };
    (dtype, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::parse_cases;
    use std::path::Path;

    #[test]
    fn what_is_guessed_is_a_case_file() {
        let argument = |name: &str, kind: ArgumentKind| Argument {
            name: name.to_string(),
            kind,
        };
        let pointer = |element: &str, constant| ArgumentKind::Pointer {
            element: element.to_string(),
            constant,
        };
        let unit = PortedUnit {
            name: "unary".to_string(),
            source: String::new(),
            kernels: vec![PortedKernel {
                entry: "rocm_usqr_f16".to_string(),
                kernel: "usqr".to_string(),
                template: Vec::new(),
                arguments: vec![
                    argument("numel", ArgumentKind::Scalar("u64".to_string())),
                    argument("scale", ArgumentKind::Scalar("bf16".to_string())),
                    argument("flag", ArgumentKind::Scalar("bool".to_string())),
                    argument("x", pointer("__half", true)),
                    argument("ids", pointer("unsigned int", true)),
                    argument("y", pointer("ns::thing", false)),
                    argument("p", ArgumentKind::Structure("Params".to_string())),
                ],
                max_block: Some(128),
            }],
        };
        let text = new_cases(&unit);
        let cases = parse_cases(&text, Path::new("")).unwrap();
        assert_eq!(cases[0].arguments.len(), 7, "{text}");
        assert!(
            text.contains("grid = \"ceil(n / 128)\"")
                && text.contains("scalar = \"u64\"\nvalue = \"n\"")
        );
        assert!(text.contains("input = \"u32\"") && text.contains("its type is not known"));
    }
}
