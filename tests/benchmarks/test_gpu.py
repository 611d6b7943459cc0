"""The benchmark of the CUDA device, as far as it runs without one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_stages import run as harness
from gpu_stages import targets
from gpu_stages.cases import Case
from gpu_stages.record import NeedsDevice, Record, Row, Stage, number
from gpu_stages.scale import ON_DEVICE
from gpu_stages.timer import Times

from branchline.kernels import Segment
from branchline.kernels.triton.tile_shapes import Heads

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
DEVICE_STAGES = {"ceilings", "compile", "configurations"}
# What a machine with torch and triton need not have: packages of ours, and what only they need.
ABSENT = ("branchline", "pydantic", "zmq", "gguf", "llguidance")
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT}))
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_everything_runs_on_a_cpu(tmp_path):
    """From the checkout alone, in another folder."""
    record = tmp_path / "results" / "gpu.json"
    command = [sys.executable, "-P", "-c", BARE, SCRIPT, "--device", "cpu", "--json", record]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(record.read_text(encoding="utf-8"))
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert list(stages) == list(harness.STAGES)
    for name, stage in stages.items():
        assert stage["status"] == ("skipped" if name in DEVICE_STAGES else "done"), stage
        assert bool(stage["rows"]) == (name not in DEVICE_STAGES)
        assert all(row["met"] in (None, True) for row in stage["rows"]), stage["rows"]
    assert "targets met" in done.stdout.splitlines()[-1]


def stages(monkeypatch, **works) -> None:
    monkeypatch.setattr(harness, "STAGES", {name: (work, 60.0) for name, work in works.items()})


def broken(bench):
    yield Row("before", 1.0, "ms")
    raise RuntimeError("a launch failed")


def skipped(bench):
    bench.need_device()
    yield Row("never", 1.0, "ms")


def endless(bench):
    while True:
        bench.until = 0.0
        yield Row("one", 1.0, "ms")


def good(bench):
    yield Row("right", 0.5, "error", 1.0)


def test_a_stage_that_fails_does_not_end_the_run(monkeypatch, tmp_path, capsys):
    stages(monkeypatch, broken=broken, skipped=skipped, endless=endless, good=good)
    path = tmp_path / "gpu.json"
    assert harness.run("cpu", [], 100.0, path) == 1
    found = json.loads(path.read_text(encoding="utf-8"))["stages"]
    assert [stage["status"] for stage in found] == ["failed", "skipped", "late", "done"]
    assert [len(stage["rows"]) for stage in found] == [1, 0, 1, 1]
    assert found[0]["reason"] == "RuntimeError: a launch failed"
    assert "1 of 1 targets met" in capsys.readouterr().out


def test_stages_by_name_and_without_time(monkeypatch, tmp_path):
    stages(monkeypatch, good=good, broken=broken)
    assert harness.run("cpu", ["good"], 100.0, None) == 0
    path = tmp_path / "gpu.json"
    assert harness.run("cpu", ["good"], 0.0, path) == 0
    (stage,) = json.loads(path.read_text(encoding="utf-8"))["stages"]
    assert (stage["status"], stage["rows"]) == ("late", [])
    with pytest.raises(SystemExit, match="no such stage: better"):
        harness.run("cpu", ["better"], 100.0, None)


def test_a_row_knows_whether_it_met_its_target():
    assert Row("a", 5.0, "ms").met is None
    assert Row("a", 5.0, "ms", 5.0).met
    assert not Row("a", 5.1, "ms", 5.0).met
    assert Row("a", 5.1, "tok/s", 5.0).met
    assert not Row("a", 4.9, "x", 5.0).met
    assert not Row("a", math.nan, "error", 5.0).met
    assert not Row("a", math.nan, "%", 5.0).met
    assert Row("a", 5.1, "ms", 5.0, "why").line.split() == ["a", "5.1", "ms", "5", "MISSED", "why"]


def test_numbers_have_the_digits_that_mean_something():
    values = (15093.7, 0.00012, 4.6512, 0.0, 92.44)
    assert [number(value) for value in values] == ["15,094", "1.2e-04", "4.651", "0", "92.44"]


def test_times():
    times = Times.of([4.0, 1.0, 2.0, 3.0, 10.0])
    assert (times.median, times.low, times.high) == (3.0, 1.0, 10.0)
    assert times.note == "±150.0 %"


def test_a_record_of_nothing_is_written_nowhere():
    record = Record({"device": "none"}, [Stage("a", "failed"), Stage("b", "done")])
    record.write(None)
    assert record.failed == ["a"]
    assert record.table().startswith("device: none\n")


def test_what_was_predicted_is_what_is_measured():
    """Every cell of the table of targets has a row, and the goals are the issue's."""
    assert set(ON_DEVICE.decode) == set(targets.DECODE)
    assert {tokens for tokens, _ in ON_DEVICE.prefill} == set(targets.PREFILL)
    assert set(ON_DEVICE.shared) == set(targets.SHARED)
    assert 1e3 / targets.DECODE[1, 1024][1] >= 215
    assert 256e3 / targets.DECODE[256, 1024][1] >= 15000
    assert targets.PREFIX_HIT_WALL == 6.0
    assert ON_DEVICE.hit[:2] == (5920, 17)
    assert targets.SHARED[64, 5920, 64] == 2.5
    rows, context = max(ON_DEVICE.decode, key=lambda cell: cell[0] * cell[1])
    assert rows * (context + ON_DEVICE.warm + ON_DEVICE.timed + 32) < ON_DEVICE.pages
    assert max(tokens for tokens, _ in ON_DEVICE.prefill) < ON_DEVICE.context
    assert ON_DEVICE.context <= ON_DEVICE.model.context_length


def test_poison_leaves_what_is_read():
    heads = Heads(1, 2, 16, torch.float32)
    case = Case(torch.device("cpu"), heads, [1, 2], [9, 8], [Segment(0, 5, (0, 1))])
    case.poison()
    read = case.page_table[0, :9].tolist() + case.page_table[1, :8].tolist()
    clean = (~case.pools[0][0].isnan().any(dim=(1, 2))).nonzero()[:, 0].tolist()
    assert clean == sorted(set(read))
    assert len(clean) == 9 + 8 - 5
    assert case.pages > len(clean) + 1
    assert not case.wanted().isnan().any()


def test_a_stage_says_what_it_needs():
    with pytest.raises(NeedsDevice, match="needs a device"):
        harness.Bench(torch.device("cpu")).need_device()
