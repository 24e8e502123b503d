//! What launchers put into the environment: which process this is, of how many, and where the first one is.

use super::{Rendezvous, TIMEOUT};
use crate::Error;

/// The variable that holds the token, if the job's number shall not be it.
pub const TOKEN_VARIABLE: &str = "CANDLE_ROCM_TOKEN";

/// The port of node 0 where nothing says another: that of PyTorch's launchers.
pub const DEFAULT_PORT: u16 = 29500;

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, or whoever sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` as it does.
    Torchrun,
    /// Kubernetes' LeaderWorkerSet: `LWS_WORKER_INDEX`, `LWS_GROUP_SIZE`, `LWS_LEADER_ADDRESS`.
    LeaderWorkerSet,
    /// Open MPI's `mpirun`: `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`.
    OpenMpi,
    /// Slurm's `srun`: `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_NODELIST`.
    Slurm,
    /// `mpirun` of MPICH and Intel MPI: `PMI_RANK`, `PMI_SIZE`.
    Mpich,
}

impl Launcher {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
            Self::OpenMpi => "Open MPI",
            Self::Slurm => "Slurm",
            Self::Mpich => "MPICH",
        }
    }
}

/// The place of a process among those that a launcher started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Who says so.
    pub launcher: Launcher,
    /// This process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// Which of the processes on this host it is, from 0, if the launcher tells.
    pub local_rank: Option<usize>,
    /// Host of process 0, if the launcher tells.
    pub host: Option<String>,
    /// Port at which process 0 listens.
    pub port: u16,
    /// The token: of [`TOKEN_VARIABLE`], or else what tells this job from others. The latter keeps accidents away, not
    /// attackers.
    pub token: Option<String>,
}

/// The names of what a launcher tells.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    /// What tells one job from another.
    job: &'static [&'static str],
}

/// In the order in which they are looked for. Inside of a Slurm job, mpirun and torchrun know better than Slurm.
const NAMES: [Names; 5] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        job: &["TORCHELASTIC_RUN_ID"],
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Names {
        launcher: Launcher::Mpich,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        job: &["PMI_JOBID"],
    },
    Names {
        launcher: Launcher::LeaderWorkerSet,
        rank: "LWS_WORKER_INDEX",
        size: "LWS_GROUP_SIZE",
        local_rank: "",
        job: &["LWS_LEADER_ADDRESS"],
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        job: &["SLURM_JOB_ID"],
    },
];

impl Place {
    /// The place that a launcher gave this process; `None` if no launcher's variables are there, or just one process.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] for variables that contradict each other.
    pub fn from_env() -> Result<Option<Self>, Error> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// The same from other variables.
    ///
    /// # Errors
    /// Those of [`Place::from_env`].
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        // A variable alone is somebody else's: shells and services set RANK and the like for other purposes.
        let both =
            |names: &&Names| variable(names.rank).is_some() && variable(names.size).is_some();
        let Some(names) = NAMES.iter().find(both) else {
            return Ok(None);
        };
        let number = |name: &str| -> Result<Option<usize>, Error> {
            let Some(value) = variable(name) else {
                return Ok(None);
            };
            let number = value.trim().parse();
            number.map(Some).map_err(|_| {
                refused(
                    names.launcher,
                    format!("{name} is {value:?}, and should be a number"),
                )
            })
        };
        let rank = number(names.rank)?.unwrap_or_default();
        let size = number(names.size)?.unwrap_or_default();
        if size <= 1 {
            return Ok(None);
        }
        if rank >= size {
            let reason = format!("{} is {rank}, and {} is {size}", names.rank, names.size);
            return Err(refused(names.launcher, reason));
        }
        let mut host = variable("MASTER_ADDR");
        let job = names.job.iter().find_map(|name| variable(name));
        let mut port = DEFAULT_PORT;
        match names.launcher {
            Launcher::LeaderWorkerSet => host = host.or_else(|| variable("LWS_LEADER_ADDRESS")),
            Launcher::Slurm => {
                let lists = [
                    "SLURM_STEP_NODELIST",
                    "SLURM_JOB_NODELIST",
                    "SLURM_NODELIST",
                ];
                if let (None, Some(list)) = (&host, lists.iter().find_map(|name| variable(name))) {
                    let first = first_host(&list);
                    let found = first.ok_or_else(|| {
                        refused(names.launcher, format!("{list:?} is no list of hosts"))
                    })?;
                    host = Some(found);
                }
                // Two jobs on a host shall not meet at one port; 61440 and up is no port of a service.
                if let Some(job) = job.as_ref().and_then(|job| job.parse::<u64>().ok()) {
                    port = 61440 + (job % 4096) as u16;
                }
            }
            Launcher::Torchrun | Launcher::OpenMpi | Launcher::Mpich => {}
        }
        if let Some(value) = variable("MASTER_PORT") {
            let found = value.trim().parse().ok().filter(|port| *port > 0);
            port = found.ok_or_else(|| {
                refused(
                    names.launcher,
                    format!("MASTER_PORT is {value:?}, and should be 1 to 65535"),
                )
            })?;
        }
        Ok(Some(Self {
            launcher: names.launcher,
            rank,
            size,
            local_rank: match names.local_rank {
                "" => None,
                name => number(name)?,
            },
            host,
            port,
            token: variable(TOKEN_VARIABLE).or(job),
        }))
    }

    /// Where this process meets the others, each of them a node.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the launcher did not say where process 0 is, or there is nothing that could be the
    /// token.
    pub fn rendezvous(self) -> Result<Rendezvous, Error> {
        let launcher = self.launcher;
        let host = self.host.ok_or_else(|| {
            let reason = "it does not say where process 0 runs: set MASTER_ADDR to its host, MASTER_PORT to a port";
            refused(launcher, reason.to_string())
        })?;
        let token = self.token.ok_or_else(|| {
            let reason = format!("nothing tells this job from others: set {TOKEN_VARIABLE} to the same secret for all");
            refused(launcher, reason)
        })?;
        let host = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host,
        };
        Ok(Rendezvous {
            address: format!("{host}:{}", self.port),
            node_rank: self.rank,
            nodes: self.size,
            timeout: TIMEOUT,
            token,
        })
    }
}

fn refused(launcher: Launcher, reason: String) -> Error {
    Error::Rendezvous {
        address: format!("the environment of {}", launcher.name()),
        reason,
    }
}

/// The first host of a list as Slurm writes it: `node[03-05,9],other` gives `node03`
/// ([`scontrol show hostnames`](https://slurm.schedmd.com/scontrol.html) gives all).
pub fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find([',', '[']) {
        let (plain, behind) = rest.split_at(at);
        host += plain;
        if behind.starts_with(',') {
            rest = "";
            break;
        }
        let (range, behind) = behind[1..].split_once(']')?;
        host += range.split([',', '-']).next()?;
        rest = behind;
    }
    host += rest;
    let is_host = !host.is_empty()
        && host
            .chars()
            .all(|c| c.is_alphanumeric() || "-_.".contains(c));
    is_host.then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Place>, Error> {
        let variables: Vec<(String, String)> = variables
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        Place::of(|name| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn the_first_host_of_slurms_lists() {
        for (list, expected) in [
            ("node7", "node7"),
            ("node[03-05,9],other", "node03"),
            ("gpu-a,gpu-b", "gpu-a"),
            ("rack[1-2]n[8,9].cluster", "rack1n8.cluster"),
            (" n1 ", "n1"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(expected), "{list}");
        }
        for list in ["", "node[1-2", ",a", "a b"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    #[test]
    fn every_launcher_is_understood() {
        let torchrun = of(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "fd00::1"),
            ("MASTER_PORT", "1234"),
            ("TORCHELASTIC_RUN_ID", "job"),
        ]);
        let torchrun = torchrun.unwrap().unwrap();
        assert_eq!(torchrun.local_rank, Some(1));
        let rendezvous = torchrun.rendezvous().unwrap();
        assert_eq!(rendezvous.address, "[fd00::1]:1234");
        assert_eq!((rendezvous.node_rank, rendezvous.nodes), (3, 4));
        assert_eq!(rendezvous.token, "job");
        assert!(!format!("{rendezvous:?}").contains("job"));

        // Slurm's own variables are there as well under mpirun, and count other things.
        let mpirun = of(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "9"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("MASTER_ADDR", "first"),
            (TOKEN_VARIABLE, "secret"),
        ]);
        let rendezvous = mpirun.unwrap().unwrap().rendezvous().unwrap();
        assert_eq!(rendezvous.address, format!("first:{DEFAULT_PORT}"));
        assert_eq!((rendezvous.node_rank, rendezvous.nodes), (1, 2));
        assert_eq!(rendezvous.token, "secret");

        let slurm = of(&[
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODELIST", "n[08-09]"),
            ("SLURM_JOB_ID", "4097"),
        ]);
        let rendezvous = slurm.unwrap().unwrap().rendezvous().unwrap();
        assert_eq!(rendezvous.address, "n08:61441");
        assert_eq!(rendezvous.token, "4097");

        let set = of(&[
            ("LWS_WORKER_INDEX", "1"),
            ("LWS_GROUP_SIZE", "2"),
            ("LWS_LEADER_ADDRESS", "set-0.set.default"),
        ]);
        let set = set.unwrap().unwrap();
        assert_eq!(
            (set.launcher, set.local_rank),
            (Launcher::LeaderWorkerSet, None)
        );
        assert_eq!(
            set.rendezvous().unwrap().address,
            format!("set-0.set.default:{DEFAULT_PORT}")
        );
    }

    #[test]
    fn what_is_no_group_is_none_and_contradictions_are_named() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("RANK", "1")]), Ok(None));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
        for (variables, named) in [
            (&[("RANK", "2"), ("WORLD_SIZE", "2")][..], "RANK is 2"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "0")],
                "MASTER_PORT",
            ),
            (
                &[
                    ("SLURM_PROCID", "0"),
                    ("SLURM_NTASKS", "2"),
                    ("SLURM_NODELIST", "["),
                ],
                "list of hosts",
            ),
        ] {
            let error = of(variables).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let nowhere = of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")])
            .unwrap()
            .unwrap();
        let error = nowhere.rendezvous().unwrap_err().to_string();
        assert!(error.contains("MASTER_ADDR"), "{error}");
    }
}
