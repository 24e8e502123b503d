//! What transformers adds to Jinja.

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::Value as Json;
use std::fmt::Write as _;
use std::io;

/// Marks the text of `raise_exception`.
pub(super) const RAISED: &str = "raised:";

/// Adds the functions and filters.
pub(super) fn add_to(environment: &mut Environment) {
    environment.add_function("raise_exception", |message: String| {
        Err::<String, _>(Error::new(
            ErrorKind::InvalidOperation,
            format!("{RAISED} {message}"),
        ))
    });
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
}

/// `{% generation %}` and its end mark what a training loss looks at; a prompt needs what is between them only.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let (tag, after) = rest[start..].split_at(length + 2);
        out.push_str(&rest[..start]);
        let name = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn strftime_now(format: String) -> Result<String, Error> {
    let mut text = String::new();
    match write!(text, "{}", chrono::Local::now().format(&format)) {
        Ok(()) => Ok(text),
        Err(_) => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now does not know the format {format:?}"),
        )),
    }
}

/// `json.dumps(value, ensure_ascii=False)` with Python's keyword arguments.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let broken = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = kwargs.get::<Option<usize>>("indent")?;
    let sort = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators are a pair",
            ))
        }
    };
    let mut json = serde_json::to_value(value).map_err(broken)?;
    if sort {
        sort_keys(&mut json);
    }
    let python = Python {
        ascii,
        indent: indent.map(|n| n.min(64)),
        item,
        key,
        depth: 0,
        filled: false,
    };
    let mut out = Vec::new();
    json.serialize(&mut serde_json::Serializer::with_formatter(
        &mut out, python,
    ))
    .map_err(broken)?;
    String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

fn sort_keys(json: &mut Json) {
    match json {
        Json::Object(map) => {
            map.sort_keys();
            map.values_mut().for_each(sort_keys);
        }
        Json::Array(items) => items.iter_mut().for_each(sort_keys),
        _ => {}
    }
}

/// JSON as Python's `json.dumps` writes it.
struct Python<'a> {
    ascii: bool,
    indent: Option<usize>,
    item: &'a str,
    key: &'a str,
    depth: usize,
    /// Whether the container that just ends has an element.
    filled: bool,
}

impl Python<'_> {
    fn line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(out, "\n{:width$}", "", width = indent * self.depth),
            None => Ok(()),
        }
    }

    fn begin<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        out.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.line(out)
    }

    fn end<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(out)?;
        }
        self.filled = true;
        out.write_all(bracket)
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        let size = value.abs();
        if size == 0.0 || (1e-4..1e16).contains(&size) {
            return write!(out, "{value:?}");
        }
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        match exponent.strip_prefix('-') {
            Some(exponent) => write!(out, "{mantissa}e-{exponent:0>2}"),
            None => write!(out, "{mantissa}e+{exponent:0>2}"),
        }
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for c in fragment.chars() {
            if c.is_ascii() {
                out.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut units) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}
