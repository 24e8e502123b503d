//! GPU architectures: which names exist, their wave size, and what a code object for one runs on.

use code_object::{Processor, PROCESSORS};

/// nvptx's, as hip-on-cuda has it: so that its matrix instructions are tried without such a GPU.
const NVPTX: &str = "sm_90";

/// An architecture as given in `--offload-arch` or `HIP_SIM_ARCH`, without feature suffixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arch(String);

impl Arch {
    /// The names of all that devices may have.
    pub fn all() -> impl Iterator<Item = &'static str> {
        let names = PROCESSORS.iter().map(|processor| processor.name);
        names
            .filter(|name| !name.ends_with("-generic"))
            .chain([NVPTX])
    }

    /// Parses `gfx90a`, `gfx942:sramecc+:xnack-`, `gfx11-generic`, …; `None` for a name that no tool knows.
    pub fn parse(text: &str) -> Option<Arch> {
        let mut parts = text.trim().split(':');
        let base = parts.next()?;
        let features_known =
            parts.all(|f| matches!(f, "sramecc+" | "sramecc-" | "xnack+" | "xnack-"));
        let known = base == NVPTX || Processor::named(base).is_some();
        (known && features_known).then(|| Arch(base.to_string()))
    }

    /// The bare name, such as `gfx942`.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// What `gcnArchName` of a device of this architecture says.
    pub fn device_name(&self) -> String {
        match self.0.as_str() {
            "gfx908" | "gfx90a" | "gfx942" | "gfx950" => format!("{}:sramecc+:xnack-", self.0),
            "gfx900" | "gfx902" | "gfx904" | "gfx909" | "gfx90c" => format!("{}:xnack-", self.0),
            "gfx906" => "gfx906:sramecc+:xnack-".to_string(),
            _ => self.0.clone(),
        }
    }

    /// Lanes per wave: 64 on gfx9, 32 on RDNA and nvptx.
    pub fn wave(&self) -> u32 {
        if self.0.starts_with("gfx9") {
            64
        } else {
            32
        }
    }

    /// Largest dynamic shared memory of a block. Of nvptx it is less than most have.
    pub fn shared_bytes(&self) -> usize {
        if self.0.starts_with("sm_") {
            crate::memory::MAX_SHARED_BYTES
        } else {
            64 << 10
        }
    }

    /// The macros by which device code tells architectures apart, as clang predefines them: `__gfx942__` and
    /// `__GFX9__`; `__CUDA_ARCH__` of nvptx.
    pub fn macros(&self) -> String {
        let (major, minor) = self.capability();
        if self.0.starts_with("sm_") {
            return format!("#define __CUDA_ARCH__ {major}{minor}0\n");
        }
        let name = self.0.replace('-', "_");
        format!("#define __{name}__ 1\n#define __GFX{major}__ 1\n")
    }

    /// Major and minor of the compute capability that HIP reports: gfx90a is 9.0, gfx942 9.4, gfx1100 11.0.
    pub fn capability(&self) -> (i32, i32) {
        let digits = self
            .0
            .trim_start_matches("gfx")
            .trim_start_matches("sm_")
            .split('-')
            .next()
            .unwrap_or_default();
        let (major, rest) = if digits.starts_with('9') {
            digits.split_at(1)
        } else {
            digits.split_at(digits.len().min(2))
        };
        let minor = rest.get(..1).and_then(|m| m.parse().ok()).unwrap_or(0);
        (major.parse().unwrap_or(0), minor)
    }

    /// Whether a code object built for `self` runs on a device of architecture `device`.
    pub fn runs_on(&self, device: &Arch) -> bool {
        let generic = Processor::named(device.name()).and_then(|processor| processor.generic);
        self == device || generic == Some(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Arch;

    #[test]
    fn names_waves_and_capabilities() {
        for (text, device, wave, capability) in [
            ("gfx942", "gfx942:sramecc+:xnack-", 64, (9, 4)),
            ("gfx90a:xnack-", "gfx90a:sramecc+:xnack-", 64, (9, 0)),
            ("gfx1100", "gfx1100", 32, (11, 0)),
            ("gfx1201", "gfx1201", 32, (12, 0)),
            ("gfx1036", "gfx1036", 32, (10, 3)),
            ("sm_90", "sm_90", 32, (9, 0)),
        ] {
            let arch = Arch::parse(text).unwrap();
            let family = match text {
                "sm_90" => "#define __CUDA_ARCH__ 900\n".to_string(),
                _ => format!("#define __GFX{}__ 1\n", capability.0),
            };
            assert!(arch.macros().ends_with(&family), "{}", arch.macros());
            assert_eq!(
                (arch.device_name().as_str(), arch.wave(), arch.capability()),
                (device, wave, capability)
            );
        }
        assert!(Arch::parse("gfx12345").is_none() && Arch::parse("gfx942:turbo+").is_none());
    }

    #[test]
    fn generic_objects_run_on_their_family_only() {
        let generic = Arch::parse("gfx11-generic").unwrap();
        assert!(generic.runs_on(&Arch::parse("gfx1151").unwrap()));
        assert!(!generic.runs_on(&Arch::parse("gfx1201").unwrap()));
        assert!(!Arch::parse("gfx1100")
            .unwrap()
            .runs_on(&Arch::parse("gfx1101").unwrap()));
    }
}
