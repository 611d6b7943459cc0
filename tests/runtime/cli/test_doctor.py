"""`doctor` on machines that are made up, and on this one."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from branchline.errors import ModelError
from branchline.runtime.cli import machine, main
from branchline.runtime.cli.fit import config_of, fit_cpu, fit_cuda, weight_count
from branchline.runtime.cli.machine import Device, Machine
from branchline.runtime.config import RuntimeConfig

GIB = 2**30
SMOLLM2 = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA3_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}  # fmt: skip
QWEN2_HALF_B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_HALF_B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
H200 = Device(
    name="NVIDIA H200", architecture=90, multiprocessors=132, memory=140 * GIB, free=139 * GIB
)
LAPTOP = Machine(
    cpu="A processor", cores=8, vectors="AVX2", memory=32 * GIB, available=20 * GIB,
    python="3.12.1", packages={"torch": "2.11.0", "triton": "3.6.0"}, devices=(),
    no_devices="none was asked for",
)  # fmt: skip
SERVER = dataclasses.replace(LAPTOP, devices=(H200,), no_devices=None)


def saved(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (SMOLLM2, 134_515_008),
        (LLAMA3_8B, 8_030_261_248),
        (QWEN2_HALF_B, 494_032_768),
        (QWEN3_HALF_B, 596_049_920),
    ],
)
def test_counts_the_published_number_of_weights(
    tmp_path: Path, config: dict[str, Any], published: int
) -> None:
    assert weight_count(config_of(saved(tmp_path, config))) == published


def test_the_pool_on_a_cpu_is_a_share_of_what_the_weights_leave(tmp_path: Path) -> None:
    config = config_of(saved(tmp_path, SMOLLM2))
    page = 30 * 2 * 3 * 64 * 4  # layers, K and V, heads, size, float32
    table = 8192 * 64 * 4
    found = fit_cpu(config, "float32", 4 * GIB)
    assert found.weights == 134_515_008 * 4 + table
    assert found.pool == (4 * GIB - found.weights) // 4
    assert found.tokens == found.pool // page - 1
    assert found.context == 8192
    assert fit_cpu(config, "float32", 100 * GIB).pool == 4 * GIB


def test_the_pool_on_a_device_is_what_the_fraction_leaves(tmp_path: Path) -> None:
    config = config_of(saved(tmp_path, LLAMA3_8B))
    found = fit_cuda("cuda:0", config, "bfloat16", 139 * GIB, RuntimeConfig())
    assert 890_000 < found.tokens < 905_000  # (0.9 · 139 GiB - 16.1 GB) / 128 KiB
    assert found.context == 8192
    longer = RuntimeConfig(max_batch_tokens=16384)
    assert fit_cuda("cuda:0", config, "bfloat16", 139 * GIB, longer).tokens < found.tokens


def test_what_does_not_fit_has_no_context(tmp_path: Path) -> None:
    config = config_of(saved(tmp_path, LLAMA3_8B))
    found = fit_cuda("cuda:0", config, "bfloat16", 16 * GIB, RuntimeConfig())
    assert (found.tokens, found.context) == (0, 0)
    assert found.pool < 0


def test_a_hub_name_is_not_fetched() -> None:
    with pytest.raises(ModelError, match="nobody/nothing is not in Hugging Face's cache"):
        config_of("nobody/nothing")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts the command on a machine."""
    return lambda there: monkeypatch.setattr(machine, "inspect_machine", lambda: there)


def test_says_what_fits_each_place(
    tmp_path: Path, on: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    on(SERVER)
    assert main(["doctor", "--model", saved(tmp_path, LLAMA3_8B)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "A processor, 8 cores, AVX2" in out
    assert "NVIDIA H200, sm_90, 132 multiprocessors, 140.0 GiB, 139.0 GiB free" in out
    assert "float32, 29.9 GiB of weights, 0.0 GiB left for the pool: too little" in out
    assert "bfloat16, 15.0 GiB of weights, a pool of" in out


def test_a_model_that_fits_nowhere_is_a_failure(
    tmp_path: Path, on: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    on(LAPTOP)
    assert main(["doctor", "--model", saved(tmp_path, LLAMA3_8B)]) == 1
    assert "no device: none was asked for" in " ".join(capsys.readouterr().out.split())


def test_json(tmp_path: Path, on: Any, capsys: pytest.CaptureFixture[str]) -> None:
    on(SERVER)
    model = saved(tmp_path, SMOLLM2)
    assert main(["doctor", "--model", model, "--dtype", "float16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["devices"] == [dataclasses.asdict(H200)]
    assert (found["model"]["name"], found["model"]["error"]) == (model, None)
    places = [(fit["place"], fit["dtype"]) for fit in found["model"]["fits"]]
    assert places == [("cpu", "float16"), ("cuda:0", "float16")]
    assert found["kernels"] is None


def test_json_of_a_model_that_is_not_here(on: Any, capsys: pytest.CaptureFixture[str]) -> None:
    on(LAPTOP)
    assert main(["doctor", "--model", "./nowhere", "--json"]) == 1
    assert "./nowhere" in json.loads(capsys.readouterr().out)["model"]["error"]


@pytest.mark.parametrize(("there", "architectures"), [(LAPTOP, ["80", "90"]), (SERVER, ["90"])])
@pytest.mark.parametrize(("faults", "status"), [([], 0), (["no tensor cores"], 1)])
def test_compiles_for_the_devices_that_are_there(
    tmp_path: Path, on: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    there: Machine, architectures: list[str], faults: list[str], status: int,
) -> None:  # fmt: skip
    def compiler(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        assert command[command.index("--arch") + 1 :] == architectures
        assert "TRITON_INTERPRET" not in env
        file = Path(command[command.index("--json") + 1])
        file.write_text(json.dumps([{"name": "one", "faults": faults}]))
        return subprocess.CompletedProcess(command, 0)

    on(there)
    monkeypatch.setattr(subprocess, "run", compiler)
    model = saved(tmp_path, SMOLLM2)
    assert main(["doctor", "--model", model, "--compile", "--json"]) == status
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    assert kernels == [{"name": "one", "faults": faults}]


def test_a_compiler_that_dies(
    tmp_path: Path, on: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(LAPTOP)
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 2)
    )
    assert main(["doctor", "--model", saved(tmp_path, SMOLLM2), "--compile"]) == 1
    assert "compiling ended with status 2" in capsys.readouterr().err


def test_this_machine() -> None:
    here = machine.inspect_machine()
    assert here.cores >= 1
    assert 0 < here.available <= here.memory
    assert here.packages["torch"] is not None
    assert bool(here.devices) != bool(here.no_devices)


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU: 3 GHz\n")
    assert machine.cpu_name(info) == "Some CPU: 3 GHz"
    assert machine.cpu_name(tmp_path / "nothing")
