//! Commands beside the examination.

use candle_rocm::topology::CARDS;
use candle_rocm::CodeObject;
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;
use worker::cli::output::{print, print_line};
use worker::kernels::CompileKernelsArgs;
use worker::{Error, Result};

/// A command beside the examination.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// Shows what code objects say of their kernels: arguments, registers, LDS, scratch memory, wave size.
    CodeObject(CodeObjectArgs),
    /// Prints the table of data sheets that speeds are compared with, as JSON.
    DataSheets,
    /// What the section `kernels` has processes do.
    #[command(hide = true)]
    CompileKernels(CompileKernelsArgs),
}

/// Arguments of `code-object`.
#[derive(Debug, Args)]
pub struct CodeObjectArgs {
    /// Code objects, or bundles of them as clang and hiprtc make them.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Tool {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Error::BadModel`] for a file that is no code object, [`Error::Io`], and those of compiling.
    pub fn run(self) -> Result<()> {
        match self {
            Self::CodeObject(args) => args.run(),
            Self::DataSheets => data_sheets(),
            Self::CompileKernels(args) => args.run(CodeObject::all),
        }
    }
}

impl CodeObjectArgs {
    fn run(self) -> Result<()> {
        let mut all = Vec::new();
        for path in self.files {
            let bytes = std::fs::read(&path).map_err(|source| Error::Io {
                path: path.clone(),
                source,
            })?;
            let entries = code_object::read(&bytes).map_err(|error| Error::BadModel {
                path: path.clone(),
                reason: error.to_string(),
            })?;
            all.push(code_object::Facts::new(path.display().to_string(), entries));
        }
        if self.json {
            let json = code_object::json(&all)
                .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?;
            return print_line(&json);
        }
        print(&code_object::text(&all)).map(drop)
    }
}

fn data_sheets() -> Result<()> {
    let cards = CARDS.iter().map(|card| {
        json!({
            "name": card.name,
            "device_ids": card.device_ids,
            "bandwidth_gb": card.bandwidth,
            "f32_tflops": card.f32,
            "f16_tflops": card.f16,
            "bf16_tflops": card.bf16,
        })
    });
    let json = serde_json::to_string_pretty(&cards.collect::<Vec<_>>());
    print_line(&json.map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?)
}
