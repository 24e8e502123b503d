//! The one register of model architectures: what each is called in files, which engine runs it, and what it does in its
//! own way.
//!
//! | Module   | Gives                                                                          |
//! |----------|--------------------------------------------------------------------------------|
//! | `row`    | what a row says: [`ArchitectureRow`]                                           |
//! | `rows`   | the rows                                                                       |
//! | `folder` | how a decoder's `config.json` and safetensors differ from the usual ones       |
//! | `lookup` | rows by the names in files                                                     |
//! | `table`  | the table in `docs/llm.md`                                                     |
//!
//! A new architecture is a row, and for an engine that has not all of it, its code there. Everything else looks rows
//! up: `model` and `embedding` to choose the engine, `hf` to see a folder in GGUF's terms.

mod folder;
mod lookup;
mod row;
mod rows;
mod table;

pub use folder::{
    Accepted, ConfigRule, DeltaFolder, ExpertFiles, FolderTraits, OlderFolder, RecurrentFolder,
};
pub use lookup::{
    by_base_name, by_folder_name, by_gguf_name, decoder_config, folder_names, name_in_config, rows,
};
pub use row::{ArchitectureRow, EncoderKind, Engine};
pub use table::markdown_table;
