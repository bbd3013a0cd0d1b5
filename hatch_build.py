# SPDX-License-Identifier: MIT
"""Puts the simulator, built, into a wheel, so that who installs it needs no compiler for Triton kernels and the demo.

An editable installation compiles nothing, nor does a source distribution. Where there is no compiler the wheel is one
of sources only, with a warning: the simulator is then built at its first use.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Every x86-64 processor since 2015 (AVX2, FMA) runs it; what is newer has instructions that the simulator seldom uses.
_BASELINE = "x86-64-v3"


class SimulatorHook(BuildHookInterface):
    """The hook that hatchling calls for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the simulator, or takes it from the cache, and adds it to a wheel that is no editable one."""
        if version == "editable":
            return
        try:
            entry = self._built()
        except Exception as error:  # noqa: BLE001 (whatever fails: the sources are a wheel, too)
            self.app.display_warning(f"aiter_like: the wheel has no built simulator: {error}")
            return
        self._folder = tempfile.TemporaryDirectory(prefix="aiter_like-wheel-")
        meta = Path(self._folder.name, entry.directory.name, "meta.json")
        self._write_meta(meta, entry)
        place = f"aiter_like/_data/prebuilt/{entry.directory.parent.name}/{entry.directory.name}"
        build_data["force_include"] |= {str(entry.path): f"{place}/{entry.path.name}", str(meta): f"{place}/meta.json"}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what `initialize` wrote."""
        if folder := getattr(self, "_folder", None):
            folder.cleanup()

    def _built(self) -> Any:
        sys.path.insert(0, self.root)
        try:
            from aiter_like.modules import build
            from aiter_like.sim import library
        finally:
            sys.path.remove(self.root)
        arch = _BASELINE if platform.machine() == "x86_64" else ""
        return build.ensure(library.module_spec(arch))

    def _write_meta(self, path: Path, entry: Any) -> None:
        """The entry's facts without those of this machine: its compiler, its system headers, its name and the time."""
        from aiter_like.modules import cache

        kept = {name: entry.meta[name] for name in ("module", "inputs", "output", "seconds", "toolchain")}
        headers = [record for record in entry.meta["headers"] if not Path(record[0]).is_absolute()]
        toolchain = kept["toolchain"].partition(" (")[0]
        cache.write_json(path, kept | {"toolchain": toolchain, "headers": headers, "build": {}, "host": "", "time": ""})
