//! Damaged code objects, loaded and launched: errors, or kernels that the hardware refuses; never a panic, never a hang.

mod random;

use candle_kfd::mock::{object, Mock, MockKernel};
use candle_kfd::{ComputeQueue, Displays, Error, Gpu, Kfd, Kind, Launch, Program, Signal};
use random::Random;
use std::sync::Arc;
use std::time::Duration;

/// Damages up to three bytes or so: of one of the kernels' descriptors, or anywhere where something is, as most of a page
/// is nothing.
fn damage(file: &mut Vec<u8>, descriptors: &[usize], random: &mut Random) {
    let descriptor = descriptors[random.below(descriptors.len())];
    let anywhere = random.below(2) == 0;
    for _ in 0..=random.below(3) {
        let used: Vec<usize> = (0..file.len()).filter(|&at| file[at] != 0).collect();
        let at = if anywhere {
            used[random.below(used.len())]
        } else {
            // Sizes, and where the code is.
            descriptor + random.below(24)
        };
        match random.below(6) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = random.below(256) as u8,
            2 => file[at] = 0xff,
            3 => {
                let end = (at + 8).min(file.len());
                file[at..end].fill([0, 0xff, 0x7f][random.below(3)]);
            }
            4 => file.swap(at, used[random.below(used.len())]),
            _ if anywhere && random.below(4) == 0 => return file.truncate(at + 1),
            _ => file[at] = file[at].wrapping_add(1),
        }
    }
}

/// A GPU with the kernels of the object.
fn bench() -> (Arc<Mock>, Arc<Gpu>) {
    let mock = Mock::new(&["gfx1100"]);
    mock.kernel("write", |launch| {
        launch.memory.store32(launch.u64(0), launch.u32(8))
    });
    mock.kernel("other", |_| Ok(()));
    let kfd = Kfd::with(mock.clone()).unwrap();
    let gpu = kfd.gpu(0, Displays::Refuse).unwrap();
    (mock, gpu)
}

/// Which of the things that may happen to a damaged object happened.
#[derive(Debug, Default)]
struct Count {
    refused: usize,
    not_launched: usize,
    stopped: usize,
    ran: usize,
}

#[test]
fn damaged_objects_are_errors_or_run() {
    let sound = object(
        "gfx1100",
        &[
            MockKernel::new("write").buffer().value(4).hidden().lds(64),
            MockKernel::new("other").scratch(32),
        ],
    );
    let descriptors: Vec<usize> = {
        let (_, image) = code_object::load(&sound).unwrap();
        let offset = |name| image.symbol(name).unwrap().offset as usize;
        ["write.kd", "other.kd"].map(offset).to_vec()
    };
    let (mut mock, mut gpu) = bench();
    let mut random = Random(7);
    let mut count = Count::default();
    for case in 0..80 {
        let mut file = sound.clone();
        damage(&mut file, &descriptors, &mut random);
        if gpu.usable().is_err() {
            (mock, gpu) = bench();
        }
        let Ok(program) = Program::load(&gpu, &file) else {
            count.refused += 1;
            continue;
        };
        let memory = gpu.allocate(4096, Kind::Gtt).unwrap();
        let mut arguments = memory.address().to_le_bytes().to_vec();
        arguments.extend(7u32.to_le_bytes());
        let names: Vec<String> = (program.object().kernels.iter())
            .map(|kernel| kernel.name.clone())
            .collect();
        for name in names {
            let Ok(kernel) = program.kernel(&name) else {
                panic!("{case}: {name} is in the list");
            };
            // The kernel before it may have taken the GPU with it.
            if gpu.usable().is_err() {
                break;
            }
            let queue = ComputeQueue::new(&gpu, 64).unwrap();
            let done = Signal::new(&gpu, 1).unwrap();
            let wanted = kernel
                .facts()
                .arguments
                .iter()
                .map(|argument| u64::from(argument.offset) + u64::from(argument.size));
            let wanted = wanted.max().unwrap_or(0) as usize;
            let launch = Launch {
                kernel: &kernel,
                blocks: [1, 1, 1],
                block: [32, 1, 1],
                dynamic_lds: 0,
                arguments: &arguments[..wanted.min(arguments.len())],
                completion: Some(&done),
                barrier: true,
            };
            // SAFETY: what the mock's kernels write to is memory that lives, whatever the damaged object says.
            if let Err(error) = unsafe { queue.launch(&launch) } {
                assert!(!matches!(error, Error::Ioctl { .. }), "{case}: {error}");
                count.not_launched += 1;
                continue;
            }
            match queue.wait(&done, Duration::from_secs(20)) {
                Ok(()) => count.ran += 1,
                Err(Error::Timeout { .. }) => {
                    panic!("{case}: {name} hangs: {:?}", mock.complaints())
                }
                Err(_) => count.stopped += 1,
            }
        }
    }
    // Each of them happens, so that each is tried.
    let Count {
        refused,
        not_launched,
        stopped,
        ran,
    } = count;
    assert!(
        refused > 5 && not_launched > 0 && stopped > 5 && ran > 5,
        "{count:?}"
    );
}
