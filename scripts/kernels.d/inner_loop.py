"""What the inner loop of a kernel consists of, from its disassembly."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field

SYMBOL = re.compile(r"^([0-9a-f]+) <([^>]+)>:$")
INSTRUCTION = re.compile(r"^\t(\S+)\s*(.*?)\s*// ([0-9A-F]+): .*?(?:<(\S+?)(?:\+0x([0-9a-f]+))?>)?$")

# Bytes per lane by the end of a load's name: CDNA and RDNA2 count dwords, RDNA3 and later bits.
WIDTHS = {
    "dwordx4": 16, "b128": 16, "dwordx3": 12, "b96": 12, "dwordx2": 8, "b64": 8, "dword": 4, "b32": 4,
    "ushort": 2, "sshort": 2, "short": 2, "u16": 2, "i16": 2, "b16": 2, "ubyte": 1, "sbyte": 1, "u8": 1, "i8": 1,
}
LOAD = re.compile(r"(?:global|flat|buffer|scratch)_load_(\w+)")
LDS_LOAD = re.compile(r"ds_(?:load|read)(2)?_(2addr_)?(?:stride64_|st64_)?(\w+)")
# Which half of a register takes a 16-bit value says nothing of its width.
HALF = re.compile(r"_?d16(_hi)?_?")
DOT = re.compile(r"v_dot")
MATRIX = re.compile(r"v_(mfma|wmma|smfmac|swmmac)_")


class Failure(Exception):
    """Something that the person who runs the script must fix first."""


@dataclass
class Loop:
    """Instructions of an innermost loop, counted."""

    instructions: int = 0
    vector: int = 0
    dot: int = 0
    matrix: int = 0
    loads: Counter = field(default_factory=Counter)
    lds_loads: Counter = field(default_factory=Counter)

    def bytes(self):
        """Bytes that a lane loads from memory in one round."""
        return sum(width * count for width, count in self.loads.items())


def width_of(name):
    """Bytes per lane of a load named so; 0 for what is no plain load."""
    return WIDTHS.get(HALF.sub("", name), 0)


def count(names):
    loop = Loop(instructions=len(names))
    for name in names:
        loop.vector += name.startswith("v_")
        loop.dot += bool(DOT.match(name))
        loop.matrix += bool(MATRIX.match(name))
        if match := LOAD.match(name):
            loop.loads[width_of(match[1])] += 1
        elif match := LDS_LOAD.match(name):
            pair = 2 if match[1] or match[2] else 1
            loop.lds_loads[pair * width_of(match[3])] += 1
    return loop


def disassemble(path, arch):
    """`{kernel: [(address, name, target address or None)]}` of a code object."""
    done = subprocess.run(["llvm-objdump-22", "-d", f"--mcpu={arch}", path], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"llvm-objdump-22 cannot read {path}")
    kernels, start, body = {}, {}, []
    for line in done.stdout.splitlines():
        symbol = SYMBOL.match(line)
        if symbol:
            body = kernels.setdefault(symbol[2], [])
            start[symbol[2]] = int(symbol[1], 16)
            continue
        instruction = INSTRUCTION.match(line)
        if instruction:
            name, _, address, label, offset = instruction.groups()
            target = None
            if name.startswith(("s_cbranch", "s_branch")) and label in start:
                target = start[label] + int(offset or "0", 16)
            body.append((int(address, 16), name, target))
    return kernels


def inner_loop(body):
    """The innermost loop that works most: by matrix and dot instructions, then by bytes loaded, then by length. None without a loop."""
    backward = [(target, address) for address, _, target in body if target is not None and target <= address]
    # Several branches to one head are one loop.
    ends = {}
    for head, end in backward:
        ends[head] = max(end, ends.get(head, 0))
    loops = []
    for head, end in ends.items():
        if any(head <= other and last <= end and (other, last) != (head, end) for other, last in ends.items()):
            continue
        loops.append(count([name for address, name, _ in body if head <= address <= end]))
    return max(loops, key=lambda l: (l.matrix, l.dot, l.bytes(), l.instructions), default=None)
