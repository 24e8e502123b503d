"""What an AMDGPU code object says of its kernels."""

import struct

SECTION_NOTE = 7
SECTION_DYNAMIC_SYMBOLS = 11
NOTE_AMDGPU_METADATA = 32


class Failure(Exception):
    """Something that the person who runs the script must fix first."""


def unpack_msgpack(data, at=0):
    """The value at an offset and the offset after it; the types that AMDGPU metadata uses."""
    tag = data[at]
    at += 1

    def number(form):
        size = struct.calcsize(form)
        return struct.unpack_from(form, data, at)[0], at + size

    def text(count, start):
        return data[start:start + count].decode(), start + count

    def array(count, start):
        items = []
        for _ in range(count):
            item, start = unpack_msgpack(data, start)
            items.append(item)
        return items, start

    def mapping(count, start):
        flat, start = array(2 * count, start)
        return dict(zip(flat[::2], flat[1::2])), start

    if tag < 0x80:
        return tag, at
    if tag < 0x90:
        return mapping(tag & 0x0F, at)
    if tag < 0xA0:
        return array(tag & 0x0F, at)
    if tag < 0xC0:
        return text(tag & 0x1F, at)
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag in (0xC2, 0xC3):
        return tag == 0xC3, at
    scalars = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if tag in scalars:
        return number(scalars[tag])
    counted = {
        0xD9: (">B", text), 0xDA: (">H", text), 0xDB: (">I", text),
        0xDC: (">H", array), 0xDD: (">I", array),
        0xDE: (">H", mapping), 0xDF: (">I", mapping),
    }
    if tag in counted:
        form, read = counted[tag]
        return read(*number(form))
    raise Failure(f"metadata has an unexpected msgpack tag {tag:#x}")


class CodeObject:
    """The metadata and undefined symbols of an AMDGPU ELF file."""

    def __init__(self, path):
        self.data = path.read_bytes()
        if self.data[:5] != b"\x7fELF\x02":
            raise Failure(f"{path} is not a 64-bit ELF file")
        (offset,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count = struct.unpack_from("<HH", self.data, 0x3A)
        sections = [struct.unpack_from("<IIQQQQIIQQ", self.data, offset + i * size) for i in range(count)]
        self.sections = [
            {"type": s[1], "offset": s[4], "size": s[5], "link": s[6], "entry": s[9]} for s in sections
        ]
        self.kernels = self._metadata(path)["amdhsa.kernels"]
        self.undefined = sorted(self._undefined())

    def _metadata(self, path):
        for section in self.sections:
            if section["type"] != SECTION_NOTE:
                continue
            at, end = section["offset"], section["offset"] + section["size"]
            while at < end:
                name_size, size, kind = struct.unpack_from("<III", self.data, at)
                name = self.data[at + 12:at + 12 + name_size].rstrip(b"\0")
                start = at + 12 + (name_size + 3) // 4 * 4
                if name == b"AMDGPU" and kind == NOTE_AMDGPU_METADATA:
                    return unpack_msgpack(self.data[start:start + size])[0]
                at = start + (size + 3) // 4 * 4
        raise Failure(f"{path} has no AMDGPU metadata")

    def _undefined(self):
        for section in self.sections:
            if section["type"] != SECTION_DYNAMIC_SYMBOLS:
                continue
            names = self.sections[section["link"]]["offset"]
            # The first symbol of a table is always empty.
            for at in range(section["offset"] + section["entry"], section["offset"] + section["size"], section["entry"]):
                name, _info, _other, index = struct.unpack_from("<IBBH", self.data, at)
                if index == 0:
                    end = self.data.index(b"\0", names + name)
                    yield self.data[names + name:end].decode()


def parameters(kernel):
    """The parameters that a launch passes; the compiler's hidden ones come after them."""
    return [arg for arg in kernel.get(".args", []) if not arg[".value_kind"].startswith("hidden_")]


def spills(kernel):
    """Registers that did not fit."""
    return kernel[".vgpr_spill_count"] + kernel[".sgpr_spill_count"]
