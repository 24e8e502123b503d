//! Processors of GPUs, and what those of a generation have in common.
//!
//! A new processor is one row of the table here: kernels are chosen by [`Generation`], never by comparing names.

use std::fmt;

/// A generation of processors, which behave alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// Vega and CDNA 1: waves of 64, dot products of 8 bits. The matrix instructions of gfx908 are not used.
    Gcn,
    /// MI200.
    Cdna2,
    /// MI300.
    Cdna3,
    /// MI350.
    Cdna4,
    /// RX 5000.
    Rdna1,
    /// RX 6000: dot products of 8 bits.
    Rdna2,
    /// RX 7000.
    Rdna3,
    /// The integrated GPUs of Ryzen AI, with little bandwidth.
    Rdna35,
    /// RX 9000.
    Rdna4,
    /// NVIDIA's, which hip-sim drives for measuring.
    Nvptx,
    /// None of these.
    Unknown,
}

/// Matrix instructions that kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Of CDNA: a wave of 64.
    Mfma,
    /// Of RDNA3: both halves of a wave of 32 hold the operands.
    Wmma11,
    /// Of RDNA4: each half of a wave of 32 holds half of them.
    Wmma12,
    /// Of NVIDIA GPUs: a warp of 32.
    MmaSync,
}

impl Generation {
    /// The matrix instructions for which kernels are compiled; none for dot products only.
    pub const fn matrix(self) -> Option<Matrix> {
        match self {
            Self::Cdna2 | Self::Cdna3 | Self::Cdna4 => Some(Matrix::Mfma),
            Self::Rdna3 | Self::Rdna35 => Some(Matrix::Wmma11),
            Self::Rdna4 => Some(Matrix::Wmma12),
            Self::Nvptx => Some(Matrix::MmaSync),
            Self::Gcn | Self::Rdna1 | Self::Rdna2 | Self::Unknown => None,
        }
    }

    /// Dies of a GPU, each with a cache of its own; blocks go to them in turn.
    pub const fn dies(self) -> u32 {
        match self {
            Self::Cdna3 | Self::Cdna4 => 8,
            _ => 1,
        }
    }
}

/// Processors by the beginning of their names; the first row that fits counts.
///
/// The last column says whether the kernels are made for them.
const ROWS: &[(&str, Generation, bool)] = &[
    ("gfx906", Generation::Gcn, true),
    ("gfx908", Generation::Gcn, true),
    ("gfx90a", Generation::Cdna2, true),
    ("gfx942", Generation::Cdna3, true),
    ("gfx950", Generation::Cdna4, true),
    ("gfx9-4-generic", Generation::Cdna3, true),
    ("gfx9-generic", Generation::Gcn, true),
    ("gfx9", Generation::Gcn, false),
    ("gfx101", Generation::Rdna1, true),
    ("gfx10-1", Generation::Rdna1, true),
    ("gfx10", Generation::Rdna2, true),
    ("gfx115", Generation::Rdna35, true),
    ("gfx11", Generation::Rdna3, true),
    ("gfx12", Generation::Rdna4, true),
    ("sm_", Generation::Nvptx, false),
];

/// A processor, such as `gfx942`, without the settings of its features.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    name: String,
    generation: Generation,
    is_supported: bool,
}

impl Arch {
    /// Parses what HIP and compilers call a processor: `gfx` and a number whose last two digits are hexadecimal, or a
    /// generic one, with features behind colons (`gfx90a:sramecc+:xnack-`, `gfx11-generic`); or what hip-sim calls an
    /// NVIDIA GPU, `sm_90`. None for other names.
    pub fn parse(target: &str) -> Option<Self> {
        let mut parts = target.split(':');
        let name = parts.next()?;
        let known = |feature| matches!(feature, "xnack+" | "xnack-" | "sramecc+" | "sramecc-");
        (is_processor(name) && parts.all(known)).then(|| Self::named(name))
    }

    /// What a driver says that its GPU is, whether that is a known form of name or not.
    pub fn of_device(target: &str) -> Self {
        Self::named(target.split(':').next().unwrap_or_default())
    }

    fn named(name: &str) -> Self {
        let row = ROWS.iter().find(|(start, ..)| name.starts_with(start));
        Arch {
            name: name.to_string(),
            generation: row.map_or(Generation::Unknown, |row| row.1),
            is_supported: row.is_some_and(|row| row.2),
        }
    }

    /// The name, for example `gfx942`.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Which generation it belongs to. A processor that is not known by name belongs to that of its first digits.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether kernels use its matrix instructions on 8-bit floats. What is compiled for several processors at once has
    /// none where these read the same bits differently.
    pub fn has_float8(&self) -> bool {
        match self.generation {
            Generation::Cdna3 => !self.name.ends_with("-generic"),
            Generation::Cdna4 | Generation::Rdna4 => true,
            Generation::Nvptx => {
                let capability = self.name.strip_prefix("sm_").map(str::parse::<u32>);
                matches!(capability, Some(Ok(capability)) if capability >= 89)
            }
            _ => false,
        }
    }

    /// The same of floats whose blocks have powers of two as scales.
    pub fn has_mx(&self) -> bool {
        self.generation == Generation::Cdna4
    }

    /// Whether the kernels of this product are made for it.
    pub fn is_supported(&self) -> bool {
        self.is_supported
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PartialEq<&str> for Arch {
    fn eq(&self, other: &&str) -> bool {
        self.name == *other
    }
}

fn is_processor(name: &str) -> bool {
    if let Some(capability) = name.strip_prefix("sm_") {
        return matches!(capability.len(), 2 | 3) && capability.bytes().all(|b| b.is_ascii_digit());
    }
    let Some(number) = name.strip_prefix("gfx") else {
        return false;
    };
    if let Some(family) = number.strip_suffix("-generic") {
        let mut digits = family.bytes();
        return digits.next().is_some_and(|b| b.is_ascii_digit())
            && digits.all(|b| b.is_ascii_digit() || b == b'-');
    }
    let (version, step) = number
        .split_at_checked(number.len().wrapping_sub(2))
        .unwrap_or(("", ""));
    matches!(version.len(), 1 | 2)
        && version.bytes().all(|b| b.is_ascii_digit())
        && step.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_form() {
        for arch in [
            "gfx906",
            "gfx90a",
            "gfx942",
            "gfx1030",
            "gfx1151",
            "gfx90a:sramecc+:xnack-",
            "gfx9-generic",
            "gfx10-3-generic",
            "gfx9-4-generic",
            "sm_90",
        ] {
            let parsed = Arch::parse(arch).map(|arch| arch.to_string());
            assert_eq!(parsed.as_deref(), arch.split(':').next());
        }
        for name in [
            "",
            "gfx",
            "gfx9",
            "sm_",
            "sm_9a",
            "gfx11000",
            "gfx9zz",
            "gfx942:fast",
            "gfx1100 ",
            "-generic",
            "gfx-generic",
        ] {
            assert_eq!(Arch::parse(name), None, "{name}");
        }
    }

    #[test]
    fn kernels_are_checked_for_supported_archs() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/kernels");
        let script = std::fs::read_to_string(script).unwrap();
        let list = script
            .lines()
            .find_map(|line| line.strip_prefix("ARCHS = "));
        let archs: Vec<&str> = list.unwrap().split('"').skip(1).step_by(2).collect();
        assert!(archs.len() > 3, "{archs:?}");
        for arch in archs {
            assert!(
                Arch::parse(arch).is_some_and(|a| a.is_supported()),
                "{arch}"
            );
        }
    }

    #[test]
    fn some_processors_multiply_8_bit_floats() {
        let has = |name| Arch::parse(name).unwrap().has_float8();
        for name in [
            "gfx942",
            "gfx950",
            "gfx1201",
            "gfx12-generic",
            "sm_89",
            "sm_120",
        ] {
            assert!(has(name), "{name}");
        }
        for name in [
            "gfx90a",
            "gfx9-4-generic",
            "gfx1100",
            "gfx1151",
            "gfx1030",
            "sm_86",
        ] {
            assert!(!has(name), "{name}");
        }
    }

    #[test]
    fn processors_belong_to_generations() {
        use Generation::*;
        for (name, generation, supported) in [
            ("gfx900", Gcn, false),
            ("gfx90c", Gcn, false),
            ("gfx906", Gcn, true),
            ("gfx908", Gcn, true),
            ("gfx9-generic", Gcn, true),
            ("gfx90a", Cdna2, true),
            ("gfx942:sramecc+:xnack-", Cdna3, true),
            ("gfx9-4-generic", Cdna3, true),
            ("gfx950", Cdna4, true),
            ("gfx1010", Rdna1, true),
            ("gfx10-1-generic", Rdna1, true),
            ("gfx1036", Rdna2, true),
            ("gfx10-3-generic", Rdna2, true),
            ("gfx1103", Rdna3, true),
            ("gfx11-generic", Rdna3, true),
            ("gfx1153", Rdna35, true),
            ("gfx1200", Rdna4, true),
            ("gfx12-generic", Rdna4, true),
            ("sm_90", Nvptx, false),
            ("gfx803", Unknown, false),
            ("gfx1310", Unknown, false),
        ] {
            let arch = Arch::parse(name).unwrap();
            assert_eq!(
                (arch.generation(), arch.is_supported()),
                (generation, supported),
                "{name}"
            );
            assert_eq!(Arch::of_device(name), arch);
        }
        let nameless = Arch::of_device("");
        assert_eq!(
            (nameless.generation(), nameless.is_supported()),
            (Unknown, false)
        );
    }
}
