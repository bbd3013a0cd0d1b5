# SPDX-License-Identifier: MIT
"""A client that was not written here: ROCm's own Python bindings, hip-python 10 (of the test extras) or 7.2 (by `pip
install --target` and PYTHONPATH), which call HIP's library by its symbols."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
from hip_calls import KERNELS
from hip_program import code_object

from aiter_like import sim

sim.load()  # before the bindings, which look for a library of that name
hip = pytest.importorskip("hip", reason="needs hip-python").hip

_SUCCESS = hip.hipError_t.hipSuccess


def done(result: object) -> object:
    """What a call of the bindings gives beside hipSuccess."""
    error, *rest = result if isinstance(result, tuple) else (result,)
    assert error == _SUCCESS, str(hip.hipGetErrorString(error))
    return rest[0] if len(rest) == 1 else rest


def is_older() -> bool:
    """hip-python 7.2 takes the structures that are filled in as arguments."""
    return hip.__name__ == "hip.hip"


@pytest.fixture
def memory():
    taken = []

    def allocate(array: np.ndarray) -> object:
        taken.append(done(hip.hipMalloc(array.nbytes)))
        done(hip.hipMemcpy(taken[-1], array, array.nbytes, hip.hipMemcpyKind.hipMemcpyHostToDevice))
        return taken[-1]

    yield allocate
    for pointer in taken:
        done(hip.hipFree(pointer))


def back(pointer: object, like: np.ndarray) -> np.ndarray:
    out = np.empty_like(like)
    done(hip.hipMemcpy(out, pointer, out.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost))
    return out


def test_every_function_of_the_bindings_is_there():
    place = Path(hip.__file__).parent
    declared = next(path for path in (place / "chip.pxd", place / "cyhip.pxd") if path.is_file()).read_text()
    names = set(re.findall(r"^cdef [^=]*?\b(hip[A-Z]\w+)\(", declared, re.MULTILINE))
    assert len(names) > 490
    library = sim.load()
    missing = [name for name in sorted(names)
               if not hasattr(library, name) and not hasattr(library, f"{name}R0600")]
    assert missing == []


def test_device():
    assert done(hip.hipGetDeviceCount()) == 1
    properties = hip.hipDeviceProp_t() if is_older() else done(hip.hipGetDeviceProperties(0))
    if is_older():
        done(hip.hipGetDeviceProperties(properties, 0))
    assert "gfx942" in str(properties.gcnArchName) and properties.multiProcessorCount == 304
    cores = hip.hipDeviceAttribute_t.hipDeviceAttributeMultiprocessorCount
    assert done(hip.hipDeviceGetAttribute(cores, 0)) == 304
    assert done(hip.hipDeviceGetLimit(hip.hipLimit_t.hipLimitStackSize)) >= 1024


def test_module_launch_with_events_and_checks(memory):
    x = np.random.default_rng().integers(-1000, 1000, 200, dtype=np.int32)
    pointer, module = memory(x), done(hip.hipModuleLoadData(code_object(KERNELS)))
    kernel = done(hip.hipModuleGetFunction(module, b"twice"))
    stream, start, stop = done(hip.hipStreamCreate()), done(hip.hipEventCreate()), done(hip.hipEventCreate())
    with sim.enabled(checks=True) as session:
        done(hip.hipEventRecord(start, stream))
        done(hip.hipModuleLaunchKernel(kernel, 4, 1, 1, 64, 1, 1, sharedMemBytes=0, stream=stream, kernelParams=None,
                                       extra=(pointer, ctypes.c_int(150))))
        done(hip.hipEventRecord(stop, stream))
        done(hip.hipStreamSynchronize(stream))
    assert session.counters["twice"]["launches"] == 1
    assert done(hip.hipEventElapsedTime(start, stop)) > 0
    np.testing.assert_array_equal(back(pointer, x), np.where(np.arange(200) < 150, 2 * x, x))
    done(hip.hipModuleUnload(module))


def test_captured_graph(memory):
    x = np.arange(64, dtype=np.int32)
    pointer, stream = memory(x), done(hip.hipStreamCreate())
    done(hip.hipStreamBeginCapture(stream, hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal))
    done(hip.hipMemsetAsync(pointer, 1, 128, stream))
    graph = done(hip.hipStreamEndCapture(stream))
    np.testing.assert_array_equal(back(pointer, x), x)
    executable = done(hip.hipGraphInstantiateWithFlags(graph, 0))
    done(hip.hipGraphLaunch(executable, stream))
    done(hip.hipStreamSynchronize(stream))
    np.testing.assert_array_equal(back(pointer, x), np.where(np.arange(64) < 32, 0x01010101, x))


def test_what_is_not_simulated_is_an_error_of_hip():
    result = hip.hipGetTextureObjectResourceDesc(None, None) if is_older() else hip.hipDestroyTextureObject(None)
    error = result[0] if isinstance(result, tuple) else result
    assert error == hip.hipError_t.hipErrorNotSupported
    assert "is not simulated: textures" in str(hip.hipGetErrorString(error))
    hip.hipGetLastError()
