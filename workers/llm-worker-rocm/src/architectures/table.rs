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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const BEGIN: &str =
        "<!-- Written by `CANDLE_ROCM_WRITE_DOCS=1 cargo test -p llm-worker-rocm --lib architectures` -->\n";
    const END: &str = "<!-- End of what is written -->\n";

    #[test]
    fn the_table_in_the_docs_is_that_of_the_register() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/llm.md");
        let docs = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = docs.split_once(BEGIN).expect("the mark before the table");
        let (table, after) = rest.split_once(END).expect("the mark behind the table");
        let expected = format!("\n{}\n", markdown_table());
        if std::env::var_os("CANDLE_ROCM_WRITE_DOCS").is_some() {
            let docs = [before, BEGIN, &expected, END, after].concat();
            std::fs::write(&path, docs).unwrap();
        } else {
            assert!(
                table == expected,
                "{} is out of date; the mark before the table says how to write it",
                path.display()
            );
        }
    }
}
