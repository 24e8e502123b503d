//! Gather, scatter and their relatives against plain loops on the host, with the semantics of candle's CPU backend.

mod common;

use candle_rocm::ops::indexing::{gather, index_add, index_select, scatter_add, scatter_set};
use candle_rocm::{DType, Device, Error, View};
use common::*;
use float8::F8E4M3;
use half::{bf16, f16};

/// What an index means.
trait Id: Element {
    /// The value that names no place.
    const NONE: Option<Self>;
}
impl Id for u8 {
    const NONE: Option<Self> = None;
}
impl Id for u32 {
    const NONE: Option<Self> = Some(u32::MAX);
}
impl Id for i64 {
    const NONE: Option<Self> = Some(i64::MAX);
}
impl Id for i16 {
    const NONE: Option<Self> = None;
}
impl Id for i32 {
    const NONE: Option<Self> = None;
}

/// Ids below `size`, every seventh or so naming no place where the dtype has a value for that.
fn ids<I: Id>(rng: &mut Rng, n: usize, size: usize) -> Vec<I> {
    (0..n)
        .map(|_| match I::NONE {
            Some(none) if rng.below(7) == 0 => none,
            _ => I::from_f64(rng.below(size) as f64),
        })
        .collect()
}

fn place<I: Id>(id: I) -> Option<usize> {
    (Some(id) != I::NONE).then(|| id.to_f64() as usize)
}

/// Row-major coordinates of each element.
fn coordinates(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let strides = row_major(dims);
    (0..dims.iter().product())
        .map(move |at| dims.iter().zip(&strides).map(|(d, s)| at / s % d).collect())
}

fn flat(dims: &[usize], at: &[usize]) -> usize {
    at.iter().zip(row_major(dims)).map(|(i, s)| i * s).sum()
}

/// `dims` with another size along `dim`.
fn resized(dims: &[usize], dim: usize, size: usize) -> Vec<usize> {
    let mut dims = dims.to_vec();
    dims[dim] = size;
    dims
}

fn gathered<T: Element, I: Id>(src: &HostTensor<T>, ids: &HostTensor<I>, dim: usize) -> Vec<T> {
    let (values, ids_values) = (src.values(), ids.values());
    coordinates(&ids.dims)
        .zip(ids_values)
        .map(|(mut at, id)| match place(id) {
            Some(place) => {
                at[dim] = place;
                values[flat(&src.dims, &at)]
            }
            None => T::from_bits(0),
        })
        .collect()
}

/// The sum as the dtype holds it.
fn plus<T: Element>(a: T, b: T) -> T {
    if T::DTYPE.is_float() {
        T::from_f64(a.to_f64() + b.to_f64())
    } else {
        T::from_bits(a.to_bits().wrapping_add(b.to_bits()))
    }
}

/// `dst` after `src` was scattered into it, in order.
fn scattered<T: Element, I: Id>(
    dst: &HostTensor<T>,
    ids: &HostTensor<I>,
    src: &HostTensor<T>,
    dim: usize,
    update: impl Fn(T, T) -> T,
) -> Vec<T> {
    let mut out = dst.values();
    for ((mut at, id), value) in coordinates(&src.dims).zip(ids.values()).zip(src.values()) {
        if let Some(place) = place(id) {
            at[dim] = place;
            let to = flat(&dst.dims, &at);
            out[to] = update(out[to], value);
        }
    }
    out
}

/// The ids of an index_add or index_select, spread over `dims`.
fn spread<I: Id>(ids: &HostTensor<I>, dims: &[usize], dim: usize) -> HostTensor<I> {
    let mut strides = vec![0; dims.len()];
    strides[dim] = ids.strides[0];
    HostTensor {
        storage: ids.storage.clone(),
        offset: ids.offset,
        dims: dims.to_vec(),
        strides,
    }
}

const SHAPES: [&[usize]; 5] = [&[9], &[6, 8], &[5, 3, 4], &[3, 64, 16], &[2, 3, 4, 5]];

/// Every layout for one index type, those that differ in how an index is found for the others.
fn layouts<I: Id>() -> &'static [Layout] {
    if I::DTYPE == DType::U32 {
        &Layout::ALL
    } else {
        &[Layout::Offset, Layout::Transposed]
    }
}

fn reads<T: Element, I: Id>(device: &Device) {
    let mut rng = Rng::new(1);
    for dims in SHAPES {
        for dim in 0..dims.len() {
            for &layout in layouts::<I>() {
                let src = HostTensor::<T>::with_layout(dims, layout, |n| rng.any(n));
                let src_buffer = src.upload(device);
                let what = format!("{} by {} {dims:?} {layout:?} dim {dim}", T::DTYPE, I::DTYPE);
                for count in [0, 1, 11] {
                    let by = HostTensor::with_layout(&[count], layout, |n| {
                        ids::<I>(&mut rng, n, dims[dim])
                    });
                    let by_buffer = by.upload(device);
                    let got =
                        index_select(device, &src.view(&src_buffer), &by.view(&by_buffer), dim)
                            .unwrap_or_else(|e| panic!("{what}: {e}"));
                    let over = spread(&by, &resized(dims, dim, count), dim);
                    assert_exact(
                        &download::<T>(device, &got),
                        &gathered(&src, &over, dim),
                        &format!("index_select {what}"),
                    );
                }
                // Ids may be fewer than elements along the other dimensions.
                let mut smaller = resized(dims, dim, 7);
                if dim != 0 {
                    smaller[0] -= 1;
                }
                for by_dims in [resized(dims, dim, 1), resized(dims, dim, 12), smaller] {
                    let by = HostTensor::with_layout(&by_dims, layout, |n| {
                        ids::<I>(&mut rng, n, dims[dim])
                    });
                    let by_buffer = by.upload(device);
                    let got = gather(device, &src.view(&src_buffer), &by.view(&by_buffer), dim)
                        .unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_exact(
                        &download::<T>(device, &got),
                        &gathered(&src, &by, dim),
                        &format!("gather {by_dims:?} {what}"),
                    );
                }
            }
        }
    }
}

#[test]
fn index_select_and_gather() {
    let device = device();
    for_each_dtype!(reads_by_each_id(&device));
}

fn reads_by_each_id<T: Element>(device: &Device) {
    reads::<T, u8>(device);
    reads::<T, u32>(device);
    reads::<T, i64>(device);
}

/// Scatters of `src_dims` into `dims`, checked for exact equality. Small integers, so that float sums are exact in any
/// order.
fn check_scatter<T: Element, I: Id>(
    device: &Device,
    dims: &[usize],
    src_dims: &[usize],
    dim: usize,
    layout: Layout,
) {
    let mut rng = Rng::new(2);
    let small = |rng: &mut Rng, n: usize| {
        (0..n)
            .map(|_| T::from_f64(rng.below(2) as f64))
            .collect::<Vec<T>>()
    };
    let what = format!(
        "{} by {} {src_dims:?} {layout:?} into {dims:?} dim {dim}",
        T::DTYPE,
        I::DTYPE
    );
    // Scatter writes to contiguous tensors, here to one in the middle of a buffer.
    let dst = HostTensor::<T>::with_layout(dims, Layout::Offset, |n| small(&mut rng, n));
    let src = HostTensor::<T>::with_layout(src_dims, layout, |n| small(&mut rng, n));
    let by = HostTensor::with_layout(src_dims, layout, |n| ids::<I>(&mut rng, n, dims[dim]));
    let (src_buffer, by_buffer) = (src.upload(device), by.upload(device));

    let check_in_place = |add: bool, want: Vec<T>| {
        let dst_buffer = dst.upload(device);
        let (to, by, from) = (
            dst.view(&dst_buffer),
            by.view(&by_buffer),
            src.view(&src_buffer),
        );
        let result = if add {
            scatter_add(device, &to, &by, &from, dim)
        } else {
            scatter_set(device, &to, &by, &from, dim)
        };
        result.unwrap_or_else(|e| panic!("{what}: {e}"));
        let got: Vec<T> = download(device, &dst_buffer);
        assert_exact(
            &got[..dst.offset],
            &dst.storage[..dst.offset],
            &format!("before the destination, {what}"),
        );
        assert_exact(&got[dst.offset..], &want, &format!("add {add}: {what}"));
    };
    check_in_place(false, scattered(&dst, &by, &src, dim, |_, new| new));
    check_in_place(true, summed(&dst, &by, &src, dim));

    let by = HostTensor::with_layout(&src_dims[dim..=dim], layout, |n| {
        ids::<I>(&mut rng, n, dims[dim])
    });
    let by_buffer = by.upload(device);
    let dst_buffer = dst.upload(device);
    let got = index_add(
        device,
        &dst.view(&dst_buffer),
        &by.view(&by_buffer),
        &src.view(&src_buffer),
        dim,
    )
    .unwrap_or_else(|e| panic!("{what}: {e}"));
    let want = summed(&dst, &spread(&by, src_dims, dim), &src, dim);
    assert_exact(
        &download::<T>(device, &got),
        &want,
        &format!("index_add {what}"),
    );
}

fn writes<T: Element, I: Id>(device: &Device) {
    for dims in SHAPES {
        for dim in 0..dims.len() {
            for &layout in layouts::<I>() {
                for count in [0, 1, 5] {
                    check_scatter::<T, I>(device, dims, &resized(dims, dim, count), dim, layout);
                }
            }
        }
    }
}

fn writes_by_each_id<T: Element>(device: &Device) {
    writes::<T, u8>(device);
    writes::<T, u32>(device);
    writes::<T, i64>(device);
    writes::<T, i16>(device);
    writes::<T, i32>(device);
}

#[test]
fn scatter_and_index_add() {
    let device = device();
    for_each_dtype!(writes_by_each_id(&device));
}

fn few_columns<T: Element>(device: &Device) {
    // Many steps and few columns: the launcher's parallel path, with up to some 16 elements for each place.
    for layout in [Layout::Contiguous, Layout::Transposed, Layout::Narrowed] {
        check_scatter::<T, u32>(device, &[2, 150], &[2, 1500], 1, layout);
        check_scatter::<T, i64>(device, &[200, 3], &[1001, 3], 0, layout);
        check_scatter::<T, u32>(device, &[90], &[700], 0, layout);
    }
}

#[test]
fn duplicates_with_few_columns() {
    let device = device();
    for_each_dtype!(few_columns(&device));
}

/// Rows along a dense dimension, which go through LDS: one window of places and several, few and many values for each
/// place.
fn dense_rows<T: Element>(device: &Device) {
    let window = (16 << 10) / T::DTYPE.size_in_bytes();
    // Several windows, of types that have few places in each.
    let many = T::DTYPE.size_in_bytes() >= 4;
    let wide = many.then_some((22, 2 * window + 5, window));
    for (rows, places, steps) in [(65, 70, 300), (64, 3, 64)].into_iter().chain(wide) {
        for layout in [Layout::Contiguous, Layout::Offset] {
            check_scatter::<T, u32>(device, &[rows, places], &[rows, steps], 1, layout);
        }
    }
    check_scatter::<T, i16>(device, &[3, 30, 50], &[3, 30, 99], 2, Layout::Contiguous);

    let mut rng = Rng::new(4);
    let whole = many.then_some((window, window / 4 + 2048));
    for (places, count) in [(300, 2048), (1000, 2057)].into_iter().chain(whole) {
        let dims = [2, 65, places];
        let src = HostTensor::<T>::with_layout(&dims, Layout::Offset, |n| rng.any(n));
        let each = HostTensor::with_layout(&[2, 65, count], Layout::Offset, |n| {
            ids::<i64>(&mut rng, n, places)
        });
        let common = HostTensor::contiguous(ids::<u32>(&mut rng, count, places), &[count]);
        let src_buffer = src.upload(device);
        let (each_buffer, common_buffer) = (each.upload(device), common.upload(device));
        let x = src.view(&src_buffer);
        let got = gather(device, &x, &each.view(&each_buffer), 2).unwrap();
        let what = format!("{} {places} places, {count} ids", T::DTYPE);
        assert_exact(
            &download::<T>(device, &got),
            &gathered(&src, &each, 2),
            &what,
        );
        let got = index_select(device, &x, &common.view(&common_buffer), 2).unwrap();
        let over = spread(&common, &resized(&dims, 2, count), 2);
        assert_exact(
            &download::<T>(device, &got),
            &gathered(&src, &over, 2),
            &what,
        );
    }
}

#[test]
fn rows_in_lds() {
    let device = device();
    for_each_dtype!(dense_rows(&device));
}

/// Adding in order, in f32 at least: what the CPU gives to the bit.
fn summed<T: Element, I: Id>(
    dst: &HostTensor<T>,
    ids: &HostTensor<I>,
    src: &HostTensor<T>,
    dim: usize,
) -> Vec<T> {
    if !T::DTYPE.is_float() || T::DTYPE.size_in_bytes() >= 4 {
        return scattered(dst, ids, src, dim, plus);
    }
    let floats = |t: &HostTensor<T>| {
        let values = t.values().iter().map(|v| v.to_f64() as f32).collect();
        HostTensor::<f32>::contiguous(values, &t.dims)
    };
    let sums = scattered(&floats(dst), ids, &floats(src), dim, plus);
    sums.into_iter().map(T::from_f32).collect()
}

fn rounds_in_order<T: Element>(device: &Device, dims: &[usize], src_dims: &[usize], dim: usize) {
    let mut rng = Rng::new(3);
    let what = format!("{} {src_dims:?} into {dims:?} dim {dim}", T::DTYPE);
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let dst = HostTensor::<T>::contiguous(rng.vec(count(dims), -1.0, 1.0), dims);
    let src = HostTensor::<T>::contiguous(rng.vec(count(src_dims), -1.0, 1.0), src_dims);
    let by = HostTensor::<u32>::contiguous(
        ids(&mut rng, src_dims[dim], dims[dim]),
        &src_dims[dim..=dim],
    );
    let each = HostTensor::<u32>::contiguous(ids(&mut rng, count(src_dims), dims[dim]), src_dims);
    let (dst_buffer, src_buffer) = (dst.upload(device), src.upload(device));
    let (by_buffer, each_buffer) = (by.upload(device), each.upload(device));
    let (to, from) = (dst.view(&dst_buffer), src.view(&src_buffer));
    let got = index_add(device, &to, &by.view(&by_buffer), &from, dim).unwrap();
    let want = summed(&dst, &spread(&by, &src.dims, dim), &src, dim);
    assert_exact(&download::<T>(device, &got), &want, &what);
    scatter_add(device, &to, &each.view(&each_buffer), &from, dim).unwrap();
    let want = summed(&dst, &each, &src, dim);
    assert_exact(&download::<T>(device, &dst_buffer), &want, &what);
}

fn each_way_in_order<T: Element>(device: &Device) {
    // By column, also in packs; by column and part of the places; by row, with many values for a place and with few.
    rounds_in_order::<T>(device, &[4, 33], &[50, 33], 0);
    rounds_in_order::<T>(device, &[4, 64], &[50, 64], 0);
    rounds_in_order::<T>(device, &[9, 4100], &[34, 4100], 0);
    rounds_in_order::<T>(device, &[65, 5], &[65, 200], 1);
    rounds_in_order::<T>(device, &[66, 900], &[66, 230], 1);
}

#[test]
fn floats_add_in_order() {
    let device = device();
    each_way_in_order::<f16>(&device);
    each_way_in_order::<bf16>(&device);
    each_way_in_order::<F8E4M3>(&device);
    each_way_in_order::<f32>(&device);
    each_way_in_order::<f64>(&device);
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    // Three-byte rows: no wider pieces.
    let rows = 256 * 65_600 / 3 + 1;
    let src = HostTensor::contiguous((0..12).collect::<Vec<u8>>(), &[4, 3]);
    let by = HostTensor::contiguous((0..rows).map(|i| (i / 5 % 4) as u8).collect(), &[rows]);
    let (src_buffer, by_buffer) = (src.upload(&device), by.upload(&device));
    let got = index_select(&device, &src.view(&src_buffer), &by.view(&by_buffer), 0).unwrap();
    let want: Vec<u8> = by
        .storage
        .iter()
        .flat_map(|&id| (0..3).map(move |c| id * 3 + c))
        .collect();
    assert_exact(&download::<u8>(&device, &got), &want, "many blocks");
}

#[test]
fn an_index_out_of_range_is_an_error_of_the_next_wait() {
    let device = device();
    let src = HostTensor::contiguous((0..12).map(|i| i as f32).collect::<Vec<_>>(), &[3, 4]);
    let src_buffer = src.upload(&device);
    let check = |ids: &HostTensor<i64>,
                 op: &str,
                 bad: i64,
                 run: &dyn Fn(&View) -> candle_rocm::Result<()>| {
        let buffer = ids.upload(&device);
        run(&ids.view(&buffer)).unwrap();
        match device.synchronize() {
            Err(Error::IndexOutOfRange {
                op: got,
                index,
                size,
            }) => {
                assert_eq!((got, index, size), (op, bad, 3))
            }
            other => panic!("{op}: {other:?}"),
        }
        // Reported once; the device works on.
        device.synchronize().unwrap();
    };
    for bad in [-1, 3, i64::MIN, i64::MAX - 1] {
        let one = HostTensor::contiguous(vec![0, bad, 2], &[3]);
        let each = HostTensor::contiguous(vec![0, 1, 2, bad], &[1, 4]);
        let row = HostTensor::contiguous(vec![1f32; 4], &[1, 4]);
        let row_buffer = row.upload(&device);
        let x = src.view(&src_buffer);
        let scratch = src.upload(&device);
        let to = src.view(&scratch);
        check(&one, "index-select", bad, &|ids| {
            index_select(&device, &x, ids, 0).map(drop)
        });
        check(&each, "gather", bad, &|ids| {
            gather(&device, &x, ids, 0).map(drop)
        });
        check(&each, "scatter", bad, &|ids| {
            scatter_set(&device, &to, ids, &row.view(&row_buffer), 0)
        });
        check(&each, "scatter-add", bad, &|ids| {
            scatter_add(&device, &to, ids, &row.view(&row_buffer), 0)
        });
        check(&one, "index-add", bad, &|ids| {
            index_add(&device, &x, ids, &x, 0).map(drop)
        });
    }
    // What is in range is done all the same; the rest reads as zero.
    let ids = HostTensor::contiguous(vec![2u32, 5], &[2]);
    let buffer = ids.upload(&device);
    let got = index_select(&device, &src.view(&src_buffer), &ids.view(&buffer), 0).unwrap();
    assert!(matches!(
        device.synchronize(),
        Err(Error::IndexOutOfRange { index: 5, .. })
    ));
    assert_eq!(
        download::<f32>(&device, &got),
        [8.0, 9.0, 10.0, 11.0, 0.0, 0.0, 0.0, 0.0]
    );
}

#[test]
fn what_is_refused() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f32; 12], &[3, 4]);
    let half = HostTensor::contiguous(vec![f16::ONE; 12], &[3, 4]);
    let by = HostTensor::contiguous(vec![0u32; 12], &[3, 4]);
    let short = HostTensor::contiguous(vec![0u32; 8], &[2, 4]);
    let wide = HostTensor::contiguous(vec![0u32; 15], &[3, 5]);
    let (xb, hb, bb, sb, wb) = (
        x.upload(&device),
        half.upload(&device),
        by.upload(&device),
        short.upload(&device),
        wide.upload(&device),
    );
    let (x, half, by, short, wide) = (
        x.view(&xb),
        half.view(&hb),
        by.view(&bb),
        short.view(&sb),
        wide.view(&wb),
    );
    let transposed = View {
        dims: &[4, 3],
        strides: &[1, 4],
        ..x
    };
    let square = View {
        dims: &[4, 3],
        strides: &[3, 1],
        ..by
    };
    assert!(matches!(
        gather(&device, &x, &half, 0),
        Err(Error::UnsupportedDType { .. })
    ));
    assert!(matches!(
        gather(&device, &x, &wide, 0),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        index_select(&device, &x, &by, 0),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        scatter_add(&device, &x, &short, &x, 0),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        scatter_add(&device, &x, &by, &half, 0),
        Err(Error::DTypeMismatch { .. })
    ));
    assert!(matches!(
        gather(&device, &x, &by, 2),
        Err(Error::InvalidArgument { .. })
    ));
    let strided = View {
        dims: &[4, 3],
        strides: &[3, 1],
        ..x
    };
    assert!(matches!(
        scatter_add(&device, &transposed, &square, &strided, 0),
        Err(Error::InvalidArgument { .. })
    ));
}

/// The greatest number of a small dtype is an index as any other: the last of as many rows as the dtype can name.
fn last_row<I: Id>(device: &Device, last: usize) {
    let rows = HostTensor::contiguous((0..=last).map(|row| row as f32).collect(), &[last + 1, 1]);
    let ids = HostTensor::contiguous(vec![I::from_f64(last as f64), I::from_f64(0.)], &[2]);
    let column = HostTensor::contiguous(ids.values(), &[2, 1]);
    let more = HostTensor::contiguous(vec![0.5f32, 0.25], &[2, 1]);
    let (rows_at, ids_at, more_at) = (rows.upload(device), ids.upload(device), more.upload(device));
    let (x, names, added) = (rows.view(&rows_at), ids.view(&ids_at), more.view(&more_at));
    let what = format!("{} {last}", I::DTYPE);
    let selected = index_select(device, &x, &names, 0).unwrap();
    assert_exact(
        &download::<f32>(device, &selected),
        &[last as f32, 0.],
        &what,
    );
    let gathered = gather(device, &x, &column.view(&ids_at), 0).unwrap();
    assert_exact(
        &download::<f32>(device, &gathered),
        &[last as f32, 0.],
        &what,
    );
    let sums = index_add(device, &x, &names, &added, 0).unwrap();
    assert_eq!(
        download::<f32>(device, &sums)[last],
        last as f32 + 0.5,
        "{what}"
    );
    scatter_add(device, &x, &column.view(&ids_at), &added, 0).unwrap();
    assert_eq!(
        download::<f32>(device, &rows_at)[last],
        last as f32 + 0.5,
        "{what}"
    );
    scatter_set(device, &x, &column.view(&ids_at), &added, 0).unwrap();
    assert_eq!(download::<f32>(device, &rows_at)[last], 0.5, "{what}");
    device.synchronize().unwrap();
}

#[test]
fn the_greatest_numbers_of_small_dtypes_are_indices() {
    let device = device();
    last_row::<u8>(&device, 255);
    last_row::<i16>(&device, 32767);
}
