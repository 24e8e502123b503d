//! Target ids: a processor with the settings of its features.

use crate::Processor;
use serde::{Serialize, Serializer};
use std::fmt;

/// How a feature that a driver can turn on and off is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The code needs it on.
    On,
    /// The code needs it off.
    Off,
}

/// A processor with the settings of its features: `gfx942:sramecc+:xnack-`. A feature that is not named may be set
/// either way, or the processor does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetId {
    processor: String,
    /// Error correction of memories inside the GPU.
    pub sramecc: Option<Setting>,
    /// Whether a wave goes on after a page fault.
    pub xnack: Option<Setting>,
}

impl TargetId {
    /// Parses what HIP calls `gcnArchName`; also the longer forms of metadata and bundles,
    /// `amdgcn-amd-amdhsa--gfx942:xnack-` and `hipv4-amdgcn-amd-amdhsa--gfx942`.
    pub fn parse(text: &str) -> Option<TargetId> {
        let text = match text.rfind("-gfx") {
            Some(dash) => &text[dash + 1..],
            None => text,
        };
        let mut parts = text.split(':');
        let processor = parts.next().filter(|name| name.starts_with("gfx"))?;
        let mut target = TargetId {
            processor: processor.to_string(),
            sramecc: None,
            xnack: None,
        };
        for feature in parts {
            let setting = match feature.as_bytes().last() {
                Some(b'+') => Setting::On,
                Some(b'-') => Setting::Off,
                _ => return None,
            };
            match &feature[..feature.len() - 1] {
                "sramecc" => target.sramecc = Some(setting),
                "xnack" => target.xnack = Some(setting),
                _ => return None,
            }
        }
        Some(target)
    }

    /// The processor's name.
    pub fn processor(&self) -> &str {
        &self.processor
    }

    /// What is known of the processor.
    pub fn known(&self) -> Option<&'static Processor> {
        Processor::named(&self.processor)
    }

    /// Whether code for this target runs on a GPU that calls itself `gpu`: the same processor or a generic one that
    /// stands for it, and no feature set otherwise.
    pub fn runs_on(&self, gpu: &TargetId) -> bool {
        let agree = |ours: Option<Setting>, theirs: Option<Setting>| {
            ours.is_none() || theirs.is_none() || ours == theirs
        };
        let generic = gpu.known().and_then(|processor| processor.generic);
        (self.processor == gpu.processor || generic == Some(&self.processor))
            && agree(self.sramecc, gpu.sramecc)
            && agree(self.xnack, gpu.xnack)
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.processor)?;
        for (name, setting) in [("sramecc", self.sramecc), ("xnack", self.xnack)] {
            match setting {
                Some(Setting::On) => write!(f, ":{name}+")?,
                Some(Setting::Off) => write!(f, ":{name}-")?,
                None => {}
            }
        }
        Ok(())
    }
}

impl Serialize for TargetId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_three_forms() {
        for (text, want) in [
            ("gfx1100", "gfx1100"),
            ("gfx942:sramecc+:xnack-", "gfx942:sramecc+:xnack-"),
            ("amdgcn-amd-amdhsa--gfx90a:xnack+", "gfx90a:xnack+"),
            ("hipv4-amdgcn-amd-amdhsa--gfx9-4-generic", "gfx9-4-generic"),
            ("hip-amdgcn-amd-amdhsa-gfx906", "gfx906"),
        ] {
            assert_eq!(
                TargetId::parse(text).map(|t| t.to_string()).as_deref(),
                Some(want)
            );
        }
        for text in [
            "",
            "host-x86_64-unknown-linux-gnu-",
            "gfx942:fast+",
            "gfx942:xnack",
            "gfx942:",
            "sm_90",
        ] {
            assert_eq!(TargetId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn objects_run_on_their_processor_with_the_same_features() {
        let runs = |object: &str, gpu: &str| {
            let [object, gpu] = [object, gpu].map(|text| TargetId::parse(text).unwrap());
            object.runs_on(&gpu)
        };
        assert!(runs("gfx942", "gfx942:sramecc+:xnack-"));
        assert!(runs("gfx942:xnack-", "gfx942:sramecc+:xnack-"));
        assert!(!runs("gfx942:xnack+", "gfx942:sramecc+:xnack-"));
        assert!(!runs("gfx90a:sramecc-", "gfx90a:sramecc+:xnack-"));
        assert!(!runs("gfx1100", "gfx1101"));
        assert!(runs("gfx11-generic", "gfx1151") && !runs("gfx11-generic", "gfx1201"));
        assert!(runs("gfx9-4-generic:xnack-", "gfx950:sramecc+:xnack-"));
        assert!(!runs("gfx9-generic", "gfx90a") && !runs("gfx1100", "gfx11-generic"));
        // One that is not in the table yet runs its own code.
        assert!(runs("gfx1310", "gfx1310"));
    }
}
