//! `<lora:name:0.8>` taken out of a prompt.

use crate::lora::Lora;

/// The prompt without its LoRA marks, and what they ask for. A mark that cannot be read stays as text.
pub fn take_loras(prompt: &str) -> (String, Vec<Lora>) {
    let mut text = String::new();
    let mut loras = Vec::new();
    let mut rest = prompt;
    while let Some(start) = rest.find("<lora:") {
        let (before, mark) = rest.split_at(start);
        text.push_str(before);
        match mark
            .find('>')
            .and_then(|end| Some((end, read(&mark[6..end])?)))
        {
            Some((end, lora)) => {
                loras.push(lora);
                rest = &mark[end + 1..];
            }
            None => {
                text.push_str(&mark[..6]);
                rest = &mark[6..];
            }
        }
    }
    text.push_str(rest);
    (text, loras)
}

fn read(mark: &str) -> Option<Lora> {
    let mut parts = mark.split(':');
    let name = parts.next().filter(|name| !name.is_empty())?;
    let strength = match parts.next() {
        None => 1.0,
        Some(strength) => strength.parse().ok().filter(|s: &f64| s.is_finite())?,
    };
    Some(Lora {
        name: name.to_string(),
        strength,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        let (text, loras) = take_loras("a <lora:ink:0.5>cat<lora:x>, <lora:> <lora:y:much> <lora");
        assert_eq!(text, "a cat, <lora:> <lora:y:much> <lora");
        let found: Vec<_> = loras
            .iter()
            .map(|l| (l.name.as_str(), l.strength))
            .collect();
        assert_eq!(found, [("ink", 0.5), ("x", 1.0)]);
    }
}
