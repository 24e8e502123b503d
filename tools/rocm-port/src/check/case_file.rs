//! Cases in TOML: read, and written for inputs that were made smaller.

use super::case::{Argument, Buffer, Case, Dims, Field, Given, Reference, Role};
use super::dtype::DType;
use super::fill::{Fill, Word};
use super::finding::Kind;
use super::prepare::Ready;
use super::tolerance::{Expected, Tolerance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes of a case file at most.
const MOST_BYTES: u64 = 64 << 20;
/// Elements of a buffer that are written as values; larger ones keep their fill.
const MOST_VALUES: usize = 4096;

/// Why cases cannot be read: the file, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct CaseFileError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong, with its place in the file where that is known.
    pub why: String,
}

/// The cases of a file.
///
/// # Errors
/// [`CaseFileError`] for what cannot be read or understood.
pub fn read_cases(file: &Path) -> Result<Vec<Case>, CaseFileError> {
    let error = |why: String| CaseFileError {
        file: file.to_path_buf(),
        why,
    };
    let length = std::fs::metadata(file)
        .map_err(|why| error(why.to_string()))?
        .len();
    if length > MOST_BYTES {
        return Err(error(format!(
            "it has {length} bytes, more than {MOST_BYTES}"
        )));
    }
    let text = std::fs::read_to_string(file).map_err(|why| error(why.to_string()))?;
    let folder = file.parent().unwrap_or(Path::new(""));
    parse_cases(&text, folder).map_err(error)
}

/// The files that a case file means: `.npy` files of inputs and expected outputs.
///
/// # Errors
/// As [`read_cases`].
pub fn case_files(file: &Path) -> Result<Vec<PathBuf>, CaseFileError> {
    let cases = read_cases(file)?;
    Ok(cases.iter().flat_map(Case::files).collect())
}

/// Cases from text; files that they name are looked for in `folder`.
///
/// # Errors
/// What is wrong, with its place.
pub fn parse_cases(text: &str, folder: &Path) -> Result<Vec<Case>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.case.is_empty() {
        return Err("it has no [[case]]".to_string());
    }
    let cases = file.case.into_iter().map(|text| {
        let name = text.name.clone().unwrap_or_else(|| text.kernel.clone());
        text.into_case(folder)
            .map_err(|why| format!("case {name}: {why}"))
    });
    cases.collect()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<CaseText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseText {
    kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    grid: DimsText,
    block: DimsText,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<Word>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    when: Vec<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    atomic: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sizes: BTreeMap<String, Vec<i64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    together: Vec<Together>,
    #[serde(default, rename = "let", skip_serializing_if = "Vec::is_empty")]
    names: Vec<Let>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    known: Vec<Known>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    argument: Vec<ArgumentText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    memory: Vec<ArgumentText>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum DimsText {
    One(Word),
    More(Vec<Word>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Together {
    names: Vec<String>,
    values: Vec<Vec<i64>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Let {
    name: String,
    value: Word,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    kind: Kind,
    reason: String,
}

/// One of `scalar`, `input`, `output`, `inout`, `same`, `null`, `structure` and `bytes` says what it is.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArgumentText {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    scalar: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inout: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    same: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    null: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    align: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<Word>,
    #[serde(default, skip_serializing_if = "is_false")]
    any_order: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fill: Option<Fill>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<ExpectedText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerance: Option<Tolerance>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keep: Vec<(Word, Word)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structure: Option<Vec<FieldText>>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ExpectedText {
    Values(Vec<Word>),
    File { npy: PathBuf },
}

/// A number has `type` and `value`; others have `address` or `bytes`.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldText {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    dtype: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl DimsText {
    fn into_dims(self) -> Result<Dims, String> {
        match self {
            DimsText::One(x) => Ok(Dims::from(x)),
            DimsText::More(all) if (1..=3).contains(&all.len()) => {
                let one = |at: usize| all.get(at).map_or("1".to_string(), Word::to_string);
                Ok(Dims([one(0), one(1), one(2)]))
            }
            DimsText::More(all) => Err(format!("a grid or block of {} dimensions", all.len())),
        }
    }

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

impl CaseText {
    fn into_case(self, folder: &Path) -> Result<Case, String> {
        let mut case = Case::new(self.kernel);
        if let Some(name) = self.name {
            case.name = name;
        }
        let sizes = self.sizes.into_iter().map(|(name, values)| {
            (
                vec![name],
                values.into_iter().map(|value| vec![value]).collect(),
            )
        });
        case.sizes = sizes.collect();
        case.sizes
            .extend(self.together.into_iter().map(|one| (one.names, one.values)));
        case.names = self
            .names
            .into_iter()
            .map(|one| (one.name, one.value))
            .collect();
        case.conditions = self.when;
        (case.grid, case.block) = (self.grid.into_dims()?, self.block.into_dims()?);
        case.shared = self.shared.map_or("0".to_string(), |word| word.to_string());
        case.is_atomic = self.atomic;
        case.known = self
            .known
            .into_iter()
            .map(|one| (one.kind, one.reason))
            .collect();
        case.folder = folder.to_path_buf();
        let mut given = Vec::new();
        for argument in self.argument {
            let name = argument.name.clone();
            let argument = argument.into_argument(&mut given);
            let argument = argument.map_err(|why| format!("argument {name}: {why}"))?;
            case.arguments.push((name, argument));
        }
        for buffer in self.memory {
            let name = buffer.name.clone();
            match buffer.into_argument(&mut given) {
                Ok(Argument::Buffer(buffer)) => case.memory.push((name, buffer)),
                Ok(_) => return Err(format!("memory {name}: it is no buffer")),
                Err(why) => return Err(format!("memory {name}: {why}")),
            }
        }
        if !given.is_empty() {
            case.reference = Reference::Given(given);
        }
        Ok(case)
    }
}

impl ArgumentText {
    fn into_argument(self, given: &mut Vec<(String, Given)>) -> Result<Argument, String> {
        let kinds = [
            self.scalar.is_some(),
            self.input.is_some(),
            self.output.is_some(),
            self.inout.is_some(),
            self.same.is_some(),
            self.null.is_some(),
            self.structure.is_some(),
            self.bytes.is_some(),
        ];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            return Err(
                "it needs one of scalar, input, output, inout, same, null, structure and bytes"
                    .to_string(),
            );
        }
        let is_buffer = self.input.or(self.output).or(self.inout).is_some();
        let of_buffer = self.length.is_some()
            || self.fill.is_some()
            || self.expected.is_some()
            || self.tolerance.is_some()
            || self.any_order
            || !self.keep.is_empty();
        if of_buffer && !is_buffer {
            return Err(
                "only buffers have length, fill, expected, tolerance, any_order and keep"
                    .to_string(),
            );
        }
        if let Some(dtype) = self.scalar {
            let value = self.value.ok_or("a scalar needs a value")?;
            return Ok(Argument::Scalar(dtype, value));
        }
        if self.value.is_some() {
            return Err("only scalars have a value".to_string());
        }
        if let Some(of) = self.same {
            let offset = self.offset.map_or("0".to_string(), |word| word.to_string());
            return Ok(Argument::Same(of, offset));
        }
        if let Some(bytes) = self.bytes {
            return Ok(Argument::Bytes(bytes, self.align.unwrap_or(1)));
        }
        if let Some(fields) = self.structure {
            let fields = fields.into_iter().map(FieldText::into_field);
            return Ok(Argument::Structure(fields.collect::<Result<_, _>>()?));
        }
        let (role, dtype) = match (self.input, self.output, self.inout) {
            (Some(dtype), ..) => (Role::In, dtype),
            (_, Some(dtype), _) => (Role::Out, dtype),
            (.., Some(dtype)) => (Role::InOut, dtype),
            _ => return Ok(Argument::Null),
        };
        let length = self.length.ok_or("a buffer needs a length")?;
        let fill = match (role, self.fill) {
            (Role::Out, None) => Fill::Zeros,
            (Role::Out, Some(_)) => {
                return Err("an output has no fill; make it an inout".to_string())
            }
            (_, Some(fill)) => fill,
            (_, None) => return Err("it needs a fill".to_string()),
        };
        let mut buffer = Buffer::new(dtype, length, role, fill);
        buffer.tolerance = self.tolerance.unwrap_or(buffer.tolerance);
        buffer.any_order = self.any_order;
        let keep = self
            .keep
            .into_iter()
            .map(|(from, to)| (from.to_string(), to.to_string()));
        buffer.keep = keep.collect();
        match self.expected {
            None => {}
            Some(_) if role == Role::In => return Err("an input has nothing expected".to_string()),
            Some(ExpectedText::Values(values)) => given.push((self.name, Given::Values(values))),
            Some(ExpectedText::File { npy }) => given.push((self.name, Given::Npy(npy))),
        }
        Ok(Argument::Buffer(buffer))
    }
}

impl FieldText {
    fn into_field(self) -> Result<Field, String> {
        match (self.dtype, self.value, self.address, self.bytes) {
            (Some(dtype), Some(value), None, None) => Ok(Field::Number(dtype, value)),
            (None, None, Some(buffer), None) => Ok(Field::Address(buffer)),
            (None, None, None, Some(bytes)) => Ok(Field::Bytes(bytes)),
            _ => Err("a field has type and value, or address, or bytes".to_string()),
        }
    }
}

/// A case at one combination of sizes, with its inputs and expected outputs as values where they are not too many.
pub(super) fn write_case(ready: &Ready) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::prepare::{points, Data};

    const TEXT: &str = r#"
[[case]]
kernel = "rocm_scale_f32"
grid = "ceil(n / 256)"
block = [256, 1]
sizes = { n = [1, 31] }
let = [{ name = "m", value = "n * 2" }]
when = ["n % 2 == 1"]

[[case.argument]]
name = "n"
scalar = "u64"
value = "n"

[[case.argument]]
name = "x"
input = "f32"
length = "n"
fill = { uniform = [-2, 2.5] }

[[case.argument]]
name = "ids"
input = "i64"
length = 3
fill = { ints = [0, "n - 1"] }

[[case.argument]]
name = "p"
structure = [{ type = "i32", value = "m" }, { address = "hidden" }]

[[case.argument]]
name = "y"
inout = "f16"
length = 2
fill = "zeros"
expected = [1.0, 2]
tolerance = { ulps = 1.0 }
keep = [[0, 1]]

[[case.memory]]
name = "hidden"
output = "u8"
length = "m"
"#;

    #[test]
    fn a_file_is_read_and_written_again() {
        let cases = parse_cases(TEXT, Path::new("")).unwrap();
        let case = &cases[0];
        let points = points(case).unwrap();
        assert_eq!(points.len(), 2);
        let ready = Ready::new(case, &points[1], &Data::new(), 7).unwrap();
        assert_eq!(ready.launch.grid, [1, 1, 1]);
        assert_eq!(ready.buffers[0].before.len(), 31 * 4);
        let written = write_case(&ready);
        let again = parse_cases(&written, Path::new("")).unwrap();
        let same = Ready::new(&again[0], &points[1], &Data::new(), 8).unwrap();
        for (one, other) in ready.buffers.iter().zip(&same.buffers) {
            assert_eq!(one.before, other.before, "{}", one.name);
        }
        assert_eq!(format!("{:?}", ready.launch), format!("{:?}", same.launch));
        let numbers = |ready: &Ready| ready.outcome.expected["y"].clone();
        assert_eq!(numbers(&ready), numbers(&same));
    }

    #[test]
    fn mistakes_are_errors() {
        let with = |from: &str, to: &str| {
            assert!(TEXT.contains(from), "{from}");
            parse_cases(&TEXT.replacen(from, to, 1), Path::new("")).unwrap_err()
        };
        assert!(with("grid =", "grit =").contains("grit"));
        assert!(with("scalar = \"u64\"", "scalar = \"u65\"").contains("u65"));
        assert!(with("value = \"n\"", "length = 2").contains("only buffers"));
        assert!(with("fill = \"zeros\"\n", "").contains("needs a fill"));
        assert!(with("input = \"f32\"", "input = \"f32\"\nnull = true").contains("one of"));
        assert!(with("block = [256, 1]", "block = []").contains("0 dimensions"));
        assert!(with(
            "output = \"u8\"\nlength = \"m\"",
            "scalar = \"u8\"\nvalue = 1"
        )
        .contains("no buffer"));
        assert!(with("{ address = \"hidden\" }", "{ }").contains("a field has"));
        assert!(parse_cases("", Path::new("")).is_err());
        assert!(parse_cases("case = []", Path::new(""))
            .unwrap_err()
            .contains("no [[case]]"));
        assert!(parse_cases("\u{0}", Path::new("")).is_err());
    }

    #[test]
    fn what_a_case_gets_wrong_shows_when_it_is_prepared() {
        let prepare = |from: &str, to: &str| {
            let cases = parse_cases(&TEXT.replacen(from, to, 1), Path::new("")).unwrap();
            let points = points(&cases[0])?;
            Ready::new(&cases[0], &points[0], &Data::new(), 1).map(|_| ())
        };
        assert_eq!(prepare("block = [256, 1]", "block = 64"), Ok(()));
        for (from, to, why) in [
            (
                "address = \"hidden\"",
                "address = \"nothing\"",
                "no buffer is called nothing",
            ),
            (
                "grid = \"ceil(n / 256)\"",
                "grid = \"n / 256\"",
                "not a whole number",
            ),
            ("grid = \"ceil(n / 256)\"", "grid = \"0 - 1\"", "is -1"),
            (
                "scalar = \"u64\"\nvalue = \"n\"",
                "scalar = \"u8\"\nvalue = 256",
                "is no u8",
            ),
            (
                "expected = [1.0, 2]",
                "expected = [1.0]",
                "1 values for 2 elements",
            ),
            ("keep = [[0, 1]]", "keep = [[0, 3]]", "0 to 3 of 2"),
            ("length = \"m\"", "length = \"1e30\"", "1e30"),
            ("length = \"m\"", "length = 99999999999", "99999999999"),
            (
                "when = [\"n % 2 == 1\"]",
                "when = [\"n > 100\"]",
                "no combination",
            ),
            (
                "name = \"hidden\"",
                "name = \"x\"",
                "two buffers are called x",
            ),
        ] {
            let found = prepare(from, to).unwrap_err();
            assert!(found.contains(why), "{from}: {found}");
        }
    }
}
