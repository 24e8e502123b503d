//! Values as Python has them, and the heap that they live on.

use super::ast::{For, Macro};
use super::error::{Error, Result};
use super::text::Text;
use indexmap::IndexMap;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

/// A value. Lists and the like are on a heap that one rendering has and drops as a whole, so values that contain each
/// other neither leak nor take stack when they are dropped.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Absent, with the reason.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    /// A function of the environment.
    Function(Function),
    Object(Id),
}

/// Where an object is on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

impl Function {
    /// The functions by the names that templates call them by.
    pub(super) const ALL: [(&'static str, Self); 7] = [
        ("range", Self::Range),
        ("dict", Self::Dict),
        ("namespace", Self::Namespace),
        ("cycler", Self::Cycler),
        ("joiner", Self::Joiner),
        ("raise_exception", Self::RaiseException),
        ("strftime_now", Self::StrftimeNow),
    ];
}

#[derive(Debug)]
pub(super) enum Object<'t> {
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Dict(Dict),
    Namespace(Dict),
    /// What `keys()`, `values()` and `items()` give, by Python's name.
    View(&'static str, Vec<Value>),
    /// Gives each item once, by Python's name.
    Iterator(&'static str, VecDeque<Value>),
    Range {
        start: i128,
        stop: i128,
        step: i128,
    },
    /// What `groupby` gives: a tuple of the key and the list, with names.
    Group([Value; 2]),
    Loop(Loop<'t>),
    Macro {
        node: &'t Macro,
        /// Where it was defined.
        scope: usize,
    },
    Cycler {
        items: Vec<Value>,
        at: usize,
    },
    Joiner {
        separator: Text,
        used: bool,
    },
    /// A method that is not called yet.
    Method(Value, &'static str),
}

/// The variable `loop`.
#[derive(Debug)]
pub(super) struct Loop<'t> {
    pub(super) index: usize,
    pub(super) items: Rc<Vec<Value>>,
    pub(super) depth: usize,
    /// What `changed` was called with last.
    pub(super) seen: Option<Vec<Value>>,
    /// The statement that a call repeats, with the scope around it.
    pub(super) recursive: Option<(&'t For, usize)>,
}

/// A mapping that keeps its order.
pub(super) type Dict = IndexMap<Key, (Value, Value)>;

/// A key. Numbers that are equal are the same key, whatever their type.
#[derive(Debug, Clone)]
pub(super) enum Key {
    None,
    Int(i128),
    Float(u64),
    Str(Text),
    Tuple(Vec<Key>),
    Object(Id),
}

impl Key {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text.as_str()),
            _ => None,
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Tuple(a), Self::Tuple(b)) => a == b,
            (Self::Object(a), Self::Object(b)) => a == b,
            _ => matches!((self.text(), other.text()), (Some(a), Some(b)) if a == b),
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::None => 0.hash(state),
            Self::Int(value) => value.hash(state),
            Self::Float(bits) => bits.hash(state),
            Self::Str(text) => text.as_str().hash(state),
            Self::Tuple(keys) => keys.hash(state),
            Self::Object(id) => id.hash(state),
        }
    }
}

impl indexmap::Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        key.text() == Some(self)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(Text::own(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(Text::own(text))
    }
}

impl Value {
    /// An absent value.
    pub(super) fn undefined(reason: impl Into<Arc<str>>) -> Self {
        Self::Undefined(reason.into())
    }

    pub(super) fn int(value: usize) -> Self {
        Self::Int(value as i128)
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// The value as an integer, as Python's `__index__` has it.
    pub(super) fn as_index(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    /// A number, as arithmetic sees it.
    pub(super) fn as_number(&self) -> Option<Number> {
        match self {
            Self::Float(value) => Some(Number::Float(*value)),
            other => other.as_index().map(Number::Int),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// All objects of one rendering.
#[derive(Debug, Default)]
pub(super) struct Heap<'t> {
    objects: Vec<Object<'t>>,
}

impl<'t> Heap<'t> {
    pub(super) fn add(&mut self, object: Object<'t>) -> Value {
        self.objects.push(object);
        Value::Object(Id(self.objects.len() - 1))
    }

    pub(super) fn get(&self, id: Id) -> &Object<'t> {
        &self.objects[id.0]
    }

    pub(super) fn get_mut(&mut self, id: Id) -> &mut Object<'t> {
        &mut self.objects[id.0]
    }

    pub(super) fn object(&self, value: &Value) -> Option<&Object<'t>> {
        match value {
            Value::Object(id) => Some(self.get(*id)),
            _ => None,
        }
    }

    /// The entries of a mapping.
    pub(super) fn dict(&self, value: &Value) -> Option<&Dict> {
        match self.object(value)? {
            Object::Dict(dict) => Some(dict),
            _ => None,
        }
    }

    /// The items of a list or tuple.
    pub(super) fn sequence(&self, value: &Value) -> Option<&[Value]> {
        match self.object(value)? {
            Object::List(items) | Object::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// Python's name of the value's type.
    pub(super) fn type_name(&self, value: &Value) -> &'static str {
        match value {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Function(_) => "function",
            Value::Object(id) => match self.get(*id) {
                Object::List(_) => "list",
                Object::Tuple(_) => "tuple",
                Object::Group(_) => "_GroupTuple",
                Object::Dict(_) => "dict",
                Object::Namespace(_) => "Namespace",
                Object::View(name, _) | Object::Iterator(name, _) => name,
                Object::Range { .. } => "range",
                Object::Loop(_) => "LoopContext",
                Object::Macro { .. } => "Macro",
                Object::Cycler { .. } => "Cycler",
                Object::Joiner { .. } => "Joiner",
                Object::Method(..) => "builtin_function_or_method",
            },
        }
    }

    /// Whether Python takes the value for true.
    pub(super) fn truth(&self, value: &Value) -> bool {
        match value {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::Function(_) => true,
            Value::Object(id) => match self.get(*id) {
                Object::List(items) | Object::Tuple(items) | Object::View(_, items) => {
                    !items.is_empty()
                }
                Object::Dict(dict) => !dict.is_empty(),
                Object::Range { start, stop, step } => range_length(*start, *stop, *step) > 0,
                _ => true,
            },
        }
    }

    /// The value as a key of a mapping.
    ///
    /// # Errors
    /// [`Error`] for a value that can change.
    pub(super) fn key(&self, value: &Value) -> Result<Key> {
        self.key_within(value, 0, &mut 0)
    }

    fn key_within(&self, value: &Value, depth: usize, parts: &mut usize) -> Result<Key> {
        *parts += 1;
        if depth > MAX_VALUE_DEPTH || *parts > MAX_KEY_PARTS {
            return Err(too_deep());
        }
        Ok(match value {
            Value::None => Key::None,
            Value::Bool(value) => Key::Int(i128::from(*value)),
            Value::Int(value) => Key::Int(*value),
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e18 => {
                Key::Int(*value as i128)
            }
            Value::Float(value) => Key::Float(value.to_bits()),
            Value::Str(text) => Key::Str(text.clone()),
            Value::Object(id) => match self.get(*id) {
                Object::Tuple(items) => {
                    let keys = items
                        .iter()
                        .map(|item| self.key_within(item, depth + 1, parts));
                    Key::Tuple(keys.collect::<Result<_>>()?)
                }
                Object::List(_) | Object::Dict(_) => {
                    return Err(Error::runtime(format!(
                        "unhashable type: '{}'",
                        self.type_name(value)
                    )))
                }
                _ => Key::Object(*id),
            },
            Value::Undefined(reason) => return Err(Error::runtime(reason.to_string())),
            Value::Function(_) => return Err(Error::runtime("a function is no key")),
        })
    }
}

/// Deepest nesting of values that is printed, compared or written as JSON.
pub(super) const MAX_VALUE_DEPTH: usize = 200;

/// Most parts of a key that is a tuple.
const MAX_KEY_PARTS: usize = 1000;

pub(super) fn too_deep() -> Error {
    Error::limit("a value is nested too deeply")
}

/// Number of items of a range.
pub(super) fn range_length(start: i128, stop: i128, step: i128) -> i128 {
    let span = if step > 0 { stop - start } else { start - stop };
    if span <= 0 {
        return 0;
    }
    (span - 1) / step.saturating_abs() + 1
}
