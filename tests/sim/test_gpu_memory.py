# SPDX-License-Identifier: MIT
"""sim.as_gpu(): memory of the simulated device as torch.cuda counts it, and its limits."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("gpu")


def test_blocks_are_counted():
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    small, large = torch.empty(1, device="cuda"), torch.empty((1 << 20) + 1, dtype=torch.uint8, device="cuda")
    assert not torch.empty(0, device="cuda").numel()
    after = torch.cuda.memory_stats()
    for key, growth in (("allocation.all.current", 2), ("segment.all.current", 2),
                        ("allocated_bytes.all.peak", 1024 + (1 << 20)), ("requested_bytes.all.current", 5 + (1 << 20)),
                        ("num_ooms", 0)):
        assert after[key] - before[key] == growth, key
    lazy = torch._lazy_clone(small)
    assert lazy.is_cuda and torch._C._is_cow_tensor(lazy) and torch._C._is_cow_tensor(small)
    del small, large, lazy
    assert torch.cuda.memory_stats()["allocation.all.current"] == before["allocation.all.current"]


@pytest.mark.parametrize("make, text", [
    (lambda: torch.empty(1 << 46, device="cuda"), r"Tried to allocate 262144.00 GiB. GPU 0 has a total capacity of"),
    (lambda: torch.empty(800000000 << 30, dtype=torch.int8, device="cuda"), "Tried to allocate 800000000.00 GiB"),
    (lambda: torch.ones(1, device="cuda").expand(1 << 46).clone(), "simulated MI300X, in the host's memory")])
def test_more_memory_than_there_is(make, text):
    before = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=f"CUDA out of memory.*{text}"):
        make()
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1
    with torch.device("meta"):
        assert torch.empty(1 << 46).is_meta
