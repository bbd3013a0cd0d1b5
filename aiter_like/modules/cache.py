# SPDX-License-Identifier: MIT
"""Built modules on disk: `<root>/<module>/<key>/` with the library and a meta.json of all that it was built from.

A key is two halves, of a SHA-256 each: what is known before compiling (sources, macros, target, ABI), then compiler,
command lines and every header. An entry is found by the first half and accepted when what meta.json records of the
second is still true, so a lookup runs no compiler. Read by build.py, toolchain.py and commands.py.
"""

import atexit
import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import platformdirs

from aiter_like import env
from aiter_like.errors import BuildError
from aiter_like.modules import processes, trust

_log = logging.getLogger("aiter_like")

META = "meta.json"
REQUEST_DIGITS = 32  # hex digits of each half of a key
_SCRATCH = ".tmp-"  # private directories: builds in progress, damaged entries being removed
_FOLDER = re.compile(rf"[0-9a-f]{{{2 * REQUEST_DIGITS}}}|{re.escape(_SCRATCH)}[0-9a-f]{{{REQUEST_DIGITS}}}-\w+")
_SEAL = "sha256"  # the field of a JSON file that has the digest of the others
_JSON_BYTES = 1 << 24  # several times the longest meta.json


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
    """The cache directory, which nobody else may write. A private temporary one, with a warning, where the chosen one
    cannot be had. An existing directory's mode is left as it is.

    Raises:
        BuildError: others may write the temporary directory, too.
    """
    try:
        return chosen_root()
    except (OSError, RuntimeError) as error:
        return _private_root(str(error))


def chosen_root() -> Path:
    """The cache directory that is asked for; an OSError or RuntimeError says why it cannot be had."""
    override = env.get("AITER_LIKE_CACHE_DIR")
    if override:
        root = Path(override).expanduser().absolute()
    else:
        root = platformdirs.user_cache_path("aiter_like", appauthor=False)
        if not root.is_absolute():
            raise RuntimeError(f"there is no home directory for {root}")
    trust.own_folder(root.resolve(), mode=0o700)
    root = root.resolve()
    if reason := trust.fault(root, is_folder=True):
        raise PermissionError(reason)
    if not os.access(root, os.W_OK | os.X_OK):  # the file system may be read-only
        raise PermissionError(f"{root} cannot be written")
    return root


@cache
def _private_root(why: str) -> Path:
    private = Path(tempfile.mkdtemp(prefix="aiter_like-")).resolve()
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    if reason := trust.fault(private, is_folder=True):
        raise BuildError(f"no directory for built modules: {why}; {reason}. Set AITER_LIKE_CACHE_DIR to one that only "
                         "you can write")
    _log.warning("no usable cache directory (%s): modules built by this process go to %s and are lost at its end; "
                 "set AITER_LIKE_CACHE_DIR to one that only you can write", why, private)
    return private


def _cleared(path: Path, *, is_folder: bool = False) -> Path:
    """The path, free for a file (a folder) of ours: what others made or may write, or is of another kind, is renamed.

    It is renamed and not removed, since somebody may have had another use for that name.
    """
    if os.path.lexists(path) and (reason := trust.own_fault(path, is_folder=is_folder)):
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{path.name}.set-aside-"))
        os.rename(path, aside / path.name)
        _log.warning("%s: it is now in %s", reason, aside)
    return path


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
    """Reads what write_json wrote; None where the file is missing, damaged, or could be somebody else's."""
    try:
        if trust.own_fault(path) or path.stat().st_size > _JSON_BYTES:
            return None
        value = json.loads(path.read_bytes())
        seal = value.pop(_SEAL)
        return value if seal == sha256(canonical(value)) else None
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None


def write_json(path: Path, value: dict) -> None:
    """Replaces the file at once: a reader sees the old text or the new one. A digest of it shows any later damage."""
    for folder in (path.parent.parent, path.parent):
        if not folder.is_dir():
            trust.own_folder(_cleared(folder, is_folder=True))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_SCRATCH)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(value | {_SEAL: sha256(canonical(value))}, file, indent=1)
        os.replace(temporary, _cleared(path))
    except BaseException:
        os.unlink(temporary)
        raise


def write_log(path: Path, text: str) -> Path | None:
    """Keeps a compiler's output for people; None, with a warning, where that cannot be done."""
    try:
        trust.own_folder(_cleared(path.parent, is_folder=True))
        _cleared(path).write_text(text, encoding="utf-8")
    except OSError as error:
        _log.warning("the build's log is not kept: %s", error)
        return None
    return path


# ---- headers: what a compilation read


def record_files(paths: Iterable[str], root: Path) -> list[list]:
    """[name, size, mtime_ns, sha256] of each file; the name is relative where the file is ours (below `root`)."""
    records = []
    for name in sorted({os.path.realpath(path) for path in paths}):
        status = os.stat(name)
        relative = os.path.relpath(name, root) if name.startswith(f"{root}{os.sep}") else name
        records.append([relative, status.st_size, status.st_mtime_ns, sha256_of(name)])
    return records


def contents(root: Path) -> dict[str, str]:
    """The SHA-256 of every file below `root`, by the name that record_files gives it."""
    found = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return {os.path.relpath(path, root): sha256_of(path) for path in found
            if os.path.isfile(path) and not os.path.islink(path)}


def files_unchanged(records: list[list], root: Path, *, project_only: bool = False) -> bool:
    """Whether the recorded files have the recorded content, whatever their times are."""
    try:
        return all(_digest(os.path.join(root, name), size) == digest for name, size, _, digest in records
                   if not (project_only and os.path.isabs(name)))
    except OSError:
        return False


def _digest(path: str, size: int) -> str:
    """The SHA-256 of a file of so many bytes, "" for any other. A system header is read once per process: all modules
    include the same ones. The time of change, which nobody can set, tells whether it is still that file."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        return ""
    return _digest_once(path, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=8192)
def _digest_once(path: str, *_state: int) -> str:
    return sha256_of(path)


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
        if not os.path.isdir(directory):  # the request's lock file
            continue
        if reason := trust.fault(directory / META):
            _log.warning("%s: the module is not loaded but built again", reason)
            continue
        meta = read_json(directory / META)
        if meta is None:
            _log.warning("%s is damaged: the module is built again", directory / META)
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
    """Says what is wrong with an entry's library; "" when it is the one that was published."""
    if reason := trust.own_fault(entry.path):
        return reason
    try:
        digest = sha256_of(entry.path)
    except OSError as error:
        return f"unreadable ({error})"
    return "" if digest == entry.meta["output"]["sha256"] else f"{entry.path.name} does not have its recorded SHA-256"


def publish(scratch: Path, module_dir: Path, key: str, meta: dict) -> Entry:
    """Completes a private build directory and moves it to its place in one step. The caller holds the module's lock."""
    for file in scratch.iterdir():
        if file.suffix in (".o", ".d", ".pch") or file.name.startswith(".ninja"):
            file.unlink()
    write_json(scratch / META, meta)
    for file in scratch.iterdir():
        file.chmod(0o644)  # under any umask: nobody else may write it, and a prebuilt directory is read by other users
    scratch.chmod(0o755)
    final = module_dir / key
    if os.path.lexists(final):  # damaged, or built again on demand
        old = Path(tempfile.mkdtemp(dir=module_dir, prefix=f"{_SCRATCH}{key[:REQUEST_DIGITS]}-"))
        os.rename(final, old / key)
        shutil.rmtree(old, ignore_errors=True)
    os.rename(scratch, final)
    return Entry(final, meta)


@contextlib.contextmanager
def scratch_directory(module_dir: Path, request: str, take: Callable[[list[Path]], Path | None]) -> Iterator[Path]:
    """A private directory for one build, removed unless it was published or the build was interrupted. The caller holds
    the lock of `request`, so others of the same request belong to builders that have ended: they go, too, except the
    one that `take` chooses to go on with.
    """
    left = sorted(module_dir.glob(f"{_SCRATCH}{request}-*"))
    directory = take(left)
    for stale in left:
        if stale != directory:
            shutil.rmtree(stale, ignore_errors=True)
    directory = directory or Path(tempfile.mkdtemp(dir=module_dir, prefix=f"{_SCRATCH}{request}-"))
    is_interrupted = False
    try:
        yield directory
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        if not is_interrupted:
            shutil.rmtree(directory, ignore_errors=True)


# ---- lock


@contextlib.contextmanager
def locked(module_dir: Path, request: str, timeout: float) -> Iterator[None]:
    """Holds the machine-wide lock of one request; the kernel frees it when its holder dies.

    Raises:
        BuildError: not free within `timeout` seconds; the message names the holder.
    """
    from filelock import FileLock, Timeout

    trust.own_folder(_cleared(module_dir, is_folder=True))
    path = _cleared(module_dir / f"{request}.lock")
    holder = module_dir / f"{request}.holder"
    lock = FileLock(path)
    until = time.monotonic() + timeout
    while not lock.is_locked:
        processes.check()
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=max(0.0, min(0.1, until - time.monotonic())), poll_interval=0.02)
            break
        if time.monotonic() < until:
            continue
        by = read_json(holder) or {"pid": "?", "host": "?", "since": "?"}
        raise BuildError(f"{module_dir.name}: another process has been building it for more than {timeout:g} s: "
                         f"pid {by['pid']} on {by['host']}, since {by['since']} holds {path}",
                         module=module_dir.name) from None
    try:
        write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": timestamp()})
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def timestamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


# ---- maintenance


def _built_folders(root: Path) -> Iterator[Path]:
    """The folders below `root` that have an entry's name, or that of a build in progress: a user may have named any
    folder as cache, and what else lies there is not ours."""
    for folder in sorted(root.glob("*/*/")):
        if _FOLDER.fullmatch(folder.name) and not folder.is_symlink():
            yield folder


def entries(root: Path) -> Iterator[Entry | Path]:
    """Every entry below `root`; the directory alone where its meta.json is missing or damaged."""
    for directory in _built_folders(root):
        if not directory.name.startswith(_SCRATCH):
            meta = read_json(directory / META)
            yield directory if meta is None else Entry(directory, meta)


def _remove_half_written(root: Path) -> None:
    """Removes what killed processes left of write_json: a file younger than an hour may still have a writer."""
    for path in [*root.glob(f"{_SCRATCH}*"), *root.glob(f"*/{_SCRATCH}*")]:
        with contextlib.suppress(FileNotFoundError):  # its writer renamed it meanwhile
            if path.is_file() and time.time() - path.lstat().st_mtime > 3600:
                path.unlink()


def prune(root: Path, days: float) -> tuple[int, int]:
    """Removes entries not used for `days` days, and what killed builders left. Returns (directories, bytes) removed."""
    from filelock import FileLock, Timeout

    oldest = time.time() - days * 86400
    _remove_half_written(root)
    removed = freed = 0
    for directory in _built_folders(root):
        is_scratch = directory.name.startswith(_SCRATCH)
        if not is_scratch and directory.stat().st_mtime > oldest:
            continue
        request = directory.name.removeprefix(_SCRATCH)[:REQUEST_DIGITS]
        try:
            # A build in progress holds it.
            with FileLock(_cleared(directory.parent / f"{request}.lock"), timeout=0):
                size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
                shutil.rmtree(directory, ignore_errors=True)
        except Timeout:
            continue
        removed, freed = removed + 1, freed + size
    return removed, freed
