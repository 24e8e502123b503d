//! `--host`: a crate's `.cu` files and headers in HIP C++, for those who build them with hipcc.
//!
//! Names are looked up token by token, so comments and strings stay; launches stay, as hipcc knows them. What HIP may lack
//! is told with its place and left as it is.

use super::hip_names::{HEADERS, RENAMED, RUNTIME};
use super::lexer::{directive, tokens, Kind};
use super::package::files;
use super::{PackageError, Place};
use crate::source::Sources;
use serde::Serialize;
use std::path::PathBuf;

/// What became of a crate's files.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HipReport {
    /// The folder of the result.
    pub out: PathBuf,
    /// Files that were written, relative to it.
    pub files: Vec<String>,
    /// Names that were replaced.
    pub replaced: usize,
    /// Places of names that the table lacks.
    pub open: Vec<String>,
}

/// Translates all `.cu` files and headers to a folder, `.cu` to `.hip`.
///
/// # Errors
/// Files that cannot be read or written, and a folder that is not empty.
pub fn hip(sources: &Sources, out: PathBuf, force: bool) -> Result<HipReport, PackageError> {
    let out = files::empty(sources, &Place::Folder(out, force))?;
    let mut report = HipReport {
        out: out.clone(),
        ..HipReport::default()
    };
    for name in sources.cuda.iter().chain(&sources.headers) {
        let translated = translate(name, &sources.read(name)?);
        let to = match name.strip_suffix(".cu") {
            Some(stem) => format!("{stem}.hip"),
            None => name.clone(),
        };
        files::write(&out.join(&to), &translated.text)?;
        report.files.push(to);
        report.replaced += translated.replaced;
        report.open.extend(translated.open);
    }
    Ok(report)
}

#[derive(Default)]
struct Translated {
    text: String,
    replaced: usize,
    open: Vec<String>,
}

fn translate(file: &str, text: &str) -> Translated {
    let mut result = Translated::default();
    let mut at = 0;
    for token in tokens(text) {
        let to = match token.kind {
            Kind::Word => word(token.text(text)),
            Kind::Directive => {
                let inner = directive_text(file, text, token.start, token.text(text), &mut result);
                Some(Ok(inner))
            }
            _ => None,
        };
        match to {
            Some(Ok(to)) => {
                result.text.push_str(&text[at..token.start]);
                result.text.push_str(&to);
                result.replaced += usize::from(token.kind == Kind::Word);
                at = token.end;
            }
            Some(Err(())) => tell(file, text, token.start, token.text(text), &mut result),
            None => {}
        }
    }
    result.text.push_str(&text[at..]);
    result
}

/// A directive: the header of an include, or the body of a macro.
fn directive_text(
    file: &str,
    text: &str,
    start: usize,
    line: &str,
    result: &mut Translated,
) -> String {
    let (name, rest) = directive(line);
    let offset = line.len() - rest.len();
    if name == "include" {
        let found = HEADERS.iter().find_map(|(header, to)| {
            let quoted = rest.strip_prefix(&format!("\"{header}\""));
            let after = rest.strip_prefix(&format!("<{header}>")).or(quoted)?;
            Some(format!("{}<{to}>{after}", &line[..offset]))
        });
        result.replaced += usize::from(found.is_some());
        return found.unwrap_or_else(|| line.to_string());
    }
    // A macro's body is tokens, too; what `#` begins in it makes text of a parameter.
    let mut out = String::new();
    let mut at = 0;
    for token in tokens(rest)
        .into_iter()
        .filter(|token| token.kind == Kind::Word)
    {
        match word(token.text(rest)) {
            Some(Ok(to)) => {
                out.push_str(&rest[at..token.start]);
                out.push_str(&to);
                result.replaced += 1;
                at = token.end;
            }
            Some(Err(())) => {
                let place = start + line.find(rest).unwrap_or(0) + token.start;
                tell(file, text, place, token.text(rest), result);
            }
            None => {}
        }
    }
    out.push_str(&rest[at..]);
    format!("{}{out}", &line[..offset])
}

fn tell(file: &str, text: &str, at: usize, name: &str, result: &mut Translated) {
    let line = text[..at.min(text.len())].matches('\n').count() + 1;
    result.open.push(format!(
        "{file}:{line}: {name} is not in the table; it was left as it is"
    ));
}

/// HIP's name for a word: none if it is no name of CUDA, an error if it is one that the table lacks.
fn word(word: &str) -> Option<Result<String, ()>> {
    if let Some((_, to)) = RENAMED.iter().find(|(name, _)| *name == word) {
        return Some(Ok(to.to_string()));
    }
    let upper = |rest: &str| rest.starts_with(|c: char| c.is_ascii_uppercase());
    if let Some(rest) = word.strip_prefix("cuda").filter(|rest| upper(rest)) {
        return Some(match RUNTIME.contains(&rest) {
            true => Ok(format!("hip{rest}")),
            false => Err(()),
        });
    }
    let library = [
        "cublas", "cudnn", "cusparse", "cufft", "cusolver", "nvrtc", "CU_",
    ];
    let of_library = library.iter().any(|start| word.starts_with(start));
    let of_driver = word.strip_prefix("cu").is_some_and(upper)
        || word
            .strip_prefix("CU")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
    (of_library || of_driver).then_some(Err(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated_and_the_rest_stays() {
        let text = "\
#include <cuda_runtime.h>  // why
#include \"own.h\"
#define CHECK(x) do { cudaError_t e = (x); \\
  if (e != cudaSuccess) fail(cudaGetErrorString(e)); } while (0) // cudaFree
/* cudaMalloc */ const char* s = \"cudaMalloc\";
void f(cudaStream_t s, int n) {
  CHECK(cudaMallocHost(&p, n));
  cudaDeviceProp prop;
  kernel<<<n, 256, 0, s>>>(p);
  cudaGraphKernelNodeGetParams(a, b);
  cublasSgemm(h);
  cudaish = customary;
}
";
        let translated = translate("a.cu", text);
        assert_eq!(
            translated.text,
            "\
#include <hip/hip_runtime.h>  // why
#include \"own.h\"
#define CHECK(x) do { hipError_t e = (x); \\
  if (e != hipSuccess) fail(hipGetErrorString(e)); } while (0) // cudaFree
/* cudaMalloc */ const char* s = \"cudaMalloc\";
void f(hipStream_t s, int n) {
  CHECK(hipHostMalloc(&p, n));
  hipDeviceProp_t prop;
  kernel<<<n, 256, 0, s>>>(p);
  cudaGraphKernelNodeGetParams(a, b);
  cublasSgemm(h);
  cudaish = customary;
}
"
        );
        assert_eq!(translated.replaced, 7);
        assert_eq!(
            translated.open,
            [
                "a.cu:10: cudaGraphKernelNodeGetParams is not in the table; it was left as it is",
                "a.cu:11: cublasSgemm is not in the table; it was left as it is"
            ]
        );
    }

    #[test]
    fn names_are_in_the_table_once() {
        let mut names: Vec<&str> = RUNTIME.to_vec();
        names.extend(RENAMED.iter().map(|(name, _)| *name));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
