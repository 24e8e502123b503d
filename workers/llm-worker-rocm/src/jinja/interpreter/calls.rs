//! Calls of functions, macros, methods and loops.

use super::super::ast::{Arguments, Expr, ExprKind, Macro};
use super::super::error::{Error, ErrorKind, Result};
use super::super::methods::method_of;
use super::super::text::{Text, TextBuilder};
use super::super::value::{range_length, Dict, Function, Key, Object, Value};
use super::expression::insert;
use super::Interpreter;
use std::fmt::Write as _;

/// Longest `range`, as in Jinja2's sandbox.
const MAX_RANGE: i128 = 100_000;

/// Evaluated arguments.
#[derive(Debug, Default)]
pub(in super::super) struct Args {
    pub(in super::super) positional: Vec<Value>,
    pub(in super::super) named: Vec<(String, Value)>,
}

impl Args {
    /// The values of the parameters with these names.
    ///
    /// # Errors
    /// [`Error`] for arguments that there is no parameter for.
    pub(in super::super) fn bind<const N: usize>(
        self,
        function: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        let given = self.positional.len();
        if given > N {
            return Err(Error::runtime(format!(
                "{function}() takes {N} arguments at most, {given} were given"
            )));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let slot = names.iter().position(|known| *known == name);
            match slot.map(|i| &mut bound[i]) {
                None => {
                    return Err(Error::runtime(format!(
                        "{function}() got an unexpected keyword argument '{name}'"
                    )))
                }
                Some(Some(_)) => {
                    return Err(Error::runtime(format!(
                        "{function}() got multiple values for argument '{name}'"
                    )))
                }
                Some(slot) => *slot = Some(value),
            }
        }
        Ok(bound)
    }

    /// The positional arguments only.
    ///
    /// # Errors
    /// [`Error`] for named ones.
    pub(in super::super) fn positional_only<const N: usize>(
        self,
        function: &str,
    ) -> Result<[Option<Value>; N]> {
        if let Some((name, _)) = self.named.first() {
            return Err(Error::runtime(format!(
                "{function}() takes no keyword argument '{name}'"
            )));
        }
        self.bind(function, [""; N])
    }
}

impl<'t> Interpreter<'t> {
    pub(super) fn eval_arguments(
        &mut self,
        arguments: &'t Arguments,
        scope: usize,
    ) -> Result<Args> {
        let mut args = Args::default();
        for value in &arguments.positional {
            args.positional.push(self.eval(value, scope)?);
        }
        if let Some(more) = &arguments.spread {
            let more = self.eval(more, scope)?;
            args.positional.extend(self.iterate(&more)?);
        }
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(more) = &arguments.spread_named {
            let more = self.eval(more, scope)?;
            let Some(dict) = self.heap.dict(&more) else {
                return Err(Error::runtime("argument after ** must be a mapping"));
            };
            for (key, value) in dict.values() {
                let Value::Str(key) = key else {
                    return Err(Error::runtime("keywords must be strings"));
                };
                args.named.push((key.as_str().to_string(), value.clone()));
            }
        }
        Ok(args)
    }

    pub(super) fn eval_call(
        &mut self,
        callee: &'t Expr,
        arguments: &'t Arguments,
        caller: Option<Value>,
        scope: usize,
    ) -> Result<Value> {
        // A method is called without becoming a value first.
        if let ExprKind::Attribute(value, name) = &callee.kind {
            let value = self.eval(value, scope)?;
            if let Some(method) = method_of(&self.heap, &value, name) {
                let args = self.eval_arguments(arguments, scope)?;
                return self.call_method(&value, method, args);
            }
            let callee = self.attribute(&value, name)?;
            let args = self.eval_arguments(arguments, scope)?;
            return self.call(&callee, args, caller);
        }
        let callee = self.eval(callee, scope)?;
        let args = self.eval_arguments(arguments, scope)?;
        self.call(&callee, args, caller)
    }

    /// The call of a `{% call %}` block.
    pub(super) fn call_with_caller(
        &mut self,
        call: &'t Expr,
        caller: Value,
        scope: usize,
    ) -> Result<Value> {
        match &call.kind {
            ExprKind::Call(callee, arguments) => {
                self.eval_call(callee, arguments, Some(caller), scope)
            }
            _ => Err(Error::runtime("expected a call")),
        }
    }

    fn call(&mut self, callee: &Value, args: Args, caller: Option<Value>) -> Result<Value> {
        match callee {
            Value::Undefined(reason) => Err(Error::runtime(reason.to_string())),
            Value::Function(function) => self.call_function(*function, args),
            Value::Object(id) => match self.heap.get_mut(*id) {
                Object::Macro { node, scope } => {
                    let (node, scope) = (*node, *scope);
                    self.deeper(|this| this.call_macro(node, scope, args, caller))
                }
                Object::Method(value, name) => {
                    let (value, name) = (value.clone(), *name);
                    self.call_method(&value, name, args)
                }
                Object::Loop(state) => {
                    let (recursive, depth) = (state.recursive, state.depth);
                    let Some((node, scope)) = recursive else {
                        return Err(Error::runtime("the loop is not marked as recursive"));
                    };
                    let [items] = args.bind("loop", ["iterable"])?;
                    let items = items.ok_or_else(|| Error::runtime("loop() takes an iterable"))?;
                    let mut out = TextBuilder::default();
                    self.deeper(|this| this.run_loop(node, &items, scope, depth + 1, &mut out))?;
                    Ok(Value::Str(out.build()))
                }
                Object::Joiner { separator, used } => {
                    Ok(Value::Str(match std::mem::replace(used, true) {
                        true => separator.clone(),
                        false => Text::own(""),
                    }))
                }
                _ => Err(self.not_callable(callee)),
            },
            _ => Err(self.not_callable(callee)),
        }
    }

    fn not_callable(&self, value: &Value) -> Error {
        let kind = self.heap.type_name(value);
        Error::runtime(format!("'{kind}' object is not callable"))
    }

    fn call_macro(
        &mut self,
        node: &'t Macro,
        scope: usize,
        args: Args,
        caller: Option<Value>,
    ) -> Result<Value> {
        let inner = self.push_scope(Some(scope));
        let name = &node.name;
        let mut named = args.named;
        let mut positional = args.positional.into_iter();
        for (parameter, default) in &node.parameters {
            let by_name = named.iter().position(|(given, _)| given == parameter);
            let by_name = by_name.map(|i| named.remove(i).1);
            let value = match (positional.next(), by_name, default) {
                (Some(_), Some(_), _) => {
                    return Err(Error::runtime(format!(
                        "macro '{name}' got multiple values for argument '{parameter}'"
                    )))
                }
                (Some(value), None, _) | (None, Some(value), _) => value,
                (None, None, Some(default)) => self.eval(default, inner)?,
                (None, None, None) => {
                    Value::undefined(format!("parameter '{parameter}' was not provided"))
                }
            };
            self.set(inner, parameter, value);
        }
        if node.takes_caller {
            let by_name = named.iter().position(|(given, _)| given == "caller");
            let by_name = by_name.map(|i| named.remove(i).1);
            let caller = caller.or(by_name);
            self.set(
                inner,
                "caller",
                caller.unwrap_or_else(|| Value::undefined("No caller defined")),
            );
        } else if caller.is_some() {
            return Err(Error::runtime(format!(
                "macro '{name}' was invoked with two values for the special caller argument, or uses none"
            )));
        }
        let more: Vec<Value> = positional.collect();
        if node.takes_more.0 {
            let more = self.tuple(more)?;
            self.set(inner, "varargs", more);
        } else if !more.is_empty() {
            let most = node.parameters.len();
            return Err(Error::runtime(format!(
                "macro '{name}' takes not more than {most} argument(s)"
            )));
        }
        if node.takes_more.1 {
            let more = self.named_dict(named)?;
            let more = self.dict(more)?;
            self.set(inner, "kwargs", more);
        } else if let Some((extra, _)) = named.first() {
            return Err(Error::runtime(format!(
                "macro '{name}' takes no keyword argument '{extra}'"
            )));
        }
        let mut out = TextBuilder::default();
        self.run(&node.body, inner, &mut out)?;
        self.pop_scope(inner);
        Ok(Value::Str(out.build()))
    }

    fn named_dict(&mut self, named: Vec<(String, Value)>) -> Result<Dict> {
        let mut dict = Dict::new();
        for (name, value) in named {
            let name = Text::own(name);
            insert(&mut dict, Key::Str(name.clone()), Value::Str(name), value);
        }
        Ok(dict)
    }

    /// What `dict(…)` makes of its arguments.
    pub(in super::super) fn dict_of(&mut self, args: Args) -> Result<Dict> {
        let mut dict = Dict::new();
        if args.positional.len() > 1 {
            return Err(Error::runtime("dict expected at most 1 argument"));
        }
        for value in args.positional {
            match self.heap.object(&value) {
                Some(Object::Dict(other) | Object::Namespace(other)) => dict = other.clone(),
                _ => {
                    for pair in self.iterate(&value)? {
                        let pair = self.iterate(&pair)?;
                        let [key, value] = <[Value; 2]>::try_from(pair).map_err(|_| {
                            Error::runtime("dictionary update sequence element is not a pair")
                        })?;
                        insert(&mut dict, self.heap.key(&key)?, key, value);
                    }
                }
            }
        }
        for (key, (name, value)) in self.named_dict(args.named)? {
            insert(&mut dict, key, name, value);
        }
        Ok(dict)
    }

    fn call_function(&mut self, function: Function, args: Args) -> Result<Value> {
        match function {
            Function::Range => {
                let bounds = args.positional_only::<3>("range")?;
                let mut numbers = Vec::new();
                for bound in bounds.iter().flatten() {
                    numbers.push(bound.as_index().ok_or_else(|| {
                        let kind = self.heap.type_name(bound);
                        Error::runtime(format!(
                            "'{kind}' object cannot be interpreted as an integer"
                        ))
                    })?);
                }
                let (start, stop, step) = match numbers[..] {
                    [stop] => (0, stop, 1),
                    [start, stop] => (start, stop, 1),
                    [start, stop, step] => (start, stop, step),
                    _ => return Err(Error::runtime("range expected at least 1 argument, got 0")),
                };
                if step == 0 {
                    return Err(Error::runtime("range() arg 3 must not be zero"));
                }
                // Bounds beyond these would overflow.
                let wide = [start, stop, step]
                    .iter()
                    .any(|n| n.unsigned_abs() > u128::from(u64::MAX));
                if wide || range_length(start, stop, step) > MAX_RANGE {
                    return Err(Error::limit(format!(
                        "range too big, the maximum is {MAX_RANGE}"
                    )));
                }
                self.spend(64)?;
                Ok(self.heap.add(Object::Range { start, stop, step }))
            }
            Function::Dict => {
                let dict = self.dict_of(args)?;
                self.dict(dict)
            }
            Function::Namespace => {
                let attributes = self.dict_of(args)?;
                if let Some(Value::Str(name)) = attributes
                    .values()
                    .map(|(name, _)| name)
                    .find(|name| matches!(name, Value::Str(name) if name.as_str().starts_with('_')))
                {
                    let name = name.as_str();
                    return Err(Error::runtime(format!(
                        "a namespace has no attribute {name:?}"
                    )));
                }
                self.spend(64 + attributes.len() * 200)?;
                Ok(self.heap.add(Object::Namespace(attributes)))
            }
            Function::Cycler => {
                let items = args.positional;
                if items.is_empty() {
                    return Err(Error::runtime("at least one item has to be provided"));
                }
                self.spend(64 + items.len() * 48)?;
                Ok(self.heap.add(Object::Cycler { items, at: 0 }))
            }
            Function::Joiner => {
                let [separator] = args.bind("joiner", ["sep"])?;
                let separator = match separator {
                    Some(separator) => self.text_of(&separator)?,
                    None => Text::own(", "),
                };
                self.spend(64)?;
                Ok(self.heap.add(Object::Joiner {
                    separator,
                    used: false,
                }))
            }
            Function::RaiseException => {
                let [message] = args.bind("raise_exception", ["message"])?;
                let message = match message {
                    Some(message) => self.text_of(&message)?.as_str().to_string(),
                    None => String::new(),
                };
                Err(Error {
                    kind: ErrorKind::Raised,
                    ..Error::runtime(message)
                })
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now", ["format"])?;
                let Some(Value::Str(format)) = format else {
                    return Err(Error::runtime("strftime_now takes a format"));
                };
                let mut text = String::new();
                match write!(text, "{}", chrono::Local::now().format(format.as_str())) {
                    Ok(()) => Ok(Value::from(text)),
                    Err(_) => Err(Error::runtime(format!(
                        "strftime_now does not know the format {:?}",
                        format.as_str()
                    ))),
                }
            }
        }
    }
}
