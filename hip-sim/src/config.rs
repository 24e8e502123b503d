//! The environment variables, read once when the simulator is first used.

use crate::arch::Arch;
use crate::inject::{Failure, Plan};
use crate::peers::Peers;
use crate::wrong::Wrong;
use std::time::Duration;

const DEFAULT_ARCH: &str = "gfx942";
/// The release of ROCm that it says it is.
const DEFAULT_VERSION: &str = "7.2.4";
const DEFAULT_MEMORY_BYTES: u64 = 16 << 30;
const DEFAULT_SPIN_LIMIT: Duration = Duration::from_secs(60);
/// Longer, since it ends the process, and a busy machine may take long for a block that only computes.
const DEFAULT_HANG_LIMIT: Duration = Duration::from_secs(300);

/// What the environment asked for.
#[derive(Debug)]
pub(crate) struct Config {
    /// One entry per device.
    pub devices: Vec<Arch>,
    /// Memory per device, in bytes.
    pub memory: u64,
    /// Seed of the thread order; `None` runs threads in ascending order.
    pub seed: Option<u64>,
    /// What `hipRuntimeGetVersion` tells.
    pub version: i32,
    /// Check every load and store.
    pub check: bool,
    /// How long a block may do nothing but wait, and ranks for each other.
    pub spin_limit: Duration,
    /// How long no block of a launch may end although none waits.
    pub hang_limit: Duration,
    /// Injected failures.
    pub failures: Plan,
    /// Injected wrong results.
    pub wrong: Wrong,
    /// Which device reaches which.
    pub peers: Peers,
}

impl Config {
    /// Reads the `HIP_SIM_*` variables. A value that cannot be understood ends the process: a test that asks for
    /// something and silently gets something else would prove nothing.
    pub fn from_env() -> Config {
        Config::parse(|name| std::env::var(name).ok()).unwrap_or_else(|message| {
            eprintln!("hip-sim: {message}");
            std::process::exit(2)
        })
    }

    fn parse(var: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
        let list = var("HIP_SIM_ARCH").unwrap_or_else(|| DEFAULT_ARCH.to_string());
        let archs = list
            .split(',')
            .map(|a| {
                Arch::parse(a).ok_or_else(|| format!("HIP_SIM_ARCH: unknown architecture {a:?}"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let count = match var("HIP_SIM_DEVICES") {
            Some(text) => text
                .trim()
                .parse()
                .map_err(|_| format!("HIP_SIM_DEVICES: {text:?} is not a number"))?,
            None => archs.len(),
        };
        let memory = match var("HIP_SIM_MEMORY") {
            Some(text) => parse_bytes(&text)
                .ok_or_else(|| format!("HIP_SIM_MEMORY: {text:?} is not a size such as 512M"))?,
            None => DEFAULT_MEMORY_BYTES,
        };
        let seed = match var("HIP_SIM_SEED") {
            Some(text) => Some(
                text.trim()
                    .parse()
                    .map_err(|_| format!("HIP_SIM_SEED: {text:?} is not a number"))?,
            ),
            None => None,
        };
        let release = var("HIP_SIM_VERSION").unwrap_or_else(|| DEFAULT_VERSION.to_string());
        let version = parse_version(&release).ok_or_else(|| {
            format!("HIP_SIM_VERSION: {release:?} is not a release such as 7.2.4")
        })?;
        let (spin_limit, hang_limit) = match var("HIP_SIM_SPIN_LIMIT") {
            Some(text) => {
                let limit = (text.trim().parse().ok())
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                    .filter(|limit| !limit.is_zero());
                let limit = limit.ok_or_else(|| {
                    format!("HIP_SIM_SPIN_LIMIT: {text:?} is not a number of seconds")
                })?;
                (limit, limit)
            }
            None => (DEFAULT_SPIN_LIMIT, DEFAULT_HANG_LIMIT),
        };
        let wrong = Wrong::default();
        wrong.set(&var("HIP_SIM_WRONG").unwrap_or_default())?;
        let devices: Vec<Arch> = archs.iter().cycle().take(count).cloned().collect();
        let check = var("HIP_SIM_CHECK").is_some_and(|v| !matches!(v.as_str(), "" | "0"));
        Ok(Config {
            peers: Peers::new(&var("HIP_SIM_PEERS").unwrap_or_default(), devices.len())?,
            devices,
            memory,
            seed,
            version,
            spin_limit,
            hang_limit,
            // Nothing else can spoil what a kernel loads over a link.
            check: check || wrong.has_links(),
            failures: parse_failures(&var("HIP_SIM_FAIL").unwrap_or_default())?,
            wrong,
        })
    }
}

/// A release as HIP tells it: 10,000,000 times the first number, 100,000 times the second, and the third.
fn parse_version(text: &str) -> Option<i32> {
    let mut numbers = text.split('.').map(|n| n.trim().parse::<i32>().ok());
    let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let fits = numbers.next().is_none()
        && (0..200).contains(&major)
        && (0..100).contains(&minor)
        && (0..1000).contains(&patch);
    fits.then_some(major * 10_000_000 + minor * 100_000 + patch)
}

/// A size such as `4096`, `64M` or `2GiB`, in bytes.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..]
        .to_ascii_uppercase()
        .trim_end_matches("IB")
        .trim_end_matches('B')
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

fn parse_failures(text: &str) -> Result<Plan, String> {
    let plan = Plan::default();
    for item in text.split(',').filter(|i| !i.trim().is_empty()) {
        let parsed = item.split_once(':').and_then(|(kind, nth)| {
            let nth = nth.trim();
            let (number, lasts) = nth.strip_suffix('+').map_or((nth, false), |n| (n, true));
            Some((Failure::parse(kind.trim())?, number.parse().ok()?, lasts))
        });
        let (failure, nth, lasts) = parsed.ok_or_else(|| {
            let kinds = Failure::ALL.map(|f| f.name().to_string_lossy()).join("|");
            format!("HIP_SIM_FAIL: {item:?} is not {kinds}, a colon and a number")
        })?;
        match lasts {
            true => plan.arm_from(failure, nth),
            false => plan.arm(failure, nth),
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::{parse_bytes, Config};

    fn with(vars: &[(&str, &str)]) -> Result<Config, String> {
        Config::parse(|name| {
            vars.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.to_string())
        })
    }

    #[test]
    fn devices_repeat_the_list_of_architectures() {
        let config = with(&[("HIP_SIM_ARCH", "gfx1100,gfx942"), ("HIP_SIM_DEVICES", "3")]).unwrap();
        let names: Vec<_> = config.devices.iter().map(|a| a.name()).collect();
        assert_eq!(names, ["gfx1100", "gfx942", "gfx1100"]);
        assert!(with(&[("HIP_SIM_DEVICES", "0")])
            .unwrap()
            .devices
            .is_empty());
    }

    #[test]
    fn sizes_and_mistakes() {
        assert_eq!(parse_bytes("64M"), Some(64 << 20));
        assert_eq!(parse_bytes("2GiB"), Some(2 << 30));
        assert_eq!(parse_bytes("4096"), Some(4096));
        assert_eq!(parse_bytes("x"), None);
        assert_eq!(with(&[]).unwrap().version, 70_200_004);
        let version = with(&[("HIP_SIM_VERSION", "6.4.0")]).unwrap().version;
        assert_eq!(version, 60_400_000);
        for bad in [
            ("HIP_SIM_ARCH", "gfx1"),
            ("HIP_SIM_FAIL", "malloc"),
            ("HIP_SIM_FAIL", "disk:1"),
            ("HIP_SIM_SEED", "a"),
            ("HIP_SIM_WRONG", "lanes"),
            ("HIP_SIM_VERSION", "7.2"),
            ("HIP_SIM_SPIN_LIMIT", "0"),
            ("HIP_SIM_PEERS", "0-1"),
        ] {
            assert!(with(&[bad]).unwrap_err().contains(bad.0));
        }
    }
}
