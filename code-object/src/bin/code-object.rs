//! Prints what code objects and bundles of them say of their kernels.
//!
//!     code-object [--json] FILE...

use code_object::{json, read, text, Facts};
use std::process::ExitCode;

const USAGE: &str = "usage: code-object [--json] FILE...";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(output) => {
            print!("{output}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("code-object: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: impl Iterator<Item = String>) -> Result<String, Box<dyn std::error::Error>> {
    let (options, files): (Vec<_>, Vec<_>) =
        arguments.partition(|argument| argument.starts_with("--"));
    let as_json = match options.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--json"] => true,
        _ => return Err(USAGE.into()),
    };
    if files.is_empty() {
        return Err(USAGE.into());
    }
    let mut all = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).map_err(|error| format!("{file}: {error}"))?;
        let entries = read(&bytes).map_err(|error| format!("{file}: {error}"))?;
        all.push(Facts::new(file, entries));
    }
    Ok(match as_json {
        true => json(&all)? + "\n",
        false => text(&all),
    })
}
