//! Whether next tokens are guessed, and how.

use std::str::FromStr;

/// Whether next tokens are guessed, and how. Guesses change how long answers take, never what they are: see
/// docs/llm-engine.md for a GPU's last bits.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculationOptions {
    /// Where guesses come from.
    pub source: DraftSource,
    /// Most guesses for a sequence in a step.
    pub max: usize,
    /// Fewer guesses than this are not worth a step.
    pub min: usize,
    /// Tokens that have to be equal at least where [`DraftSource::LookUp`] looks what followed.
    pub shortest_match: usize,
    /// Tokens that are compared there at most.
    pub longest_match: usize,
    /// A guess of [`DraftSource::Model`] or [`DraftSource::Head`] that is less likely than this to it ends its guesses.
    pub least_probability: f32,
    /// Whether measured times and acceptance decide how many guesses are checked, and whether any are; else as many as
    /// there are.
    pub adaptive: bool,
}

impl Default for SpeculationOptions {
    fn default() -> Self {
        Self {
            source: DraftSource::Off,
            // With the sequence's own, as many rows as quantized matrices multiply in one pass on a GPU.
            max: 7,
            min: 0,
            shortest_match: 3,
            longest_match: 24,
            least_probability: 0.75,
            adaptive: true,
        }
    }
}

/// Where guesses come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DraftSource {
    /// Nothing is guessed.
    #[default]
    Off,
    /// What followed when a sequence's last tokens came before in it.
    LookUp,
    /// The model's own heads that predict the tokens behind the next one, where its file has some.
    Head,
    /// A smaller model of the same vocabulary ([`LoadedModel::draft`](crate::engine::LoadedModel)).
    Model,
}

impl DraftSource {
    const NAMES: [(Self, &'static str); 4] = [
        (Self::Off, "off"),
        (Self::LookUp, "ngram"),
        (Self::Model, "model"),
        (Self::Head, "mtp"),
    ];
}

impl FromStr for DraftSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.into_iter().find(|(_, name)| *name == text);
        let names = Self::NAMES.map(|(_, name)| name).join(", ");
        known
            .map(|(source, _)| source)
            .ok_or(format!("{text} is not one of {names}"))
    }
}

impl std::fmt::Display for DraftSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = Self::NAMES.into_iter().find(|(source, _)| source == self);
        f.write_str(known.map_or("", |(_, name)| name))
    }
}
