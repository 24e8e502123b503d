//! Names of kernels, from the code object as it lies in the GPU's memory. Read anew and not by the crate's own reader,
//! so that a program that was loaded wrongly is found out.

use super::View;
use crate::mock::pages::PAGE;
use crate::mock::space::Fault;

/// The first four bytes of an ELF file.
const MAGIC: [u8; 4] = *b"\x7fELF";
/// `PT_DYNAMIC`.
const DYNAMIC_SEGMENT: u32 = 2;
/// Tags of the dynamic section.
mod tag {
    pub const HASH: u64 = 4;
    pub const STRINGS: u64 = 5;
    pub const SYMBOLS: u64 = 6;
    pub const STRINGS_BYTES: u64 = 10;
}
/// Bytes of a symbol.
const SYMBOL: u64 = 24;
/// Entries that are looked at, at most: memory may hold anything.
const MOST: u64 = 1 << 16;

/// The name of the kernel whose descriptor is at an address.
///
/// # Errors
/// If what the image refers to is not there.
pub(super) fn kernel_name(view: &View, descriptor: u64) -> Result<Option<String>, Fault> {
    let start = view.start(descriptor)?;
    let mut page = descriptor / PAGE * PAGE;
    loop {
        let mut magic = [0; 4];
        view.read(page, &mut magic)?;
        if magic == MAGIC {
            return in_image(view, page, descriptor);
        }
        if page <= start {
            return Ok(None);
        }
        page -= PAGE;
    }
}

fn u16_at(view: &View, at: u64) -> Result<u16, Fault> {
    let mut bytes = [0; 2];
    view.read(at, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

/// Looks for the symbol `<name>.kd` of an address in the image that begins at `base`.
fn in_image(view: &View, base: u64, descriptor: u64) -> Result<Option<String>, Fault> {
    let headers = base.wrapping_add(view.load64(base + 32)?);
    let (bytes, count) = (u16_at(view, base + 54)?, u16_at(view, base + 56)?);
    let mut dynamic = None;
    for i in 0..u64::from(count) {
        let at = headers.wrapping_add(i * u64::from(bytes));
        if view.load32(at)? == DYNAMIC_SEGMENT {
            dynamic = Some((view.load64(at + 16)?, view.load64(at + 40)?));
        }
    }
    let Some((address, bytes)) = dynamic else {
        return Ok(None);
    };
    let (mut symbols, mut strings, mut strings_bytes, mut hash) = (0, 0, 0, 0);
    for i in 0..(bytes / 16).min(MOST) {
        let at = base.wrapping_add(address).wrapping_add(i * 16);
        let value = view.load64(at + 8)?;
        match view.load64(at)? {
            0 => break,
            tag::HASH => hash = value,
            tag::STRINGS => strings = value,
            tag::SYMBOLS => symbols = value,
            tag::STRINGS_BYTES => strings_bytes = value,
            _ => {}
        }
    }
    if symbols == 0 || strings == 0 {
        return Ok(None);
    }
    let count = if hash == 0 {
        // Linkers put the strings behind the symbols.
        strings.saturating_sub(symbols) / SYMBOL
    } else {
        view.load32(base.wrapping_add(hash + 4))?.into()
    };
    for i in 0..count.min(MOST) {
        let at = base.wrapping_add(symbols).wrapping_add(i * SYMBOL);
        if base.wrapping_add(view.load64(at + 8)?) != descriptor {
            continue;
        }
        let name = u64::from(view.load32(at)?);
        let name = text(
            view,
            base.wrapping_add(strings + name),
            strings_bytes.saturating_sub(name),
        )?;
        if let Some(name) = name.strip_suffix(".kd") {
            return Ok(Some(name.to_string()));
        }
    }
    Ok(None)
}

/// A text that ends with a zero.
fn text(view: &View, at: u64, most: u64) -> Result<String, Fault> {
    let mut text = Vec::new();
    for i in 0..most.min(MOST) {
        let mut byte = [0];
        view.read(at + i, &mut byte)?;
        if byte == [0] {
            break;
        }
        text.extend(byte);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
