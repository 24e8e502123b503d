//! Arguments that say whether next tokens are guessed.

use super::source::SourceArgs;
use crate::engine::api::{DraftSource, SpeculationOptions, WeightOptions};
use crate::model::{LoadOptions, LoadedModel, ModelFile};
use candle_core::Device;
use clap::Args;
use std::path::PathBuf;
use worker::Result;

/// Whether next tokens are guessed, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub struct SpeculationArgs {
    /// Guess next tokens and check several in one step, which changes no answer: off; ngram, which looks what followed
    /// when the last tokens came before in prompt and answer; model, by --draft-model, whose presence says so, too; or
    /// mtp, by the model's own heads, which files and folders of some families have.
    #[arg(long, value_name = "HOW")]
    speculative: Option<DraftSource>,

    /// A smaller model of the same vocabulary that guesses: a file, a folder, or a repository.
    #[arg(long, value_name = "PATH|REPO")]
    draft_model: Option<String>,

    /// Most guesses for a sequence in a step.
    #[arg(long, default_value_t = SpeculationOptions::default().max, value_name = "N")]
    draft_max: usize,

    /// Fewer guesses than this are not checked.
    #[arg(long, default_value_t = SpeculationOptions::default().min, value_name = "N")]
    draft_min: usize,

    /// A guess of model or mtp ends its guesses if it is less likely than this to it; 0 is off.
    #[arg(long, default_value_t = SpeculationOptions::default().least_probability, value_name = "P")]
    draft_p_min: f32,

    /// Last tokens that must have come before for a guess by ngram.
    #[arg(long, default_value_t = SpeculationOptions::default().shortest_match, value_name = "N")]
    ngram_min: usize,

    /// Last tokens that are compared by ngram: where most of them came is what counts.
    #[arg(long, default_value_t = SpeculationOptions::default().longest_match, value_name = "N")]
    ngram_max: usize,

    /// Check all guesses, also where measured times say that this is slower.
    #[arg(long)]
    draft_always: bool,
}

impl SpeculationArgs {
    fn source(&self) -> DraftSource {
        self.speculative.unwrap_or(match self.draft_model {
            Some(_) => DraftSource::Model,
            None => DraftSource::Off,
        })
    }

    /// Whether the model's own heads are to guess.
    pub(super) fn wants_head(&self) -> bool {
        self.source() == DraftSource::Head
    }

    /// A loaded model with the one that guesses for it, if that is asked for.
    ///
    /// # Errors
    /// Those of finding and loading it, and [`worker::Error::Usage`] if it does not fit.
    pub(super) fn with_draft(
        &self,
        model: LoadedModel,
        source: &SourceArgs,
        device: &Device,
        options: &LoadOptions,
    ) -> Result<LoadedModel> {
        match self.draft_file(source)? {
            Some(draft) => {
                let file = ModelFile::open(&draft)?;
                model.with_draft(file.load(device, &of_draft(options))?)
            }
            None => Ok(model),
        }
    }

    /// Where the model that guesses is, if one is asked for.
    ///
    /// # Errors
    /// Those of finding it.
    pub(super) fn draft_file(&self, source: &SourceArgs) -> Result<Option<PathBuf>> {
        let draft = self.draft_model.as_ref();
        let draft = draft.filter(|_| self.source() == DraftSource::Model);
        draft.map(|draft| source.resolve_other(draft)).transpose()
    }

    /// What they come to.
    pub(super) fn options(&self) -> SpeculationOptions {
        SpeculationOptions {
            source: self.source(),
            max: self.draft_max,
            min: self.draft_min,
            shortest_match: self.ngram_min,
            longest_match: self.ngram_max,
            least_probability: self.draft_p_min,
            adaptive: !self.draft_always,
        }
    }
}

/// How a model is loaded that guesses for one that is loaded like this.
pub(super) fn of_draft(options: &LoadOptions) -> LoadOptions {
    LoadOptions {
        context: options.context,
        // Of the large model's layers.
        weights: WeightOptions {
            host_experts: None,
            ..options.weights
        },
        ..LoadOptions::default()
    }
}
