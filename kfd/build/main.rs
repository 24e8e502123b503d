//! With `CANDLE_ROCM_ARCHS`, compiles the kernels into the program.

mod objects;

use candle_rocm_kernels::embedded_archs;
use std::path::PathBuf;

fn main() {
    if let Err(error) = build() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // What the variable named when the crate of kernels was built, which is built anew when it changes.
    let table = objects::table(embedded_archs(), &out)?;
    std::fs::write(out.join("objects.rs"), table)?;
    println!("cargo::rerun-if-changed=build");
    Ok(())
}
