# SPDX-License-Identifier: MIT
"""Facts about the machine in a file of answers: device, driver, clocks, partitions. No name of a host, user or
board."""

import platform
from pathlib import Path
from typing import Any

import torch

from aiter_like import __version__
from aiter_like.cli.sim.hardware.device import Device
from aiter_like.tuning.harness import Harness

_SPIN_CLK = 20_000_000
# Below the device's folder of sysfs; a virtual function has few of them.
_SYSFS = ("pp_dpm_sclk", "pp_dpm_mclk", "current_compute_partition", "current_memory_partition", "vbios_version",
          "mem_info_vram_total", "max_link_speed")


def of(harness: Harness, device: Device) -> dict[str, Any]:
    """device, driver, clocks, software: each a dict."""
    target = harness.target
    described: dict[str, Any] = {"name": harness.name, "arch": target.arch, "cu_num": target.cu_num,
                                 "wave_size": target.wave_size, "simulated": target.simulated}
    driver: dict[str, Any] = device.versions()
    clocks: dict[str, Any] = {}
    if not target.simulated:
        properties = torch.cuda.get_device_properties(target.index)
        for name in ("gcnArchName", "total_memory", "L2_cache_size", "clock_rate", "memory_clock_rate"):
            if hasattr(properties, name):
                described[name] = getattr(properties, name)
        driver |= {"amdgpu": _read(Path("/sys/module/amdgpu/version")), "rocm": _read(Path("/opt/rocm/.info/version")),
                   "linux": platform.release()}
        folder = _sysfs(properties)
        clocks = {name: text for name in _SYSFS if folder and (text := _read(folder / name))}
        clocks["mhz_while_one_wave_spins"] = device.spin(_SPIN_CLK)
    software = {"aiter_like": __version__, "torch": torch.__version__, "hip": torch.version.hip,
                "python": platform.python_version()}
    return {"device": described, "driver": driver, "clocks": clocks, "software": software}


def _sysfs(properties: Any) -> Path | None:
    if not hasattr(properties, "pci_bus_id"):
        return None
    place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    folder = Path("/sys/bus/pci/devices", place)
    return folder if folder.is_dir() else None


def _read(path: Path) -> str:
    """A file's text; "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
