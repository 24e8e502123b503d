//! Code objects: what of the kernels is compiled and loaded at once.

use crate::DeclaredKernel;
use candle_rocm_kernels::Family;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// What a compiler on the user's machine makes of a family at once: all of it, or a part.
///
/// Its text is the family's device file, and behind a space the part: `norm.hip f16`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeObject {
    family: Family,
    part: Option<String>,
}

impl CodeObject {
    /// All of a family, or one of its parts; the part without a name has what is in all of them.
    pub(crate) const fn new(family: Family, part: Option<String>) -> Self {
        CodeObject { family, part }
    }

    /// The one that has a kernel.
    pub fn of(kernel: &DeclaredKernel) -> Self {
        let family = kernel.family;
        let whole = family.parts().is_empty();
        let part = (!whole).then(|| kernel.part.clone().unwrap_or_default());
        CodeObject { family, part }
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The part; `None` is all of the family.
    pub fn part(&self) -> Option<&str> {
        self.part.as_deref()
    }

    /// What is compiled.
    pub(crate) fn source(&self) -> Cow<'static, str> {
        match &self.part {
            Some(part) => Cow::Owned(self.family.part(part)),
            None => Cow::Borrowed(self.family.source()),
        }
    }
}

impl fmt::Display for CodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family.file_name())?;
        match &self.part {
            Some(part) => write!(f, " {part}"),
            None => Ok(()),
        }
    }
}

impl FromStr for CodeObject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (file, part) = match text.split_once(' ') {
            Some((file, part)) => (file, Some(part.to_string())),
            None => (text, None),
        };
        let mut families = Family::ALL.iter().copied();
        let family = families
            .find(|family| family.file_name() == file)
            .ok_or_else(|| format!("{file:?} is no family of kernels"))?;
        Ok(CodeObject { family, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for (family, part, text) in [
            (Family::Fill, None, "fill.hip"),
            (Family::Norm, Some("f16"), "norm.hip f16"),
            (Family::AttentionDecode, Some(""), "attention/decode.hip "),
        ] {
            let object = CodeObject::new(family, part.map(str::to_string));
            assert_eq!(object.to_string(), text);
            assert_eq!(text.parse(), Ok(object));
        }
        assert!("none.hip".parse::<CodeObject>().is_err());
    }
}
