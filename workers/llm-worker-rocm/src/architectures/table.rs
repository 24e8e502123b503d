//! The table in `docs/llm.md`.

use super::lookup::rows;

/// The register as a table in Markdown.
pub fn markdown_table() -> String {
    let folders: usize = rows().map(|row| row.folders.len()).sum();
    let files = rows().filter(|row| row.gguf.is_some()).count();
    let mut text = format!(
        "{folders} names in folders, {files} in GGUF files:\n\n\
         | Models | GGUF | Folder (`architectures`) | Runs in | Compared with |\n\
         |---|---|---|---|---|\n"
    );
    for row in rows() {
        let cells = [
            row.models,
            row.gguf.unwrap_or_default(),
            &row.folders.join(", "),
            row.engine.name(),
            row.compared_with,
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}
