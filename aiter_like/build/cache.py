# SPDX-License-Identifier: MIT
"""Built modules on disk: `<root>/<module>/<key>/` with the library and a meta.json of all that it was built from.

A key is two halves, of a SHA-256 each: what is known before compiling (sources, macros, target, ABI), then compiler,
command lines and every header. An entry is found by the first half and accepted when what meta.json records of the
second is still true, so a lookup runs no compiler. Read by build.py, toolchain.py and commands.py.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs

from aiter_like import env
from aiter_like.errors import BuildError

_log = logging.getLogger("aiter_like")

META = "meta.json"
REQUEST_DIGITS = 32  # of each half of a key, in hex
_SCRATCH = ".tmp-"  # private directories: builds in progress, damaged entries being removed


@dataclass(frozen=True)
class Entry:
    """One built module on disk."""

    directory: Path
    meta: dict[str, Any]

    @property
    def key(self) -> str:
        return self.directory.name

    @property
    def path(self) -> Path:
        return self.directory / self.meta["output"]["name"]


# ---- folders


def cache_root() -> Path:
    """The cache directory: 0700, ours. A private temporary one, with a warning, where that cannot be had."""
    return _usable_root(env.get("AITER_LIKE_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME"))


@cache
def _usable_root(override: str, _xdg: str, _home: str | None) -> Path:  # the last two are platformdirs' own inputs
    try:
        if override:
            root = Path(override).expanduser().absolute()
        else:
            root = platformdirs.user_cache_path("aiter_like", appauthor=False)
            if not root.is_absolute():
                raise RuntimeError(f"there is no home directory for {root}")
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
        if status.st_uid != os.geteuid():  # libraries from here are loaded: nobody else may write them
            raise PermissionError(f"{root} belongs to user {status.st_uid}")
        if status.st_mode & 0o077:
            root.chmod(0o700)
        tempfile.TemporaryFile(dir=root).close()  # the file system may be read-only
    except (OSError, RuntimeError) as error:
        private = Path(tempfile.mkdtemp(prefix="aiter_like-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        _log.warning("no usable cache directory (%s): modules built by this process go to %s and are lost at its end; "
                     "set AITER_LIKE_CACHE_DIR", error, private)
        return private
    return root


# ---- hashes and small files


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of(path: Path | str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(value: Any) -> bytes:
    """The one JSON text of a value, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def read_json(path: Path) -> dict | None:
    """The object in a JSON file; None when it is missing or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: dict) -> None:
    """Replaces the file at once: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_SCRATCH)
    with os.fdopen(handle, "w") as file:
        json.dump(value, file, indent=1)
    os.replace(temporary, path)


# ---- headers: what a compilation read


def record_files(paths: Iterable[str], root: Path) -> list[list]:
    """[name, size, mtime_ns, sha256] of each file; the name is relative where the file is ours (below `root`)."""
    records = []
    for name in sorted({os.path.realpath(path) for path in paths}):
        status = os.stat(name)
        relative = os.path.relpath(name, root) if name.startswith(f"{root}{os.sep}") else name
        records.append([relative, status.st_size, status.st_mtime_ns, sha256_of(name)])
    return records


def files_unchanged(records: list[list], root: Path, *, project_only: bool = False) -> bool:
    """Whether the recorded files have the recorded content. Ours are read; of others, size and time are trusted."""
    for name, size, mtime_ns, digest in records:
        is_ours = not os.path.isabs(name)
        if project_only and not is_ours:
            continue
        path = os.path.join(root, name)
        try:
            if not is_ours:
                status = os.stat(path)
                if status.st_size == size and status.st_mtime_ns == mtime_ns:
                    continue
            if sha256_of(path) != digest:
                return False
        except OSError:
            return False
    return True


# ---- entries


def find(root: Path, module: str, request: str, build: dict | None, sources: Path) -> Entry | None:
    """The intact entry for a request, or None.

    Args:
        root: a cache or prebuilt directory.
        module: folder name of the module.
        request: first half of the key.
        build: what meta["build"] must equal (compiler and commands); None accepts any compiler, for prebuilt modules.
        sources: the folder to which recorded names of project files are relative.
    """
    try:
        names = sorted(name for name in os.listdir(root / module) if name.startswith(request))
    except OSError:
        return None
    for name in names:
        directory = root / module / name
        if not directory.is_dir():  # the request's lock file
            continue
        meta = read_json(directory / META)
        if meta is None:
            _log.warning("%s: %s is missing or damaged: the module is built again", directory, META)
            continue
        if build is not None and meta["build"] != build:
            continue
        if not files_unchanged(meta["headers"], sources, project_only=build is None):
            continue
        entry = Entry(directory, meta)
        if fault := damage(entry):
            _log.warning("%s: %s: the module is built again", directory, fault)
            continue
        with contextlib.suppress(OSError):  # read-only prebuilt directory; prune() goes by this time
            os.utime(directory)
        return entry
    return None


def damage(entry: Entry) -> str:
    """What is wrong with an entry's library; "" when it is what was published."""
    try:
        digest = sha256_of(entry.path)
    except (OSError, KeyError) as error:
        return f"unreadable ({error})"
    return "" if digest == entry.meta["output"]["sha256"] else f"{entry.path.name} does not have its recorded SHA-256"


def publish(scratch: Path, module_dir: Path, key: str, meta: dict) -> Entry:
    """Completes a private build directory and moves it to its place in one step. The caller holds the module's lock."""
    for file in scratch.iterdir():
        if file.suffix in (".o", ".d") or file.name.startswith(".ninja"):
            file.unlink()
    write_json(scratch / META, meta)
    (scratch / META).chmod(0o644)  # a prebuilt directory is read by other users; the cache root itself is 0700
    scratch.chmod(0o755)
    final = module_dir / key
    if final.exists():  # damaged, or built again on demand
        old = Path(tempfile.mkdtemp(dir=module_dir, prefix=f"{_SCRATCH}{key[:REQUEST_DIGITS]}-"))
        os.rename(final, old / key)
        shutil.rmtree(old, ignore_errors=True)
    os.rename(scratch, final)
    return Entry(final, meta)


@contextlib.contextmanager
def scratch_directory(module_dir: Path, request: str) -> Iterator[Path]:
    """A private directory for one build, removed unless it was published. The caller holds the lock of `request`, so
    another one of the same request belongs to a builder that was killed: it goes too."""
    for stale in module_dir.glob(f"{_SCRATCH}{request}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(dir=module_dir, prefix=f"{_SCRATCH}{request}-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# ---- lock


@contextlib.contextmanager
def locked(module_dir: Path, request: str, timeout: float) -> Iterator[None]:
    """Holds the machine-wide lock of one request; the kernel frees it when its holder dies.

    Raises:
        BuildError: not free within `timeout` seconds; the message names the holder.
    """
    from filelock import FileLock, Timeout

    module_dir.mkdir(parents=True, exist_ok=True)
    path = module_dir / f"{request}.lock"
    holder = module_dir / f"{request}.holder"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout, poll_interval=0.02)
    except Timeout:
        by = read_json(holder) or {"pid": "?", "host": "?", "since": "?"}
        raise BuildError(f"{module_dir.name}: another process has been building it for more than {timeout:g} s: "
                         f"pid {by['pid']} on {by['host']}, since {by['since']} holds {path}",
                         module=module_dir.name) from None
    try:
        holder.write_bytes(canonical({"pid": os.getpid(), "host": socket.gethostname(), "since": timestamp()}))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def timestamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


# ---- maintenance


def entries(root: Path) -> Iterator[Entry | Path]:
    """Every entry below `root`; the directory alone where its meta.json is missing or damaged."""
    for meta_dir in sorted(root.glob("*/*/")):
        if meta_dir.name.startswith(_SCRATCH):
            continue
        meta = read_json(meta_dir / META)
        yield meta_dir if meta is None else Entry(meta_dir, meta)


def prune(root: Path, days: float) -> tuple[int, int]:
    """Removes entries not used for `days` days, and what killed builders left. Returns (directories, bytes) removed."""
    from filelock import FileLock, Timeout

    oldest = time.time() - days * 86400
    for stale in (path for path in root.glob(f"{_SCRATCH}*") if path.is_file()):  # of a killed write_json
        stale.unlink(missing_ok=True)
    removed = freed = 0
    for directory in sorted(root.glob("*/*/")):
        is_scratch = directory.name.startswith(_SCRATCH)
        if not is_scratch and directory.stat().st_mtime > oldest:
            continue
        request = directory.name.removeprefix(_SCRATCH).split("-")[0][:REQUEST_DIGITS]
        try:
            with FileLock(directory.parent / f"{request}.lock", timeout=0):  # a build in progress holds it
                size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
                shutil.rmtree(directory, ignore_errors=True)
        except Timeout:
            continue
        removed, freed = removed + 1, freed + size
    return removed, freed
