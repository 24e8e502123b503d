//! A first case file for a unit, guessed from the parameters of its kernels.

use super::dtype::DType;
use crate::model::{Argument, ArgumentKind, PortedKernel, PortedUnit};
use crate::port::types::scalar;
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
        ArgumentKind::Scalar(name) => {
            let dtype = DType::named(name).unwrap_or(DType::U32);
            let is_count = argument
                .name
                .to_lowercase()
                .split('_')
                .any(|part| COUNTS.contains(&part));
            let value = match (dtype.is_float(), is_count) {
                (true, _) => "1.0  # GUESS",
                (false, true) => "\"n\"",
                (false, false) => "1  # GUESS",
            };
            format!("scalar = \"{dtype}\"\nvalue = {value}")
        }
        ArgumentKind::Pointer { element, constant } => {
            let known = dtype(element);
            let mark = if known.is_some() {
                ""
            } else {
                "  # GUESS: its type is not known"
            };
            let dtype = known.unwrap_or(DType::U8);
            let fill = match dtype.is_float() {
                true => "{ uniform = [-2.0, 2.0] }",
                false => "{ ints = [0, \"n - 1\"] }",
            };
            let role = if *constant { "input" } else { "inout" };
            format!("{role} = \"{dtype}\"{mark}\nlength = \"n\"  # GUESS\nfill = {fill}")
        }
    }
}

/// The type of a C++ element, if it is known.
fn dtype(element: &str) -> Option<DType> {
    let plain = element.trim().trim_start_matches("const ").trim();
    let last = plain.rsplit("::").next().unwrap_or(plain);
    let named = scalar(plain).or_else(|| scalar(last));
    named.and_then(DType::named)
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
