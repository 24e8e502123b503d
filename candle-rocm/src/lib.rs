//! A safe layer over AMD's HIP runtime, found at run time, and the tensor operations built on it.
