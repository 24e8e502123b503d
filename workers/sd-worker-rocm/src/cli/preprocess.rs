//! `sd-worker-rocm preprocess`.

use super::output::write_file;
use super::png_info::read_picture;
use crate::image_io::{self, DecodeLimits, Format};
use crate::preprocess::{Kind, NetworkFolders, Preprocessor};
use candle_core::Device;
use clap::Args;
use std::path::PathBuf;
use worker::cli::output::print_line;
use worker::device::DeviceArgs;
use worker::{Error, Result};

/// Arguments of `preprocess`.
#[derive(Debug, Args)]
pub struct PreprocessArgs {
    /// canny, invert, threshold, scribble-xdog, lineart-standard, tile, blur, intensity, luminance, shuffle; with
    /// --network or --preprocessor-dir softedge-hed, softedge-hed-safe, scribble-hed, lineart, lineart-coarse,
    /// lineart-anime, mlsd, depth, depth-midas, depth-anything, normal and pose.
    /// AUTOMATIC1111's names are understood, too.
    #[arg(value_parser = Kind::from_name)]
    kind: Kind,

    /// PNG, JPEG or WebP file.
    picture: PathBuf,

    /// File to write.
    output: PathBuf,

    #[command(flatten)]
    settings: PreprocessSettings,

    #[command(flatten)]
    device: DeviceArgs,

    /// Print one JSON object instead of the file's name.
    #[arg(long)]
    json: bool,
}

/// Settings of a preprocessor.
#[derive(Debug, Args, Clone)]
struct PreprocessSettings {
    /// The first threshold: of canny the low one, of blur its pixels, of tile how many times coarser, of shuffle the seed,
    /// of mlsd how likely lines are, of normal how near they are at least, of intensity and luminance the exponent.
    #[arg(long, value_name = "X")]
    threshold_a: Option<f64>,

    /// The second threshold: of canny the high one, of mlsd how long lines are at least.
    #[arg(long, value_name = "X")]
    threshold_b: Option<f64>,

    /// Pixels of the shorter side; left out, the picture's own.
    #[arg(long, value_name = "N")]
    resolution: Option<u32>,

    /// The network: a .safetensors file, or a folder as transformers writes it.
    #[arg(long, value_name = "PATH")]
    network: Option<PathBuf>,

    /// Folder in which the network is looked for; may be given several times.
    #[arg(
        long,
        value_delimiter = ':',
        conflicts_with = "network",
        value_name = "DIR"
    )]
    preprocessor_dir: Vec<PathBuf>,
}

impl PreprocessArgs {
    pub(super) fn run(self) -> Result<()> {
        let format = Format::of_path(&self.output)?;
        let picture = image_io::decode(&read_picture(&self.picture)?, &DecodeLimits::default())
            .map_err(|e| Error::Usage(format!("{}: {e}", self.picture.display())))?;
        let device = match self.kind.network() {
            Some(_) => self.device.select()?.device,
            None => Device::Cpu,
        };
        let PreprocessSettings {
            threshold_a,
            threshold_b,
            resolution,
            network,
            preprocessor_dir,
        } = self.settings;
        let folders = NetworkFolders::new(preprocessor_dir);
        let network = network.or_else(|| folders.find(self.kind));
        let preprocessor = Preprocessor {
            kind: self.kind,
            thresholds: [threshold_a, threshold_b],
            resolution,
            network,
        };
        let made = preprocessor.run(&image_io::to_rgb(&picture), &device)?;
        write_file(&self.output, &image_io::encode(&made, format, 100, None)?)?;
        match self.json {
            true => print_line(
                &serde_json::json!({
                    "picture": self.picture,
                    "file": self.output,
                    "preprocessor": self.kind.name(),
                    "width": made.width(),
                    "height": made.height(),
                })
                .to_string(),
            ),
            false => print_line(&self.output.display().to_string()),
        }
    }
}
