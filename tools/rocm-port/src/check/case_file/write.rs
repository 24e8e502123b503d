//! A case file of one launch.

use super::text::{ArgumentText, CaseText, DimsText, ExpectedText, FieldText, File, Let};
use crate::check::case::{Argument, Buffer, Dims, Field, Role};
use crate::check::dtype::DType;
use crate::check::fill::{Fill, Word};
use crate::check::prepare::Ready;
use crate::check::tolerance::{Expected, Tolerance};

/// Elements of a buffer that are written as values; larger ones keep their fill.
const MOST_VALUES: usize = 4096;

impl DimsText {
    fn of(Dims([x, y, z]): &Dims) -> Self {
        let word = |text: &String| match text.parse() {
            Ok(number) => Word::Whole(number),
            Err(_) => Word::Text(text.clone()),
        };
        match (y.as_str(), z.as_str()) {
            ("1", "1") => DimsText::One(word(x)),
            _ => DimsText::More(vec![word(x), word(y), word(z)]),
        }
    }
}

/// A case at one combination of sizes, with its inputs and expected outputs as values where they are not too many.
pub(in crate::check) fn write_case(ready: &Ready) -> String {
    let case = ready.case;
    let word = |text: &str| match text.parse() {
        Ok(number) => Word::Whole(number),
        Err(_) => Word::Text(text.to_string()),
    };
    let buffer = |name: &str, spec: &Buffer| buffer_text(ready, name, spec);
    let argument = |(name, argument): &(String, Argument)| {
        let mut text = match argument {
            Argument::Buffer(spec) => buffer(name, spec),
            _ => ArgumentText::default(),
        };
        text.name = name.clone();
        match argument {
            Argument::Buffer(_) => {}
            Argument::Scalar(dtype, value) => {
                (text.scalar, text.value) = (Some(*dtype), Some(value.clone()));
            }
            Argument::Same(of, offset) => {
                text.same = Some(of.clone());
                text.offset = Some(word(offset)).filter(|offset| *offset != Word::Whole(0));
            }
            Argument::Null => text.null = Some(true),
            Argument::Bytes(bytes, align) => {
                (text.bytes, text.align) = (Some(bytes.clone()), Some(*align));
            }
            Argument::Structure(fields) => {
                text.structure = Some(fields.iter().map(field_text).collect());
            }
        }
        text
    };
    let text = CaseText {
        kernel: case.kernel.clone(),
        name: Some(case.name.clone()).filter(|name| *name != case.kernel),
        grid: DimsText::of(&case.grid),
        block: DimsText::of(&case.block),
        shared: Some(word(&case.shared)).filter(|shared| *shared != Word::Whole(0)),
        when: case.conditions.clone(),
        atomic: case.is_atomic,
        sizes: ready
            .point
            .iter()
            .map(|(name, &value)| (name.clone(), vec![value]))
            .collect(),
        together: Vec::new(),
        names: case
            .names
            .iter()
            .map(|(name, value)| Let {
                name: name.clone(),
                value: value.clone(),
            })
            .collect(),
        known: Vec::new(),
        argument: case.arguments.iter().map(argument).collect(),
        memory: case
            .memory
            .iter()
            .map(|(name, spec)| buffer(name, spec))
            .collect(),
    };
    // Every value of it can be written in TOML; should one not be, the message says so in its place.
    toml::to_string(&File { case: vec![text] }).unwrap_or_else(|error| format!("# {error}\n"))
}

fn field_text(field: &Field) -> FieldText {
    let mut text = FieldText::default();
    match field {
        Field::Number(dtype, value) => {
            (text.dtype, text.value) = (Some(*dtype), Some(value.clone()))
        }
        Field::Address(buffer) => text.address = Some(buffer.clone()),
        Field::Bytes(bytes) => text.bytes = Some(bytes.clone()),
    }
    text
}

fn whole(value: i128) -> Word {
    match i64::try_from(value) {
        Ok(value) => Word::Whole(value),
        Err(_) => Word::Text(value.to_string()),
    }
}

/// Numbers of a type as words.
fn words(dtype: DType, bytes: &[u8]) -> Vec<Word> {
    match dtype.is_float() {
        true => dtype
            .decode_all(bytes)
            .into_iter()
            .map(Word::Real)
            .collect(),
        false => dtype
            .decode_integers(bytes)
            .into_iter()
            .map(whole)
            .collect(),
    }
}

fn buffer_text(ready: &Ready, name: &str, spec: &Buffer) -> ArgumentText {
    let word = |text: &str| match text.parse() {
        Ok(number) => Word::Whole(number),
        Err(_) => Word::Text(text.to_string()),
    };
    let mut text = ArgumentText {
        name: name.to_string(),
        length: Some(word(&spec.length)),
        any_order: spec.any_order,
        tolerance: Some(spec.tolerance).filter(|own| *own != Tolerance::of(spec.dtype)),
        keep: spec
            .keep
            .iter()
            .map(|(from, to)| (word(from), word(to)))
            .collect(),
        ..ArgumentText::default()
    };
    match spec.role {
        Role::In => text.input = Some(spec.dtype),
        Role::Out => text.output = Some(spec.dtype),
        Role::InOut => text.inout = Some(spec.dtype),
    }
    let prepared = ready.buffers.iter().find(|buffer| buffer.name == name);
    if let (Some(prepared), true) = (prepared, spec.role != Role::Out) {
        let is_plain = matches!(
            spec.fill,
            Fill::Zeros | Fill::Constant(_) | Fill::Iota | Fill::Values(_) | Fill::Addresses(_)
        );
        let is_small = (1..=MOST_VALUES).contains(&prepared.length);
        text.fill = Some(match is_small && !is_plain {
            true => Fill::Values(words(spec.dtype, &prepared.before)),
            false if matches!(spec.fill, Fill::With(_) | Fill::Bytes(_)) => Fill::Zeros,
            false => spec.fill.clone(),
        });
    }
    let expected = ready
        .outcome
        .expected
        .get(name)
        .filter(|_| !ready.outcome.ignored.contains_key(name));
    let values = expected.map(|expected| match expected {
        Expected::Floats(values) => values.iter().map(|&value| Word::Real(value)).collect(),
        Expected::Integers(values) => values.iter().map(|&value| whole(value)).collect(),
        Expected::Bytes(bytes) => words(spec.dtype, bytes),
    });
    let values = values.filter(|values: &Vec<Word>| values.len() <= MOST_VALUES);
    text.expected = values.map(ExpectedText::Values);
    text
}
