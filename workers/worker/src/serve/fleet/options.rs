//! The arguments of a server of several models.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The arguments that say which models there are, and how many of them at once.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Several models")]
pub struct FleetArgs {
    /// A folder whose models are served, each file and each folder with a model under its own name, and loaded when
    /// they are first asked for; may be given several times.
    #[arg(long = "models", visible_alias = "models-dir", value_name = "FOLDER")]
    pub(super) folders: Vec<PathBuf>,

    /// A file (TOML) that names models and says how each is served.
    #[arg(long, value_name = "FILE")]
    pub(super) models_config: Option<PathBuf>,

    /// Serve the models in Hugging Face's cache.
    #[arg(long)]
    pub(super) models_cache: bool,

    /// The model of requests that name none.
    #[arg(long, value_name = "NAME")]
    pub(super) models_default: Option<String>,

    /// Most models that are loaded at once; 0 is as many as there is memory for.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub(super) models_max: usize,

    /// Most memory that the loaded models of a device take together, for example 20G or 800M; what is free on the
    /// device if absent.
    #[arg(long, value_name = "SIZE")]
    pub(super) models_memory: Option<Size>,

    /// How long an idle model stays loaded, for example 300 (seconds) or 5m; 0 is for ever.
    #[arg(long, default_value = "0", value_name = "TIME")]
    pub(super) models_idle: Span,

    /// Do not load models when they are asked for, but by POST /models/load only.
    #[arg(long)]
    pub(super) no_models_autoload: bool,

    /// Most requests that wait for models to be loaded; more are refused with 503.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(super) models_queue: usize,

    /// How long a request waits for its model.
    #[arg(long, default_value = "5m", value_name = "TIME")]
    pub(super) models_wait: Span,
}

impl FleetArgs {
    /// Whether several models are to be served, so many of which are named by `--model`. Never so in the process of one
    /// of them.
    pub fn is_wanted(&self, named: usize) -> bool {
        let asked = named > 1
            || !self.folders.is_empty()
            || self.models_config.is_some()
            || self.models_cache;
        asked && std::env::var_os(crate::serve::supervise::supervisor::VARIABLE).is_none()
    }
}

/// A number of bytes: `800M`, `20G`, `1.5GiB`, or plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is not a size; write for example 20G, 800M or a number of bytes");
        let upper = text.trim().to_ascii_uppercase();
        let end = upper
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(upper.len());
        let (number, unit) = upper.split_at(end);
        let shift = match unit {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(bad()),
        };
        let number: f64 = number.trim().parse().map_err(|_| bad())?;
        let bytes = number * (1u64 << shift) as f64;
        match bytes.is_finite() && (1.0..1e18).contains(&bytes) {
            true => Ok(Self(bytes as u64)),
            false => Err(bad()),
        }
    }
}

/// A time: `300` (seconds), `5m`, `1h30m`, `500ms`; 0 and negative ones are without end. As Ollama's `keep_alive` has it
/// but for 0 (<https://github.com/ollama/ollama/blob/main/docs/faq.mdx>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    seconds: f64,
}

impl Default for Span {
    fn default() -> Self {
        Self { seconds: 0.0 }
    }
}

/// Longer times are without end.
const LONGEST: f64 = 1e9;

impl Span {
    /// Of so many seconds.
    pub(super) fn of_seconds(seconds: f64) -> Option<Self> {
        seconds.is_finite().then_some(Self { seconds })
    }

    /// The time; none if it has no end.
    pub(super) fn positive(self) -> Option<Duration> {
        (self.seconds > 0.0 && self.seconds < LONGEST)
            .then(|| Duration::from_secs_f64(self.seconds))
    }

    /// The time of Ollama's `keep_alive`, where 0 is at once; none if it has no end.
    pub(super) fn keep_alive(self) -> Option<Duration> {
        match self.seconds == 0.0 {
            true => Some(Duration::ZERO),
            false => self.positive(),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is not a time; write for example 300 (seconds), 5m or 1h30m");
        let trimmed = text.trim();
        let (sign, mut rest) = match trimmed.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, trimmed),
        };
        if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Err(bad());
        }
        if let Ok(seconds) = rest.parse::<f64>() {
            return Self::of_seconds(sign * seconds).ok_or_else(bad);
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let end = rest
                .find(|c: char| c.is_ascii_alphabetic())
                .ok_or_else(bad)?;
            let (number, tail) = rest.split_at(end);
            if number.starts_with(['-', '+']) {
                return Err(bad());
            }
            let end = tail
                .find(|c: char| !c.is_ascii_alphabetic())
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            let unit = match unit {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86400.0,
                _ => return Err(bad()),
            };
            seconds += number.parse::<f64>().map_err(|_| bad())? * unit;
            rest = tail;
        }
        Self::of_seconds(sign * seconds).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("20G", 20 << 30),
            ("800m", 800 << 20),
            ("1.5 GiB", 3 << 29),
            ("7", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for bad in ["", "G", "-1G", "0", "1Q", "1G2", "inf", "nan", "1e30"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        for (text, seconds) in [
            ("300", 300.0),
            ("5m", 300.0),
            ("1h30m", 5400.0),
            ("500ms", 0.5),
            ("1.5", 1.5),
        ] {
            let expected = Some(Duration::from_secs_f64(seconds));
            assert_eq!(text.parse::<Span>().unwrap().positive(), expected, "{text}");
        }
        for endless in ["0", "-1", "-5m", "1e12"] {
            assert_eq!(
                endless.parse::<Span>().unwrap().positive(),
                None,
                "{endless}"
            );
        }
        assert_eq!(
            "0".parse::<Span>().unwrap().keep_alive(),
            Some(Duration::ZERO)
        );
        assert_eq!("-1".parse::<Span>().unwrap().keep_alive(), None);
        for bad in ["", "m", "5 m x", "5x", "nan", "m5", "1h-3m"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
