//! `--kv-events` and its kin.

use crate::kv_events::{endpoint, KvEventOptions, Publisher};
use clap::Args;
use worker::Result;

/// What routers are told of the cache.
#[derive(Debug, Args)]
pub(super) struct KvEventArgs {
    /// Publish what the cache knows of prompts, as vLLM does, over ZeroMQ at this endpoint (tcp://*:5557), for routers
    /// that send a prompt to where its beginning is. Whoever reaches it reads the tokens of all prompts.
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint, conflicts_with = "no_prefix_cache")]
    kv_events: Option<String>,

    /// Answer subscribers that have missed events, at this endpoint (tcp://*:5558).
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint, requires = "kv_events")]
    kv_events_replay: Option<String>,

    /// The topic of events; llm-d wants kv@POD-ADDRESS@MODEL.
    #[arg(long, default_value = "", value_name = "TEXT", requires = "kv_events")]
    kv_events_topic: String,

    /// Messages that are kept for subscribers that have missed them.
    #[arg(
        long,
        default_value_t = 10_000,
        value_name = "N",
        requires = "kv_events"
    )]
    kv_events_kept: usize,
}

impl KvEventArgs {
    /// The publisher, started, if one is asked for.
    ///
    /// # Errors
    /// Those of [`Publisher::start`].
    pub(super) fn publisher(&self) -> Result<Option<Publisher>> {
        let Some(endpoint) = &self.kv_events else {
            return Ok(None);
        };
        Publisher::start(&KvEventOptions {
            endpoint: endpoint.clone(),
            replay: self.kv_events_replay.clone(),
            topic: self.kv_events_topic.clone(),
            kept: self.kv_events_kept,
        })
        .map(Some)
    }
}
