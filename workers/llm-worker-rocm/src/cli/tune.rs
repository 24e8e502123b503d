//! `llm-worker-rocm tune`: which way of multiplying matrices, of floats and quantized, is the faster on this GPU.

use clap::Args;
use worker::cli::output::{print_json, print_line};
use worker::device::DeviceRequest;
use worker::{Error, Result};

/// Arguments of `tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// The GPU: rocm:N.
    #[arg(long, default_value = "rocm:0", value_name = "DEVICE")]
    device: DeviceRequest,

    /// Formats to measure, separated by commas, for example q4_k,q6_k; all without it.
    #[arg(long, value_delimiter = ',', value_name = "FORMAT,…")]
    formats: Vec<String>,

    /// The matrix to measure, of floats and of each format.
    #[arg(long, value_name = "ROWSxCOLUMNS", default_value = "4096x4096", value_parser = shape)]
    shape: (usize, usize),

    /// Forget what was measured, and go by the program's tables again.
    #[arg(long, conflicts_with = "formats")]
    forget: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn shape(text: &str) -> std::result::Result<(usize, usize), String> {
    let numbers = text.split_once('x');
    let numbers = numbers.and_then(|(rows, cols)| Some((rows.parse().ok()?, cols.parse().ok()?)));
    // More than any model has, and no more than a GPU holds.
    const MOST: usize = 1 << 18;
    match numbers {
        Some((rows @ 1..=MOST, cols @ 256..=MOST)) if cols % 256 == 0 => Ok((rows, cols)),
        _ => Err(format!(
            "it must be like 4096x4096, both at most {MOST}, and columns a multiple of 256"
        )),
    }
}

mod measure {
    use super::*;
    use candle_core::rocm_backend::candle_rocm::ops::quantized::{
        self, Float8Crossover, Float8Timing, Format, Timing,
    };
    use candle_core::rocm_backend::candle_rocm::{blas, Device};
    use serde::Serialize;
    use worker::progress::count_bar;

    /// What `--json` prints.
    #[derive(Serialize)]
    struct Report<'a> {
        device: &'a str,
        formats: &'a [Line],
        /// Products with 8-bit floats; none on GPUs without instructions for them.
        float8: &'a [Float8],
        /// Products of floats; none where rocBLAS cannot work, so that there is no choice.
        floats: &'a [Floats],
    }

    #[derive(Serialize)]
    struct Float8 {
        format: &'static str,
        /// Rows of a step from which they are the faster, and taken from now on; none if they never are.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<usize>,
        microseconds: Vec<Float8Micros>,
    }

    #[derive(Serialize)]
    struct Float8Micros {
        rows: usize,
        float8: f64,
        other: f64,
    }

    impl From<Float8Crossover> for Float8 {
        fn from(found: Float8Crossover) -> Self {
            let micros = |timing: &Float8Timing| Float8Micros {
                rows: timing.columns,
                float8: micros(timing.float8),
                other: micros(timing.other),
            };
            Self {
                format: found.format.word(),
                from: found.from,
                microseconds: found.timings.iter().map(micros).collect(),
            }
        }
    }

    #[derive(Serialize)]
    struct Floats {
        /// Their dtype, whether operands are transposed (t) or not (n), and how many rows they have at least: few (up to
        /// 8), narrow (up to 128) or wide.
        class: String,
        taken: &'static str,
        rocblas_microseconds: f64,
        own_microseconds: f64,
    }

    impl From<&blas::Timing> for Floats {
        fn from(timing: &blas::Timing) -> Self {
            Self {
                class: timing.class.to_string(),
                taken: timing.taken.as_str(),
                rocblas_microseconds: micros(timing.rocblas),
                own_microseconds: micros(timing.own),
            }
        }
    }

    fn micros(duration: std::time::Duration) -> f64 {
        duration.as_secs_f64() * 1e6
    }

    #[derive(Serialize)]
    struct Line {
        format: &'static str,
        /// Rows of a step up to which integers are the faster; none if they always are.
        #[serde(skip_serializing_if = "Option::is_none")]
        integers_up_to: Option<usize>,
        microseconds: Vec<Micros>,
    }

    #[derive(Serialize)]
    struct Micros {
        rows: usize,
        integers: f64,
        bf16: f64,
    }

    impl From<&Timing> for Micros {
        fn from(timing: &Timing) -> Self {
            Self {
                rows: timing.columns,
                integers: micros(timing.matmul),
                bf16: micros(timing.bf16),
            }
        }
    }

    impl TuneArgs {
        pub(in super::super) fn run(self) -> Result<()> {
            let formats = self.formats()?;
            let selected = self.device.select()?;
            let Ok(device) = selected.device.as_rocm_device() else {
                return Err(Error::Usage(format!(
                    "{} is not a GPU; give --device rocm:N",
                    selected.name
                )));
            };
            let device: &Device = device.device();
            let failed = |error| Error::Device(format!("tune: {error}"));
            if self.forget {
                quantized::forget(device).map_err(failed)?;
                blas::forget(device).map_err(failed)?;
                device
                    .forget(crate::engine::MEASURED_EXPERTS)
                    .map_err(failed)?;
                return print_line("forgotten");
            }
            let bar = count_bar("measuring", formats.len() as u64, "formats");
            // First: the formats are compared with what is the faster then.
            let floats = blas::tune(device, (self.shape.1, self.shape.0)).map_err(failed)?;
            let floats: Vec<Floats> = floats.iter().map(Floats::from).collect();
            let mut lines = Vec::new();
            for format in formats {
                let (crossover, timings) =
                    quantized::tune(device, format, self.shape).map_err(failed)?;
                lines.push(Line {
                    format: format.word(),
                    integers_up_to: crossover.above,
                    microseconds: timings.iter().map(Micros::from).collect(),
                });
                bar.inc(1);
            }
            // Last: compared with what is the faster of all else.
            let mut float8 = Vec::new();
            for format in self.formats()? {
                let found = quantized::tune_float8(device, format, self.shape).map_err(failed)?;
                float8.extend(found.map(Float8::from));
            }
            bar.finish_and_clear();
            if self.json {
                return print_json(&Report {
                    device: &selected.description,
                    formats: &lines,
                    float8: &float8,
                    floats: &floats,
                });
            }
            let (rows, cols) = self.shape;
            let what = format!("{}, {rows} x {cols}", selected.description);
            print_line(&table(&what, &lines))?;
            for float8 in &float8 {
                print_line(&line_of_float8(float8))?;
            }
            print_line(&table_of_floats(&floats))
        }

        /// The formats asked for, by the names that files or this program give them.
        fn formats(&self) -> Result<Vec<Format>> {
            let known = || {
                Format::ALL
                    .iter()
                    .copied()
                    .filter(|format| format.is_weight())
            };
            if self.formats.is_empty() {
                return Ok(known().collect());
            }
            let plain = |name: &str| name.to_ascii_lowercase().replace('_', "");
            self.formats
                .iter()
                .map(|wanted| {
                    let found = known().find(|format| plain(format.word()) == plain(wanted));
                    found.ok_or_else(|| {
                        let names: Vec<&str> = known().map(|format| format.word()).collect();
                        Error::Usage(format!(
                            "{wanted} is not a format of quantized weights; the formats are {}",
                            names.join(" ")
                        ))
                    })
                })
                .collect()
        }
    }

    fn table(what: &str, lines: &[Line]) -> String {
        let mut text = format!(
            "{what}: µs for N vectors by integers / by bf16, and up to which N integers are taken from now on\n"
        );
        let columns = lines.first().map_or(&[][..], |line| &line.microseconds);
        let heads: Vec<String> = columns.iter().map(|m| format!("{:>15}", m.rows)).collect();
        text += &format!("{:<8}{}   up to", "", heads.concat());
        for line in lines {
            let times: Vec<String> = (line.microseconds.iter())
                .map(|m| format!("{:>15}", format!("{:.0} / {:.0}", m.integers, m.bf16)))
                .collect();
            let up_to = line
                .integers_up_to
                .map_or("any".to_string(), |n| n.to_string());
            text += &format!("\n{:<8}{}   {up_to}", line.format, times.concat());
        }
        text
    }

    fn line_of_float8(float8: &Float8) -> String {
        let times: Vec<String> = (float8.microseconds.iter())
            .map(|m| format!("{}: {:.0} / {:.0}", m.rows, m.float8, m.other))
            .collect();
        let from = (float8.from).map_or("never".to_string(), |n| format!("from {n} on"));
        format!(
            "{}, µs for N vectors as 8-bit floats / as chosen else: {}; as 8-bit floats from now on: {from}",
            float8.format,
            times.join(", ")
        )
    }

    fn table_of_floats(floats: &[Floats]) -> String {
        if floats.is_empty() {
            return "products of floats: by this program's own kernels, as rocBLAS cannot work here".to_string();
        }
        let mut text =
            "products of floats: µs by rocBLAS / by own kernels, and which are taken from now on"
                .to_string();
        for line in floats {
            let times = format!(
                "{:.0} / {:.0}",
                line.rocblas_microseconds, line.own_microseconds
            );
            text += &format!("\n{:<16}{times:>15}   {}", line.class, line.taken);
        }
        text
    }
}
