//! What files have beside matrices, factors of products and orders of columns, against the same models without.

use super::shards::Source;
use super::weights::Tensors;
use super::*;
use llm_worker_rocm::engine::api::{ExpertsBy, WeightOptions};
use llm_worker_rocm::model::open_weights;
use llm_worker_rocm::quantize::{Conversion, Plan};
use std::path::Path;
use worker::gguf::{Format, MappedGguf, Weights};
use worker::signal::Interrupt;

/// Columns that move together: blocks stay whole.
const UNIT: usize = 32;

/// Whether something stands beside the matrix of this name.
fn has_extras(name: &str) -> bool {
    name.ends_with(".weight")
        && !["token_embd", "position_embd", "norm"]
            .iter()
            .any(|part| name.contains(part))
}

/// A factor of a matrix: a power of two, so that it changes no other bit. In the first block queries, keys and values
/// have the same, gates and what they multiply, too.
fn factor(name: &str, matrix: usize) -> f32 {
    let shared = name.starts_with("blk.0.");
    let number = match shared {
        true => 2,
        false => name.bytes().map(usize::from).sum::<usize>(),
    };
    [0.25, 4.0, 0.5, 2.0, 8.0][(number + matrix) % 5]
}

/// The input of each column: units from the last to the first, in other blocks those of queries from the second on.
fn order(name: &str, inputs: usize) -> Vec<usize> {
    let units = inputs / UNIT;
    let turned = match name.starts_with("blk.0.") || !name.contains("attn_q") {
        true => (0..units).rev().collect::<Vec<_>>(),
        false => (0..units).map(|unit| (unit + 1) % units).collect(),
    };
    let columns = |unit: usize| unit * UNIT..(unit + 1) * UNIT;
    turned.into_iter().flat_map(columns).collect()
}

fn words<T, const N: usize>(values: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(bytes).collect()
}

/// Puts factors beside the matrices of a file of f32, the stacked ones included, and takes them out of the numbers.
fn put_scales(file: &mut File) {
    let mut scales = Vec::new();
    for tensor in &mut file.tensors {
        if tensor.dims.len() < 2 || !has_extras(&tensor.name) {
            continue;
        }
        let count = tensor.dims.get(2).map_or(1, |count| *count as usize);
        let factors: Vec<f32> = (0..count).map(|m| factor(&tensor.name, m)).collect();
        let each = tensor.data.len() / count;
        for (matrix, factor) in tensor.data.chunks_exact_mut(each).zip(&factors) {
            for number in matrix.chunks_exact_mut(4) {
                let value = f32::from_le_bytes(number.try_into().unwrap());
                number.copy_from_slice(&(value / factor).to_le_bytes());
            }
        }
        let name = tensor.name.replace(".weight", ".scale");
        scales.push(FileTensor::f32(&name, &[count as u64], |i| {
            factors[i as usize]
        }));
    }
    assert!(!scales.is_empty());
    file.tensors.extend(scales);
}

/// Puts the columns of matrices into another order, whatever the format.
fn put_orders(file: &mut File) {
    let mut orders = Vec::new();
    for tensor in &mut file.tensors {
        let &[inputs, rows] = &tensor.dims[..] else {
            continue;
        };
        if !has_extras(&tensor.name) {
            continue;
        }
        let order = order(&tensor.name, inputs as usize);
        let row = tensor.data.len() / rows as usize;
        let unit = row * UNIT / inputs as usize;
        for row in tensor.data.chunks_exact_mut(row) {
            let units = order.iter().step_by(UNIT).map(|column| column / UNIT);
            let moved: Vec<u8> = units
                .flat_map(|from| row[from * unit..(from + 1) * unit].to_vec())
                .collect();
            row.copy_from_slice(&moved);
        }
        orders.push(FileTensor {
            name: tensor.name.replace(".weight", ".order"),
            dims: vec![inputs],
            type_code: Format::I32.number().unwrap(),
            offset: None,
            data: words(&order, |column| (*column as i32).to_le_bytes()),
        });
    }
    assert!(!orders.is_empty());
    file.tensors.extend(orders);
}

fn with_both(f: &Family, tensors: &Tensors) -> File {
    let mut file = file(f, tensors);
    put_scales(&mut file);
    put_orders(&mut file);
    file
}

/// The families of these tests: on a simulated device all would take long.
fn some() -> impl Iterator<Item = Family> {
    let comes = |f: &Family| device().is_cpu() || ["qwen2", "qwen2moe"].contains(&f.name);
    families().into_iter().filter(comes)
}

#[test]
fn factors_and_orders_change_nothing() {
    let tokens = tokens();
    for f in some() {
        let tensors = tensors(&f);
        let want = Reference { f: &f, t: &tensors }.logits(&tokens);
        let got = rows(
            &scorer(&with_both(&f, &tensors))
                .all_logits(&tokens)
                .unwrap(),
        );
        let error = nmse(&got, &want);
        println!("{}: {error:.1e}", f.name);
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);
    }
}

/// The logits of a prompt, and of tokens one by one behind it.
fn logits(path: &Path, weights: WeightOptions) -> Vec<Vec<f32>> {
    const PROMPT: usize = 5;
    let options = LoadOptions {
        weights,
        ..LoadOptions::default()
    };
    let mut forward = load_file(ModelFile::open(path).unwrap(), &options)
        .unwrap()
        .forward;
    let cache = CacheOptions {
        blocks: 2,
        block_size: 16,
        dtype: KvDType::F32.into(),
        context: 32,
        states: 1,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    forward.set_graphs(GraphUse::On);
    let tokens = &tokens()[..PROMPT + 3];
    let mut all = rows(&forward.forward(&step(tokens, 0, PROMPT)).unwrap());
    for i in PROMPT..tokens.len() {
        match forward
            .decode(&step(tokens, i, i + 1), None)
            .unwrap()
            .output
        {
            DecodeOutput::Logits(logits, _) => all.extend(rows(&logits)),
            DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
        }
    }
    all
}

fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let largest = b.iter().flatten().fold(0f32, |most, x| most.max(x.abs()));
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// Writes the file in blocks.
fn quantize(file: &File, path: &Path) {
    let floats = path.with_extension("floats");
    file.write(&floats);
    let plan = Plan::new("Q8_0".parse().unwrap(), Vec::new());
    let weights = open_weights(&floats).unwrap();
    let conversion = Conversion::new(&*weights, &plan).unwrap();
    conversion.write(path, &Interrupt::manual()).unwrap();
}

/// A file as it was written, to be changed.
fn read(f: &Family, path: &Path) -> File {
    let source = MappedGguf::open(path).unwrap();
    let mut file = file(f, &Tensors::new());
    let tensors = source.header().tensors().map(|(name, info)| FileTensor {
        name: name.to_string(),
        dims: info.dims.clone(),
        type_code: info.format.number().unwrap(),
        offset: None,
        data: source.bytes(name, info).into_owned(),
    });
    file.tensors.extend(tensors);
    file.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    file
}

/// Blocks, some of whose products come of one launch, of experts on the GPU, in the host's memory and on their way.
#[test]
fn factors_and_orders_change_nothing_of_blocks() {
    for f in some().filter(|f| ["qwen2", "qwen2moe"].contains(&f.name)) {
        let folder = tempfile::tempdir().unwrap();
        let [plain, path] = ["plain.gguf", "extras.gguf"].map(|name| folder.path().join(name));
        let tensors = tensors(&f);
        quantize(&file(&f, &tensors), &plain);
        let mut scaled = file(&f, &tensors);
        put_scales(&mut scaled);
        quantize(&scaled, &path);
        let mut both = read(&f, &path);
        put_orders(&mut both);
        both.write(&path);
        let mut places = vec![(0, ExpertsBy::Measured)];
        if device().is_rocm() && f.mixture.is_some() {
            places.extend([ExpertsBy::Host, ExpertsBy::Device].map(|by| (usize::MAX, by)));
        }
        for (layers, experts_by) in places {
            let weights = WeightOptions {
                host_experts: Some(layers),
                experts_by,
                ..WeightOptions::default()
            };
            let (got, want) = (logits(&path, weights), logits(&plain, weights));
            let difference = difference(&got, &want);
            println!("{}, {layers} by {experts_by}: {difference:.1e}", f.name);
            assert!(difference <= 1e-4, "{} {difference:e}", f.name);
        }
    }
}

#[test]
fn shards_have_the_factors_and_compute_what_is_in_order_whole() {
    for f in some().filter(|f| ["qwen2", "qwen2moe"].contains(&f.name)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let tensors = tensors(&f);
        let mut scaled = file(&f, &tensors);
        put_scales(&mut scaled);
        scaled.write(&path);
        let source = Source::of(&path);
        assert!(source.plan(&[1.0; 2]).unwrap().whole().is_empty());
        let want = Reference { f: &f, t: &tensors }.logits(&tokens());
        let got = shards::logits(&mut source.together(&[1.0; 2]), &tokens());
        let error = nmse(&got, &want);
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);

        // Rows are divided, columns in an order of their own are not.
        put_orders(&mut scaled);
        let of_columns = [
            "attn_output.order",
            "ffn_down.order",
            "ffn_down_shexp.order",
        ];
        let (others, those): (Vec<_>, Vec<_>) = (scaled.tensors.into_iter())
            .partition(|t| !of_columns.iter().any(|name| t.name.ends_with(name)));
        assert!(!those.is_empty());
        scaled.tensors = others;
        for order in &those {
            let name = order.name.replace(".order", ".weight");
            let plain = file(&f, &tensors).tensor_mut(&name).clone();
            let factor = factor(&name, 0);
            let tensor = scaled.tensor_mut(&name);
            let numbers = plain.data.chunks_exact(4);
            let numbers = numbers.map(|b| f32::from_le_bytes(b.try_into().unwrap()) / factor);
            tensor.data = numbers.flat_map(f32::to_le_bytes).collect();
        }
        scaled.write(&path);
        assert!(source.plan(&[1.0; 2]).unwrap().whole().is_empty());
        let got = shards::logits(&mut source.together(&[1.0; 2]), &tokens());
        let error = nmse(&got, &want);
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);
        with_both(&f, &tensors).write(&path);
        let told = match source.plan(&[1.0; 2]) {
            Ok(plan) => plan.whole().join("; "),
            Err(reason) => reason,
        };
        assert!(
            told.contains("attention behind which columns are in another order"),
            "{told}"
        );
    }
}

#[test]
fn what_does_not_belong_to_a_matrix_is_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut File)| {
        let f = llama();
        let mut file = with_both(&f, &tensors(&f));
        change(&mut file);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        file.write(&path);
        let loaded =
            ModelFile::open(&path).and_then(|file| load_file(file, &LoadOptions::default()));
        loaded.err().expect("it must be refused").to_string()
    };
    let check = |message: String, why: &[&str]| {
        assert!(why.iter().all(|why| message.contains(why)), "{message}");
    };
    let scale = "blk.1.ffn_up.scale";
    let order = "blk.1.ffn_up.order";
    for value in [f32::NAN, f32::INFINITY] {
        let set = |f: &mut File| f.tensor_mut(scale).data = value.to_le_bytes().to_vec();
        check(refusal(&set), &[scale, "factor"]);
    }
    check(
        refusal(&|f| f.tensor_mut(scale).type_code = Format::I32.number().unwrap()),
        &[scale, "I32"],
    );
    check(
        refusal(&|f| f.tensor_mut(order).type_code = 0),
        &[order, "I32"],
    );
    for input in [-1i32, 5, 1 << 20] {
        // 5 is there already.
        let set =
            |f: &mut File| f.tensor_mut(order).data[..4].copy_from_slice(&input.to_le_bytes());
        check(refusal(&set), &[order, &(input as u32).to_string()]);
    }
    check(
        refusal(&|f| {
            let tensor = f.tensor_mut(order);
            tensor.dims = vec![32];
            tensor.data.truncate(128);
        }),
        &[order],
    );
    check(
        refusal(&|f| {
            let sinks = FileTensor::f32("blk.0.attn_norm.scale", &[1], |_| 1.0);
            f.tensors.push(sinks);
        }),
        &["blk.0.attn_norm.scale"],
    );
}
