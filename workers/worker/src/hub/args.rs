//! The arguments that say how Hugging Face models are found.

use super::HubOptions;
use clap::Args;

/// Where models of the hub come from.
#[derive(Debug, Clone, Args)]
pub struct HubArgs {
    /// Branch, tag or commit of a Hugging Face model.
    #[arg(long, value_name = "REV")]
    revision: Option<String>,

    /// Take Hugging Face models from the cache only.
    #[arg(long)]
    offline: bool,
}

impl HubArgs {
    /// The same as options; what is not given is Hugging Face's own environment.
    pub fn options(&self) -> HubOptions {
        let mut options = HubOptions::from_env();
        options.offline |= self.offline;
        if let Some(revision) = &self.revision {
            options.revision.clone_from(revision);
        }
        options
    }
}
