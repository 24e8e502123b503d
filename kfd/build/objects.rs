//! The table of kernels that are built in.

use candle_rocm_kernels::{translation_unit, Clang, CompileRequest, Compiler};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

/// Compiles the kernels for each arch into `folder`; gives the source of the table `OBJECTS`, by arch.
///
/// # Errors
/// What the compiler or the file system says; without archs, no compiler is needed.
pub fn table(archs: &[&str], folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut table = "static OBJECTS: &[(&str, &[u8])] = &[\n".to_string();
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
            let path = folder.join(format!("{}.co", arch.replace(':', "_")));
            std::fs::write(&path, object)?;
            writeln!(table, "    ({arch:?}, include_bytes!({path:?})),")?;
        }
    }
    table.push_str("];\n");
    Ok(table)
}
