//! Calls as Qwen3-Coder writes them.

/// Function name and parameters of `<function=NAME> <parameter=KEY> VALUE </parameter> … </function>`; `None` if it is
/// something else.
///
/// A value stands on lines of its own; it may contain anything but its own end.
pub(super) fn read_call(block: &str) -> Option<(String, Vec<(String, String)>)> {
    let (_, rest) = block.split_once("<function=")?;
    let (name, mut rest) = rest.split_once('>')?;
    let mut parameters = Vec::new();
    while let Some((_, after)) = rest.split_once("<parameter=") {
        let (key, after) = after.split_once('>')?;
        // The last value may lack its end where the model stopped.
        let (value, after) = after.split_once("</parameter>").unwrap_or((after, ""));
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        parameters.push((key.trim().to_string(), value.to_string()));
        rest = after;
    }
    let name = name.trim();
    (!name.is_empty()).then(|| (name.to_string(), parameters))
}
