//! How nodes meet, and what becomes of them.

use super::about::About;
use candle_rocm_collective::rendezvous::{Meeting, Rendezvous};
use candle_rocm_collective::{Error as GroupError, Lifeline};
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::{Error, Result};

/// How often a wait looks whether the group has failed.
const POLL: Duration = Duration::from_millis(10);
/// What fails on several nodes at once has one cause, which each learns within this time: a connection that was closed.
const CAUSE: Duration = Duration::from_secs(1);

/// Nodes that have met and fit.
#[derive(Debug)]
pub struct Met {
    pub(super) meeting: Meeting,
    /// What each node has and runs.
    pub(super) abouts: Vec<About>,
    pub(super) fate: Fate,
}

impl Met {
    /// Waits for all nodes, and compares what they run. Who is missing is logged, and so are strangers.
    ///
    /// # Errors
    /// [`Error::Runtime`] if not all come in time, or this one is sent away; [`Error::Usage`] on all nodes if one does
    /// not fit, with who and why; [`Error::DeviceLost`] if one ends meanwhile.
    pub fn new(rendezvous: &Rendezvous, about: &About) -> Result<Self> {
        let card = serde_json::to_vec(about).map_err(|e| Error::Runtime(e.to_string()))?;
        let meeting = rendezvous.meet_telling(&card, |line| tracing::warn!("{line}"));
        let mut meeting = meeting.map_err(|error| Error::Runtime(error.to_string()))?;
        let cards = meeting.cards().iter().enumerate();
        let abouts = cards.map(|(node, card)| {
            serde_json::from_slice(card).map_err(|e| {
                Error::Usage(format!(
                    "node {node} says what it runs in another way than this version does: {e}"
                ))
            })
        });
        let abouts: Vec<About> = abouts.collect::<Result<_>>()?;
        let names = abouts.iter().zip(meeting.addresses()).enumerate();
        let names: Vec<String> = names
            .map(|(node, (about, address))| format!("node {node} ({}, {address})", about.host))
            .collect();
        for (about, name) in abouts.iter().zip(&names) {
            if let Some(difference) = abouts[0].difference(about) {
                return Err(Error::Usage(format!("{name} {difference}")));
            }
        }
        // A rank for each node.
        let lifeline = Lifeline::new(&mut meeting, &vec![1; names.len()]).map_err(lost)?;
        let fate = Fate {
            node: meeting.node(),
            names: names.into(),
            lifeline: Arc::new(lifeline),
        };
        Ok(Self {
            meeting,
            abouts,
            fate,
        })
    }

    /// What each node has and runs, node 0 first.
    pub fn abouts(&self) -> &[About] {
        &self.abouts
    }

    /// What becomes of the group.
    pub fn fate(&self) -> &Fate {
        &self.fate
    }
}

/// An error between nodes, after they have met.
pub(super) fn lost(error: GroupError) -> Error {
    Error::DeviceLost(error.to_string())
}

/// What becomes of a group of nodes: it works until a node fails, which all learn. As long as one of these lives, the
/// others see this node alive.
#[derive(Clone, Debug)]
pub struct Fate {
    node: usize,
    names: Arc<[String]>,
    lifeline: Arc<Lifeline>,
}

impl Fate {
    /// Tells all nodes that this one has failed, unless another has already.
    pub fn fail(&self, reason: &str) {
        self.lifeline.fail(self.node, reason);
    }

    /// Who has failed and how, if somebody has.
    pub fn reason(&self) -> Option<String> {
        self.failure().map(|(_, reason)| reason)
    }

    fn failure(&self) -> Option<(usize, String)> {
        let failure = self.lifeline.failure()?;
        Some((node_of(&failure), told(&self.names, &failure)))
    }

    /// Who is the cause of an error that a group's failure would explain: waits a moment for it.
    pub fn cause(&self) -> Option<String> {
        self.failing_node().map(|(_, reason)| reason)
    }

    /// The same with the node's number.
    pub(super) fn failing_node(&self) -> Option<(usize, String)> {
        let end = Instant::now() + CAUSE;
        loop {
            match self.failure() {
                None if Instant::now() < end => std::thread::sleep(POLL),
                failure => return failure,
            }
        }
    }

    /// Has `hook` called when a node fails, at once if one has.
    pub fn on_failure(&self, hook: impl FnOnce(&str) + Send + 'static) {
        self.on_node_failure(move |_, reason| hook(reason));
    }

    /// The same of a hook that wants to know which node it is.
    pub(super) fn on_node_failure(&self, hook: impl FnOnce(usize, &str) + Send + 'static) {
        let names = self.names.clone();
        let call = move |failure: &GroupError| {
            hook(node_of(failure), &told(&names, failure));
        };
        self.lifeline.on_failure(call);
    }

    /// What a node is called: its number, host and address.
    pub fn name(&self, node: usize) -> &str {
        self.names.get(node).map_or("another node", String::as_str)
    }
}

/// Which node has failed: each is one rank of the lifeline.
fn node_of(failure: &GroupError) -> usize {
    match failure {
        GroupError::RankFailed { rank, .. } => *rank,
        _ => 0,
    }
}

fn told(names: &[String], failure: &GroupError) -> String {
    match failure {
        GroupError::RankFailed { rank, reason, .. } if *rank < names.len() => {
            format!("{}: {reason}", names[*rank])
        }
        other => other.to_string(),
    }
}
