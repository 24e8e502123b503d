//! Ported units, launchers in Rust, and the feature `rocm`.
