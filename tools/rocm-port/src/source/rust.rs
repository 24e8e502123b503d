//! Uses of CUDA in Rust: cudarc, candle's CUDA types, `extern` functions that a static library of CUDA brings.

use super::tokens::{tokens, Token};
use super::Sources;
use crate::model::RustUse;

/// Names of candle and cudarc that mean CUDA.
const NAMES: &[&str] = &[
    "CudaDevice",
    "CudaStorage",
    "CudaStorageSlice",
    "CudaSlice",
    "CudaView",
    "CudaFunction",
    "CudaStream",
    "CudaContext",
    "LaunchAsync",
    "LaunchConfig",
    "DevicePtr",
    "DevicePtrMut",
    "DeviceRepr",
    "as_cuda_slice",
    "as_cuda_device",
    "cuda_fwd",
    "cuda_bwd",
    "cuda_backend",
    "get_or_load_func",
    "get_or_load_custom_func",
    "load_ptx",
    "compile_ptx",
];

/// All uses, in order of files and lines; each name once a line.
pub(super) fn uses(sources: &Sources) -> Vec<RustUse> {
    let mut uses = Vec::new();
    for name in &sources.rust {
        let Ok(source) = sources.read(name) else {
            continue;
        };
        // Most files of a crate say nothing about CUDA: looking is cheaper than reading them.
        let speaks = source.contains("uda") || source.contains("extern") || source.contains("ptx");
        if name.ends_with("build.rs") || !speaks {
            continue;
        }
        file(&tokens(name, &source), &mut uses);
    }
    uses
}

fn file(tokens: &[Token], uses: &mut Vec<RustUse>) {
    let mut found = |token: &Token, what: String| {
        let again = uses
            .iter()
            .rev()
            .take_while(|known| {
                known.place.file == token.place.file && known.place.line == token.place.line
            })
            .any(|known| known.what == what);
        if !again {
            uses.push(RustUse {
                place: token.place.clone(),
                what,
            });
        }
    };
    // The depth of braces at which an `extern` block is open.
    let mut depth = 0usize;
    let mut foreign: Option<usize> = None;
    for (index, token) in tokens.iter().enumerate() {
        let next = tokens.get(index + 1);
        if token.is("{") {
            depth += 1;
            let before = &tokens[..index];
            let with_abi = before.len() > 1
                && before[index - 1].text().is_some()
                && before[index - 2].is("extern");
            if with_abi || before.last().is_some_and(|token| token.is("extern")) {
                foreign = Some(depth);
            }
        } else if token.is("}") {
            if foreign == Some(depth) {
                foreign = None;
            }
            depth = depth.saturating_sub(1);
        } else if let Some(name) = token.ident() {
            if foreign == Some(depth) && name == "fn" {
                if let Some(function) = next.and_then(Token::ident) {
                    found(token, format!("extern fn {function}"));
                }
            } else if name == "cudarc" && next.is_some_and(|token| token.is(":")) {
                found(token, "cudarc".into());
            } else if name == "Storage" && is_path_to(&tokens[index + 1..], "Cuda") {
                found(token, "Storage::Cuda".into());
            } else if name == "Device" && is_path_to(&tokens[index + 1..], "Cuda") {
                found(token, "Device::Cuda".into());
            } else if NAMES.contains(&name) {
                found(token, name.to_string());
            }
        }
    }
}

/// Whether tokens go on with `::name`.
fn is_path_to(tokens: &[Token], name: &str) -> bool {
    matches!(tokens, [a, b, c, ..] if a.is(":") && b.is(":") && c.is(name))
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_and_extern_functions() {
        let source = r#"
            use candle::cuda_backend::cudarc::driver::DevicePtr;
            extern "C" { pub(crate) fn rotary(x: *const u8); }
            // CudaDevice in a comment
            const T: &str = "CudaSlice";
            fn f(s: &Storage) { match s { Storage::Cuda(s) => s, Storage::Cpu(_) => {} } }
        "#;
        let mut uses = Vec::new();
        super::file(&super::tokens("a.rs", source), &mut uses);
        let found: Vec<(usize, &str)> = uses
            .iter()
            .map(|found| (found.place.line, found.what.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (2, "cuda_backend"),
                (2, "cudarc"),
                (2, "DevicePtr"),
                (3, "extern fn rotary"),
                (6, "Storage::Cuda"),
            ]
        );
    }
}
