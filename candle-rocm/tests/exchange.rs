//! Words to the device and back without copies.

mod common;
mod isolated;

use candle_rocm::ops::affine::affine;
use candle_rocm::ops::copy::copy_strided;
use candle_rocm::ops::exchange::Exchange;
use candle_rocm::ops::indexing::index_select;
use candle_rocm::{contiguous_strides, Buffer, Capture, DType, Device, Error, View};
use common::{device, download, upload};
use hip_sim::client::Client;
use isolated::in_child;

fn view<'a>(buffer: &'a Buffer, dims: &'a [usize], strides: &'a [usize]) -> View<'a> {
    View::contiguous(buffer, DType::F32, dims, strides)
}

fn doubled(device: &Device, buffer: &Buffer) -> Buffer {
    let dims = [buffer.len() / 4];
    let strides = contiguous_strides(&dims);
    affine(device, &view(buffer, &dims, &strides), 2.0, 0.0).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn words_reach_the_device_and_come_back() {
    let device = device();
    let exchange = Exchange::new(&device, 1000, 1000).unwrap();
    let buffer = upload(&device, &[0u32; 1001]);
    let words: Vec<u32> = (7..1007).collect();
    exchange.send(&words, &buffer, 4).unwrap();
    // Waits for the device before it overwrites what that reads.
    exchange.send(&[1, 2], &buffer, 0).unwrap();
    // SAFETY: nothing is recorded.
    unsafe { exchange.answer(&buffer, 1000) }.unwrap();
    let expected: Vec<u32> = [1, 2].into_iter().chain(8..1006).collect();
    assert_eq!(exchange.receive(1000).unwrap(), expected);
    assert_eq!(download::<u32>(&device, &buffer)[1000], 1006);
    assert_eq!(exchange.receive(1).unwrap(), [1]);
    exchange.forget().unwrap();
    assert_ne!(exchange.receive(1).unwrap(), [1]);
}

#[test]
fn what_has_no_room_is_refused() {
    let (device, other) = (device(), device());
    let exchange = Exchange::new(&device, 4, 2).unwrap();
    let buffer = upload(&device, &[0u32; 4]);
    for (words, offset) in [(5, 0), (1, 2)] {
        let refused = exchange.send(&vec![1; words], &buffer, offset);
        assert!(refused.is_err(), "{words} words to byte {offset}");
    }
    let beyond = exchange.send(&[1; 2], &buffer, 12);
    assert!(
        matches!(beyond, Err(Error::OutOfBounds { .. })),
        "{beyond:?}"
    );
    // SAFETY: nothing is recorded.
    let refused = unsafe { exchange.answer(&buffer, 3) };
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    assert!(exchange.receive(3).is_err());
    let foreign = upload(&other, &[0u32; 4]);
    let refused = exchange.send(&[1], &foreign, 0);
    assert!(
        matches!(refused, Err(Error::DeviceMismatch { .. })),
        "{refused:?}"
    );
    assert_eq!(download::<u32>(&device, &buffer), [0; 4]);
}

#[test]
fn a_bad_index_comes_with_the_answer_and_once() {
    let device = device();
    let exchange = Exchange::new(&device, 3, 3).unwrap();
    let table = upload(&device, &[1f32, 2.0, 3.0]);
    let ids = upload(&device, &[0u32; 3]);
    let dims = [3];
    let strides = contiguous_strides(&dims);
    let step = |words: [u32; 3]| {
        exchange.send(&words, &ids, 0).unwrap();
        let indices = View::contiguous(&ids, DType::U32, &dims, &strides);
        let rows = index_select(&device, &view(&table, &dims, &strides), &indices, 0).unwrap();
        // SAFETY: nothing is recorded.
        unsafe { exchange.answer(&rows, 3) }.unwrap();
        exchange.mark().unwrap();
        exchange.receive(3)
    };
    assert_eq!(step([2, 0, 1]).unwrap(), bits(&[3.0, 1.0, 2.0]));
    let error = step([2, 9, 1]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::IndexOutOfRange {
                index: 9,
                size: 3,
                ..
            }
        ),
        "{error:?}"
    );
    // Nobody is told again.
    device.synchronize().unwrap();
    assert_eq!(step([1, 1, 1]).unwrap(), bits(&[2.0; 3]));
}

#[test]
fn a_graph_between_takes_new_words_and_four_calls() {
    // Alone, because calls are counted.
    let name = "a_graph_between_takes_new_words_and_four_calls";
    in_child(name, &[], between);
}

fn between() {
    let device = device();
    let exchange = Exchange::new(&device, 64, 64).unwrap();
    let input = upload(&device, &[1f32; 64]);
    let output = upload(&device, &[0f32; 64]);
    let enqueue = || {
        let result = doubled(&device, &doubled(&device, &input));
        let (dims, strides) = ([64], [1]);
        copy_strided(&device, &view(&result, &dims, &strides), &output, 0).unwrap();
        // SAFETY: the graph goes first.
        unsafe { exchange.answer(&output, 64) }.unwrap();
    };
    // Loads the kernels.
    exchange.send(&bits(&[1.0; 64]), &input, 0).unwrap();
    enqueue();
    let capture = Capture::begin(&device).unwrap();
    let refused = exchange.send(&[1], &input, 0);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    enqueue();
    let graph = capture.end().unwrap();
    let simulator = Client::find();
    for value in [3f32, -2.0, 0.5] {
        exchange.forget().unwrap();
        let before = simulator.as_ref().map(Client::counters);
        exchange.send(&bits(&[value; 64]), &input, 0).unwrap();
        // SAFETY: input, output and exchange are alive.
        unsafe { graph.launch() }.unwrap();
        exchange.mark().unwrap();
        let found = exchange.receive(64).unwrap();
        assert_eq!(found, bits(&[4.0 * value; 64]));
        if let (Some(simulator), Some(before)) = (&simulator, before) {
            let after = simulator.counters();
            // Launch, graph, event, wait; the one copy is the graph's.
            assert_eq!(after.calls - before.calls, 4);
            assert_eq!(after.graphs - before.graphs, 1);
            assert_eq!(after.copies - before.copies, 1);
            assert_eq!(after.memsets, before.memsets);
        }
    }
}
