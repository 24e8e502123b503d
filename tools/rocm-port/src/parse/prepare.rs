//! Attributes that the grammar does not know are taken out of the text before it is parsed, and kept beside it.

/// An attribute such as `__launch_bounds__(256, 2)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attribute {
    /// Where it begins, in bytes.
    pub at: usize,
    /// Its name.
    pub name: String,
    /// What is in its parentheses; nothing without them.
    pub arguments: Option<String>,
}

/// Attributes with an argument in parentheses.
const WITH_ARGUMENTS: &[&str] = &[
    "__launch_bounds__",
    "__cluster_dims__",
    "__block_size__",
    "__maxnreg__",
    "__align__",
    "__attribute__",
    "__declspec",
];

/// Attributes without.
const PLAIN: &[&str] = &[
    "__extension__",
    "__grid_constant__",
    "__nv_pure__",
    "__inline_hint__",
    "__restrict__",
    "__restrict",
];

/// Replaces attributes by spaces, so that every other byte stays where it is.
pub(crate) fn prepare(text: &str) -> (String, Vec<Attribute>) {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut attributes = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(end) = skip(bytes, at) {
            at = end;
            continue;
        }
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let end = at
            + bytes[at..]
                .iter()
                .take_while(|byte| is_word(**byte))
                .count();
        let word = &text[at..end];
        let attribute = if WITH_ARGUMENTS.contains(&word) {
            let open = end
                + bytes[end..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_whitespace())
                    .count();
            (bytes.get(open) == Some(&b'('))
                .then(|| closing(bytes, open))
                .flatten()
                .map(|close| (close + 1, Some(text[open + 1..close].trim().to_string())))
        } else {
            PLAIN.contains(&word).then_some((end, None))
        };
        let Some((close, arguments)) = attribute else {
            at = end;
            continue;
        };
        for byte in &mut out[at..close] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        attributes.push(Attribute {
            at,
            name: word.to_string(),
            arguments,
        });
        at = close;
    }
    // Whole attributes were replaced, from one ASCII byte to another: what is left is UTF-8.
    let out = String::from_utf8(out).unwrap_or_else(|_| text.to_string());
    (out, attributes)
}

/// Bytes of names; those beyond ASCII count, so that slices end between characters.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The end of the string, character or comment that begins at a byte, if one does.
fn skip(bytes: &[u8], at: usize) -> Option<usize> {
    let after_word = at > 0 && is_word(bytes[at - 1]);
    match bytes[at] {
        b'"' if at > 0 && bytes[at - 1] == b'R' => Some(raw_string(bytes, at)),
        b'"' => Some(quoted(bytes, at)),
        // In numbers, `'` separates digits.
        b'\'' if !after_word => Some(quoted(bytes, at)),
        b'/' if bytes.get(at + 1) == Some(&b'/') => Some(
            at + bytes[at..]
                .iter()
                .take_while(|byte| **byte != b'\n')
                .count(),
        ),
        b'/' if bytes.get(at + 1) == Some(&b'*') => {
            let rest = &bytes[at + 2..];
            let end = rest.windows(2).position(|pair| pair == b"*/");
            Some(end.map_or(bytes.len(), |end| at + end + 4))
        }
        _ => None,
    }
}

/// The end of a literal; an unterminated one ends with its line.
fn quoted(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let mut index = at + 1;
    while index < bytes.len() {
        match bytes[index] {
            b'\\' => index += 1,
            b'\n' => return index,
            byte if byte == quote => return index + 1,
            _ => {}
        }
        index += 1;
    }
    bytes.len()
}

/// The end of `R"x(…)x"`.
fn raw_string(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at + 1..];
    let Some(open) = rest.iter().take(17).position(|byte| *byte == b'(') else {
        return at + 1;
    };
    let mut end = vec![b')'];
    end.extend(&rest[..open]);
    end.push(b'"');
    rest.windows(end.len())
        .position(|window| window == end)
        .map_or(bytes.len(), |found| at + 1 + found + end.len())
}

/// The parenthesis that closes the one at a byte.
fn closing(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = open;
    while at < bytes.len() {
        if let Some(end) = skip(bytes, at) {
            at = end;
            continue;
        }
        match bytes[at] {
            b'(' => depth += 1,
            b')' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            b'{' | b'}' | b';' => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

/// How often `__global__` begins a definition: counted over words, without a grammar.
pub(crate) fn count_kernels(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut count = 0;
    let mut at = 0;
    let mut pending = false;
    while at < bytes.len() {
        if let Some(end) = skip(bytes, at) {
            at = end;
            continue;
        }
        if is_word(bytes[at]) {
            let end = at
                + bytes[at..]
                    .iter()
                    .take_while(|byte| is_word(**byte))
                    .count();
            pending |= &text[at..end] == "__global__";
            at = end;
            continue;
        }
        match bytes[at] {
            b';' => pending = false,
            b'{' => count += usize::from(std::mem::take(&mut pending)),
            _ => {}
        }
        at += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::{count_kernels, prepare};

    #[test]
    fn attributes_are_taken_out() {
        let source = "struct __align__(sizeof(T) * 2) V {}; // __align__(4)\n\
                      __global__ void __launch_bounds__(256, 2) k(const __grid_constant__ P p) { \"__align__(1)\"; }";
        let (text, attributes) = prepare(source);
        assert_eq!(text.len(), source.len());
        assert!(text.starts_with("struct                          V {}; // __align__(4)\n"));
        assert!(text.contains("\"__align__(1)\""));
        let found: Vec<_> = attributes
            .iter()
            .map(|attribute| (attribute.name.as_str(), attribute.arguments.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("__align__", Some("sizeof(T) * 2")),
                ("__launch_bounds__", Some("256, 2")),
                ("__grid_constant__", None)
            ]
        );
    }

    #[test]
    fn unfinished_texts() {
        for text in [
            "__align__(",
            "\"",
            "'",
            "/*",
            "R\"(",
            "__align__(;)",
            "R\"",
            "é__align__(é)é",
        ] {
            assert_eq!(prepare(text).0.len(), text.len());
        }
    }

    #[test]
    fn kernels_are_counted() {
        assert_eq!(
            count_kernels("__global__ void a(); __global__ void b() {} // __global__ {\n"),
            1
        );
        assert_eq!(
            count_kernels("template <int N> __global__ void a() { f(\"__global__ {\"); }"),
            1
        );
    }
}
