//! Lists every kernel that the operations launch, for `scripts/kernels`, which compares the list with what a compiler
//! makes of the families.
//!
//!     cargo run -p candle-rocm --example declared_kernels
//!
//! A line has the family's device file, the kernel's name, the GPUs that have it (`all`, those with waves of 32:
//! `wave32`, those with matrix instructions: `matrix`), and the sizes of its arguments.

use candle_rocm::Only;

fn main() {
    for kernel in candle_rocm::ops::kernels() {
        let sizes: Vec<String> = kernel
            .arguments
            .iter()
            .map(|argument| argument.bytes.to_string())
            .collect();
        let only = match kernel.only {
            None => "all",
            Some(Only::Wave32) => "wave32",
            Some(Only::Matrix) => "matrix",
            Some(Only::Float8) => "float8",
            Some(Only::Mx) => "mx",
        };
        println!(
            "{} {} {} {}",
            kernel.family.file_name(),
            kernel.name,
            only,
            sizes.join(",")
        );
    }
}
