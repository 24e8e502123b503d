//! What this crate needs of ROCm's libraries and headers, for `scripts/check-rocm`.
//!
//! `abi symbols` prints `library symbol required|optional` lines. `abi checks` prints a C++ program that
//! compiles only if every size, offset and value that is handed over is that of the headers.

use candle_rocm::sys::{facts, symbols, Fact};
use std::collections::BTreeSet;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("symbols") => print_symbols(),
        Some("checks") => print_checks(),
        _ => {
            eprintln!("usage: abi symbols | abi checks");
            std::process::exit(2);
        }
    }
}

fn print_symbols() {
    for symbol in symbols() {
        let need = if symbol.required {
            "required"
        } else {
            "optional"
        };
        println!("{} {} {need}", symbol.library, symbol.name);
    }
}

fn print_checks() {
    let facts = facts();
    let headers: BTreeSet<&str> = facts
        .iter()
        .map(|fact| match fact {
            Fact::Size { header, .. }
            | Fact::Offset { header, .. }
            | Fact::Value { header, .. } => *header,
        })
        .collect();
    println!("#define __HIP_PLATFORM_AMD__ 1\n#include <stddef.h>");
    for header in headers {
        println!("#include <{header}>");
    }
    for fact in facts {
        let (expression, value) = match fact {
            Fact::Size { of, bytes, .. } => (format!("sizeof({of})"), bytes as i64),
            Fact::Offset {
                of, field, bytes, ..
            } => (format!("offsetof({of}, {field})"), bytes as i64),
            Fact::Value { name, value, .. } => (name.to_string(), value),
        };
        println!("static_assert((long long)({expression}) == {value}LL, \"{expression}\");");
    }
    println!("int main() {{ return 0; }}");
}
