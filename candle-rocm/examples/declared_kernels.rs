//! Lists every kernel that the operations launch, for `scripts/kernels`, which compares the list with what a compiler
//! makes of the families.
//!
//!     cargo run -p candle-rocm --example declared_kernels
//!
//! A line has the family's device file, the kernel's name, the size of waves that alone has it (0: all have), and the
//! sizes of its arguments.

fn main() {
    for kernel in candle_rocm::ops::kernels() {
        let sizes: Vec<String> = kernel
            .arguments
            .iter()
            .map(|argument| argument.bytes.to_string())
            .collect();
        println!(
            "{} {} {} {}",
            kernel.family.file_name(),
            kernel.name,
            kernel.wave_size.unwrap_or(0),
            sizes.join(",")
        );
    }
}
