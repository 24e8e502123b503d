//! With `CANDLE_ROCM_ARCHS`, compiles the kernels into the program.

use candle_rocm_kernels::{embedded_archs, translation_unit, Clang, CompileRequest, Compiler};
use std::fmt::Write;
use std::path::Path;

fn main() {
    if let Err(error) = build() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::env::var("OUT_DIR")?;
    let mut table = "static OBJECTS: &[(&str, &[u8])] = &[\n".to_string();
    // What the variable named when the crate of kernels was built, which is built anew when it changes.
    let archs = embedded_archs();
    if !archs.is_empty() {
        let clang = Clang::find()?;
        let source = translation_unit("pattern.hip", memory_pattern::SOURCE)?;
        for arch in archs {
            let object = clang.compile(&CompileRequest {
                name: "pattern.hip",
                source: &source,
                arch,
                options: &[],
            })?;
            let path = Path::new(&out).join(format!("{}.co", arch.replace(':', "_")));
            std::fs::write(&path, object)?;
            writeln!(table, "    ({arch:?}, include_bytes!({path:?})),")?;
        }
    }
    table.push_str("];\n");
    std::fs::write(Path::new(&out).join("objects.rs"), table)?;
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
