//! `kfd launch`: a kernel of a code object.

mod argument;

use crate::error::read;
use crate::output::Output;
use crate::session::{Card, Choice, Session};
use crate::{Error, Result};
use argument::{Argument, Buffer};
use candle_kfd::{ComputeQueue, Launch, Program, Signal};
use clap::Args;
use code_object::CodeObject;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Packets of the queue.
const PACKETS: u32 = 64;
/// Words of an output that are shown.
const SHOWN: usize = 8;

/// What runs, and on what.
#[derive(Args, Debug)]
pub struct Options {
    /// The code object: an ELF file for this GPU, as clang --offload-arch=… --no-gpu-bundle-output makes it.
    file: PathBuf,

    /// The kernel's name; without one the file's kernels are listed.
    kernel: Option<String>,

    /// Blocks: X, X,Y or X,Y,Z.
    #[arg(long, value_name = "BLOCKS", default_value = "1", value_parser = dimensions)]
    grid: [u32; 3],

    /// Threads of a block: X, X,Y or X,Y,Z.
    #[arg(long, value_name = "THREADS", default_value = "64", value_parser = dimensions)]
    block: [u32; 3],

    /// Bytes of dynamic LDS.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    lds: u32,

    /// An argument, in the kernel's order: i32:-1, u32:7, i64:…, u64:…, f32:1.5, f64:…, buffer:BYTES[:FILL] for memory
    /// that it reads, out:BYTES[:FILL] for memory that is shown afterwards. FILL is a word (0x3f800000), index or random;
    /// 0 without it.
    #[arg(long = "arg", value_name = "TYPE:VALUE")]
    arguments: Vec<Argument>,

    /// How often, for the time that it takes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
}

/// One to three numbers, separated by commas.
fn dimensions(text: &str) -> std::result::Result<[u32; 3], String> {
    let wrong = || "it must be one to three numbers of at least 1, such as 64 or 8,8".to_string();
    let mut all = [1; 3];
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > all.len() {
        return Err(wrong());
    }
    for (dimension, part) in all.iter_mut().zip(parts) {
        *dimension = part
            .trim()
            .parse()
            .ok()
            .filter(|&n| n > 0)
            .ok_or_else(wrong)?;
    }
    Ok(all)
}

/// Runs it on the first of the GPUs that were asked for.
///
/// # Errors
/// [`Error::Usage`] for arguments that are not the kernel's, [`Error::File`], candle-kfd's.
pub fn run(choice: &Choice, options: &Options) -> Result<()> {
    let path = options.file.display().to_string();
    let file = read(&options.file)?;
    let object = CodeObject::parse(&file)
        .map_err(|error| Error::Usage(format!("{path} is no code object for a GPU: {error}")))?;
    let Some(name) = &options.kernel else {
        list(&Output::new(choice.common.json), &object);
        return Ok(());
    };
    let kernel = object.kernel(name).ok_or_else(|| {
        let names: Vec<&str> = object.kernels.iter().map(|kernel| &*kernel.name).collect();
        Error::Usage(format!(
            "{path} has no kernel {name}; it has {}",
            names.join(", ")
        ))
    })?;
    let wanted: Vec<_> = (kernel.arguments.iter())
        .filter(|argument| !argument.is_hidden())
        .collect();
    argument::check(&options.arguments, &wanted)?;

    let Session {
        cards,
        output,
        timeout,
        ..
    } = choice.begin("launch")?;
    let card = &cards[0];
    let lane = &card.lane;
    let program = Program::load(&card.gpu, &file)?;
    let kernel = program.kernel(name)?;
    let buffers = argument::buffers(&options.arguments, card, lane)?;
    let arguments = argument::bytes(&options.arguments, &wanted, &buffers);
    let queue = ComputeQueue::new(&card.gpu, PACKETS)?;
    let mut best = Duration::MAX;
    let mut ticks = u64::MAX;
    for _ in 0..options.repeat {
        let done = Signal::new(&card.gpu, 1)?;
        let launch = Launch {
            kernel: &kernel,
            blocks: options.grid,
            block: options.block,
            dynamic_lds: options.lds,
            arguments: &arguments,
            completion: Some(&done),
            barrier: true,
        };
        let start = Instant::now();
        // SAFETY: what the kernel does with its arguments is the user's business, whose program this is: it reaches the
        // memory that this process has given the GPU, which is buffers and queues of this command.
        unsafe { queue.launch(&launch) }?;
        queue.wait(&done, timeout)?;
        best = best.min(start.elapsed());
        let (begin, end) = done.times();
        ticks = ticks.min(end.saturating_sub(begin));
    }
    output.say(
        "launch",
        &format!(
            "{}: {name} took {:.1} us ({ticks} ticks of the GPU's clock)",
            card.name(),
            best.as_secs_f64() * 1e6
        ),
        json!({
            "gpu": card.index,
            "kernel": name,
            "microseconds": best.as_secs_f64() * 1e6,
            "gpu_ticks": ticks,
            "repeats": options.repeat,
        }),
    );
    for buffer in buffers.iter().filter(|buffer| buffer.is_output) {
        show(&output, card, buffer, &buffer.fetch(lane)?);
    }
    Ok(())
}

/// The kernels of a file.
fn list(output: &Output, object: &CodeObject) {
    for kernel in &object.kernels {
        let arguments: Vec<String> = (kernel.arguments.iter())
            .filter(|argument| !argument.is_hidden())
            .map(|argument| {
                let name = argument.name.as_deref().unwrap_or("?");
                format!("{name}: {} of {} bytes", argument.value_kind, argument.size)
            })
            .collect();
        output.say(
            "kernel",
            &format!(
                "{} ({}): {} threads a block at most, {} bytes of LDS; takes {}",
                kernel.name,
                object.target.processor(),
                kernel.max_block,
                kernel.lds_bytes,
                match arguments.is_empty() {
                    true => "nothing".to_string(),
                    false => arguments.join(", "),
                }
            ),
            json!({
                "kernel": kernel.name,
                "target": object.target.processor(),
                "max_block": kernel.max_block,
                "lds_bytes": kernel.lds_bytes,
                "arguments": arguments,
            }),
        );
    }
}

/// What a kernel left in a buffer.
fn show(output: &Output, card: &Card, buffer: &Buffer, bytes: &[u8]) {
    let words: Vec<u32> = (bytes.chunks_exact(4))
        .take(SHOWN)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    let mut text = format!(
        "argument {}: checksum {:#018x}",
        buffer.index,
        checksum(bytes)
    );
    for word in &words {
        text.push_str(&format!(
            "\n  {word:#010x} {word} {}",
            f32::from_bits(*word)
        ));
    }
    output.say(
        "output",
        &text,
        json!({
            "gpu": card.index,
            "argument": buffer.index,
            "bytes": bytes.len(),
            "checksum": format!("{:016x}", checksum(bytes)),
            "words": words,
        }),
    );
}

/// FNV-1a of 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_one_to_three() {
        assert_eq!(dimensions("7"), Ok([7, 1, 1]));
        assert_eq!(dimensions("7, 8,9"), Ok([7, 8, 9]));
        for wrong in ["", "0", "1,2,3,4", "-1", "1,", "x"] {
            assert!(dimensions(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_checksum_is_that_of_fnv() {
        assert_eq!(checksum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
