//! `llm-worker-rocm rerank`.

use super::source::{read_text, SourceArgs};
use crate::embedding::Reranker;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use worker::device::DeviceRequest;
use worker::{Error, Result};

/// Arguments of `rerank`.
#[derive(Debug, Args)]
pub struct RerankArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// What is asked.
    query: String,

    /// Documents that may answer it; `-` reads standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Every line of the files is a document.
    #[arg(long)]
    lines: bool,

    /// Only the N best.
    #[arg(long, value_name = "N")]
    top_n: Option<usize>,

    /// Where to compute: auto, cpu, rocm or rocm:N.
    #[arg(long, short, default_value = "auto", value_parser = str::parse::<DeviceRequest>)]
    device: DeviceRequest,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A document and where it is from.
struct Document {
    name: String,
    text: String,
}

impl AsRef<str> for Document {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl RerankArgs {
    pub(super) fn run(self) -> Result<()> {
        let documents = self.documents()?;
        let path = self.source.resolve()?;
        let selected = self.device.open()?;
        let model = Reranker::open(&path, &selected.device)?;
        let scores = model.score(&self.query, &documents)?;
        let mut order: Vec<usize> = (0..documents.len()).collect();
        order.sort_by(|&a, &b| scores[b].relevance.total_cmp(&scores[a].relevance));
        order.truncate(self.top_n.unwrap_or(documents.len()));
        let text = if self.json {
            let results = order.iter().map(|&index| {
                json!({
                    "index": index,
                    "document": documents[index].name,
                    "relevance_score": scores[index].relevance,
                    "tokens": scores[index].tokens,
                })
            });
            json!({"results": results.collect::<Vec<_>>()}).to_string()
        } else {
            let lines = order
                .iter()
                .map(|&index| format!("{:.4}  {}", scores[index].relevance, documents[index].name));
            lines.collect::<Vec<_>>().join("\n")
        };
        worker::cli::output::print_line(&text)
    }

    fn documents(&self) -> Result<Vec<Document>> {
        let mut documents = Vec::new();
        for file in &self.files {
            let text = read_text(file)?;
            let name = file.display().to_string();
            if !self.lines {
                documents.push(Document { name, text });
                continue;
            }
            let lines = text
                .lines()
                .enumerate()
                .filter(|(_, line)| !line.trim().is_empty());
            documents.extend(lines.map(|(i, line)| Document {
                name: format!("{name}:{}", i + 1),
                text: line.to_string(),
            }));
        }
        match documents.is_empty() {
            true => Err(Error::Usage("the files have no document".to_string())),
            false => Ok(documents),
        }
    }
}
