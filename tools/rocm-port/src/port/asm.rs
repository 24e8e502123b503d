//! Inline PTX as calls of `port/ptx.h`, and what else of device code a macro cannot help.

use super::lexer::{self, Kind, Token};
use crate::ptx;
use std::fmt::Write;

/// Device code whose `asm` statements are calls.
pub(super) struct Rewritten {
    /// As many lines as before.
    pub text: String,
    /// Whether something is a call of `port/ptx.h` now.
    pub calls: bool,
    /// Statements that are left, with the reason.
    pub problems: Vec<String>,
}

/// Rewrites what can be; lines in problems are those of `text`.
pub(super) fn rewrite(text: &str) -> Rewritten {
    let tokens = lexer::tokens(text);
    let mut out = Rewritten {
        text: String::with_capacity(text.len()),
        calls: false,
        problems: Vec::new(),
    };
    let mut copied = 0;
    let mut at = 0;
    while at < tokens.len() {
        let replaced = if ["asm", "__asm__", "__asm"]
            .iter()
            .any(|word| tokens[at].is(text, word))
        {
            statement(text, &tokens, at).map(|(end, made)| match made {
                Ok(Some(call)) => {
                    out.calls = true;
                    (end, Some(call))
                }
                Ok(None) => (end, None),
                Err(why) => {
                    let line = text[..tokens[at].start].matches('\n').count() + 1;
                    out.problems
                        .push(format!("line {line}: asm is left as it is: {why}"));
                    (end, None)
                }
            })
        } else {
            shared_attribute(text, &tokens, at)
                .map(|end| (end, Some("__shared__".to_owned())))
                .or_else(|| member_template(text, &tokens, at))
        };
        let Some((end, call)) = replaced else {
            at += 1;
            continue;
        };
        if let Some(call) = call {
            let range = tokens[at].start..tokens[end - 1].end;
            out.text.push_str(&text[copied..range.start]);
            out.text.push_str(&call);
            out.text.extend(text[range.clone()].matches('\n'));
            copied = range.end;
        }
        at = end;
    }
    out.text.push_str(&text[copied..]);
    out
}

/// The end of `__attribute__((shared))`, which the simulator knows as `__shared__` only.
fn shared_attribute(text: &str, tokens: &[Token], at: usize) -> Option<usize> {
    let words = ["__attribute__", "(", "(", "shared", ")", ")"];
    let found = tokens.get(at..at + words.len())?;
    let is = found
        .iter()
        .zip(words)
        .all(|(token, word)| token.is(text, word));
    is.then_some(at + words.len())
}

/// `template f` for the `f` of a call `X<T>::f<N>(…)`: nvcc takes the call without the word, other compilers do not where
/// `T` is a parameter of the template around it. Where it is none the word does no harm.
fn member_template(text: &str, tokens: &[Token], at: usize) -> Option<(usize, Option<String>)> {
    let is = |at: usize, sign| tokens.get(at).is_some_and(|token| token.is(text, sign));
    let is_word = |at: usize| tokens.get(at).is_some_and(|token| token.kind == Kind::Word);
    let of_class = at >= 2 && is(at - 1, "::") && is(at - 2, ">");
    if !of_class || !is_word(at) || !is(at + 1, "<") {
        return None;
    }
    // Back to what the class is called, with its namespaces.
    let mut first = at - 2;
    let mut depth = 0usize;
    loop {
        match tokens[first].text(text) {
            ">" => depth += 1,
            "<" => depth -= 1,
            ";" | "{" | "}" => return None,
            _ => {}
        }
        first = first.checked_sub(1)?;
        if depth == 0 {
            break;
        }
    }
    if !is_word(first) {
        return None;
    }
    while first >= 2 && is(first - 1, "::") && is_word(first - 2) {
        first -= 2;
    }
    // Behind a type this is what is defined, not what is called.
    let before = first.checked_sub(1)?;
    let begins = is(before, "return")
        || tokens[before].kind == Kind::Punct
            && !["*", "&", ">", "::"].iter().any(|s| is(before, s));
    let mut close = at + 1;
    loop {
        match tokens.get(close)?.text(text) {
            "<" => depth += 1,
            ">" => depth -= 1,
            ";" | "{" | "}" => return None,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        close += 1;
    }
    let name = tokens[at].text(text);
    (begins && is(close + 1, "(")).then(|| (at + 1, Some(format!("template {name}"))))
}

/// An operand of the statement: its constraint, and the C++ expression.
struct Operand {
    expression: String,
}

/// What replaces the statement at `at`, none if it has no instructions, and the token behind its parenthesis. None at
/// all if this is no statement.
type Made = Result<Option<String>, String>;

fn statement(text: &str, tokens: &[Token], at: usize) -> Option<(usize, Made)> {
    let mut open = at + 1;
    while tokens.get(open)?.kind == Kind::Word {
        open += 1;
    }
    if !tokens[open].is(text, "(") {
        return None;
    }
    let mut depth = 0usize;
    let mut end = open;
    // The parts between colons.
    let mut parts: Vec<Vec<Token>> = vec![Vec::new()];
    loop {
        let token = *tokens.get(end)?;
        match token.text(text) {
            "(" | "[" | "{" if token.kind == Kind::Punct => depth += 1,
            ")" | "]" | "}" if token.kind == Kind::Punct => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && token.is(text, ":") {
            parts.push(Vec::new());
        } else if depth == 1 && token.is(text, "::") {
            parts.extend([Vec::new(), Vec::new()]);
        } else if end > open {
            if let Some(part) = parts.last_mut() {
                part.push(token);
            }
        }
        end += 1;
    }
    Some((end + 1, translated(text, &parts)))
}

fn translated(text: &str, parts: &[Vec<Token>]) -> Made {
    let mut code = String::new();
    for token in &parts[0] {
        if token.kind != Kind::Text {
            return Err("its instructions are no plain string".into());
        }
        code.push_str(
            &unescaped(token.text(text)).ok_or("its string is of a kind that is not read")?,
        );
    }
    let mut operands = Vec::new();
    for part in parts.iter().take(3).skip(1) {
        operands.extend(list(text, part)?);
    }
    calls(&code, &operands)
}

/// What a string literal stands for.
fn unescaped(literal: &str) -> Option<String> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::new();
    let mut characters = inner.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => out.push(match characters.next()? {
                'n' | 'r' => '\n',
                't' => ' ',
                other @ ('"' | '\\') => other,
                _ => return None,
            }),
            c => out.push(c),
        }
    }
    Some(out)
}

/// Operands between two colons: `"=r"(a), "f"(b)`.
fn list(text: &str, part: &[Token]) -> Result<Vec<Operand>, String> {
    let mut operands = Vec::new();
    let mut rest = part.iter().peekable();
    while let Some(constraint) = rest.next() {
        if constraint.kind != Kind::Text {
            return Err("an operand has a name".into());
        }
        let open = rest
            .next()
            .filter(|token| token.is(text, "("))
            .ok_or("an operand has no expression")?;
        let mut depth = 1;
        let mut close = open;
        for token in rest.by_ref() {
            depth += i32::from(token.is(text, "(")) - i32::from(token.is(text, ")"));
            close = token;
            if depth == 0 {
                break;
            }
        }
        if depth != 0 {
            return Err("an operand does not end".into());
        }
        let expression = text[open.start..close.end]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        operands.push(Operand { expression });
        if rest.peek().is_some_and(|token| token.is(text, ",")) {
            rest.next();
        }
    }
    Ok(operands)
}

/// The instructions as calls: one, or a block of them that is a statement.
fn calls(code: &str, operands: &[Operand]) -> Made {
    let mut statements = Vec::new();
    let mut registers = Vec::new();
    let mut rest = code.trim_start();
    // Instructions of AMD's, in branches of texts that know its GPUs.
    if ["v_", "s_", "ds_", "flat_", "global_", "buffer_"]
        .iter()
        .any(|of| rest.starts_with(of))
    {
        return Ok(None);
    }
    let mut scopes = 0usize;
    let mut made = String::new();
    while !rest.is_empty() {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(inner) = rest.strip_prefix('{') {
            scopes += 1;
            statements.push("{".to_owned());
            rest = inner;
        } else if let Some(inner) = rest.strip_prefix('}') {
            scopes = scopes
                .checked_sub(1)
                .ok_or("a scope ends that has not begun")?;
            statements.push("}".to_owned());
            rest = inner;
        } else {
            let (one, after) = rest.split_once(';').unwrap_or((rest, ""));
            statements.push(instruction(one.trim(), operands, &mut registers)?);
            rest = after.trim_start_matches(';');
        }
        rest = rest.trim_start();
    }
    if scopes != 0 {
        return Err("a scope does not end".into());
    }
    statements.retain(|statement| !statement.is_empty());
    match statements.as_slice() {
        [] => return Ok(None),
        [one] => made.push_str(one.trim_end_matches(';')),
        all => {
            let _ = write!(made, "do {{ {} }} while (0)", all.join(" "));
        }
    }
    Ok(Some(made))
}

/// One instruction, or a declaration of registers.
fn instruction(
    code: &str,
    operands: &[Operand],
    registers: &mut Vec<String>,
) -> Result<String, String> {
    if code.is_empty() {
        return Ok(String::new());
    }
    if let Some(declared) = code.strip_prefix(".reg") {
        return declaration(declared.trim(), registers);
    }
    let (guard, code) = match code.strip_prefix('@') {
        Some(guarded) => {
            let (name, rest) = guarded
                .split_once(char::is_whitespace)
                .ok_or("a guard without an instruction")?;
            let (not, name) = name
                .strip_prefix('!')
                .map_or(("", name), |name| ("!", name));
            let value = value(name, operands, registers)?;
            (format!("if ({not}{value}) "), rest.trim_start())
        }
        None => (String::new(), code),
    };
    let (opcode, rest) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
    let mut arguments = Vec::new();
    // Vectors count as their parts.
    for operand in rest
        .split(',')
        .map(|operand| operand.trim().trim_matches(['{', '}']).trim())
    {
        if !operand.is_empty() {
            arguments.push(value(operand, operands, registers)?);
        }
    }
    // A move from a special register reads it.
    if let ([to, from], true) = (arguments.as_slice(), opcode.starts_with("mov.")) {
        if from.contains("ptx::sreg_") {
            return Ok(format!("{guard}{to} = {from};"));
        }
    }
    let callee =
        ptx::callee(opcode).ok_or_else(|| format!("{opcode} has no function in the shim"))?;
    Ok(format!("{guard}{callee}({});", arguments.join(", ")))
}

/// `.pred p, q` or `.b32 t`.
fn declaration(code: &str, registers: &mut Vec<String>) -> Result<String, String> {
    let (kind, names) = code
        .split_once(char::is_whitespace)
        .ok_or("a declaration without registers")?;
    let kind = match kind {
        ".pred" => "bool",
        ".b16" | ".u16" | ".s16" | ".f16" => "unsigned short",
        ".b32" | ".u32" | ".s32" | ".f16x2" => "unsigned",
        ".f32" => "float",
        ".b64" | ".u64" | ".s64" => "unsigned long long",
        ".f64" => "double",
        other => return Err(format!("registers of type {other}")),
    };
    let mut made = Vec::new();
    for name in names.split(',').map(str::trim) {
        if !is_name(name) {
            return Err(format!("registers {name}"));
        }
        registers.push(name.to_owned());
        made.push(register(name));
    }
    Ok(format!("{kind} {};", made.join(", ")))
}

fn is_name(name: &str) -> bool {
    let word = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$'));
    word && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// A register's name in C++, which must not be one that expressions of operands use.
fn register(name: &str) -> String {
    format!("ptx_{}", name.replace('$', "_"))
}

/// An operand of an instruction in C++.
fn value(code: &str, operands: &[Operand], registers: &[String]) -> Result<String, String> {
    if let Some(address) = code
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
    {
        let (base, offset) = address.split_once('+').unwrap_or((address, ""));
        let base = value(base.trim(), operands, registers)?;
        return match offset.trim() {
            "" => Ok(base),
            offset => {
                let offset = value(offset, operands, registers)?;
                Ok(format!("cuda_port::ptx::offset({base}, {offset})"))
            }
        };
    }
    let unknown = || format!("operand {code}");
    if let Some(name) = code.strip_prefix('%') {
        let name = name.strip_prefix('%').unwrap_or(name);
        return match name.parse::<usize>() {
            Ok(number) => operands
                .get(number)
                .map(|operand| operand.expression.clone())
                .ok_or_else(unknown),
            Err(_) => ptx::special(name).ok_or_else(unknown),
        };
    }
    if registers.iter().any(|known| known == code) {
        return Ok(register(code));
    }
    let digits = code.strip_prefix('-').unwrap_or(code);
    let whole = digits.strip_prefix("0x").map_or_else(
        || !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()),
        |hex| !hex.is_empty() && hex.chars().all(|c| c.is_ascii_hexdigit()),
    );
    if whole {
        return Ok(code.to_owned());
    }
    // The bits of a float.
    match code.strip_prefix("0f").filter(|bits| bits.len() == 8) {
        Some(bits) if bits.chars().all(|c| c.is_ascii_hexdigit()) => {
            Ok(format!("__uint_as_float(0x{bits}u)"))
        }
        _ => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    fn made(text: &str) -> String {
        let rewritten = rewrite(text);
        assert!(rewritten.problems.is_empty(), "{:?}", rewritten.problems);
        assert_eq!(
            rewritten.text.matches('\n').count(),
            text.matches('\n').count()
        );
        rewritten.text
    }

    #[test]
    fn an_instruction_is_a_call() {
        let text = r#"asm volatile("cvt.rn.f16.f32 %0, %1;\n" : "=h"(tmp.u16[0]) : "f"(f));"#;
        assert_eq!(
            made(text),
            "cuda_port::ptx::cvt_half_f32<cuda_port::__half, cuda_port::port::NEAREST>((tmp.u16[0]), (f));"
        );
        assert_eq!(
            made("asm(\"mov.u32 %0, %%laneid;\" : \"=r\"(lane));"),
            "(lane) = cuda_port::ptx::sreg_laneid();"
        );
        assert_eq!(
            made("asm volatile(\"mov.b32 {%0, %1}, %2;\\n\"\n : \"=h\"(lo), \"=h\"(hi)\n : \"r\"(v));"),
            "cuda_port::ptx::move<unsigned>((lo), (hi), (v))\n\n;"
        );
        assert_eq!(
            made("asm volatile(\"cp.async.wait_group %0;\\n\" ::\"n\"(n));"),
            "cuda_port::ptx::nothing((n));"
        );
    }

    #[test]
    fn members_of_classes_that_depend_are_templates() {
        assert_eq!(
            made("{ cast<To, From<N>>::all<8>(x); y = ns::A<T>::f<g<1>, 2>(\n); }"),
            "{ cast<To, From<N>>::template all<8>(x); y = ns::A<T>::template f<g<1>, 2>(\n); }"
        );
        for same in [
            "template <> void A<int>::f<float>(float x) {}",
            "template <> A<int>* A<int>::f<float>(float x) {}",
            "{ A<T>::template f<8>(x); }",
            "{ A<T>::f(x); }",
            "{ bool b = A<T>::f < n; }",
            "{ int n = x > ::f < y > (z); }",
            "f<8>(x)",
            "A<T>::f<",
        ] {
            assert_eq!(made(same), same);
        }
    }

    #[test]
    fn guards_registers_and_scopes() {
        let text = "asm volatile(\"{\\n .reg .pred p;\\n setp.ne.b32 p, %0, 0;\\n\"\n\
                    \" @!p cp.async.cg.shared.global.L2::128B [%1], [%2 + 16], %3;\\n}\\n\" ::\"r\"((int)p), \"r\"(to), \"l\"(from), \"n\"(16));";
        assert_eq!(
            made(text),
            "do { { bool ptx_p; cuda_port::ptx::setp_ne<unsigned>(ptx_p, ((int)p), 0); \
             if (!ptx_p) cuda_port::ptx::cp_async((to), cuda_port::ptx::offset((from), 16), (16)); } } while (0)\n;"
        );
    }

    #[test]
    fn what_is_not_known_stays() {
        for text in [
            "asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %0, %1;\" : \"=f\"(a) : \"r\"(b));",
            "asm volatile(NAME : \"=f\"(a));",
            "asm(\"{ add.u32 %0, %1, 1;\" : \"=r\"(a) : \"r\"(b));",
            "asm(\"add.u32 %0, %7, 1;\" : \"=r\"(a) : \"r\"(b));",
            "asm(\"bra somewhere;\");",
        ] {
            let rewritten = rewrite(text);
            assert_eq!(rewritten.text, text);
            assert_eq!(rewritten.problems.len(), 1, "{text}");
        }
        for text in [
            "asm volatile(\"v_add_f16 %0, %1, %2;\\n\" : \"=v\"(c) : \"v\"(a), \"v\"(b));",
            "asm volatile(\"\" ::: \"memory\");",
            "asm",
            "asm(",
            "int asm_count;",
            "// asm(\"trap;\");",
        ] {
            assert_eq!(made(text), text);
        }
        assert_eq!(
            made("extern __attribute__((shared)) char smem[];"),
            "extern __shared__ char smem[];"
        );
    }
}
