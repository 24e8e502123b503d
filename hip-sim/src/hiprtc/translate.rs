//! From preprocessed HIP to C++: finds the kernels, gives them entries and a table, and rewrites shared memory.
//!
//! The preprocessed text still holds the prelude's markers `__hip_sim_global__`, `__hip_sim_launch_bounds__(…)` and
//! `__hip_sim_shared__`, which no C++ compiler knows; this turns them into C++.

use crate::exec::abi::ABI_VERSION;
use std::fmt::Write;

/// Put before the names of kernels, which may be names of the C library.
const PREFIX: &str = "hip_sim_kernel_";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    Punctuation,
    Literal,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    start: usize,
}

impl Token<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

struct Kernel<'a> {
    name: &'a str,
    bounds: &'a str,
}

/// Splits C++ text into tokens; line markers of the preprocessor and white space fall away.
fn tokenize(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    let mut line_start = true;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        if byte == b'\n' {
            line_start = true;
            at += 1;
            continue;
        }
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        if byte == b'#' && line_start {
            at = text[at..].find('\n').map_or(bytes.len(), |n| at + n);
            continue;
        }
        line_start = false;
        let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80;
        let kind = if byte == b'"' || byte == b'\'' {
            at = quoted_end(text, at);
            Kind::Literal
        } else if byte.is_ascii_digit() {
            // A digit separator is part of the number and opens no character literal.
            while at < bytes.len()
                && (is_word(bytes[at])
                    || (bytes[at] == b'\'' && bytes.get(at + 1).is_some_and(|b| is_word(*b))))
            {
                at += 1;
            }
            Kind::Literal
        } else if is_word(byte) {
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1;
            }
            if text[start..at].ends_with('R') && bytes.get(at) == Some(&b'"') {
                at = raw_end(text, at);
                Kind::Literal
            } else {
                Kind::Word
            }
        } else {
            at += 1;
            Kind::Punctuation
        };
        tokens.push(Token {
            kind,
            text: &text[start..at],
            start,
        });
    }
    tokens
}

fn quoted_end(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != bytes[start] && bytes[at] != b'\n' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn raw_end(text: &str, quote: usize) -> usize {
    let Some(open) = text[quote..].find('(').map(|n| quote + n) else {
        return text.len();
    };
    let close = format!("){}\"", &text[quote + 1..open]);
    text[open..]
        .find(&close)
        .map_or(text.len(), |n| open + n + close.len())
}

/// Index of the token after the bracket that closes the one at `open`.
fn after_brackets(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Translates preprocessed text into a C++ translation unit that exports the module table.
pub(crate) fn translate(text: &str, wave: u32) -> Result<String, String> {
    let tokens = tokenize(text);
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut in_function = vec![false];
    for (i, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => {
                let outer = *in_function.last().unwrap_or(&false);
                in_function.push(outer || !opens_namespace(&tokens[..i]));
            }
            "}" if in_function.len() > 1 => {
                in_function.pop();
            }
            "__hip_sim_global__" => {
                let linkage =
                    i >= 2 && tokens[i - 1].text == "\"C\"" && tokens[i - 2].text == "extern";
                let start = if linkage {
                    tokens[i - 2].start
                } else {
                    token.start
                };
                edits.push((start, token.end(), "static".into()));
                if let Some((name, kernel)) = kernel_at(&tokens, i)? {
                    edits.push((name.start, name.end(), format!("{PREFIX}{}", name.text)));
                    kernels.extend(kernel);
                }
            }
            "__hip_sim_launch_bounds__" => {
                let end = after_brackets(&tokens, i + 1);
                edits.push((token.start, tokens[end - 1].end(), String::new()));
            }
            "__hip_sim_shared__" => edits.push(shared(
                text,
                &tokens,
                i,
                *in_function.last().unwrap_or(&false),
            )?),
            _ => {}
        }
    }
    edits.sort_by_key(|e| e.0);
    let mut out = String::with_capacity(text.len() + 4096);
    let mut at = 0;
    for (start, end, new) in edits {
        out.push_str(&text[at..start]);
        out.push_str(&new);
        at = end;
    }
    out.push_str(&text[at..]);
    table(&mut out, &kernels, wave);
    Ok(out)
}

/// Whether the brace after these tokens opens a namespace or a linkage block.
fn opens_namespace(before: &[Token]) -> bool {
    let texts: Vec<&str> = before.iter().rev().take(3).map(|t| t.text).collect();
    matches!(
        texts[..],
        ["\"C\"", "extern", ..] | ["namespace", ..] | [_, "namespace", ..]
    )
}

/// The name that the marker at `marker` declares, and the kernel if this is its definition. Templates are none.
#[allow(clippy::type_complexity)]
fn kernel_at<'a>(
    tokens: &[Token<'a>],
    marker: usize,
) -> Result<Option<(Token<'a>, Option<Kernel<'a>>)>, String> {
    let mut bounds = "0";
    let mut name = None;
    let mut i = marker + 1;
    while i < tokens.len() {
        match tokens[i].text {
            "__hip_sim_launch_bounds__" => {
                let end = after_brackets(tokens, i + 1);
                bounds = tokens.get(i + 2).map_or("0", |t| t.text);
                i = end;
            }
            "__attribute__" | "alignas" => i = after_brackets(tokens, i + 1),
            "(" => break,
            ";" | "{" => return Err("a __global__ function has no parameter list".into()),
            _ => {
                if tokens[i].kind == Kind::Word {
                    name = Some(tokens[i]);
                }
                i += 1;
            }
        }
    }
    let end = after_brackets(tokens, i);
    let defines = tokens.get(end).is_some_and(|t| t.text == "{");
    let is_template = marker > 0 && tokens[marker - 1].text == ">";
    let name = name.ok_or("a __global__ function has no name")?;
    let kernel = Kernel {
        name: name.text,
        bounds,
    };
    Ok((!is_template).then_some((name, defines.then_some(kernel))))
}

/// The edit for a shared variable: static ones become thread-local, `extern` arrays a pointer to the dynamic shared
/// memory.
fn shared(
    text: &str,
    tokens: &[Token],
    marker: usize,
    in_function: bool,
) -> Result<(usize, usize, String), String> {
    let token = tokens[marker];
    let before = marker.checked_sub(1).map_or("", |i| tokens[i].text);
    let after = tokens.get(marker + 1).map_or("", |t| t.text);
    if before != "extern" && after != "extern" {
        let storage = if before == "static" || after == "static" {
            "thread_local"
        } else {
            "static thread_local"
        };
        return Ok((token.start, token.end(), storage.into()));
    }
    let first = if before == "extern" {
        marker - 1
    } else {
        marker
    };
    let semicolon = tokens[marker..]
        .iter()
        .position(|t| t.text == ";")
        .map(|n| marker + n);
    let semicolon = semicolon.ok_or("an extern __shared__ declaration has no end")?;
    let mut declaration = Vec::new();
    let mut i = if before == "extern" {
        marker + 1
    } else {
        marker + 2
    };
    while i < semicolon {
        match tokens[i].text {
            "__attribute__" | "alignas" => i = after_brackets(tokens, i + 1),
            _ => {
                declaration.push(tokens[i]);
                i += 1;
            }
        }
    }
    let [kind @ .., name, open, close] = declaration.as_slice() else {
        return Err("an extern __shared__ declaration is no array".into());
    };
    if (open.text, close.text) != ("[", "]") || name.kind != Kind::Word || kind.is_empty() {
        return Err(format!(
            "extern __shared__ {}: only arrays of unknown size are supported",
            name.text
        ));
    }
    let kind: Vec<&str> = kind.iter().map(|t| t.text).collect();
    // The words of a type stay apart, and `::` stays together.
    let kind = kind.join(" ").replace(": :", "::");
    let name = name.text;
    let new = match in_function {
        true => format!("{kind} *const {name} = ({kind} *)hip_sim_dynamic_shared();"),
        false => format!("\n#undef {name}\n#define {name} (({kind} *)hip_sim_dynamic_shared())\n"),
    };
    let lines = text[tokens[first].start..tokens[semicolon].end()]
        .matches('\n')
        .count();
    Ok((
        tokens[first].start,
        tokens[semicolon].end(),
        new + &"\n".repeat(lines),
    ))
}

/// Appends the kernel table and the module's description.
fn table(out: &mut String, kernels: &[Kernel], wave: u32) {
    out.push_str("\n#line 1 \"hip-sim's table of kernels\"\nstatic const hip_sim_kernel hip_sim_table[] = {\n");
    for Kernel { name, bounds } in kernels {
        let entry = format!("hip_sim_entry<&{PREFIX}{name}>");
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "    {{\"{name}\", {entry}::run, {entry}::count, (unsigned)({bounds}), {entry}::sizes, {entry}::aligns}},"
        );
    }
    let _ = write!(
        out,
        "    {{}},\n}};\n\
         extern \"C\" __attribute__((visibility(\"hidden\"))) const char hip_sim_source[], hip_sim_source_end[], hip_sim_arch[];\n\
         extern \"C\" __attribute__((visibility(\"default\"))) const hip_sim_module_info hip_sim_module = {{\n    \
         {{'H', 'I', 'P', 'S', 'I', 'M', 0, 0}}, {ABI_VERSION}, {wave}, HIP_SIM_CHECKED, {}, hip_sim_arch,\n    \
         hip_sim_table, hip_sim_source, hip_sim_source_end, &hip_sim_runtime_slot,\n}};\n",
        kernels.len()
    );
}

#[cfg(test)]
mod tests {
    use super::translate;

    const WAVE: u32 = 32;

    #[test]
    fn kernels_get_entries() {
        let text = "# 1 \"a\"\nextern \"C\" __hip_sim_global__ void __hip_sim_launch_bounds__(256, 2) add(float *x) { }\n\
                    __hip_sim_global__ void declared(int);\n\
                    template <class T> __hip_sim_global__ void generic(T x) { }\n";
        let out = translate(text, WAVE).unwrap();
        assert!(
            out.contains("\nstatic void  hip_sim_kernel_add(float *x)"),
            "{out}"
        );
        assert!(out.contains("{\"add\", hip_sim_entry<&hip_sim_kernel_add>::run, hip_sim_entry<&hip_sim_kernel_add>::count, (unsigned)(256),"), "{out}");
        assert!(!out.contains("\"declared\"") && !out.contains("\"generic\""));
    }

    #[test]
    fn shared_memory_static_and_dynamic() {
        let text = "void f() { __hip_sim_shared__ float tile[32][33]; extern __hip_sim_shared__ __attribute__((aligned(16))) unsigned char raw[]; }\n\
                    extern \"C\" { extern __hip_sim_shared__ ns::T outer[]; }\n";
        let out = translate(text, WAVE).unwrap();
        assert!(
            out.contains("static thread_local float tile[32][33];"),
            "{out}"
        );
        assert!(
            out.contains("unsigned char *const raw = (unsigned char *)hip_sim_dynamic_shared();"),
            "{out}"
        );
        assert!(
            out.contains("#define outer ((ns :: T *)hip_sim_dynamic_shared())"),
            "{out}"
        );
    }

    #[test]
    fn markers_in_strings_are_left_alone() {
        let text = "const char *s = \"__hip_sim_global__ {\", c = '{'; int n = 1'000;\nconst char *r = R\"x(__hip_sim_shared__ \")x\";";
        assert!(translate(text, WAVE).unwrap().starts_with(text));
    }
}
