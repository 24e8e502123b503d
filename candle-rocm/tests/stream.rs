//! Streams, events and graphs.

mod common;
mod isolated;

use candle_rocm::ops::affine::affine;
use candle_rocm::sys::hip::Hip;
use candle_rocm::sys::LoadError;
use candle_rocm::{
    blas, contiguous_strides, Buffer, Capture, DType, Device, Error, Event, UploadStream, View,
};
use common::{device, download, upload};
use hip_sim::client::Client;
use isolated::{in_child, is_child};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

fn doubled(device: &Device, buffer: &Buffer) -> Buffer {
    let dims = [buffer.len() / 4];
    let strides = contiguous_strides(&dims);
    affine(
        device,
        &View::contiguous(buffer, DType::F32, &dims, &strides),
        2.0,
        0.0,
    )
    .unwrap()
}

#[test]
fn events_are_passed_in_order_and_timed() {
    let device = device();
    let (start, stop) = (Event::new(&device).unwrap(), Event::new(&device).unwrap());
    let buffer = upload(&device, &vec![1f32; 1 << 16]);
    start.record(device.stream()).unwrap();
    for _ in 0..20 {
        doubled(&device, &buffer);
    }
    stop.record(device.stream()).unwrap();
    stop.synchronize().unwrap();
    assert!(start.is_done().unwrap() && stop.is_done().unwrap());
    assert!(device.stream().is_idle().unwrap());
    let elapsed = stop.elapsed_since(&start).unwrap();
    assert!(!elapsed.is_zero() && elapsed.as_secs() < 60, "{elapsed:?}");
}

/// Two buffers take turns: while one is used the other is filled, and none before its last use is over.
#[test]
fn uploads_go_on_beside_other_work() {
    let device = device();
    let mut uploads = UploadStream::new(&device).unwrap();
    let count = 1 << 20;
    let turns = [(); 2].map(|()| device.alloc(4 * count).unwrap());
    let mut sums = Vec::new();
    for number in 0..6u32 {
        let values: Vec<u8> = (0..count)
            .flat_map(|_| (number as f32 + 0.5).to_le_bytes())
            .collect();
        let turn = &turns[number as usize % 2];
        let half = values.len() / 2;
        uploads.upload(&values[..half], turn, 0).unwrap();
        uploads.upload(&values[half..], turn, half).unwrap();
        uploads.lead().unwrap();
        uploads.follow().unwrap();
        sums.push(doubled(&device, turn));
    }
    for (number, sum) in sums.iter().enumerate() {
        let want = 2.0 * number as f32 + 1.0;
        assert!(download::<f32>(&device, sum).iter().all(|&v| v == want));
    }
    let other = Device::new(0).unwrap().alloc(8).unwrap();
    let error = uploads.upload(&[0; 8], &other, 0).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    let error = uploads
        .upload(&[0; 8], &turns[0], 4 * count - 4)
        .unwrap_err();
    assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    uploads.synchronize().unwrap();
}

#[test]
fn what_a_program_remembers_of_a_gpu_is_found_again() {
    let device = device();
    let kind = format!("test-{}", std::process::id());
    assert!(device.recall(&kind).is_empty());
    let results = [("a shape".to_string(), "2.5".to_string())];
    device.remember(&kind, &results).unwrap();
    // Nothing is kept where there is no cache on disk.
    let found = device.recall(&kind);
    assert!(found.is_empty() || found == results, "{found:?}");
    device.forget(&kind).unwrap();
    assert!(device.recall(&kind).is_empty());
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let (first, second) = (device(), device());
    let source = upload(&first, &vec![1f32; 1 << 18]);
    let mut value = doubled(&first, &source);
    for _ in 0..10 {
        value = doubled(&first, &value);
    }
    let ready = Event::new(&first).unwrap();
    ready.record(first.stream()).unwrap();
    second.stream().wait(&ready).unwrap();
    let copy = second.alloc(value.len()).unwrap();
    second.copy(&value, 0, &copy, 0, value.len()).unwrap();
    assert!(download::<f32>(&second, &copy).iter().all(|&v| v == 2048.0));
}

#[test]
fn a_device_on_a_foreign_stream_shares_its_order() {
    let owner = device();
    // SAFETY: the stream belongs to `owner`, which is dropped last.
    let guest =
        unsafe { Device::from_raw_stream(owner.ordinal(), owner.stream().as_raw()) }.unwrap();
    assert_eq!(guest.stream().as_raw(), owner.stream().as_raw());
    let buffer = upload(&guest, &[1.5f32; 100]);
    assert_eq!(
        download::<f32>(&guest, &doubled(&guest, &buffer)),
        [3.0; 100]
    );
    drop((buffer, guest));
    // The stream is still there.
    owner.synchronize().unwrap();
}

#[test]
fn a_graph_repeats_its_work_on_new_contents() {
    let device = device();
    let input = upload(&device, &[1f32; 64]);
    // Loads the kernel: modules cannot be loaded during a capture.
    doubled(&device, &input);
    let launches = device.launches();
    let capture = Capture::begin(&device).unwrap();
    let output = doubled(&device, &doubled(&device, &input));
    let graph = capture.end().unwrap();
    assert_eq!((graph.recorded(), device.launches()), (2, launches));
    for value in [1f32, 3.0, -2.0] {
        let bytes: Vec<u8> = [value; 64].iter().flat_map(|v| v.to_le_bytes()).collect();
        device.upload_into(&bytes, &input, 0).unwrap();
        // SAFETY: the input is alive.
        unsafe { graph.launch() }.unwrap();
        assert_eq!(download::<f32>(&device, &output), [4.0 * value; 64]);
    }
    assert_eq!(device.launches(), launches + 3);
}

#[test]
fn memory_that_a_graph_uses_is_given_to_nobody_else() {
    let device = device();
    let input = upload(&device, &[1f32; 512]);
    doubled(&device, &input);
    let capture = Capture::begin(&device).unwrap();
    let between = doubled(&device, &input);
    let address = between.as_ptr();
    let output = doubled(&device, &between);
    drop(between);
    let graph = capture.end().unwrap();
    let others: Vec<Buffer> = (0..100).map(|_| device.alloc(2048).unwrap()).collect();
    assert!(others.iter().all(|buffer| buffer.as_ptr() != address));
    // SAFETY: the input is alive.
    unsafe { graph.launch() }.unwrap();
    assert_eq!(download::<f32>(&device, &output), [4.0; 512]);
    drop((graph, others, output, input));
    let stats = device.memory_stats();
    assert_eq!((stats.live_bytes, stats.live_buffers), (0, 0));
}

/// rocBLAS waits for all streams of a GPU when a handle comes or goes, which would spoil a capture.
#[test]
fn another_devices_handle_waits_for_the_end_of_a_capture() {
    let device = device();
    let input = upload(&device, &[1f32; 64]);
    doubled(&device, &input);
    let capture = Capture::begin(&device).unwrap();
    let (sender, receiver) = mpsc::channel();
    let other = std::thread::spawn(move || {
        blas::prepare(&Device::new(0).unwrap()).unwrap();
        sender.send(()).unwrap();
    });
    let early = receiver.recv_timeout(Duration::from_millis(200));
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
    let output = doubled(&device, &input);
    let graph = capture.end().unwrap();
    // SAFETY: the input is alive.
    unsafe { graph.launch() }.unwrap();
    receiver.recv().unwrap();
    other.join().unwrap();
    assert_eq!(download::<f32>(&device, &output), [2.0; 64]);
}

#[test]
fn what_cannot_be_captured_is_refused_and_an_abandoned_capture_harms_nothing() {
    let device = device();
    let input = upload(&device, &[1f32; 64]);
    doubled(&device, &input);
    let capture = Capture::begin(&device).unwrap();
    let refused = device.upload(&[0; 4]);
    assert!(
        matches!(refused, Err(Error::InvalidArgument { op: "upload", .. })),
        "{refused:?}"
    );
    let refused = device.download(&input, 0, &mut [0; 4]);
    assert!(
        matches!(refused, Err(Error::InvalidArgument { op: "download", .. })),
        "{refused:?}"
    );
    assert!(device.synchronize().is_err());
    // HIP is not asked, which would spoil the capture.
    for refused in [
        device.stream().synchronize(),
        device.stream().is_idle().map(drop),
        device.trim(),
    ] {
        assert!(
            matches!(refused, Err(Error::InvalidArgument { .. })),
            "{refused:?}"
        );
    }
    drop(doubled(&device, &input));
    drop(capture.end().unwrap());
    let capture = Capture::begin(&device).unwrap();
    drop(doubled(&device, &input));
    drop(capture);
    let works = || {
        assert_eq!(
            download::<f32>(&device, &doubled(&device, &input)),
            [2.0; 64]
        );
    };
    works();
    let spoil = || {
        let query = Hip::get().unwrap().functions.hipStreamQuery;
        // SAFETY: the stream is alive.
        assert_ne!(unsafe { query(device.stream().as_raw()) }, 0);
    };
    // One that HIP declares spoiled, told by the end or given up.
    let capture = Capture::begin(&device).unwrap();
    spoil();
    assert!(capture.end().is_err());
    works();
    let capture = Capture::begin(&device).unwrap();
    spoil();
    drop(capture);
    works();
}

/// A copy of the simulator's libraries without a function.
fn without(function: &str, folder: &Path) {
    let rocm = PathBuf::from(std::env::var_os("ROCM_PATH").expect("where the simulator is"));
    let mut library = std::fs::read(rocm.join("lib/libamdhip64.so.7")).unwrap();
    let name = [function.as_bytes(), b"\0"].concat();
    let places: Vec<usize> = (0..library.len() - name.len())
        .filter(|&at| library[at..].starts_with(&name))
        .collect();
    assert!(!places.is_empty());
    for at in places {
        library[at] = b'_';
    }
    let lib = folder.join("lib");
    std::fs::create_dir_all(&lib).unwrap();
    for file in ["libamdhip64.so.7", "libhiprtc.so.7"] {
        std::fs::write(lib.join(file), &library).unwrap();
    }
}

/// A recording that cannot become a graph could not be given back, either.
#[test]
fn a_capture_does_not_begin_where_it_could_not_end() {
    let name = "a_capture_does_not_begin_where_it_could_not_end";
    let refused = || {
        let device = Device::new(0).unwrap();
        let error = Capture::begin(&device).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Load(LoadError::MissingSymbol {
                    symbol: "hipGraphInstantiate",
                    ..
                })
            ),
            "{error:?}"
        );
        // Nothing is being recorded.
        let buffer = device.upload(&[1, 2, 3]).unwrap();
        let mut bytes = [0; 3];
        device.download(&buffer, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
    };
    if is_child(name) {
        return refused();
    }
    drop(device());
    if Client::find().is_none() {
        return; // on a GPU
    }
    let folder = tempfile::tempdir().unwrap();
    without("hipGraphInstantiate", folder.path());
    let rocm = folder.path().to_str().unwrap();
    in_child(name, &[("ROCM_PATH", rocm)], refused);
}
