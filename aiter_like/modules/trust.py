# SPDX-License-Identifier: MIT
"""Whether others could have put a file where it is: what the cache loads runs in this process. Read by cache.py.

The rule is that of OpenSSH's StrictModes: every component of the path belongs to this user or to root, and nobody else
may write it. A sticky directory, as /tmp, is fine on the way: others can add names there and cannot replace ours.
"""

import functools
import os
import stat
from pathlib import Path

_OVERFLOW_UID = 65534  # a user namespace shows it for ids that it does not map


def fault(path: Path, *, is_folder: bool = False) -> str:
    """Why an absolute path is not to be trusted: something is missing, of another kind, another user's or open to
    others; "" when all is well.

    Symbolic links are refused: a caller resolves what a user named, and makes none itself.
    """
    found = (own_fault(component, is_folder=component != path or is_folder)
             for component in (*reversed(path.parents), path))
    return next(filter(None, found), "")


def own_fault(path: Path, *, is_folder: bool = False) -> str:
    """The same of `path` alone, whatever the folders are in which it lies."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError) as error:
        return f"{path} cannot be examined: {error}"
    reason = _reason(status, is_folder)
    return f"{path} {reason}" if reason else ""


def own_folder(path: Path, mode: int = 0o755) -> None:
    """Makes a folder and those above it that are missing, writable by nobody else under any umask."""
    if not path.exists():
        own_folder(path.parent, mode)
        path.mkdir(mode=mode, exist_ok=True)


def _reason(status: os.stat_result, is_folder: bool) -> str:
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(status.st_mode):
        return "is no directory" if is_folder else "is no plain file"
    if status.st_uid not in _trusted_users(os.geteuid()):
        return f"belongs to user {status.st_uid}"
    is_sticky = is_folder and status.st_mode & stat.S_ISVTX
    open_to_group = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid, os.geteuid())
    if (status.st_mode & stat.S_IWOTH or open_to_group) and not is_sticky:
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


@functools.cache
def _trusted_users(user: int) -> frozenset[int]:
    """This user and root; in a user namespace root of the host, too, which owns the folders of a rootless container."""
    try:
        is_whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    except OSError:
        is_whole = True
    return frozenset({0, user} if is_whole else {0, user, _OVERFLOW_UID})


@functools.cache
def _is_own_group(group: int, user: int) -> bool:
    """Whether an ordinary user's group adds nobody: root's (containers of any user), or the private one of its name."""
    if user == 0 or group == 0:
        return user != 0
    import grp
    import pwd

    try:
        account, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return members.gr_name == account.pw_name and set(members.gr_mem) <= {account.pw_name}
