# SPDX-License-Identifier: MIT
"""Damages code objects, and launches them in child processes. Read by test_damage.py; run by itself it is the child.

A seed decides everything: which code object, what is done to it, with which checkers it is launched.
"""

import ctypes
import faulthandler
import json
import mmap
import pickle
import random
import resource
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SEEDS_PER_CHILD = 250
INSTRUCTION_LIMIT = 20_000
MEMORY_LIMIT = 6 << 30  # bytes of address space of a child: an absurd size must be refused, not allocated
CPU_SECONDS, WALL_SECONDS = 30, 240  # of one seed; a seed takes milliseconds
CANARY = bytes(range(251)) * 64
CHECKS = (8, 127)  # bounds alone, and all: bits of settings.h


@dataclass(frozen=True)
class Sample:
    """A code object, and how each of its kernels is launched.

    Attributes:
        image: the file.
        block: work-items of the one workgroup.
        buffers: bytes of each buffer; the first is the only one that the kernel may write.
        arguments: the argument segment as struct format and values; the string "0" stands for buffer 0's address.
        lds_bytes: dynamic LDS.
    """

    name: str
    image: bytes
    block: int
    buffers: tuple[int, ...]
    arguments: tuple
    lds_bytes: int = 0


# ---- damage

# Structure → bytes of one record, and its fields as (offset, bytes).
_RECORDS = {
    "header": (64, ((16, 2), (18, 2), (24, 8), (32, 8), (40, 8), (48, 4), (52, 2), (54, 2), (56, 2), (58, 2), (60, 2),
                    (62, 2))),
    "segments": (56, ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8))),
    "sections": (64, ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 8), (56, 8))),
    "symbols": (24, ((0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 8))),
    "relocations": (24, ((0, 8), (8, 8), (16, 8))),
    "descriptors": (64, ((0, 4), (4, 4), (8, 4), (16, 8), (44, 4), (48, 4), (52, 4), (56, 2), (58, 2))),
    "container": (8, ((0, 2), (2, 2), (0, 4), (4, 4), (0, 8))),
}
_SECTION_KINDS = {2: "symbols", 3: "names", 4: "relocations", 7: "notes", 11: "symbols"}
_NUMBERS = (b".kernarg_segment_size", b".max_flat_workgroup_size", b".group_segment_fixed_size", b".offset", b".size",
            b".private_segment_fixed_size", b".vgpr_count", b".agpr_count", b".sgpr_count")
_TEXTS = (b".name", b".symbol", b".value_kind", b"amdhsa.kernels", b".args", b"hidden_")


def places(image: bytes) -> dict[str, list[tuple[int, int]]]:
    """Structure → where it is in the file, as (offset, bytes)."""
    start = image.find(b"\x7fELF")
    found = {"anywhere": [(0, len(image))]}
    if start != 0:
        found["container"] = [(4, 28 if start < 0 else 120)]
    if start < 0:
        return found
    program, table = struct.unpack_from("<QQ", image, start + 32)
    num_segments, _, num_sections = struct.unpack_from("<HHH", image, start + 56)
    found |= {"header": [(start, 64)], "segments": [(start + program, 56 * num_segments)],
              "sections": [(start + table, 64 * num_sections)]}
    symbols = []
    for index in range(num_sections):
        _, kind, flags, address, offset, size, link = struct.unpack_from("<IIQQQQI", image, start + table + 64 * index)
        name = "code" if flags & 4 else _SECTION_KINDS.get(kind)
        if name and size:
            found.setdefault(name, []).append((start + offset, size))
        if name == "symbols":
            names = struct.unpack_from("<Q", image, start + table + 64 * link + 24)[0]
            symbols += [(start + names, start + offset + at) for at in range(0, size, 24)]
        if kind == 1 and not flags & 4 and flags & 2:
            found.setdefault("data", []).append((address, start + offset - address))
    shift = dict(found.pop("data", []))  # of sections that hold descriptors: address → file offset
    for names, at in symbols:
        name, value = struct.unpack_from("<I", image, at)[0], struct.unpack_from("<Q", image, at + 8)[0]
        end = image.index(b"\0", names + name)
        if image[names + name:end].endswith(b".kd"):
            section = max(address for address in shift if address <= value)
            found.setdefault("descriptors", []).append((value + shift[section], 64))
    return found


def damaged(image: bytes, rng: random.Random) -> bytes:
    """A copy with one to three things wrong with it."""
    where, out = places(image), bytearray(image)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((_flip, _flip, _absurd, _absurd, _metadata, _overlap, _smear))(out, where, rng)
    if rng.random() < 0.1:
        del out[rng.choice((rng.randrange(len(out)), rng.randrange(min(4096, len(out))))):]
    return bytes(out)


def _flip(out: bytearray, where: dict, rng: random.Random) -> None:
    """Bits of one structure."""
    offset, size = rng.choice(where[rng.choice(sorted(where))])
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        out[min(offset + rng.randrange(size), len(out) - 1)] ^= 1 << rng.randrange(8)


def _absurd(out: bytearray, where: dict, rng: random.Random) -> None:
    """A field of a record gets a value that no compiler writes."""
    kind = rng.choice([name for name in sorted(where) if name in _RECORDS] or ["anywhere"])
    size, fields = _RECORDS.get(kind, (8, ((0, 4), (0, 8))))
    offset, total = rng.choice(where[kind])
    at, width = rng.choice(fields)
    at += offset + rng.randrange(max(total // size, 1)) * size
    limit = 1 << 8 * width
    value = rng.choice((0, 1, limit - 1, limit // 2, limit // 2 - 1, limit - 4096, rng.randrange(limit), 1 << 32, 4096,
                        int.from_bytes(out[at:at + width], "little") + rng.choice((-4096, -8, -1, 1, 4, 64, 1 << 20))))
    if at + width <= len(out):
        out[at:at + width] = (value % limit).to_bytes(width, "little")


def _metadata(out: bytearray, where: dict, rng: random.Random) -> None:
    """A number of the metadata, its MessagePack type, or a name."""
    if "notes" not in where:
        return _flip(out, where, rng)
    offset, size = rng.choice(where["notes"])
    key = rng.choice(_NUMBERS + _TEXTS)
    hits = [at for at in range(offset, offset + size) if out.startswith(key, at)]
    if not hits:
        return None
    at = rng.choice(hits) + len(key)
    if rng.random() < 0.2:
        at -= len(key)  # the key itself: the field is absent
        out[at:at + len(key)] = rng.randbytes(len(key))
    elif key in _TEXTS and rng.random() < 0.7:
        out[at + 1 + rng.randrange(8)] = rng.randrange(256)
    else:
        new = rng.choice((b"\xcf" + rng.randbytes(8), b"\xce\xff\xff\xff\xff", b"\xcd\xff\xff", b"\xcc\xff", b"\xff",
                          b"\xdd\xff\xff\xff\xff", b"\xde\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\xc1", b"\xc0", b"\0"))
        out[at:at + len(new)] = new
    return None


def _overlap(out: bytearray, where: dict, rng: random.Random) -> None:
    """One record becomes a copy of another of its kind, in part or as a whole."""
    kind = rng.choice([name for name in ("segments", "sections", "symbols", "descriptors") if name in where] or [""])
    if not kind:
        return _absurd(out, where, rng)
    size, fields = _RECORDS[kind]
    offset, total = rng.choice(where[kind])
    source, target = (offset + rng.randrange(max(total // size, 1)) * size for _ in range(2))
    at, width = rng.choice((*fields, (0, size)))
    out[target + at:target + at + width] = out[source + at:source + at + width]
    return None


def _smear(out: bytearray, where: dict, rng: random.Random) -> None:
    """A stretch of a structure is zero, ones, noise, or from elsewhere in the file."""
    offset, size = rng.choice(where[rng.choice(sorted(where))])
    length = min(rng.choice((4, 8, 64, 512)), size)
    at, other = offset + rng.randrange(size - length + 1), rng.randrange(max(len(out) - length, 1))
    out[at:at + length] = rng.choice((bytes(length), b"\xff" * length, rng.randbytes(length),
                                      bytes(out[other:other + length])))[:max(len(out) - at, 0)]


# ---- the child

class _Child:
    """A process that loads and launches damaged code objects, without anything of the package but the library."""

    def __init__(self, library: str, samples: list[Sample]):
        self.hip, self.samples = ctypes.CDLL(library), samples
        self.hip.hipGetErrorString.restype = ctypes.c_char_p
        self.hip.aiter_like_sim_inspect.restype = self.hip.aiter_like_sim_take_reports.restype = ctypes.c_void_p
        self.hip.aiter_like_sim_register.restype = ctypes.c_uint64

    def seed(self, seed: int, is_damaged: bool) -> str:
        """What became of a seed: "refused", or of the worst of its launches "failed", "reported" or "ran"."""
        rng = random.Random(seed)
        sample = self.samples[seed % len(self.samples)]
        image = damaged(sample.image, rng) if is_damaged else sample.image
        self.hip.aiter_like_sim_configure(rng.choice(CHECKS), 1, ctypes.c_uint64(rng.choice((0, 0, seed))), 0,
                                          ctypes.c_uint64(INSTRUCTION_LIMIT))
        kernels = self._kernels(image)
        # As for hipModuleLoadData, which does not know the size; the page behind the image is not readable.
        memory = mmap.mmap(-1, (len(image) + 2 * mmap.PAGESIZE) // mmap.PAGESIZE * mmap.PAGESIZE)
        end = len(memory) - mmap.PAGESIZE
        memory[end - len(image):end] = image
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + end), mmap.PAGESIZE, 0) == 0
        module = ctypes.c_void_p()
        code = self.hip.hipModuleLoadData(ctypes.byref(module), ctypes.c_void_p(base + end - len(image)))
        if code:
            return self._clear(code, "refused")
        outcomes = [self._launch(sample, module, kernel) for kernel in kernels[:4]]
        assert self.hip.hipModuleUnload(module) == 0
        return next((outcome for outcome in ("failed", "reported", "ran") if outcome in outcomes), "refused")

    def _kernels(self, image: bytes) -> list[bytes]:
        text = self.hip.aiter_like_sim_inspect(image, ctypes.c_uint64(len(image)))
        if text is None:
            self._clear(200, "")
            return []
        names = list(json.loads(ctypes.string_at(text).decode(errors="surrogateescape")))
        self.hip.aiter_like_sim_free(ctypes.c_void_p(text))
        return [name.encode(errors="surrogateescape") for name in names]

    def _launch(self, sample: Sample, module: ctypes.c_void_p, kernel: bytes) -> str:
        function = ctypes.c_void_p()
        code = self.hip.hipModuleGetFunction(ctypes.byref(function), module, kernel)
        if code:
            return self._clear(code, "refused")
        memory = [ctypes.create_string_buffer(CANARY + b"\x3c" * size + CANARY, 2 * len(CANARY) + size)
                  for size in sample.buffers]
        count = len(memory)
        addresses = [ctypes.addressof(buffer) + len(CANARY) for buffer in memory]
        bases = (ctypes.c_uint64 * count)(*addresses)
        merged = self.hip.aiter_like_sim_register(
            ctypes.c_uint64(count), bases, (ctypes.c_uint64 * count)(*sample.buffers),
            (ctypes.c_char_p * count)(*[b"buffer"] * count), (ctypes.c_uint8 * count)(*[i == 0 for i in range(count)]))
        layout, *values = sample.arguments
        values = [addresses[int(value)] if isinstance(value, str) else value for value in values]
        kernargs = ctypes.create_string_buffer(struct.pack(layout, *values))
        size = ctypes.c_size_t(struct.calcsize(layout))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(kernargs), 2, ctypes.addressof(size), 3)
        code = self.hip.hipModuleLaunchKernel(function, 1, 1, 1, sample.block, 1, 1, sample.lds_bytes, None,
                                              None, extra)
        self.hip.aiter_like_sim_unregister(ctypes.c_uint64(merged), bases)
        for index, (buffer, bytes_) in enumerate(zip(memory, sample.buffers)):
            raw = buffer.raw
            assert raw[:len(CANARY)] == raw[len(CANARY) + bytes_:] == CANARY, "memory around a buffer was written"
            assert index == 0 or raw[len(CANARY):-len(CANARY)] == b"\x3c" * bytes_, "a read-only buffer was written"
        text = self.hip.aiter_like_sim_take_reports()
        reports = json.loads(ctypes.string_at(text).decode(errors="replace"))
        self.hip.aiter_like_sim_free(ctypes.c_void_p(text))
        if code:
            return self._clear(code, "failed")
        return "reported" if reports else "ran"

    def _clear(self, code: int, outcome: str) -> str:
        """`outcome`, once it is sure that the error says what is wrong."""
        text = (self.hip.hipGetErrorString(code) or b"").decode(errors="replace")
        self.hip.hipGetLastError()
        assert len(text) > 20, f"error {code} says only {text!r}"
        return outcome


def _main(library: str, corpus: str, first: int, last: int, is_damaged: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    child = _Child(library, pickle.loads(Path(corpus).read_bytes()))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for seed in range(first, last):
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, -1))
        faulthandler.dump_traceback_later(WALL_SECONDS, exit=True)
        sys.stdout.write(f"{seed} ")
        sys.stdout.flush()
        sys.stdout.write(child.seed(seed, is_damaged) + "\n")
    faulthandler.cancel_dump_traceback_later()


# ---- the parent

def outcomes(library: str, corpus: Path, seeds: range, is_damaged: bool = True) -> tuple[Counter, list[str]]:
    """Outcome → how many seeds had it, and a line for each seed that killed its child.

    Args:
        corpus: a pickled list of Sample.
    """
    counts, deaths, first = Counter(), [], seeds.start
    while first < seeds.stop:
        last = min(first + SEEDS_PER_CHILD, seeds.stop)
        done = subprocess.run([sys.executable, __file__, library, str(corpus), str(first), str(last),
                               str(int(is_damaged))], capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        counts.update(line.split()[1] for line in lines if len(line.split()) == 2)
        if done.returncode:
            culprit = lines[-1].split()[0] if lines else f"before {first}"
            deaths.append(f"seed {culprit}: exit status {done.returncode}: {done.stderr[-600:]}")
            last = int(culprit) + 1 if lines else last
        first = last
    return counts, deaths


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1")
