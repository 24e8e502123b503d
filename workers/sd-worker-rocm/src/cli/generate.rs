//! `sd-worker-rocm generate`.

use super::loaded::Loaded;
use super::model::ModelArgs;
use super::output::{write_file, OutputFolder};
use super::request::RequestArgs;
use crate::image_io::{self, Format};
use crate::info::ModelInfo;
use crate::parameters::Parameters;
use crate::pipeline::{Generated, Progress, Stage};
use crate::request::ImageRequest;
use crate::video::VideoFormat;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;
use worker::cli::log::tell;
use worker::cli::output::print_line;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// What to make; several words are joined by spaces, `-` reads standard input.
    #[arg(required_unless_present = "from_picture")]
    prompt: Vec<String>,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    request: RequestArgs,

    /// File to write; for several pictures a number is put before the ending.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Folder to write to, when there is no --output.
    #[arg(long, default_value = "outputs", value_name = "DIR")]
    output_dir: PathBuf,

    /// png, jpeg or webp, for videos mp4, webp or gif; the ending of --output counts more. Png or mp4 if absent.
    #[arg(long, value_parser = FileFormat::from_name, value_name = "NAME")]
    format: Option<FileFormat>,

    /// Quality of JPEG, 1 to 100.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=100), value_name = "N")]
    quality: u8,

    /// Print one JSON object instead of file names.
    #[arg(long)]
    json: bool,
}

impl GenerateArgs {
    pub(super) fn run(self) -> Result<()> {
        let prompt = match self.prompt.join(" ") {
            dash if dash == "-" => read_standard_input()?,
            prompt => prompt,
        };
        let format = match &self.output {
            Some(path) => Some(FileFormat::of_path(path)?),
            None => self.format,
        };
        let start = Instant::now();
        let mut loaded = self.model.load()?;
        let load = start.elapsed();
        let info = loaded.info().clone();
        let of_videos = format.and_then(|format| format.of_model(&info));
        let request = self.request.request(&prompt, &info, of_videos)?;
        let extension = FileFormat::for_request(format, &request)?;

        let interrupt = Interrupt::install()?;
        let bar = Bar::new("");
        let generated = loaded.generate(&request, &mut |progress| {
            bar.show(&progress);
            if interrupt.is_raised() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        bar.clear();
        let generated = generated?;
        if generated.cancelled {
            return Err(Error::Runtime("interrupted".to_string()));
        }

        let mut files = self
            .names(&request.prompt, &generated, extension)?
            .into_iter();
        let mut written = Vec::new();
        for (i, seed) in generated.seeds.iter().enumerate() {
            let bytes = match (generated.videos.get(i), generated.images.get(i)) {
                (Some(video), _) => video.clone(),
                (None, Some(image)) => {
                    let parameters = Parameters::of(&request, i, &info).to_string();
                    let format = format.and_then(FileFormat::picture).unwrap_or_default();
                    image_io::encode(image, format, self.quality, Some(&parameters))?
                }
                (None, None) => break,
            };
            if let Some(path) = files.next() {
                write_file(&path, &bytes)?;
                written.push((path, *seed));
            }
        }
        if self.json {
            let (model, load) = ((&info, &loaded), load.as_secs_f64());
            return self.print_json(&request, &generated, &written, model, load);
        }
        for (path, _) in &written {
            print_line(&path.display().to_string())?;
        }
        let timings = &generated.timings;
        let seconds = timings.denoise.as_secs_f64();
        tell(&format!(
            "{} on {}: load {:.2} s, text {:.2} s, {} steps at {:.2} it/s, pixels {:.2} s, seed {}",
            info.name,
            loaded.device().description,
            load.as_secs_f64(),
            timings.encode.as_secs_f64(),
            request.steps,
            timings.evaluations as f64 / seconds.max(1e-9),
            timings.decode.as_secs_f64(),
            request.seed,
        ));
        Ok(())
    }

    /// A file for each picture.
    fn names(&self, prompt: &str, generated: &Generated, extension: &str) -> Result<Vec<PathBuf>> {
        let Some(path) = &self.output else {
            let mut folder = OutputFolder::open(&self.output_dir)?;
            let seeds = generated.seeds.iter();
            return Ok(seeds
                .map(|seed| folder.next(prompt, *seed, extension))
                .collect());
        };
        if generated.images.len() == 1 {
            return Ok(vec![path.clone()]);
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        Ok((1..=generated.images.len())
            .map(|i| path.with_file_name(format!("{stem}-{i}.{ending}")))
            .collect())
    }

    fn print_json(
        &self,
        request: &ImageRequest,
        generated: &Generated,
        written: &[(PathBuf, u64)],
        (info, loaded): (&ModelInfo, &Loaded),
        load: f64,
    ) -> Result<()> {
        let timings = &generated.timings;
        let denoise = timings.denoise.as_secs_f64();
        let images: Vec<_> = written
            .iter()
            .map(|(path, seed)| serde_json::json!({"file": path, "seed": seed}))
            .collect();
        let json = serde_json::json!({
            "images": images,
            "model": info.name,
            "precision": info.precision,
            "device": loaded.device(),
            "devices": loaded.devices_as_json(),
            "request": {
                "prompt": request.prompt,
                "negative_prompt": request.negative_prompt,
                "width": request.width,
                "height": request.height,
                "steps": request.steps,
                "guidance": request.guidance,
                "sampler": request.sampler.label(),
                "schedule": request.schedule().label(),
                "rng": request.rng.name(),
                "clip_skip": request.clip_skip,
                "frames": request.frames(),
                "fps": request.video.as_ref().map(|video| video.fps),
            },
            "timings": {
                "load_ms": load * 1e3,
                "lora_ms": timings.lora.as_secs_f64() * 1e3,
                "encode_ms": timings.encode.as_secs_f64() * 1e3,
                "denoise_ms": denoise * 1e3,
                "enqueue_ms": timings.enqueue.as_secs_f64() * 1e3,
                "decode_ms": timings.decode.as_secs_f64() * 1e3,
                "evaluations": timings.evaluations,
                "launches": timings.launches,
                "graphs": timings.graphs,
                "iterations_per_second": timings.evaluations as f64 / denoise.max(1e-9),
            },
        });
        print_line(&json.to_string())
    }
}

/// A format of pictures, of videos, or of both.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileFormat {
    picture: Option<Format>,
    video: Option<VideoFormat>,
    extension: &'static str,
}

impl FileFormat {
    /// The format of this name or extension.
    pub(super) fn from_name(name: &str) -> Result<Self> {
        let (picture, video) = (Format::from_name(name), VideoFormat::from_name(name));
        match (picture.ok(), video.ok()) {
            (None, None) => Err(Error::Usage(format!(
                "{name:?} is not a format that is written; use png, jpeg or webp, for videos mp4, webp or gif"
            ))),
            (picture, video) => Ok(Self {
                picture,
                video,
                extension: match (picture, video) {
                    (Some(picture), _) => picture.extension(),
                    (None, video) => video.unwrap_or_default().extension(),
                },
            }),
        }
    }

    fn of_path(path: &Path) -> Result<Self> {
        Self::from_name(path.extension().and_then(|e| e.to_str()).unwrap_or(""))
    }

    /// The format of videos, for a model that makes such.
    pub(super) fn of_model(self, info: &ModelInfo) -> Option<VideoFormat> {
        self.video.filter(|_| info.defaults.video.is_some())
    }

    /// The format of pictures.
    pub(super) fn picture(self) -> Option<Format> {
        self.picture
    }

    /// The extension of a request's files in this format, or in the usual one.
    pub(super) fn for_request(
        format: Option<Self>,
        request: &ImageRequest,
    ) -> Result<&'static str> {
        let is_video = request.frames() > 1;
        match format {
            None if is_video => Ok(VideoFormat::default().extension()),
            None => Ok(Format::default().extension()),
            Some(format) if is_video && format.video.is_none() => Err(Error::Usage(format!(
                "{} frames are a video, which is written as mp4, webp or gif, not as {}",
                request.frames(),
                format.extension
            ))),
            Some(format) if !is_video && format.picture.is_none() => Err(Error::Usage(format!(
                "one frame is a picture, which is written as png, jpeg or webp, not as {}",
                format.extension
            ))),
            Some(format) => Ok(format.extension),
        }
    }
}

/// Steps with iterations a second and time left, on a terminal only.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// `place` is told before what is done; it may be empty.
    pub(super) fn new(place: &str) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        let comma = if place.is_empty() { "" } else { ", " };
        Self(bar.with_prefix(format!("{place}{comma}")))
    }

    pub(super) fn show(&self, progress: &Progress) {
        let bar = &self.0;
        match progress.stage {
            Stage::Encode => bar.set_message("text"),
            Stage::Decode => bar.set_message("pixels"),
            Stage::Denoise => {
                if progress.step == 0 {
                    bar.set_length(progress.total as u64);
                    bar.reset_elapsed();
                    bar.reset_eta();
                    let template =
                        "{prefix}{msg} [{wide_bar}] {pos}/{len} steps, {my_rate} it/s, {eta} left";
                    if let Ok(style) = ProgressStyle::with_template(template) {
                        let rate =
                            |state: &indicatif::ProgressState, w: &mut dyn std::fmt::Write| {
                                // A full terminal line is all that is lost if writing fails.
                                let _ = write!(w, "{:.2}", state.per_sec());
                            };
                        bar.set_style(style.with_key("my_rate", rate));
                    }
                    bar.set_message("image");
                }
                bar.set_position(progress.step as u64);
            }
        }
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

fn read_standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .take(crate::prompt::tokenizer::MAX_PROMPT_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|e| Error::Usage(format!("standard input: {e}")))?;
    Ok(text.trim().to_string())
}
