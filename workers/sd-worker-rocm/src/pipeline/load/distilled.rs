//! Models that were distilled to few steps, which they say in their names only.

/// How a model was distilled, as far as it matters for its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distilled {
    /// A latent consistency model, which has a sampler of its own.
    Consistency,
    /// Turbo, Lightning, Hyper, schnell.
    FewSteps,
}

/// Reads a model's name word by word: `sdxl-turbo` and `DreamShaperXL_v2TurboDPM` are distilled, `turbocharged` and
/// `hyperrealism_v3` are not.
pub fn distilled(name: &str) -> Option<Distilled> {
    let words = words(name);
    let mut found = None;
    for (i, word) in words.iter().enumerate() {
        match word.as_str() {
            "lcm" => return Some(Distilled::Consistency),
            "turbo" | "lightning" | "schnell" => found = Some(Distilled::FewSteps),
            "hyper" if names_hyper(words.get(i + 1)) => found = Some(Distilled::FewSteps),
            _ => {}
        }
    }
    found
}

/// Whether what follows "hyper" says that ByteDance's distillation is meant: `Hyper-SD15-4steps`, `hyperFlux8Steps`,
/// `Juggernaut-X-Hyper`, but not `hyper_realistic`.
fn names_hyper(next: Option<&String>) -> bool {
    next.is_none_or(|next| {
        next.starts_with(|c: char| c.is_ascii_digit())
            || ["sd", "sdxl", "flux", "step", "steps", "unet"].contains(&next.as_str())
    })
}

/// The words of a name in lower case: cut at everything that is neither letter nor digit, between letters and digits,
/// and where CamelCase begins a word.
fn words(name: &str) -> Vec<String> {
    let characters: Vec<char> = name.chars().collect();
    let mut words = Vec::new();
    let mut word = String::new();
    for (i, &c) in characters.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| characters[i]);
        let begins = before.is_some_and(|before| {
            c.is_numeric() != before.is_numeric()
                || c.is_uppercase() && before.is_lowercase()
                // The last capital of several begins the next word: XLTurbo.
                || c.is_uppercase()
                    && before.is_uppercase()
                    && characters.get(i + 1).is_some_and(|next| next.is_lowercase())
        });
        if (begins || !c.is_alphanumeric()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models() {
        for (name, expected) in [
            ("sd-turbo", Some(Distilled::FewSteps)),
            ("sdxl_turbo_1.0_fp16", Some(Distilled::FewSteps)),
            ("DreamShaperXLTurbo", Some(Distilled::FewSteps)),
            ("dreamshaperXL_v21TurboDPMSDE", Some(Distilled::FewSteps)),
            (
                "juggernautXL_v9Rdphoto2Lightning",
                Some(Distilled::FewSteps),
            ),
            ("sdxl_lightning_4step", Some(Distilled::FewSteps)),
            ("FLUX.1-schnell", Some(Distilled::FewSteps)),
            ("flux1-schnell-Q4_K", Some(Distilled::FewSteps)),
            ("Hyper-SD15-8steps", Some(Distilled::FewSteps)),
            ("Hyper-SDXL-1step-Unet", Some(Distilled::FewSteps)),
            ("hyperFlux8Steps", Some(Distilled::FewSteps)),
            ("Juggernaut-X-Hyper", Some(Distilled::FewSteps)),
            ("LCM_Dreamshaper_v7", Some(Distilled::Consistency)),
            ("dreamshaper_8LCM", Some(Distilled::Consistency)),
            ("sd-turbo-lcm", Some(Distilled::Consistency)),
            ("hyperrealism_v3", None),
            ("hyper_realistic_v2", None),
            ("HyperRealism", None),
            ("turbocharged", None),
            ("lightningstrikes", None),
            ("schnellzug", None),
            ("falcmix", None),
            ("v1-5-pruned-emaonly", None),
            ("", None),
        ] {
            assert_eq!(distilled(name), expected, "{name}");
        }
    }
}
