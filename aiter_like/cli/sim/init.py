# SPDX-License-Identifier: MIT
"""`aiter-like sim run --init FILE.co`: SPEC.json as the code object's metadata has it, to be changed by hand.

What the metadata does not say is guessed, and told: how large buffers are, which numbers are passed, and for kernels
that are no C++ functions all types.
"""

import argparse
import json
import re
from typing import Any

from aiter_like.cli.outputs import require_writable
from aiter_like.cli.sim import spec as sim_spec
from aiter_like.modules import code_object
from aiter_like.sim.names import demangled

_ELEMENTS, _MOST_BLOCK = 1024, 256
_DTYPES = {"float": "fp32", "double": "fp64", "_Float16": "fp16", "__half": "fp16", "__hip_bfloat16": "bf16",
           "__bf16": "bf16", "char": "i8", "signed char": "i8", "unsigned char": "u8", "short": "i16",
           "unsigned short": "u16", "int": "i32", "unsigned int": "u32", "long": "i64", "unsigned long": "u64",
           "long long": "i64", "unsigned long long": "u64", "bool": "bool"}
_BY_SIZE = {1: "u8", 2: "u16", 4: "i32", 8: "i64"}
_VECTOR = re.compile(r"HIP_vector_type<(.+), (\d)u>")


def write(args: argparse.Namespace) -> int:
    """Writes the description where `--args` says, or beside the code object; the exit status."""
    code = sim_spec.read_code(args.file)
    path = args.args or args.file.with_suffix(".json")
    kernels = [*code.kernels.values()] if args.kernel is None else [code.kernel(args.kernel)]
    if not kernels:
        raise ValueError(f"{args.file}: has no kernels")
    if path.exists():
        raise ValueError(f"--init: {path} is there already; remove it, or name another file with --args")
    require_writable(path, "--args")
    spec = description(kernels, args)
    path.write_text(_text(spec))
    print(f"{path}: {len(spec['buffers'])} buffers, {len(kernels)} launches. Guessed, to be corrected: grid and block, "
          f"shapes and contents, numbers\nthen: aiter-like sim run {args.file} --args {path}")
    return 0


def description(kernels: list[code_object.Kernel], args: argparse.Namespace) -> dict[str, Any]:
    """The description: a launch of each kernel; buffers of one name and type are shared."""
    buffers: dict[str, dict] = {}
    launches = []
    functions = [sim_spec.function_name(demangled(kernel.name)) for kernel in kernels]
    for kernel, function in zip(kernels, functions):
        types = parameter_types(demangled(kernel.name))
        block = args.block or (min(_MOST_BLOCK, kernel.max_work_items), 1, 1)
        names = [argument.name for argument in kernel.arguments]
        named = all(names) and len(set(names)) == len(names)
        given = []
        for index, argument in enumerate(kernel.arguments):
            kind = types[index] if len(types) == len(kernel.arguments) else ""
            given.append(_argument(argument, kind, argument.name or f"argument{index}", buffers))
        name = function if functions.count(function) == 1 else kernel.name
        launches.append({"kernel": name, "grid": list(args.grid or (-(-_ELEMENTS // block[0]), 1, 1)),
                         "block": list(block), "shared": args.shared,
                         "arguments": dict(zip(names, given)) if named else given})
    return {"buffers": buffers, "launches": launches}


def parameter_types(readable: str) -> list[str]:
    """"float const*", "int" of "scale(float const*, int)"; none of a name that is no C++ function's."""
    if not readable.endswith(")"):
        return []
    depth = 0
    for at in range(len(readable) - 1, -1, -1):
        depth += (readable[at] == ")") - (readable[at] == "(")
        if depth == 0:
            break
    found, depth, begin = [], 0, at + 1
    for here in range(at + 1, len(readable)):
        letter = readable[here]
        depth += (letter in "(<[") - (letter in ")>]")
        if (letter == "," and depth == 0) or here == len(readable) - 1:
            found.append(readable[begin:here].strip())
            begin = here + 1
    return [] if found == [""] else found


def _argument(argument: code_object.Argument, kind: str, name: str, buffers: dict[str, dict]) -> dict[str, Any]:
    if argument.kind == "global_buffer":
        return {"buffer": _buffer(kind, name, buffers)}
    plain = kind.removesuffix(" const").strip()
    if plain in _DTYPES or (not kind and argument.size in _BY_SIZE):
        dtype = _DTYPES.get(plain, _BY_SIZE.get(argument.size, "i32"))
        dtype = "fp16" if dtype == "bf16" else dtype
        value: Any = False if dtype == "bool" else 1.0 if dtype.startswith("fp") else _ELEMENTS
        return {"type": dtype, "value": min(value, 127) if dtype in ("i8", "u8") else value}
    return {"hex": "00" * argument.size}


def _buffer(kind: str, name: str, buffers: dict[str, dict]) -> str:
    """The name of a buffer for a pointer of that type, a new one unless there is such a one already."""
    pointee = kind.rstrip("*& ").removesuffix("__restrict").strip()
    is_read = " const" in pointee
    element = pointee.replace(" const", "").replace("volatile", "").strip()
    shape = [_ELEMENTS]
    if vector := _VECTOR.fullmatch(element):
        element, shape = vector[1], [_ELEMENTS, int(vector[2])]
    dtype = _DTYPES.get(element, "fp32" if not kind or element != "void" else "u8")
    fill = {"fill": "random", "seed": len(buffers)} if is_read else {"fill": "zeros", "output": True}
    entry = {"dtype": dtype, "shape": shape, **fill}
    while name in buffers and buffers[name]["dtype"] != dtype:
        name += "_"
    if name in buffers and not is_read:  # some kernel writes it
        buffers[name] = {**buffers[name], "output": True}
    buffers.setdefault(name, entry)
    return name


def _text(spec: dict[str, Any]) -> str:
    """A line for each buffer, launch and argument."""
    def one(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    buffers = ",\n  ".join(f"{one(name)}: {one(entry)}" for name, entry in spec["buffers"].items())
    launches = []
    for launch in spec["launches"]:
        given = launch["arguments"]
        if isinstance(given, dict):
            (begin, end), rows = "{}", [f"{one(name)}: {one(value)}" for name, value in given.items()]
        else:
            (begin, end), rows = "[]", [one(value) for value in given]
        inner = ",\n    ".join(rows)
        head = ", ".join(f'"{key}": {one(launch[key])}' for key in ("kernel", "grid", "block", "shared"))
        launches.append(f'{{{head},\n   "arguments": {begin}\n    {inner}{end}}}')
    return f'{{"buffers": {{\n  {buffers}}},\n "launches": [\n  ' + ",\n  ".join(launches) + "]}\n"
