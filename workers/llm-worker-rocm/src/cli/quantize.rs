//! `llm-worker-rocm quantize`.

use super::source::SourceArgs;
use crate::model::open_weights;
use crate::quantize::{
    Conversion, FolderConversion, NaturalOrder, Override, Plan, Scheme, Summary, Target,
};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `quantize`.
#[derive(Debug, Args)]
pub struct QuantizeArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// File or, of safetensors, folder to write.
    output: PathBuf,

    /// Type of the weight matrices. In a GGUF file: F32 F16 BF16, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K to Q6_K, Q4_K_M and
    /// Q5_K_M (more bits where they matter), IQ*, TQ*, MXFP4, NVFP4. In a folder of safetensors: FP8 (blocks of 128 x
    /// 128), MXFP4.
    #[arg(long = "type", short, value_name = "TYPE")]
    ty: String,

    /// What is written: a GGUF file, or a folder as vLLM, SGLang and transformers read it, made of one. Without it FP8
    /// is a folder and everything else a GGUF file.
    #[arg(long, value_name = "FORMAT")]
    format: Option<FileFormat>,

    /// In a GGUF file, another type for tensors whose name contains PATTERN; the first that fits counts. For example
    /// output.weight=Q8_0.
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = str::parse::<Override>)]
    tensor_type: Vec<Override>,

    /// In a folder, leave matrices whose name contains PATTERN as they are, beside the embeddings, the output and
    /// routers. For example mlp.down_proj.
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,

    /// Replace OUTPUT if it exists.
    #[arg(long)]
    force: bool,

    /// Only show what would be written.
    #[arg(long)]
    dry_run: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Kinds of model files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FileFormat {
    /// One GGUF file.
    Gguf,
    /// A folder of safetensors files with the model's configuration and tokenizer.
    Safetensors,
}

impl QuantizeArgs {
    pub(super) fn run(self) -> Result<()> {
        let path = self.source.resolve()?;
        if self.output.exists() {
            let same = path.canonicalize().ok() == self.output.canonicalize().ok();
            if same {
                return Err(Error::Usage("OUTPUT is the model that is read".to_string()));
            }
        }
        let summary = match self.format() {
            FileFormat::Gguf => self.write_gguf(&path)?,
            FileFormat::Safetensors => self.write_folder(&path)?,
        };
        let text = if self.json {
            serde_json::to_string(&summary)
                .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?
        } else {
            describe(&summary)
        };
        worker::cli::output::print_line(&text)
    }

    fn format(&self) -> FileFormat {
        self.format
            .unwrap_or(match self.ty.eq_ignore_ascii_case("FP8") {
                true => FileFormat::Safetensors,
                false => FileFormat::Gguf,
            })
    }

    fn write_gguf(&self, source: &Path) -> Result<Summary> {
        let target: Target = self.ty.parse()?;
        if !self.keep.is_empty() {
            return Err(Error::Usage(
                "--keep is for folders; of a GGUF file, --tensor-type PATTERN=TYPE".to_string(),
            ));
        }
        if self.output.exists() && !self.force && !self.dry_run {
            return Err(Error::Usage(format!(
                "{} exists; --force replaces it",
                self.output.display()
            )));
        }
        let file = open_weights(source)?;
        let file = NaturalOrder::new(&*file)?;
        let plan = Plan::new(target, self.tensor_type.clone());
        let conversion = Conversion::new(&file, &plan)?;
        if !self.dry_run {
            conversion.write(&self.output, &Interrupt::install()?)?;
        }
        Ok(conversion.summary())
    }

    fn write_folder(&self, source: &Path) -> Result<Summary> {
        let scheme: Scheme = self.ty.parse()?;
        if !self.tensor_type.is_empty() {
            return Err(Error::Usage(
                "--tensor-type is for GGUF files; of a folder, --keep PATTERN leaves matrices as they are".to_string(),
            ));
        }
        if self
            .output
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
        {
            return Err(Error::Usage(format!(
                "{}: {} in safetensors is a folder, not a GGUF file",
                self.output.display(),
                scheme.name()
            )));
        }
        let conversion = FolderConversion::new(source, scheme, &self.keep)?;
        if !self.dry_run {
            conversion.write(&self.output, self.force, &Interrupt::install()?)?;
        }
        Ok(conversion.summary())
    }
}

fn describe(summary: &Summary) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let types: Vec<String> = summary
        .tensors
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    format!(
        "{:.1} MiB to {:.1} MiB, {:.2} bits per weight; tensors: {}",
        mib(summary.source_bytes),
        mib(summary.bytes),
        summary.bits_per_weight,
        types.join(", ")
    )
}
