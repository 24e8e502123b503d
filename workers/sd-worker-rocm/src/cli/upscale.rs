//! `sd-worker-rocm upscale`.

use super::faces::FaceArgs;
use super::output::write_file;
use super::png_info::read_picture;
use crate::faces::Faces;
use crate::image_io::{self, DecodeLimits, Format};
use crate::kernels;
use crate::parameters;
use crate::pipeline::Precision;
use crate::upscale::{enlarge, scaled, Method, Network, Tiling};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;
use worker::cli::log::tell;
use worker::cli::output::print_line;
use worker::device::DeviceArgs;
use worker::kernels::CompileArgs;
use worker::serve::Progress;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `upscale`.
#[derive(Debug, Args)]
pub struct UpscaleArgs {
    /// PNG, JPEG or WebP files.
    #[arg(required = true, value_name = "FILE")]
    pictures: Vec<PathBuf>,

    /// A network (ESRGAN, Real-ESRGAN, SwinIR, Swin2SR, HAT, DAT as .safetensors), or lanczos, bicubic, bilinear, box or nearest.
    #[arg(long, default_value = "lanczos", value_parser = Method::of, value_name = "FILE|NAME")]
    upscaler: Method,

    /// How many times as wide and high; left out, the network's own scale, or 2.
    #[arg(long, value_name = "X")]
    scale: Option<f64>,

    /// Pixels of a tile that the network sees at once; 0 is the whole picture.
    #[arg(long, default_value_t = Tiling::default().size, value_name = "N")]
    tile: usize,

    /// Pixels that neighbouring tiles share.
    #[arg(long, default_value_t = Tiling::default().overlap, value_name = "N")]
    overlap: usize,

    #[command(flatten)]
    faces: FaceArgs,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    compile: CompileArgs,

    /// File to write, for one picture.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Folder to write to, when there is no --output; names are the pictures' own.
    #[arg(long, default_value = "outputs", value_name = "DIR")]
    output_dir: PathBuf,

    /// png, jpeg or webp; the ending of --output counts more.
    #[arg(long, default_value = "png", value_parser = Format::from_name)]
    format: Format,

    /// Quality of JPEG, 1 to 100.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=100), value_name = "N")]
    quality: u8,

    /// Print one JSON object for each picture instead of file names.
    #[arg(long)]
    json: bool,
}

impl UpscaleArgs {
    pub(super) fn run(self) -> Result<()> {
        if self.output.is_some() && self.pictures.len() > 1 {
            return Err(Error::Usage(
                "--output is for one picture; give --output-dir for several".to_string(),
            ));
        }
        let format = match &self.output {
            Some(path) => Format::of_path(path)?,
            None => self.format,
        };
        let mut network = match &self.upscaler {
            Method::Network(path) => {
                let device = self.device.select()?;
                let kernels = kernels::of_precision(Precision::F16);
                let progress = Progress::default();
                self.compile.ahead(&device.device, &kernels, &progress);
                Some((Network::open(path, &device.device)?, device.description))
            }
            Method::Pixels(_) => None,
            Method::Latent(_) => return Err(Error::Usage(
                "--upscaler: latents are only there between two passes (generate --hr-upscaler)"
                    .to_string(),
            )),
        };
        let mut faces = match self.faces.wish()? {
            Some(wish) => {
                let device = self.device.select()?;
                Some(Faces::open(wish, &device.device)?)
            }
            None => None,
        };
        let filter = match &self.upscaler {
            Method::Pixels(filter) => *filter,
            _ => Default::default(),
        };
        let own = network.as_ref().map(|(network, _)| network.scale() as f64);
        let scale = self.scale.or(own).unwrap_or(2.0);
        let tiling = Tiling {
            size: self.tile,
            overlap: self.overlap,
        };
        let interrupt = Interrupt::install()?;
        for path in &self.pictures {
            let bytes = read_picture(path)?;
            let named = |e: Error| Error::Usage(format!("{}: {e}", path.display()));
            let picture = image_io::decode(&bytes, &DecodeLimits::default()).map_err(named)?;
            let picture = image_io::to_rgb(&picture);
            let size = scaled(picture.dimensions(), scale).map_err(named)?;
            let bar = Bar::new(path);
            let begun = Instant::now();
            let way = network.as_mut().map(|(network, _)| (network, &tiling));
            let larger = enlarge(&picture, way, filter, size, &mut |done, total| {
                bar.show(done, total);
                match interrupt.is_raised() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            let interrupted = || Error::Runtime("interrupted".to_string());
            let mut larger = larger?.ok_or_else(interrupted)?;
            let mut restored = None;
            if let Some(faces) = &mut faces {
                let made = faces.restore(&larger, &mut |done, total| {
                    bar.show(done, total);
                    match interrupt.is_raised() {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
                let (picture, count) = made?.ok_or_else(interrupted)?;
                larger = picture;
                restored = Some(count);
            }
            bar.clear();
            let seconds = begun.elapsed().as_secs_f64();
            let label = self.upscaler.label();
            let text = image_io::parameters_of(&bytes)?.unwrap_or_default();
            let mut text = parameters::upscaled(&text, scale, &label);
            if let Some(faces) = &faces {
                text = parameters::restored(&text, faces.wish());
            }
            let bytes = image_io::encode(&larger, format, self.quality, Some(&text))?;
            let output = self.name(path, format)?;
            write_file(&output, &bytes)?;
            let device = network.as_ref().map(|(_, device)| device.as_str());
            if self.json {
                let json = serde_json::json!({
                    "picture": path,
                    "file": output,
                    "width": larger.width(),
                    "height": larger.height(),
                    "upscaler": label,
                    "kind": network.as_ref().map(|(network, _)| network.kind()),
                    "faces": restored,
                    "device": device,
                    "seconds": seconds,
                });
                print_line(&json.to_string())?;
            } else {
                print_line(&output.display().to_string())?;
                let (width, height) = larger.dimensions();
                let on = device.map_or(String::new(), |device| format!(" on {device}"));
                let with = restored.map_or(String::new(), |count| format!(", faces: {count}"));
                tell(&format!(
                    "{label}{on}: {width} x {height}{with} in {seconds:.2} s"
                ));
            }
        }
        Ok(())
    }

    fn name(&self, picture: &Path, format: Format) -> Result<PathBuf> {
        if let Some(output) = &self.output {
            return Ok(output.clone());
        }
        let folder = &self.output_dir;
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let stem = picture.file_stem().unwrap_or_default();
        let mut name = stem.to_os_string();
        name.push("-upscaled.");
        name.push(format.extension());
        Ok(folder.join(name))
    }
}

/// Tiles done, on a terminal only.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(path: &Path) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) =
            ProgressStyle::with_template("{msg} [{wide_bar}] {pos}/{len} tiles, {eta} left")
        {
            bar.set_style(style);
        }
        let name = path.file_name().unwrap_or_default();
        bar.set_message(name.to_string_lossy().into_owned());
        Self(bar)
    }

    pub(super) fn show(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
