//! Arguments that have several hosts run one model.

use crate::adapters::AdapterSource;
use crate::engine::group::nodes::{About, Card, Fate, Follower, Leader, Met};
use crate::model::{Hosts, ModelFile};
use candle_core::Device;
use candle_rocm_collective::rendezvous::{Place, Rendezvous, DEFAULT_PORT, TOKEN_VARIABLE};
use clap::Args;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use worker::device::Selected;
use worker::error::EXIT_DEVICE_LOST;
use worker::signal::end_this_process;
use worker::{file, Error, Result};

/// Longest file with a token.
const MAX_TOKEN_BYTES: u64 = 4096;
/// How long a node has to end by itself when another has failed.
const FAREWELL: Duration = Duration::from_secs(3);

/// How many hosts run a model, and where they meet.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Several hosts")]
pub struct NodeArgs {
    /// Run the model on so many hosts together, each with this program and the same command; auto takes their number,
    /// this one's and the meeting place from the launcher: mpirun, srun, torchrun or Kubernetes' LeaderWorkerSet.
    #[arg(long, value_name = "N|auto")]
    nnodes: Option<NodeCount>,

    /// Which of these hosts this is, from 0 on: node 0 answers, the others have a part of the model; the launcher's
    /// word if absent.
    #[arg(long, value_name = "N", requires = "nnodes")]
    node_rank: Option<usize>,

    /// Where the hosts meet: node 0's name or address, and a port there that is free; the launcher's word if absent.
    #[arg(long, value_name = "HOST[:PORT]", requires = "nnodes")]
    rendezvous: Option<String>,

    /// Seconds that hosts wait for each other at the start.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    rendezvous_timeout: u64,

    /// A file with a secret that all hosts know; that of the variable CANDLE_ROCM_TOKEN if absent, or else the number
    /// of the launcher's job.
    #[arg(long, value_name = "FILE")]
    rendezvous_token_file: Option<PathBuf>,
}

/// How many hosts there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeCount {
    /// As many as the launcher says.
    Auto,
    /// So many.
    Given(usize),
}

impl FromStr for NodeCount {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => match text.parse() {
                Ok(count) if count > 0 => Ok(Self::Given(count)),
                _ => Err(format!("{text:?} is not a number of hosts, nor auto")),
            },
        }
    }
}

impl NodeArgs {
    /// Whether several hosts are asked for, as far as that is known without the launcher.
    pub(super) fn is_wanted(&self) -> bool {
        !matches!(self.nnodes, None | Some(NodeCount::Given(1)))
    }

    /// Where and with whom this process meets the others; none if it is alone.
    ///
    /// # Errors
    /// [`Error::Usage`] for what neither arguments nor launcher say, or where they contradict each other.
    pub(super) fn rendezvous(&self) -> Result<Option<Rendezvous>> {
        let Some(count) = self.nnodes else {
            return Ok(None);
        };
        let place = Place::from_env().map_err(|error| Error::Usage(error.to_string()))?;
        self.rendezvous_of(count, place)
    }

    fn rendezvous_of(&self, count: NodeCount, place: Option<Place>) -> Result<Option<Rendezvous>> {
        let usage = |reason: String| Err(Error::Usage(reason));
        let launcher = place
            .as_ref()
            .map(|place| (place.launcher.name(), place.size));
        let nodes = match (count, launcher) {
            (NodeCount::Given(1), _) => return Ok(None),
            (NodeCount::Given(count), Some((name, size)))
                if count != size && self.node_rank.is_none() =>
            {
                return usage(format!(
                    "--nnodes {count}, but {name} has started {size} processes: start one on each host"
                ))
            }
            (NodeCount::Given(count), _) => count,
            (NodeCount::Auto, Some((_, size))) => size,
            (NodeCount::Auto, None) => {
                tracing::warn!(
                    "--nnodes auto: no launcher says that there are several processes, so this one runs alone"
                );
                return Ok(None);
            }
        };
        let Some(node_rank) = self.node_rank.or(place.as_ref().map(|place| place.rank)) else {
            return usage(format!(
                "--nnodes {nodes}: which of them is this? Give --node-rank, from 0 to {}",
                nodes - 1
            ));
        };
        if node_rank >= nodes {
            return usage(format!(
                "--node-rank {node_rank}: {nodes} nodes are 0 to {}",
                nodes - 1
            ));
        }
        let host = place.as_ref().and_then(|place| place.host.clone());
        let Some(host) = self.rendezvous.clone().or(host) else {
            return usage(
                "where do the nodes meet? Give --rendezvous HOST:PORT, an address of node 0 and a free port there"
                    .to_string(),
            );
        };
        let port = place.as_ref().map_or(DEFAULT_PORT, |place| place.port);
        Ok(Some(Rendezvous {
            address: with_port(&host, port),
            node_rank,
            nodes,
            timeout: Duration::from_secs(self.rendezvous_timeout),
            token: self.token(place)?,
        }))
    }

    /// What all nodes know.
    fn token(&self, place: Option<Place>) -> Result<String> {
        if let Some(path) = &self.rendezvous_token_file {
            let text = file::read(path, MAX_TOKEN_BYTES).map_err(Error::io(path))?;
            let text = String::from_utf8(text).ok();
            let token = text
                .as_deref()
                .map(str::trim)
                .filter(|token| !token.is_empty());
            return token.map(str::to_string).ok_or_else(|| {
                Error::Usage(format!("{}: there is no token in it", path.display()))
            });
        }
        let given = std::env::var(TOKEN_VARIABLE).ok();
        let given = given
            .map(|token| token.trim().to_string())
            .filter(|token| !token.is_empty());
        given.or(place.and_then(|place| place.token)).ok_or_else(|| {
            Error::Usage(format!(
                "nodes know each other by a secret: set {TOKEN_VARIABLE} to the same one on all hosts, or give --rendezvous-token-file"
            ))
        })
    }

    /// Whether this process is a node that has a part of the model and no more.
    ///
    /// # Errors
    /// Those of [`Self::rendezvous`].
    pub(super) fn follows(&self) -> Result<bool> {
        Ok((self.rendezvous()?).is_some_and(|rendezvous| rendezvous.node_rank > 0))
    }

    /// Meets the nodes that this one leads; none if it is alone.
    ///
    /// # Errors
    /// Those of [`Self::rendezvous`] and [`Met::new`].
    pub(super) fn lead(&self, own: &Own) -> Result<Option<Hosts>> {
        let Some(met) = self.meet(own)? else {
            return Ok(None);
        };
        let leader = Leader::new(met)?;
        end_soon_after(leader.fate());
        Ok(Some(Hosts {
            leader: Arc::new(leader),
            devices: own.devices(),
        }))
    }

    /// Has a part of the model, until node 0 has done its work; `ready` is called each time that the part is loaded.
    ///
    /// # Errors
    /// Those of [`Self::rendezvous`] and [`Met::new`], what failed here, or [`Error::DeviceLost`] with who failed
    /// elsewhere.
    pub(super) fn follow(&self, own: &Own, mut ready: impl FnMut()) -> Result<()> {
        let Some(met) = self.meet(own)? else {
            return Err(Error::Usage("node 0 follows nobody".to_string()));
        };
        let follower = Follower::new(met)?;
        end_soon_after(follower.fate());
        follower.serve(|loading, joining| {
            let (node, nodes) = joining.place();
            let devices = own.devices();
            let file = ModelFile::open(own.path)?;
            let part = file.load_part(loading, joining, &devices, own.adapters)?;
            let has = loading.plan.of_node(node);
            tracing::info!("node {node} of {nodes} has {has}, until node 0 ends");
            ready();
            Ok(part)
        })
    }

    fn meet(&self, own: &Own) -> Result<Option<Met>> {
        let Some(rendezvous) = self.rendezvous()? else {
            return Ok(None);
        };
        let adapters: Vec<&Path> = own
            .adapters
            .iter()
            .map(|adapter| adapter.path.as_path())
            .collect();
        let about = About::of(
            own.command,
            own.path,
            &adapters,
            own.selected.iter().map(Card::of).collect(),
        )?;
        tracing::info!(
            "node {} of {}: meeting the others at {}",
            rendezvous.node_rank,
            rendezvous.nodes,
            rendezvous.address
        );
        Met::new(&rendezvous, &about).map(Some)
    }
}

/// What this node brings.
pub(super) struct Own<'a> {
    /// What the process was started for.
    pub command: &'static str,
    /// The model.
    pub path: &'a Path,
    /// Adapters beside it.
    pub adapters: &'a [AdapterSource],
    /// What it computes on.
    pub selected: &'a [Selected],
}

impl Own<'_> {
    fn devices(&self) -> Vec<Device> {
        let selected = self.selected.iter();
        selected.map(|one| one.device.clone()).collect()
    }
}

/// Ends the process when the group has failed and it does not come to an end by itself: a computation may wait for ever.
fn end_soon_after(fate: &Fate) {
    fate.on_failure(|reason| {
        let reason = reason.to_string();
        let end = move || {
            std::thread::sleep(FAREWELL);
            tracing::error!("{reason}");
            end_this_process(EXIT_DEVICE_LOST);
        };
        // Without a thread it ends when the computation does.
        let _ = std::thread::Builder::new()
            .name("end".to_string())
            .spawn(end);
    });
}

/// An address with a port; colons without brackets around them are those of an IPv6 address.
fn with_port(host: &str, port: u16) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(before, after)| {
        after.parse::<u16>().is_ok() && (!before.contains(':') || before.ends_with(']'))
    });
    match (has_port, host.contains(':') && !host.starts_with('[')) {
        (true, _) => host.to_string(),
        (false, true) => format!("[{host}]:{port}"),
        (false, false) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_rocm_collective::rendezvous::Launcher;

    fn place(rank: usize, host: Option<&str>) -> Place {
        Place {
            launcher: Launcher::OpenMpi,
            rank,
            size: 3,
            local_rank: None,
            host: host.map(str::to_string),
            port: 1234,
            token: Some("job".to_string()),
        }
    }

    #[test]
    fn addresses_have_ports() {
        for (host, expected) in [
            ("gpu3", "gpu3:7"),
            ("gpu3:29", "gpu3:29"),
            ("10.0.0.1", "10.0.0.1:7"),
            ("fd00::1", "[fd00::1]:7"),
            ("[fd00::1]", "[fd00::1]:7"),
            ("[fd00::1]:29", "[fd00::1]:29"),
        ] {
            assert_eq!(with_port(host, 7), expected);
        }
    }

    #[test]
    fn arguments_come_before_the_launchers_word() {
        let args = NodeArgs::default();
        let of = |args: &NodeArgs, count, place| args.rendezvous_of(count, place);
        let auto = of(&args, NodeCount::Auto, Some(place(2, Some("first"))))
            .unwrap()
            .unwrap();
        assert_eq!(auto.address, "first:1234");
        assert_eq!((auto.node_rank, auto.nodes), (2, 3));
        assert_eq!(of(&args, NodeCount::Auto, None).unwrap(), None);
        assert_eq!(
            of(&args, NodeCount::Given(1), Some(place(0, None))).unwrap(),
            None
        );
        let given = NodeArgs {
            node_rank: Some(1),
            rendezvous: Some("second".to_string()),
            ..NodeArgs::default()
        };
        let found = of(&given, NodeCount::Given(2), Some(place(0, Some("first"))))
            .unwrap()
            .unwrap();
        assert_eq!(found.address, "second:1234");
        assert_eq!((found.node_rank, found.nodes), (1, 2));
    }

    #[test]
    fn what_is_missing_is_named() {
        let args = NodeArgs::default();
        let refused = |args: &NodeArgs, count, place| {
            let error = args
                .rendezvous_of(NodeCount::Given(count), place)
                .unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        assert!(refused(&args, 2, None).contains("--node-rank, from 0 to 1"));
        assert!(refused(&args, 2, Some(place(0, None))).contains("has started 3 processes"));
        assert!(refused(&args, 3, Some(place(0, None))).contains("--rendezvous HOST:PORT"));
        let ranked = |rank| NodeArgs {
            node_rank: Some(rank),
            rendezvous: Some("x".to_string()),
            ..NodeArgs::default()
        };
        assert!(refused(&ranked(2), 2, None).contains("2 nodes are 0 to 1"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, " \n").unwrap();
        let mut with_file = ranked(0);
        with_file.rendezvous_token_file = Some(path.clone());
        assert!(refused(&with_file, 2, None).contains("no token in it"));
        std::fs::write(&path, "secret\n").unwrap();
        let found = with_file
            .rendezvous_of(NodeCount::Given(2), None)
            .unwrap()
            .unwrap();
        assert_eq!(found.token, "secret");
    }
}
