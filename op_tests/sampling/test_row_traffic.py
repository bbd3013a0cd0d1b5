# SPDX-License-Identifier: MIT
"""How often the samplers read a row on gfx942, by the simulator's counters; trials of the tuner are right, and it
chooses one.

The rows have as many elements as the lanes of a step take: lanes beyond the end of a row repeat its first access, which
a cache serves, but which these counters take for more bytes. There are enough rows that none is cut into slices.
"""

import pytest
from test_traffic import size_of

from aiter_like import cli, dispatch, sim
from aiter_like import device as devices
from aiter_like.dispatch import OPS
from aiter_like.dispatch.backend import Candidate
from aiter_like.tuning import candidates, harness, judge

# operator, features or dtype of the result, dtype, rows, columns, how often a row is read; why it is more than once.
READS = (
    ("softmax", "bf16", "bf16", 1, 131072, 1.0),
    ("softmax", "fp32", "fp32", 1, 131072, 1.5),  # 256 KB of it stay in registers, the rest is read again
    ("sample", "none", "bf16", 305, 16384, 1.0),
    ("sample", "made", "fp32", 305, 8192, 1.0),
    ("sampling_from_probs", "none", "fp32", 305, 8192, 1.125),  # the chunk that has the token twice, 1024 columns
    ("sampling_from_probs", "min_p", "fp32", 153, 8192, 2.125),  # the largest is known at the end of the first walk
    ("sampling_from_probs", "top_k+top_p", "fp32", 153, 8192, 2.125),  # histogram; sums, with a list of the cut's bin
    ("renorm_probs", "top_k+min_p", "fp32", 153, 8192, 3.0),  # histogram; sum of what is kept, with the list; result
    ("topk", "", "fp32", 153, 8192, 2.0),  # histogram, list
)
KEYS = {"softmax": "out_dtype", "sample": "features", "sampling_from_probs": "features", "renorm_probs": "features"}


def key_of(op: str, feature: str, dtype: str, rows: int, columns: int) -> dict[str, int | str]:
    more = {KEYS[op]: feature} if op in KEYS else {"k": 50}
    return {"rows": rows, "columns": columns, "dtype": dtype, **more}


@pytest.mark.parametrize(("name", "feature", "dtype", "rows", "columns", "reads"), READS)
def test_how_often_a_row_is_read(device, name, feature, dtype, rows, columns, reads):
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    op = OPS[name]
    call = op.tuning.case(key_of(name, feature, dtype, rows, columns), device, 0)
    (hip,) = (backend for backend in op.backends if backend.name == "hip")
    params = {"groups": 1} if name == "softmax" else {}
    bound = hip.bind(devices.target_of(device), tuple(call), Candidate(hip, "", params, "test"))
    with sim.enabled(checks=False) as session:
        bound(*call)
    ((_, counts),) = session.counters.items()
    moved = {name: 64 * size_of(name) * count for name, count in counts["accesses"].items() if size_of(name) == 16}
    source = call.probs if hasattr(call, "probs") else call.input
    written = call.out.nbytes if name in ("softmax", "renorm_probs") else 0
    loads = sum(count for name, count in moved.items() if "load" in name)
    assert loads <= 1.05 * reads * source.nbytes and loads >= 0.95 * reads * source.nbytes, loads / source.nbytes
    assert sum(moved.values()) - loads == written
    assert not counts["by_class"].get("scratch"), counts


TRIALS = (("softmax", "fp32", "fp32", 1), ("sampling_from_probs", "top_k+top_p", "fp32", 2))


@pytest.mark.parametrize(("name", "feature", "dtype", "groups"), TRIALS)
def test_a_trial_is_right(device, name, feature, dtype, groups):
    """As the tuner judges it; the rows have 8 KB for each workgroup."""
    op, target = OPS[name], devices.target_of(device)
    columns = 4 * 8192 // (2 if dtype == "bf16" else 4) + 3
    place = harness.sim(0) if device.type == "cpu" else harness.gpu(device.index)
    made = judge.case(op, key_of(name, feature, dtype, 2, columns), device)
    trials = [trial for trial in candidates.plan(op, target, made.args).trials if trial.backend == "hip"]
    assert [trial.params.get("groups", 0) for trial in trials].count(groups) == 1 and len(trials) == 4
    (trial,) = (trial for trial in trials if dict(trial.params) == {"groups": groups})
    one = trial.candidate(op)
    error, fault = judge.check(made, place.guarded(op, one.backend.bind(target, made.args, one)))
    assert fault is None, f"{trial.title}: {fault} (error {error:.3g})"


def test_the_tuner_chooses(device, tmp_path, capsys):
    """`aiter-like tune sample --device sim`: its times are modelled, and the row is written as such."""
    if device.type != "cpu":
        pytest.skip("modelled times")
    try:
        status = cli.main(["tune", "sample", "--device", "sim", "--quiet", "--report", str(tmp_path), "--output",
                           str(tmp_path / "out"), "--shape", "rows=2,columns=9000,dtype=bf16,features=none"])
    finally:
        dispatch.reset()
        devices.use_simulator(True)
    out, report = capsys.readouterr().out, (tmp_path / "sample.gfx942.md").read_text()
    assert status == 0 and "modelled rows, which come after every measured one: " in out, out
    assert "| rows=2 columns=9000" in report and "groups=2" in report
