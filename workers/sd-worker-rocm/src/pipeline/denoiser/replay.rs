//! Evaluations that are recorded as graphs and repeated.
//!
//! An evaluation of a UNet is hundreds of launches, and enqueuing them takes the host longer than the device needs for
//! small pictures. The first evaluation of a picture is enqueued launch by launch, which loads and chooses whatever it
//! needs. The second one is recorded, from then on each is one graph: latents and the numbers that the network is told
//! are copied to where the graph reads them, its output is copied from where it writes it.
//!
//! A graph lives as long as the run of steps that it belongs to: it is gone before a picture is decoded, and before
//! weights change. Whether it computes what its launches do is found out once for each course of each shape: it is
//! recorded at the first evaluation's noise level and tried at the second's, so that whatever does not follow the level
//! is found, too.

use super::run::{Evaluate, Part};
use crate::models::time::{Level, Rows};
use crate::sampling::NoiseLevel;
use candle_core::rocm_backend::candle_rocm::config::Verify;
use candle_core::rocm_backend::candle_rocm::{Capture, Device as Rocm, Graph};
use candle_core::{DType, Device, Result, Tensor};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use worker::graphs::{make_room, GraphUse, Graphs, Refusal, Tries};

/// Which launches an evaluation enqueues, or why they are not to be recorded.
pub type Course = std::result::Result<Vec<usize>, &'static str>;

/// Evaluations with equal ones enqueue the same launches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    /// Dimensions of the latents.
    latents: Vec<usize>,
    course: Vec<usize>,
}

/// How evaluations were enqueued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Graphs that were recorded.
    pub recorded: usize,
    /// Evaluations by graphs.
    pub replayed: usize,
}

/// What a denoiser knows of its recordings.
#[derive(Debug, Default)]
pub struct Recordings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    graphs: Graphs,
    /// Why there are none at all.
    never: Option<&'static str>,
    /// What was found to compute what its launches do.
    right: HashSet<Kind>,
    /// What could not be recorded, and why: it is not tried again.
    failed: HashMap<Kind, String>,
    counts: Counts,
    /// Why the last evaluation that was not recorded was not.
    launched: Option<String>,
}

impl Recordings {
    /// None yet, on this device.
    pub fn new(graphs: GraphUse, device: &Device) -> Self {
        let never = match (graphs, device.is_rocm()) {
            (_, false) => Some("graphs are for GPUs"),
            (GraphUse::Off, _) => Some("graphs are off"),
            (GraphUse::Auto | GraphUse::On, true) => None,
        };
        Self(Mutex::new(State {
            graphs: Graphs::new("denoising", graphs, device),
            never,
            ..State::default()
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What it holds is whole at every point.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How evaluations were enqueued so far.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Why evaluations are not recorded, if the last ones were not.
    pub fn refusal(&self) -> Option<String> {
        self.state().launched.clone()
    }

    /// Why nothing is recorded now.
    fn off(&self) -> Option<String> {
        let state = self.state();
        match (state.never, state.graphs.are_on()) {
            (Some(never), _) => Some(never.to_string()),
            (None, true) => None,
            (None, false) => Some(state.graphs.off().unwrap_or("graphs are off").to_string()),
        }
    }
}

/// An evaluation that is recorded, where that can be.
pub struct Replayed {
    /// Before what it reads, so that it is gone first.
    present: RefCell<Option<Present>>,
    evaluation: Box<dyn Evaluate>,
    recordings: Arc<Recordings>,
    /// Why it is not recorded.
    never: Option<&'static str>,
}

/// What is known of evaluations of the present kind.
struct Present {
    kind: Kind,
    stage: Stage,
    tries: Tries,
}

enum Stage {
    /// One was enqueued.
    Seen(Seen),
    Recorded(Recorded),
    /// There is no graph.
    Launches(String),
}

/// What the first evaluation of a kind has left.
struct Seen {
    rows: Rows,
    level: NoiseLevel,
    part: Part,
}

struct Recorded {
    graph: Graph,
    input: Tensor,
    rows: Rows,
    output: Tensor,
}

impl Replayed {
    /// Recorded with the others of its denoiser.
    pub fn new(evaluation: Box<dyn Evaluate>, recordings: &Arc<Recordings>) -> Self {
        Self {
            present: RefCell::default(),
            evaluation,
            recordings: recordings.clone(),
            never: None,
        }
    }

    /// Not recorded, for this reason.
    #[must_use]
    pub fn never(self, why: &'static str) -> Self {
        Self {
            never: Some(why),
            ..self
        }
    }

    /// The network's output, as [`Evaluate::evaluate`] has it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn evaluate(&self, x: &Tensor, level: &NoiseLevel, part: Part) -> Result<Tensor> {
        let kind = match self.course(x, part) {
            Ok(kind) => kind,
            Err(why) => return self.launch(x, level, part, why),
        };
        let mut present = self.present.borrow_mut();
        if present.as_ref().is_some_and(|present| present.kind != kind) {
            // Its memory is given back before the next one's is taken.
            *present = None;
        }
        match &mut *present {
            Some(present) => self.again(present, x, level, part),
            none => {
                let rows = Rows::default();
                let output = self.evaluation.evaluate(x, &rows.level(*level), part)?;
                let stage = match rows.complete() {
                    Ok(()) => Stage::Seen(Seen {
                        rows,
                        level: *level,
                        part,
                    }),
                    Err(why) => Stage::Launches(why.to_string()),
                };
                *none = Some(Present {
                    kind,
                    stage,
                    tries: Tries::default(),
                });
                Ok(output)
            }
        }
    }

    /// What decides whether an evaluation is recorded: the kind that it is of, or why it is not.
    fn course(&self, x: &Tensor, part: Part) -> std::result::Result<Kind, String> {
        if let Some(why) = self.never {
            return Err(why.to_string());
        }
        if let Some(why) = self.recordings.off() {
            return Err(why);
        }
        let kind = Kind {
            latents: x.dims().to_vec(),
            course: self.evaluation.course(part)?,
        };
        match self.recordings.state().failed.get(&kind) {
            Some(why) => Err(why.clone()),
            None => Ok(kind),
        }
    }

    /// Enqueues an evaluation launch by launch.
    fn launch(&self, x: &Tensor, level: &NoiseLevel, part: Part, why: String) -> Result<Tensor> {
        self.recordings.state().launched = Some(why);
        self.evaluation.evaluate(x, &Level::new(*level), part)
    }

    /// A further evaluation of a kind.
    fn again(
        &self,
        present: &mut Present,
        x: &Tensor,
        level: &NoiseLevel,
        part: Part,
    ) -> Result<Tensor> {
        let seen = match &mut present.stage {
            Stage::Recorded(recorded) => {
                self.recordings.state().counts.replayed += 1;
                return recorded.replay(x, level);
            }
            Stage::Launches(why) => return self.launch(x, level, part, why.clone()),
            Stage::Seen(_) if part.step + 1 >= part.steps => {
                let why = "no step is left that would repeat it";
                return self.launch(x, level, part, why.to_string());
            }
            Stage::Seen(seen) => seen,
        };
        let Device::Rocm(device) = x.device() else {
            candle_core::bail!("a graph on a device that has none")
        };
        let device = device.device().clone();
        let is_right = device.config().verify == Verify::Off
            || self.recordings.state().right.contains(&present.kind);
        let expected = match is_right {
            true => None,
            false => Some(self.evaluation.evaluate(x, &Level::new(*level), part)?),
        };
        let found = self
            .record(seen, x, &device)
            .and_then(|recorded| Ok((recorded.replay(x, level)?, recorded)))
            .and_then(|(output, recorded)| match &expected {
                None => Ok((output, recorded)),
                Some(expected) => match difference(expected, &output)? {
                    None => Ok((output, recorded)),
                    Some(how) => Err(Refusal::Differs(how)),
                },
            });
        let mut state = self.recordings.state();
        match found {
            Ok((output, recorded)) => {
                state.right.insert(present.kind.clone());
                state.counts.recorded += 1;
                state.counts.replayed += 1;
                state.launched = None;
                tracing::debug!(
                    "a graph of {} launches for latents {:?}",
                    recorded.graph.recorded(),
                    present.kind.latents
                );
                present.stage = Stage::Recorded(recorded);
                Ok(output)
            }
            Err(refusal) => {
                let why = told(&refusal);
                if let Refusal::Failed(_) = &refusal {
                    state.failed.insert(present.kind.clone(), why.clone());
                }
                (state.graphs).refused(refusal, &mut present.tries, x.device());
                state.launched = Some(why.clone());
                drop(state);
                let lost = matches!(&present.stage, Stage::Seen(seen) if !seen.rows.are_complete());
                if lost || !present.tries.go_on() {
                    present.stage = Stage::Launches(why);
                }
                match expected {
                    Some(expected) => Ok(expected),
                    None => self.evaluation.evaluate(x, &Level::new(*level), part),
                }
            }
        }
    }

    /// Records an evaluation like the one that was seen.
    fn record(
        &self,
        seen: &mut Seen,
        x: &Tensor,
        device: &Rocm,
    ) -> std::result::Result<Recorded, Refusal> {
        let input = x.force_contiguous()?;
        make_room(device)?;
        let capture = Capture::begin(device)?;
        let output = (self.evaluation).evaluate(&input, &seen.rows.level(seen.level), seen.part)?;
        let output = output.contiguous()?;
        let graph = capture.end()?;
        Ok(Recorded {
            graph,
            input,
            rows: std::mem::take(&mut seen.rows),
            output,
        })
    }
}

impl Recorded {
    /// Enqueues the evaluation, and gives a copy of its output.
    fn replay(&self, x: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        self.input.slice_set(&x.contiguous()?, 0, 0)?;
        self.rows.fill(level)?;
        // SAFETY: the input, the rows and the output are here; weights and conditions are the evaluation's, which lives as
        // long as this.
        unsafe { self.graph.launch()? };
        self.output.copy()
    }
}

/// In what a graph's output differs from its launches', in words.
fn difference(launches: &Tensor, graph: &Tensor) -> Result<Option<String>> {
    let bits = |x: &Tensor| -> Result<Vec<u32>> {
        let numbers = x.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        Ok(numbers.into_iter().map(f32::to_bits).collect())
    };
    let (launches, graph) = (bits(launches)?, bits(graph)?);
    let differ = launches.iter().zip(&graph).filter(|(a, b)| a != b).count();
    Ok((differ > 0).then(|| {
        format!(
            "{differ} of {} numbers of a graph differ from those of its launches",
            launches.len()
        )
    }))
}

/// A refusal in words, for those who ask why nothing is recorded.
fn told(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Memory(_) | Refusal::Room(_) => {
            "the device's memory does not suffice for a graph".to_string()
        }
        Refusal::Failed(error) => format!("it cannot be recorded: {error}"),
        Refusal::Differs(how) => how.clone(),
    }
}
