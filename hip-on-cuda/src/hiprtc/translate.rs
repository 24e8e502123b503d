//! What nvrtc wants otherwise than hiprtc: options, and how kernels take structures.

use std::ffi::c_int;

/// Major and minor of the compute capability that options name, as in `--offload-arch=sm_90`.
pub(super) fn capability(options: &[String]) -> Option<[c_int; 2]> {
    let arch = |option: &String| {
        let number = option.strip_prefix("--offload-arch=sm_")?;
        let (major, minor) = number.split_at_checked(number.len().checked_sub(1)?)?;
        Some([major.parse().ok()?, minor.parse().ok()?])
    };
    options.iter().find_map(arch)
}

/// nvrtc's options for those of a HIP compiler: definitions and the standard stay, what speaks to AMD's code generator
/// falls away.
pub(super) fn options(options: &[String], capability: [c_int; 2]) -> Vec<String> {
    let [major, minor] = capability;
    let mut translated = vec![
        format!("--gpu-architecture=sm_{major}{minor}"),
        "--device-as-default-execution-space".to_string(),
        "--device-int128".to_string(),
        "--disable-warnings".to_string(),
        // Of a kernel without launch bounds, which go before: a block of 1024 threads has 64 registers for each.
        "--maxrregcount=64".to_string(),
    ];
    if options.iter().any(|option| option == "-ffp-contract=off") {
        translated.push("--fmad=false".to_string());
    }
    let kept = |option: &&String| {
        ["-D", "-U", "-std="]
            .iter()
            .any(|prefix| option.starts_with(prefix))
    };
    translated.extend(options.iter().filter(kept).cloned());
    translated
}

/// Marks the parameters of kernels that are structures: an index that is not constant into one is an index into the
/// arguments then, as on AMD GPUs, and not into a copy that every thread makes in its local memory.
pub(super) fn read_in_place(source: &str) -> String {
    let mut marked = String::with_capacity(source.len() + source.len() / 64);
    let mut rest = source;
    while let Some(at) = rest.find("__global__") {
        let (before, kernel) = rest.split_at(at);
        marked.push_str(before);
        match parameters(kernel) {
            Some((open, close)) => {
                marked.push_str(&kernel[..open]);
                let list = kernel[open..close].split(',').map(mark);
                marked.push_str(&list.collect::<Vec<_>>().join(","));
                rest = &kernel[close..];
            }
            None => {
                let (word, after) = kernel.split_at("__global__".len());
                marked.push_str(word);
                rest = after;
            }
        }
    }
    marked.push_str(rest);
    marked
}

/// Start and end of a kernel's parameters: what stands between the parentheses before its body.
fn parameters(kernel: &str) -> Option<(usize, usize)> {
    let body = kernel.find('{')?;
    let close = kernel[..body].rfind(')')?;
    let is_gap = |c: char| c.is_whitespace() || c == '\\';
    if !kernel[close + 1..body].chars().all(is_gap) {
        return None;
    }
    let open = kernel[..close].rfind('(')? + 1;
    Some((open, close))
}

/// A parameter whose type is one capitalised word of several letters is a structure by value.
fn mark(parameter: &str) -> String {
    let start = parameter
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(parameter.len());
    let (gap, declaration) = parameter.split_at(start);
    let mut words = declaration.split_whitespace();
    let is_structure = |word: &str| {
        word.len() > 1
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric())
            && word.chars().any(|c| c.is_ascii_lowercase())
    };
    match (words.next(), words.next(), words.next()) {
        (Some(kind), Some(_), None) if is_structure(kind) => {
            format!("{gap}const __grid_constant__ {declaration}")
        }
        _ => parameter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{capability, options, read_in_place};

    #[test]
    fn an_arch_that_is_named_is_compiled_for() {
        let named = |option: &str| capability(&["-O3".to_string(), option.to_string()]);
        assert_eq!(named("--offload-arch=sm_90"), Some([9, 0]));
        assert_eq!(named("--offload-arch=sm_120"), Some([12, 0]));
        assert_eq!(named("--offload-arch=gfx942"), None);
        assert_eq!(named("--offload-arch=sm_"), None);
    }

    #[test]
    fn structures_are_read_in_place() {
        let source = "#define K(T) \\\n extern \"C\" __global__ MAX_BLOCK(256) void k_##T(u64 n, Dims dims, \\\n  Strides xs, const T* x, T v, const Dims& d) { \\\n f(n); }";
        let marked = read_in_place(source);
        assert!(marked.contains("(u64 n, const __grid_constant__ Dims dims, \\\n  const __grid_constant__ Strides xs, const T* x, T v, const Dims& d) {"));
        assert_eq!(marked.matches("__grid_constant__").count(), 2);
        assert_eq!(read_in_place("no kernel"), "no kernel");
    }

    #[test]
    fn options_of_amd_fall_away() {
        let amd = [
            "-O3",
            "-std=c++17",
            "-ffp-contract=off",
            "--offload-arch=gfx1030",
            "-DN=1",
        ]
        .map(String::from);
        let translated = options(&amd, [9, 0]);
        for kept in [
            "--gpu-architecture=sm_90",
            "-std=c++17",
            "--fmad=false",
            "-DN=1",
        ] {
            assert!(translated.iter().any(|option| option == kept), "{kept}");
        }
        assert!(!translated
            .iter()
            .any(|option| option.contains("gfx") || option == "-O3"));
        assert!(!options(&amd[..2], [9, 0]).contains(&"--fmad=false".to_string()));
    }
}
