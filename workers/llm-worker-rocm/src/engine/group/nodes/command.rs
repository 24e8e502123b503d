//! What ranks are told and answer, as messages.

use super::tensor::WireTensor;
use super::wire::Bytes;
use crate::engine::api::{AdapterUse, GraphUse, KvTypes};
use crate::engine::decoder::Layout;
use crate::engine::forward::{CacheOptions, CachePart, HeadStep, Step};
use crate::engine::group::command::{Command, Told};
use crate::engine::group::failure::Failed;
use crate::engine::media::{Ahead, Features, StepMedia, Turn};
use crate::engine::snapshots::Place;
use candle_core::{Device, Error, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// A [`Command`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireCommand<'a> {
    Pass {
        step: Cow<'a, Step>,
        media: Option<WireMedia>,
        uses: Vec<Vec<AdapterUse>>,
        rows: usize,
    },
    Decode {
        step: Cow<'a, Step>,
        uses: Vec<Vec<AdapterUse>>,
    },
    Predict(Cow<'a, HeadStep>),
    Reserve(CacheOptions),
    SetGraphs(GraphUse),
    Measure(KvTypes),
    Read(Place),
    Write(Place, Bytes),
    Stop,
}

/// What a step's rows have besides their tokens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireMedia {
    rows: Vec<(usize, WireTensor, Vec<WireTensor>)>,
    turns: Vec<Turn>,
    ahead: Vec<Ahead>,
}

/// What a rank that does not answer says to a command: [`Told`], or why it has failed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireTold {
    Done,
    Reserved(Layout),
    Measured(CachePart, Option<usize>),
    Bytes(Bytes),
    Failed(WireFailure),
}

/// Why a command has failed on a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireFailure {
    /// [`Failed::Group`]
    Group { rank: String, reason: String },
    /// [`Failed::Before`]
    Before(String),
    /// Anything else.
    Other(String),
}

impl<'a> WireCommand<'a> {
    /// As a message.
    ///
    /// # Errors
    /// If a device fails whose rows stand in for pictures.
    pub(super) fn of(command: &'a Command) -> Result<Self> {
        let plain = |uses: &[Arc<[AdapterUse]>]| uses.iter().map(|uses| uses.to_vec()).collect();
        Ok(match command {
            Command::Pass {
                step,
                media,
                uses,
                rows,
            } => Self::Pass {
                step: Cow::Borrowed(step),
                media: media.as_deref().map(WireMedia::of).transpose()?,
                uses: plain(uses),
                rows: *rows,
            },
            Command::Decode { step, uses } => Self::Decode {
                step: Cow::Borrowed(step),
                uses: plain(uses),
            },
            Command::Predict(step) => Self::Predict(Cow::Borrowed(step)),
            Command::Reserve(cache) => Self::Reserve(*cache),
            Command::SetGraphs(graphs) => Self::SetGraphs(*graphs),
            Command::Measure(types) => Self::Measure(*types),
            Command::Read(place) => Self::Read(*place),
            Command::Write(place, bytes) => Self::Write(*place, Bytes(bytes.to_vec())),
            Command::Stop => Self::Stop,
        })
    }

    /// The command, with tensors on a device.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn command(self, device: &Device) -> Result<Command> {
        let shared = |uses: Vec<Vec<AdapterUse>>| uses.into_iter().map(Arc::from).collect();
        Ok(match self {
            Self::Pass {
                step,
                media,
                uses,
                rows,
            } => Command::Pass {
                step: step.into_owned(),
                media: media
                    .map(|media| media.on(device))
                    .transpose()?
                    .map(Arc::new),
                uses: shared(uses),
                rows,
            },
            Self::Decode { step, uses } => Command::Decode {
                step: step.into_owned(),
                uses: shared(uses),
            },
            Self::Predict(step) => Command::Predict(step.into_owned()),
            Self::Reserve(cache) => Command::Reserve(cache),
            Self::SetGraphs(graphs) => Command::SetGraphs(graphs),
            Self::Measure(types) => Command::Measure(types),
            Self::Read(place) => Command::Read(place),
            Self::Write(place, bytes) => Command::Write(place, bytes.0.into()),
            Self::Stop => Command::Stop,
        })
    }
}

impl WireMedia {
    fn of(media: &StepMedia) -> Result<Self> {
        let rows = media.rows.iter().map(|(row, features)| {
            let deep = features.deep.iter().map(WireTensor::of);
            let rows = WireTensor::of(&features.rows)?;
            Ok((*row, rows, deep.collect::<Result<_>>()?))
        });
        Ok(Self {
            rows: rows.collect::<Result<_>>()?,
            turns: media.turns.clone(),
            ahead: media.ahead.clone(),
        })
    }

    fn on(&self, device: &Device) -> Result<StepMedia> {
        let rows = self.rows.iter().map(|(row, rows, deep)| {
            let deep = deep.iter().map(|tensor| tensor.on(device));
            let features = Features {
                rows: rows.on(device)?,
                deep: deep.collect::<Result<_>>()?,
            };
            Ok((*row, features))
        });
        Ok(StepMedia {
            rows: rows.collect::<Result<_>>()?,
            turns: self.turns.clone(),
            ahead: self.ahead.clone(),
        })
    }
}

impl From<Result<Told>> for WireTold {
    fn from(told: Result<Told>) -> Self {
        match told {
            Ok(Told::Reserved(layout)) => Self::Reserved(layout),
            Ok(Told::Measured(part, window)) => Self::Measured(part, window),
            Ok(Told::Bytes(bytes)) => Self::Bytes(Bytes(bytes)),
            // Results are of use where they are asked for only.
            Ok(Told::Done | Told::Logits(_) | Told::Decoded(_) | Told::Predicted(_)) => Self::Done,
            Err(error) => Self::Failed(match Failed::of(&error) {
                Some(Failed::Group { rank, reason }) => WireFailure::Group {
                    rank: rank.clone(),
                    reason: reason.clone(),
                },
                Some(Failed::Before(reason)) => WireFailure::Before(reason.clone()),
                None => WireFailure::Other(error.to_string()),
            }),
        }
    }
}

impl From<WireTold> for Result<Told> {
    fn from(told: WireTold) -> Self {
        Ok(match told {
            WireTold::Done => Told::Done,
            WireTold::Reserved(layout) => Told::Reserved(layout),
            WireTold::Measured(part, window) => Told::Measured(part, window),
            WireTold::Bytes(bytes) => Told::Bytes(bytes.0),
            WireTold::Failed(WireFailure::Group { rank, reason }) => {
                return Err(Failed::Group { rank, reason }.into())
            }
            WireTold::Failed(WireFailure::Before(reason)) => {
                return Err(Failed::Before(reason).into())
            }
            WireTold::Failed(WireFailure::Other(text)) => return Err(Error::Msg(text)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{decode, encode};
    use super::*;
    use crate::engine::forward::StepSequence;
    use candle_core::Tensor;

    #[test]
    fn commands_come_back() {
        let features = Features {
            rows: Tensor::new(&[[1f32, 2.0]], &Device::Cpu).unwrap(),
            deep: vec![Tensor::new(&[[3f32, 4.0]], &Device::Cpu).unwrap()],
        };
        let media = StepMedia {
            rows: vec![(0, features)],
            turns: vec![[1, 2, 3]],
            ahead: Vec::new(),
        };
        let step = Step {
            tokens: vec![7, 70_000],
            sequences: vec![StepSequence {
                id: 5,
                blocks: vec![1, 300],
                keys: 2,
                rows: 2,
                ..StepSequence::default()
            }],
            outputs: vec![1],
        };
        let wish = AdapterUse {
            adapter: 1,
            scale: 0.5,
        };
        let pass = Command::Pass {
            step: step.clone(),
            media: Some(Arc::new(media)),
            uses: vec![Arc::from([wish])],
            rows: 512,
        };
        let place = Place::State(3);
        let write = Command::Write(place, Arc::from([1u8, 2]));
        let others = [
            Command::Decode {
                step,
                uses: Vec::new(),
            },
            Command::SetGraphs(GraphUse::Off),
            Command::Read(place),
            write,
            pass,
        ];
        for command in others {
            let bytes = encode(&WireCommand::of(&command).unwrap()).unwrap();
            let read: WireCommand = decode(&bytes).unwrap();
            let copy = read.command(&Device::Cpu).unwrap();
            assert_eq!(format!("{copy:?}"), format!("{command:?}"));
            if let Command::Pass { media, .. } = copy {
                let (_, features) = &media.as_ref().unwrap().rows[0];
                assert_eq!(features.rows.to_vec2::<f32>().unwrap(), [[1.0, 2.0]]);
                assert_eq!(features.deep[0].to_vec2::<f32>().unwrap(), [[3.0, 4.0]]);
            }
        }
    }

    #[test]
    fn failures_come_back() {
        let group = Failed::Group {
            rank: "rank 2".to_string(),
            reason: "it hangs".to_string(),
        };
        for failed in [group, Failed::Before("no room".to_string())] {
            let bytes = encode(&WireTold::from(Err(failed.clone().into()))).unwrap();
            let read: WireTold = decode(&bytes).unwrap();
            let error = Result::from(read).unwrap_err();
            assert_eq!(Failed::of(&error), Some(&failed));
        }
        let told = WireTold::from(Err(Error::msg("a shape")));
        let error = Result::from(told).unwrap_err();
        assert_eq!(Failed::of(&error), None);
        // A backtrace may follow.
        assert!(error.to_string().starts_with("a shape"), "{error}");
        let bytes = WireTold::from(Ok(Told::Bytes(vec![1, 2])));
        assert!(matches!(Result::from(bytes), Ok(Told::Bytes(bytes)) if bytes == [1, 2]));
    }
}
