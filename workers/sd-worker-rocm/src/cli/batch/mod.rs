//! `sd-worker-rocm batch`: pictures for each line of a file.

mod journal;
mod lines;

use super::generate::{Bar, FileFormat};
use super::loaded::Loaded;
use super::model::ModelArgs;
use super::output::{slug, write_file};
use super::request::RequestArgs;
use crate::image_io;
use crate::info::ModelInfo;
use crate::parameters::Parameters;
use crate::request::ValidRequest;
use clap::Args;
use journal::{Journal, Written};
use lines::Line;
use serde_json::json;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use worker::cli::log::tell;
use worker::cli::output::print_line;
use worker::signal::Interrupt;
use worker::{file, Error, Result};

/// Most lines that an error tells of.
const MAX_TOLD: usize = 10;

/// Arguments of `batch`.
#[derive(Debug, Args)]
pub struct BatchArgs {
    /// File with a prompt a line, options of `generate` behind it ("a red circle --steps 20 --seed 5") or as JSON
    /// ({"prompt": "a red circle", "steps": 20}); `-` is standard input. Lines that begin with # are left out.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    request: RequestArgs,

    /// Folder to write to. Lines that are done there already, with the same settings, are not done again.
    #[arg(long, default_value = "outputs", value_name = "DIR")]
    output_dir: PathBuf,

    /// png, jpeg or webp, for videos mp4, webp or gif. Png or mp4 if absent.
    #[arg(long, value_parser = FileFormat::from_name, value_name = "NAME")]
    format: Option<FileFormat>,

    /// Quality of JPEG, 1 to 100.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=100), value_name = "N")]
    quality: u8,

    /// Do all lines, also those that are done.
    #[arg(long)]
    again: bool,

    /// End with the first line that fails, in place of going on with the others.
    #[arg(long)]
    stop_at_failure: bool,

    /// Print one JSON object for each line instead of file names.
    #[arg(long)]
    json: bool,
}

/// How lines have ended.
#[derive(Default)]
struct Tally {
    done: usize,
    skipped: usize,
    failed: usize,
}

impl BatchArgs {
    pub(super) fn run(self) -> Result<()> {
        let text = file::read_stream(&self.file, lines::MAX_FILE).map_err(Error::io(&self.file))?;
        let lines = lines::read(&text, &self.request).map_err(|wrong| self.refused(&wrong))?;
        if lines.is_empty() {
            return Err(Error::Usage(format!(
                "{} has no prompts",
                self.file.display()
            )));
        }
        let mut loaded = self.model.load()?;
        let info = loaded.info().clone();
        // Hours later is too late to hear of a mistake.
        let check = |line: &Line| {
            let error = self.request_of(line, &info).err()?;
            Some((line.number, error.to_string()))
        };
        let wrong: Vec<_> = lines.iter().filter_map(check).collect();
        if !wrong.is_empty() {
            return Err(self.refused(&wrong));
        }
        std::fs::create_dir_all(&self.output_dir).map_err(Error::io(&self.output_dir))?;
        let settings = format!("{:?} {:?} {}", self.request, self.format, self.quality);
        let mut journal = Journal::open(&self.output_dir, &info.name, &settings)?;

        let interrupt = Interrupt::install()?;
        let mut tally = Tally::default();
        for (index, line) in lines.iter().enumerate() {
            if let Some(images) = journal
                .done(line.number, &line.text)
                .filter(|_| !self.again)
            {
                tally.skipped += 1;
                self.tell_line(line, images, Some(("skipped", json!(true))))?;
                continue;
            }
            let place = format!("{} of {}", index + 1, lines.len());
            match self.draw(&mut loaded, line, &info, &place, &interrupt) {
                Ok(Some(images)) => {
                    journal.add(line.number, &line.text, &images)?;
                    tally.done += 1;
                    self.tell_line(line, &images, None)?;
                }
                Ok(None) => {
                    return Err(Error::Runtime(format!(
                        "interrupted in line {} ({place}); the same call goes on from there",
                        line.number
                    )))
                }
                Err(error @ Error::DeviceLost(_)) => return Err(error),
                Err(error) if self.stop_at_failure => {
                    return Err(Error::Runtime(format!("line {}: {error}", line.number)))
                }
                Err(error) => {
                    tally.failed += 1;
                    tell(&format!("line {}: {error}", line.number));
                    self.tell_line(line, &[], Some(("error", json!(error.to_string()))))?;
                }
            }
        }
        let Tally {
            done,
            skipped,
            failed,
        } = tally;
        tell(&format!(
            "{done} lines done, {skipped} were done already, {failed} failed"
        ));
        match failed {
            0 => Ok(()),
            _ => Err(Error::Runtime(format!(
                "{failed} of {} lines failed; the same call tries them again",
                lines.len()
            ))),
        }
    }

    /// Lines that are wrong, in one error.
    fn refused(&self, wrong: &[(usize, String)]) -> Error {
        let told = wrong.iter().take(MAX_TOLD);
        let mut text: Vec<String> = told
            .map(|(number, reason)| format!("{}:{number}: {reason}", self.file.display()))
            .collect();
        if wrong.len() > MAX_TOLD {
            text.push(format!("and {} lines more", wrong.len() - MAX_TOLD));
        }
        Error::Usage(text.join("\n"))
    }

    /// Makes and writes the pictures of a line; `None` if the user wants to stop.
    fn draw(
        &self,
        loaded: &mut Loaded,
        line: &Line,
        info: &ModelInfo,
        place: &str,
        interrupt: &Interrupt,
    ) -> Result<Option<Vec<Written>>> {
        let request = self.request_of(line, info)?;
        let ending = FileFormat::for_request(self.format, &request)?;
        let bar = Bar::new(place);
        let generated = loaded.generate(&request, &mut |progress| {
            bar.show(&progress);
            match interrupt.is_raised() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        bar.clear();
        let generated = generated?;
        if generated.cancelled {
            return Ok(None);
        }
        let mut taken = HashSet::new();
        let mut written = Vec::new();
        let format = self
            .format
            .and_then(FileFormat::picture)
            .unwrap_or_default();
        for (i, (image, seed)) in generated.images.iter().zip(&generated.seeds).enumerate() {
            let bytes = match generated.videos.get(i) {
                Some(video) => video.clone(),
                None => {
                    let parameters = Parameters::of(&request, i, info).to_string();
                    image_io::encode(image, format, self.quality, Some(&parameters))?
                }
            };
            let file = name(line, *seed, ending, &mut taken);
            write_file(&self.output_dir.join(&file), &bytes)?;
            written.push(Written { file, seed: *seed });
        }
        Ok(Some(written))
    }

    /// What a line asks for.
    fn request_of(&self, line: &Line, info: &ModelInfo) -> Result<ValidRequest> {
        let format = self.format.and_then(|format| format.of_model(info));
        line.request.request(&line.prompt, info, format)
    }

    fn tell_line(
        &self,
        line: &Line,
        images: &[Written],
        more: Option<(&str, serde_json::Value)>,
    ) -> Result<()> {
        let path = |image: &Written| Path::new(&self.output_dir).join(&image.file);
        if !self.json {
            if more.is_some() {
                return Ok(());
            }
            return images
                .iter()
                .try_for_each(|image| print_line(&path(image).display().to_string()));
        }
        let images: Vec<_> = images
            .iter()
            .map(|image| json!({"file": path(image), "seed": image.seed}))
            .collect();
        let mut told = json!({"line": line.number, "prompt": line.prompt, "images": images});
        if let Some((name, value)) = more {
            told[name] = value;
        }
        print_line(&told.to_string())
    }
}

/// `00003-SEED-words-of-the-prompt.png`, with the number of the line.
fn name(line: &Line, seed: u64, ending: &str, taken: &mut HashSet<String>) -> String {
    let slug = slug(&line.prompt);
    let dash = if slug.is_empty() { "" } else { "-" };
    let stem = format!("{:05}-{seed}{dash}{slug}", line.number);
    let mut name = format!("{stem}.{ending}");
    let mut copy = 2;
    while !taken.insert(name.clone()) {
        name = format!("{stem}-{copy}.{ending}");
        copy += 1;
    }
    name
}
