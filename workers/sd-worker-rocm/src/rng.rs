//! The random numbers of a seed, the same on every device.

/// Whose random numbers a seed stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RngKind {
    /// Philox as GPUs of PyTorch draw it; what web UIs give.
    #[default]
    Philox,
    /// The Mersenne Twister of PyTorch on the CPU; what diffusers gives with a generator on the CPU.
    TorchCpu,
}
