//! The process that runs kernels. A kernel that goes wild ends this one, and the check starts another.

use super::runtime::Runtime;
use super::simulator::SimulatorCompiler;
use super::wire::{self, Answer, Launch, Request};
use candle_rocm::compile::HiprtcCompiler;
use candle_rocm_kernels::{Cache, CompileError, CompileRequest, Compiler};
use std::error::Error;
use std::io::{BufReader, BufWriter};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Says to a worker where kernels run: `sim` or `rocm`.
pub(super) const VARIABLE: &str = "ROCM_PORT_WORKER";

/// Serves requests on the socket that is the standard input, until it closes. This is what the program does with the
/// hidden option `check --worker`; nobody else has a use for it.
///
/// # Errors
/// No runtime, and a socket that breaks.
pub fn serve() -> Result<(), Box<dyn Error>> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut from = BufReader::new(socket.try_clone()?);
    let mut to = BufWriter::new(socket);
    let is_simulated = std::env::var(VARIABLE).as_deref() != Ok("rocm");
    let runtime = match is_simulated {
        true => Runtime::simulated()?,
        false => Runtime::of_machine()?,
    };
    let mut module = None;
    while let Ok(request) = wire::read::<Request>(&mut from) {
        match request {
            Request::Load {
                name,
                source,
                options,
            } => {
                let request = CompileRequest {
                    name: &name,
                    source: &source,
                    arch: &runtime.arch,
                    options: &options,
                };
                let answer = match compile(is_simulated, &request) {
                    Ok(object) => match runtime.load(&object) {
                        Ok(loaded) => {
                            module = Some(loaded);
                            let arch = runtime.arch.clone();
                            Answer::Loaded { arch }
                        }
                        Err(why) => Answer::Impossible {
                            why: [vec![why], runtime.reports()].concat().join("\n"),
                        },
                    },
                    Err(CompileError::Failed { log, .. }) => Answer::Rejected { log },
                    Err(other) => Answer::Impossible {
                        why: other.to_string(),
                    },
                };
                wire::write(&mut to, &answer, &[])?;
            }
            Request::Run(launch) => {
                let contents = contents(&launch, &mut from)?;
                let Some(module) = module else {
                    let why = "nothing is loaded".to_string();
                    wire::write(&mut to, &Answer::Impossible { why }, &[])?;
                    continue;
                };
                // Static shared memory belongs to the OS thread here: on a new one it holds nothing of the launch
                // before, and the same launch gives the same in every process.
                let outcome = std::thread::scope(|scope| {
                    let run = || runtime.run(module, &launch, &contents);
                    scope.spawn(run).join()
                });
                let outcome = outcome.unwrap_or_else(|_| Err("the worker panicked".to_string()));
                let reports = runtime.reports();
                let (error, outputs) = match outcome {
                    Ok(outputs) => (None, outputs),
                    Err(error) => (Some(error), Vec::new()),
                };
                let blobs: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
                wire::write(&mut to, &Answer::Done { error, reports }, &blobs)?;
            }
        }
    }
    Ok(())
}

fn contents(
    launch: &Launch,
    mut from: impl std::io::Read,
) -> std::io::Result<Vec<Option<Vec<u8>>>> {
    let read = |room: &wire::Room| match room.is_written {
        true => wire::read_bytes(&mut from, room.bytes).map(Some),
        false => Ok(None),
    };
    launch.rooms.iter().map(read).collect()
}

fn compile(is_simulated: bool, request: &CompileRequest) -> Result<Vec<u8>, CompileError> {
    let compiler: Box<dyn Compiler> = match is_simulated {
        true => Box::new(SimulatorCompiler::new()),
        false => Box::new(HiprtcCompiler::new()?),
    };
    Cache::from_env().get_or_compile(&*compiler, request)
}
