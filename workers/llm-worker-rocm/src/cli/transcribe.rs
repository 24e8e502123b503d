//! `llm-worker-rocm transcribe`.

use super::source::SourceArgs;
use crate::audio::{decode, SoundLimits};
use crate::kernels;
use crate::whisper::format::TranscriptFormat;
use crate::whisper::{rising, Progress as Told, TranscribeOptions, Transcript, Whisper, RATE};
use clap::Args;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use worker::cli::output;
use worker::device::DeviceRequest;
use worker::kernels::CompileArgs;
use worker::progress::{byte_bar, count_bar};
use worker::serve::Progress;
use worker::signal::Interrupt;
use worker::{file, Error, Result};

/// Arguments of `transcribe`.
#[derive(Debug, Args)]
pub struct TranscribeArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Sound files: WAV, FLAC, MP3, AAC (also in MP4: m4a), Ogg Vorbis, AIFF.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The language that is spoken, by its code or English name; found out if absent.
    #[arg(long, short, value_name = "LANGUAGE")]
    language: Option<String>,

    /// Write in English whatever the language is.
    #[arg(long)]
    translate: bool,

    /// A text that may stand before the recording: names, spellings, style.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,

    /// What to write: text, srt, vtt, json or verbose-json.
    #[arg(long, short, default_value = "text", value_name = "FORMAT", value_parser = format_of)]
    format: TranscriptFormat,

    /// Give each word its time, in verbose-json.
    #[arg(long)]
    words: bool,

    /// Where to write: a file, or for several FILEs a folder; standard output if absent.
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Randomness of the first try of each window; it rises where an answer makes no sense.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temperature: f32,

    /// Write each window down without the text before it.
    #[arg(long)]
    no_condition: bool,

    /// Where to compute: auto, cpu, rocm or rocm:N. `auto` takes the first GPU, or says that it uses the CPU.
    #[arg(long, short, default_value = "auto", value_parser = str::parse::<DeviceRequest>)]
    device: DeviceRequest,

    #[command(flatten)]
    compile: CompileArgs,
}

fn format_of(name: &str) -> std::result::Result<TranscriptFormat, String> {
    TranscriptFormat::from_name(name)
        .ok_or_else(|| "text, srt, vtt, json and verbose-json are known".to_string())
}

impl TranscribeArgs {
    pub(super) fn run(self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.temperature) {
            return Err(Error::Usage(format!(
                "--temperature {} is not from 0 to 1",
                self.temperature
            )));
        }
        if self.words && self.format != TranscriptFormat::VerboseJson {
            return Err(Error::Usage(
                "--words have a place in --format verbose-json only".to_string(),
            ));
        }
        let targets = self.targets()?;
        let path = self.source.resolve()?;
        if !Whisper::recognises(&path) {
            return Err(Error::Usage(format!(
                "{} is no Whisper model: a folder of WhisperForConditionalGeneration or a .bin file of whisper.cpp is",
                path.display()
            )));
        }
        let selected = self.device.open()?;
        let device = &selected.device;
        (self.compile).ahead(device, &kernels::of_encoder(), &Progress::default());
        let bar = byte_bar("loading", bytes_of(&path));
        let model = Whisper::open(&path, device, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        let interrupt = Interrupt::install()?;
        for (sound, target) in self.files.iter().zip(&targets) {
            if self.files.len() > 1 && target.is_none() {
                output::print_line(&format!("{}:", sound.display()))?;
            }
            self.one(&model, sound, target.as_deref(), &interrupt)?;
        }
        Ok(())
    }

    /// Where each file's transcript goes.
    fn targets(&self) -> Result<Vec<Option<PathBuf>>> {
        let subtitles = matches!(self.format, TranscriptFormat::Srt | TranscriptFormat::Vtt);
        let Some(output) = &self.output else {
            if subtitles && self.files.len() > 1 {
                return Err(Error::Usage(
                    "subtitles of several files need --output FOLDER".to_string(),
                ));
            }
            return Ok(vec![None; self.files.len()]);
        };
        if !output.is_dir() {
            return match self.files.len() {
                1 => Ok(vec![Some(output.clone())]),
                _ => Err(Error::Usage(format!(
                    "--output {}: several files need a folder that is there",
                    output.display()
                ))),
            };
        }
        let extension = match self.format {
            TranscriptFormat::Text => "txt",
            TranscriptFormat::Srt => "srt",
            TranscriptFormat::Vtt => "vtt",
            TranscriptFormat::Json | TranscriptFormat::VerboseJson => "json",
        };
        let target = |sound: &PathBuf| {
            let name = sound.file_stem().unwrap_or_default();
            Some(output.join(name).with_extension(extension))
        };
        let targets: Vec<_> = self.files.iter().map(target).collect();
        let mut names: Vec<_> = targets.iter().collect();
        names.sort();
        match names.windows(2).find(|two| two[0] == two[1]) {
            Some(two) => Err(Error::Usage(format!(
                "two files would be written to {}",
                two[0].as_deref().unwrap_or(output).display()
            ))),
            None => Ok(targets),
        }
    }

    fn options(&self) -> TranscribeOptions {
        TranscribeOptions {
            language: self.language.clone(),
            translate: self.translate,
            prompt: self.prompt.clone(),
            temperatures: rising(self.temperature),
            condition: !self.no_condition,
            words: self.words,
            ..TranscribeOptions::default()
        }
    }

    fn one(
        &self,
        model: &Whisper,
        sound: &Path,
        target: Option<&Path>,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let limits = SoundLimits::DEFAULT;
        let bytes = file::read(sound, limits.max_bytes as u64).map_err(Error::io(sound))?;
        let samples = decode(&bytes, RATE, &limits)
            .map_err(|e| Error::Usage(format!("{}: {e}", sound.display())))?;
        drop(bytes);
        let seconds = samples.len() as u64 / u64::from(RATE);
        let bar = count_bar("transcribing", seconds, "s");
        let mut trouble = None;
        let print_above = |text: &str| match text.is_empty() {
            true => Ok(true),
            false => bar.suspend(|| output::print(text)),
        };
        if target.is_none() && !self.format.head().is_empty() {
            output::print(self.format.head())?;
        }
        let mut listener = |told: Told| {
            match told {
                Told::Reached(second) => bar.set_position(second as u64),
                Told::Segment(segment) if target.is_none() => {
                    let text = self.format.segment(segment);
                    match print_above(&text) {
                        Ok(true) => {}
                        // The reader has seen enough.
                        Ok(false) => return ControlFlow::Break(()),
                        Err(error) => {
                            trouble = Some(error);
                            return ControlFlow::Break(());
                        }
                    }
                }
                _ => {}
            }
            match interrupt.is_raised() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let found = model.transcribe(samples, &self.options(), &mut listener)?;
        bar.finish_and_clear();
        if let Some(error) = trouble {
            return Err(error);
        }
        let Some(transcript) = found else {
            return match interrupt.is_raised() {
                true => Err(Error::Runtime("interrupted".to_string())),
                false => Ok(()),
            };
        };
        self.finish(&transcript, target)
    }

    /// Writes what is not written segment by segment.
    fn finish(&self, transcript: &Transcript, target: Option<&Path>) -> Result<()> {
        let whole = || self.format.whole(transcript, self.translate);
        match target {
            Some(path) => file::replace(path, whole().as_bytes()).map_err(Error::io(path)),
            None => match self.format {
                TranscriptFormat::Json | TranscriptFormat::VerboseJson => {
                    output::print_line(&whole())
                }
                _ => Ok(()),
            },
        }
    }
}

/// Bytes of a model's file, or of a folder's weights.
fn bytes_of(path: &Path) -> u64 {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    match path.is_dir() {
        true => crate::folder::weight_files(path)
            .map_or(0, |files| files.iter().map(|file| length(file)).sum()),
        false => length(path),
    }
}
