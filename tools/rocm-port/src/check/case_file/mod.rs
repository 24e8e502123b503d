//! Cases in TOML: read, and written for inputs that were made smaller.

mod read;
mod text;
mod write;

pub(super) use write::write_case;

use super::case::Case;
use std::path::{Path, PathBuf};
use text::File;

/// Bytes of a case file at most.
const MOST_BYTES: u64 = 64 << 20;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::prepare::{points, Data, Ready};

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
