//! vLLM's events as MessagePack.
//!
//! A message is a list of its time, its events and the rank of the engine among data-parallel ones; an event is a map
//! whose `type` tells which it is (vLLM 0.24 and later).

use crate::engine::api::BlockEvent;
use serde::Serialize;

/// Where blocks are, in vLLM's words: the memory that the engine computes in, whatever the device.
const MEDIUM: &str = "GPU";
/// The rank of an engine that has no others beside it.
const RANK: u32 = 0;

#[derive(Serialize)]
#[serde(tag = "type")]
enum Event<'a> {
    BlockStored {
        block_hashes: &'a [u64],
        parent_block_hash: Option<u64>,
        token_ids: &'a [u32],
        block_size: usize,
        /// Blocks of adapters are not told.
        lora_id: Option<u32>,
        medium: &'a str,
        lora_name: Option<&'a str>,
    },
    BlockRemoved {
        block_hashes: &'a [u64],
        medium: &'a str,
    },
    AllBlocksCleared {},
}

impl<'a> From<&'a BlockEvent> for Event<'a> {
    fn from(event: &'a BlockEvent) -> Self {
        match event {
            BlockEvent::Stored {
                hashes,
                parent,
                tokens,
                block_size,
            } => Self::BlockStored {
                block_hashes: hashes,
                parent_block_hash: *parent,
                token_ids: tokens,
                block_size: *block_size,
                lora_id: None,
                medium: MEDIUM,
                lora_name: None,
            },
            BlockEvent::Removed { hashes } => Self::BlockRemoved {
                block_hashes: hashes,
                medium: MEDIUM,
            },
            BlockEvent::Cleared => Self::AllBlocksCleared {},
        }
    }
}

/// A message's last frame: events of a moment in seconds since 1970.
///
/// # Errors
/// Those of the encoder.
pub fn encode(at: f64, events: &[BlockEvent]) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let events: Vec<Event> = events.iter().map(Event::from).collect();
    rmp_serde::to_vec_named(&(at, events, RANK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    #[test]
    fn events_are_maps_in_a_list() {
        let events = [
            BlockEvent::Cleared,
            BlockEvent::Stored {
                hashes: vec![u64::MAX, 7],
                parent: Some(5),
                tokens: vec![1, 70_000],
                block_size: 1,
            },
            BlockEvent::Removed { hashes: vec![7] },
        ];
        let bytes = encode(1.5, &events).unwrap();
        let value: Value = rmp_serde::from_slice(&bytes).unwrap();
        let stored = json!({
            "type": "BlockStored",
            "block_hashes": [u64::MAX, 7],
            "parent_block_hash": 5,
            "token_ids": [1, 70_000],
            "block_size": 1,
            "lora_id": null,
            "medium": "GPU",
            "lora_name": null,
        });
        let expected = json!([
            1.5,
            [
                {"type": "AllBlocksCleared"},
                stored,
                {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
            ],
            0
        ]);
        assert_eq!(value, expected);
    }
}
