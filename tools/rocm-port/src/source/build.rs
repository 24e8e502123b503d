//! Build scripts: which builder compiles CUDA, which files, and with which options.

use super::tokens::{tokens, Kind, Token};
use super::Sources;
use crate::model::BuildScript;

/// Crates that call nvcc, as a build script names them.
const BUILDERS: &[&str] = &["bindgen_cuda", "cudaforge", "cc", "nvcc", "cmake"];

/// Options that are taken over from a build script, by their beginning.
const OPTIONS: &[&str] = &[
    "-D", "-I", "-U", "-std", "-O", "--", "-gencode", "-arch", "-x", "-f", "-m",
];

/// The scripts of the project that build CUDA.
pub(super) fn scripts(sources: &Sources) -> Vec<BuildScript> {
    sources
        .rust
        .iter()
        .filter(|name| {
            let file = name.rsplit('/').next().unwrap_or(name);
            file == "build.rs" || name.starts_with("build/")
        })
        .filter_map(|name| script(name, &sources.read(name).ok()?))
        .collect()
}

/// Reads one script; nothing if it does not build CUDA.
fn script(name: &str, source: &str) -> Option<BuildScript> {
    let tokens = tokens(name, source);
    let (at, builder) = builder(&tokens)?;
    let mut script = BuildScript {
        place: at.place.clone(),
        builder,
        inputs: Vec::new(),
        options: Vec::new(),
        conditional: Vec::new(),
    };
    // For each open brace: the condition that it stands under, if any.
    let mut conditions: Vec<Option<String>> = Vec::new();
    let mut last_condition: Option<String> = None;
    for (index, token) in tokens.iter().enumerate() {
        match &token.kind {
            Kind::Open('{') => {
                let condition = condition(&tokens[..index], last_condition.take());
                conditions.push(condition);
            }
            Kind::Close('}') => last_condition = conditions.pop().flatten(),
            Kind::Text(text) => {
                let under: Vec<&str> = conditions.iter().flatten().map(String::as_str).collect();
                string(
                    &mut script,
                    &tokens[..index],
                    text,
                    &tokens[index + 1..],
                    &under,
                );
            }
            _ => {}
        }
    }
    Some(script)
}

/// The builder that a script uses, and where it first names it.
fn builder(tokens: &[Token]) -> Option<(&Token, String)> {
    let found = |name: &str| {
        tokens.iter().enumerate().find(|(index, token)| match name {
            // `cc` builds CUDA only after `.cuda(true)`.
            "cc" => {
                token.is("cuda")
                    && *index > 0
                    && tokens[index - 1].is(".")
                    && tokens.get(index + 2).is_some_and(|token| token.is("true"))
            }
            "nvcc" => token.text() == Some("nvcc") && *index > 1 && tokens[index - 2].is("new"),
            name => token.is(name),
        })
    };
    BUILDERS
        .iter()
        .find_map(|name| found(name).map(|(_, token)| (token, name.to_string())))
}

/// The condition in front of an opening brace: the tokens after `if`, `!(…)` for its `else`, `match` for arms.
fn condition(before: &[Token], previous: Option<String>) -> Option<String> {
    if before.last().is_some_and(|token| token.is("else")) {
        return Some(format!("!({})", previous.unwrap_or_default()));
    }
    if before.len() > 1 && before[before.len() - 1].is(">") && before[before.len() - 2].is("=") {
        return Some("match".into());
    }
    let start = before
        .iter()
        .rposition(|token| token.is("{") || token.is("}") || token.is(";") || token.is("if"))?;
    if !before[start].is("if") {
        return None;
    }
    let words: Vec<String> = before[start + 1..].iter().map(word).collect();
    Some(
        words
            .join(" ")
            .replace("> =", ">=")
            .replace("< =", "<=")
            .replace("= =", "=="),
    )
}

fn word(token: &Token) -> String {
    match &token.kind {
        Kind::Ident(text) | Kind::Literal(text) => text.clone(),
        Kind::Text(text) => format!("\"{text}\""),
        Kind::Punct(c) | Kind::Open(c) | Kind::Close(c) => c.to_string(),
    }
}

/// Takes a string literal into the script.
fn string(
    script: &mut BuildScript,
    before: &[Token],
    text: &str,
    after: &[Token],
    conditions: &[&str],
) {
    // Format strings of `println!` speak to cargo.
    if text.starts_with("cargo:") {
        return;
    }
    if text.ends_with(".cu") {
        if !script.inputs.iter().any(|input| input == text) {
            script.inputs.push(text.to_string());
        }
        return;
    }
    let called = (before.len() > 1 && before[before.len() - 1].is("("))
        .then(|| before[before.len() - 2].ident())
        .flatten();
    let option = match called {
        Some("include" | "include_path" | "include_dir") => format!("-I{text}"),
        Some("define") => match after.iter().take(4).find_map(Token::text) {
            Some(value) => format!("-D{text}={value}"),
            None => format!("-D{text}"),
        },
        _ if OPTIONS.iter().any(|option| text.starts_with(option))
            && !text.contains(['{', ' ']) =>
        {
            text.to_string()
        }
        _ => return,
    };
    match conditions.is_empty() {
        true => script.options.push(option),
        false => script.conditional.push((conditions.join(" && "), option)),
    }
}

/// Whether a condition of a build script holds for a compute capability (80 for 8.0); nothing if it asks for else.
pub(crate) fn holds(condition: &str, capability: u32) -> Option<bool> {
    if let Some(inner) = condition
        .strip_prefix("!(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        return holds(inner, capability).map(|holds| !holds);
    }
    let words: Vec<&str> = condition.split(' ').collect();
    let [name, operator, number] = words[..] else {
        return None;
    };
    let number: u32 = number.parse().ok()?;
    let name = name.to_ascii_lowercase();
    if !(name.contains("cap") || name.contains("arch") || name.contains("sm")) {
        return None;
    }
    match operator {
        ">=" => Some(capability >= number),
        ">" => Some(capability > number),
        "<" => Some(capability < number),
        "<=" => Some(capability <= number),
        "==" => Some(capability == number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{holds, script};

    #[test]
    fn options_and_conditions() {
        let script = script(
            "build.rs",
            r#"fn main() {
                println!("cargo:rerun-if-changed=a.cu");
                let mut b = bindgen_cuda::Builder::default().kernel_paths(vec!["k/a.cu"]).arg("-std=c++17");
                b = b.include("k/include").define("FAST", "1");
                if compute_cap < 80 { b = b.arg("-DOLD"); } else { b = b.arg("-DNEW"); }
                if std::env::var("X").is_ok() { b = b.arg("-DX"); }
            }"#,
        )
        .unwrap();
        assert_eq!(script.builder, "bindgen_cuda");
        assert_eq!(script.inputs, ["k/a.cu"]);
        assert_eq!(script.options, ["-std=c++17", "-Ik/include", "-DFAST=1"]);
        let applied = |capability| -> Vec<String> {
            let mut applied = Vec::new();
            for (condition, option) in &script.conditional {
                if holds(condition, capability) == Some(true) {
                    applied.push(option.clone());
                }
            }
            applied
        };
        assert_eq!(script.conditional.len(), 3);
        assert_eq!(applied(75), ["-DOLD"]);
        assert_eq!(applied(80), ["-DNEW"]);
    }

    #[test]
    fn scripts_without_cuda() {
        assert!(script(
            "build.rs",
            "fn main() { cc::Build::new().file(\"a.c\").compile(\"a\"); }"
        )
        .is_none());
        let cuda = script(
            "build.rs",
            "fn main() { cc::Build::new().cuda(true).file(\"a.cu\"); }",
        );
        assert_eq!(cuda.unwrap().builder, "cc");
        assert!(script("build.rs", "no { rust").is_none());
    }
}
