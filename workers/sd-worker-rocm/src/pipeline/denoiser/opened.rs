//! What ControlNets of UNets and of transformers have in common.

use crate::pipeline::module::Module;
use candle_core::Device;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// The networks that requests have named so far.
pub struct Opened<T> {
    networks: HashMap<PathBuf, Module<T>>,
    device: Device,
    offload: bool,
}

impl<T> Opened<T> {
    /// None yet; they will be on this device.
    pub fn new(device: &Device, offload: bool) -> Self {
        Self {
            networks: HashMap::new(),
            device: device.clone(),
            offload,
        }
    }

    /// Where they are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.networks.values_mut().for_each(Module::rest);
    }

    /// The network at this path, which is opened if it is not yet: `open` is told the device, and whether its weights are
    /// to leave it while it rests.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn get(
        &mut self,
        path: &Path,
        open: impl FnOnce(&Device, bool) -> Result<Module<T>>,
    ) -> Result<&mut Module<T>> {
        if !self.networks.contains_key(path) {
            let opened = open(&self.device, self.offload)?;
            self.networks.insert(path.to_path_buf(), opened);
        }
        let gone = || Error::Runtime("the ControlNet is gone".to_string());
        self.networks.get_mut(path).ok_or_else(gone)
    }
}

/// The number of a picture's kind, for a union that knows so many, in the order of `names`; it may be said by name or
/// number. Networks that are no unions are told nothing.
///
/// # Errors
/// Says what may be said.
pub fn kind_of(
    said: Option<&str>,
    kinds: Option<usize>,
    names: &[&[&str]],
) -> std::result::Result<usize, String> {
    let said = said.map(str::trim).unwrap_or("").to_lowercase();
    let Some(kinds) = kinds else {
        return match said.as_str() {
            "" => Ok(0),
            _ => Err("only unions of ControlNets are told the kind of the picture".to_string()),
        };
    };
    let named = names.iter().position(|names| names.contains(&&*said));
    match said.parse().ok().or(named) {
        Some(kind) if kind < kinds => Ok(kind),
        _ => {
            let names: Vec<&str> = names.iter().take(kinds).map(|names| names[0]).collect();
            Err(format!(
                "a union of ControlNets: say of what kind the picture is: {} (or its number, to {})",
                names.join(", "),
                kinds - 1
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_by_name_and_number() {
        let names: [&[&str]; 3] = [&["pose", "openpose"], &["depth"], &["canny"]];
        let of = |said, kinds| kind_of(said, kinds, &names);
        assert_eq!(of(Some(" OpenPose"), Some(3)), Ok(0));
        assert_eq!(of(Some("1"), Some(3)), Ok(1));
        // A union may know more kinds than have names.
        assert_eq!(of(Some("4"), Some(5)), Ok(4));
        for (said, kinds) in [(Some("canny"), 2), (Some("5"), 5), (None, 3)] {
            let error = of(said, Some(kinds)).unwrap_err();
            assert!(error.contains("pose, depth"), "{said:?}: {error}");
        }
        assert_eq!(of(None, None), Ok(0));
        assert!(of(Some("pose"), None).unwrap_err().contains("only unions"));
    }
}
