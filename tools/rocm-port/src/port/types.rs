//! C++ types of parameters, as an argument of a launch sees them.

use super::lexer::{tokens, Kind, Token};
use crate::model::ArgumentKind;

/// Rust's name of an arithmetic type of C++, on the ABI that Linux has.
pub(crate) fn scalar(name: &str) -> Option<&'static str> {
    Some(match name {
        "bool" => "bool",
        "char" | "signed char" | "int8_t" | "std::int8_t" => "i8",
        "unsigned char" | "uint8_t" | "std::uint8_t" | "uchar" | "byte" => "u8",
        "short" | "short int" | "signed short" | "int16_t" | "std::int16_t" => "i16",
        "unsigned short" | "unsigned short int" | "uint16_t" | "std::uint16_t" | "ushort" => "u16",
        "int" | "signed" | "signed int" | "int32_t" | "std::int32_t" => "i32",
        "unsigned" | "unsigned int" | "uint32_t" | "std::uint32_t" | "uint" => "u32",
        "long" | "long int" | "long long" | "long long int" | "signed long" | "int64_t"
        | "std::int64_t" | "ssize_t" | "ptrdiff_t" | "intptr_t" => "i64",
        "unsigned long"
        | "unsigned long int"
        | "unsigned long long"
        | "unsigned long long int"
        | "uint64_t"
        | "std::uint64_t"
        | "size_t"
        | "std::size_t"
        | "ulong"
        | "uintptr_t" => "u64",
        "float" | "float32_t" => "f32",
        "double" => "f64",
        "half" | "__half" | "nv_half" => "f16",
        "__nv_bfloat16" | "nv_bfloat16" => "bf16",
        "__nv_fp8_e4m3" => "f8_e4m3",
        "__nv_fp8_e5m2" => "f8_e5m2",
        _ => return None,
    })
}

/// A template's parameters with the arguments of an instance.
pub(crate) type Bindings<'a> = [(&'a str, &'a str)];

/// Puts template arguments in the place of parameters' names, word by word.
pub(crate) fn substitute(text: &str, bindings: &Bindings) -> String {
    let mut result = String::new();
    let mut at = 0;
    let tokens = tokens(text);
    for (index, token) in tokens.iter().enumerate() {
        // `A::T` and `x.T` are other names.
        let member = index > 0 && matches!(tokens[index - 1].text(text), "::" | "." | "->");
        let bound = bindings.iter().find(|(name, _)| token.is(text, name));
        if let (Kind::Word, false, Some((_, value))) = (token.kind, member, bound) {
            result.push_str(&text[at..token.start]);
            result.push_str(value);
            at = token.end;
        }
    }
    result.push_str(&text[at..]);
    result
}

/// A type without its qualifiers, with single blanks: `const scalar_t * __restrict__` is `scalar_t *`.
fn plain(text: &str) -> (Vec<&str>, bool) {
    let tokens: Vec<Token> = tokens(text);
    let words = tokens.iter().map(|token| token.text(text));
    let mut constant = false;
    let kept = words.filter(|word| {
        constant |= *word == "const";
        !matches!(
            *word,
            "const"
                | "volatile"
                | "__restrict__"
                | "restrict"
                | "__restrict"
                | "__grid_constant__"
                | "typename"
                | "struct"
                | "&"
        )
    });
    (kept.collect(), constant)
}

/// What is passed for a parameter of this type.
pub(crate) fn argument(kind: &str, bindings: &Bindings) -> ArgumentKind {
    let kind = substitute(kind, bindings);
    let (mut words, constant) = plain(&kind);
    let array = words.last() == Some(&"]");
    if array {
        let open = words.iter().rposition(|word| *word == "[");
        words.truncate(open.unwrap_or(words.len()));
    }
    let pointer = words.last() == Some(&"*");
    if pointer {
        words.pop();
    }
    let name = join(&words);
    if pointer || array {
        return ArgumentKind::Pointer {
            element: name,
            constant,
        };
    }
    match scalar(&name) {
        Some(scalar) => ArgumentKind::Scalar(scalar.to_string()),
        None => ArgumentKind::Structure(name),
    }
}

/// Words with blanks between words only: `std::array<int, 4>`.
fn join(words: &[&str]) -> String {
    let mut text = String::new();
    for word in words {
        let ends = text.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ',');
        let begins = word.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if ends && begins {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

/// A template argument as a part of a name: `__half` is `f16`, `ns::Op<4>` is `Op_4`.
pub(crate) fn word(argument: &str) -> String {
    let (words, _) = plain(argument);
    let name = join(&words);
    if let Some(scalar) = scalar(&name) {
        return scalar.to_string();
    }
    let tokens = tokens(&name);
    let mut parts: Vec<&str> = Vec::new();
    for token in &tokens {
        let text = token.text(&name);
        match (token.kind, text) {
            (Kind::Punct, "::") => {
                parts.pop();
            }
            (Kind::Punct, "-") => parts.push("minus"),
            (Kind::Punct, "*") => parts.push("ptr"),
            (Kind::Word | Kind::Number, text) => parts.push(scalar(text).unwrap_or(text)),
            _ => {}
        }
    }
    let text = parts.join("_");
    text.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_what_is_passed() {
        let bindings = [("scalar_t", "__half"), ("N", "4")];
        let pointer = |element: &str, constant| ArgumentKind::Pointer {
            element: element.into(),
            constant,
        };
        for (kind, expected) in [
            ("const scalar_t *__restrict__", pointer("__half", true)),
            ("void*", pointer("void", false)),
            ("float **", pointer("float*", false)),
            ("const int []", pointer("int", true)),
            (
                "const unsigned long long",
                ArgumentKind::Scalar("u64".into()),
            ),
            ("const int64_t", ArgumentKind::Scalar("i64".into())),
            ("scalar_t", ArgumentKind::Scalar("f16".into())),
            (
                "const Params<scalar_t, N>",
                ArgumentKind::Structure("Params<__half, 4>".into()),
            ),
            (
                "typename T::scalar_t",
                ArgumentKind::Structure("T::scalar_t".into()),
            ),
        ] {
            assert_eq!(argument(kind, &bindings), expected, "{kind}");
        }
    }

    #[test]
    fn arguments_are_words() {
        for (argument, expected) in [
            ("__nv_bfloat16", "bf16"),
            ("const float", "f32"),
            ("true", "true"),
            ("-1", "minus_1"),
            ("vllm::Fp8KVCacheDataType::kAuto", "kAuto"),
            ("ns::Op<float, 4>", "Op_f32_4"),
            ("float*", "f32_ptr"),
        ] {
            assert_eq!(word(argument), expected);
        }
    }
}
