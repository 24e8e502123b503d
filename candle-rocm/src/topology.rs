//! AMD GPUs as the kernel driver sees them, with or without ROCm.

/// The GPUs that the kernel driver lists, and what stands between them and this program.
#[derive(Clone, Debug, Default)]
pub struct Topology {}

impl Topology {
    /// Reads the running system.
    pub fn read() -> Self {
        Topology {}
    }

    /// One sentence on why no device answers, with what to do about it.
    pub fn why_no_device(&self) -> String {
        String::new()
    }
}
