//! Where the CUDA of a crate is: files, build scripts, uses in Rust; crates of the registry.
