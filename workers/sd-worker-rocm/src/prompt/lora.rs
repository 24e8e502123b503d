//! `<lora:name:0.8>` taken out of a prompt.

use crate::lora::Lora;

/// How a mark begins.
const MARK: &str = "<lora:";

/// The prompt without its LoRA marks, and what they ask for; numbers of steps are of so many. A mark without an end or a
/// name stays as text.
///
/// # Errors
/// Says what of a mark cannot be read.
pub fn take_loras(prompt: &str, steps: usize) -> Result<(String, Vec<Lora>), String> {
    let mut text = String::new();
    let mut loras = Vec::new();
    let mut rest = prompt;
    while let Some(start) = rest.find(MARK) {
        let (before, mark) = rest.split_at(start);
        text.push_str(before);
        let inside = mark.find('>').map(|end| &mark[MARK.len()..end]);
        match inside.and_then(|inside| Some((inside, name(inside)?))) {
            Some((inside, (name, parts))) => {
                loras.push(Lora::read(name, &parts, steps)?);
                rest = &mark[MARK.len() + inside.len() + 1..];
            }
            None => {
                text.push_str(MARK);
                rest = &mark[MARK.len()..];
            }
        }
    }
    text.push_str(rest);
    Ok((text, loras))
}

/// A mark's name and the parts behind it.
fn name(mark: &str) -> Option<(&str, Vec<&str>)> {
    let mut parts = mark.split(':');
    let name = parts.next()?.trim().trim_matches('"');
    (!name.is_empty()).then(|| (name, parts.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        let (text, loras) = take_loras(
            "a <lora:ink:0.5>cat<lora:x>, <lora:> <lora:y:1:step=5-10> <lora",
            20,
        )
        .unwrap();
        assert_eq!(text, "a cat, <lora:>  <lora");
        let found: Vec<_> = loras.iter().map(|l| format!("{} {l}", l.name)).collect();
        assert_eq!(found, ["ink 0.5", "x 1", "y 1:start=0.25:stop=0.5"]);
        let error = take_loras("<lora:y:much>", 20).unwrap_err();
        assert!(error.contains("much"), "{error}");
    }
}
