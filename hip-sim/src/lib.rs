//! HIP, hiprtc and rocBLAS on the CPU: a test instrument for machines without an AMD GPU.
