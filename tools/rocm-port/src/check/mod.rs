//! Checks of ported units: compiled for every arch, run on the simulator in both widths of waves.
