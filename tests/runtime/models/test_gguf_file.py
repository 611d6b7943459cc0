"""GGUF files: their values, and every way in which one can be damaged."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from branchline.errors import ModelError
from branchline.runtime.models.gguf_file import GGUFFile

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)


def write(path: Path, **extra: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 0.5)
    writer.add_bool("yes", val=True)
    writer.add_array("words", ["a", "", "Ġthe", "世界"])
    writer.add_array("numbers", [1, -2, 3])
    for key, value in extra.items():
        writer.add_uint16(key.replace("_", "."), value)
    writer.add_tensor("plain", MATRIX)
    writer.add_tensor("packed", gguf.quantize(MATRIX, Kind.Q8_0), raw_dtype=Kind.Q8_0)
    writer.add_tensor("whole", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "some.gguf")
    return tmp_path / "some.gguf"


def test_values_are_plain(path: Path) -> None:
    file = GGUFFile(path)
    assert file.architecture == "llama"
    assert file.model_value("block_count") == 2
    assert file.value("llama.rope.freq_base") == 0.5
    assert file.value("yes") is True
    assert file.value("words") == ["a", "", "Ġthe", "世界"]
    assert file.value("numbers") == [1, -2, 3]
    assert file.value("nothing") is None
    assert file.value("nothing", 7) == 7


def test_tensors_have_their_rows_first(path: Path) -> None:
    file = GGUFFile(path)
    assert list(file.names()) == ["plain", "packed", "whole"]
    assert "plain" in file
    assert "absent" not in file
    assert file.shape("packed") == (4, 64)
    np.testing.assert_array_equal(file.tensor("plain"), MATRIX)
    packed = file.tensor("packed")
    assert packed.dtype == np.float32
    np.testing.assert_allclose(packed, MATRIX, atol=5e-3)
    packed[:] = 0  # a copy of its own


def test_a_tensor_that_cannot_be_had(path: Path) -> None:
    file = GGUFFile(path)
    with pytest.raises(ModelError, match=r"some\.gguf: has no tensor absent"):
        file.tensor("absent")
    with pytest.raises(ModelError, match=r"some\.gguf: whole is I32, which is not supported"):
        file.tensor("whole")


@pytest.mark.parametrize("name", ["absent.gguf", "."])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="no such file"):
        GGUFFile(tmp_path / name)


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "some.gguf"
    for content in (b"", b"GG", b"GGUF", b"PK\x03\x04" + bytes(100), b"GGUF\x09\0\0\0" + bytes(99)):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"some\.gguf: not a GGUF file, or a damaged one"):
            GGUFFile(path)


def test_a_file_cut_short_anywhere(path: Path) -> None:
    content = path.read_bytes()
    end = max(tensor.data_offset + tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
    assert end <= len(content)  # behind it is only padding
    for size in [*range(0, end, 5), end - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"some\.gguf: not a GGUF file, or a damaged one"):
            GGUFFile(path)


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "some.gguf", "llama")
    writer.add_tensor("plain", np.full((2, 32), np.inf, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="plain holds values that are not finite"):
        GGUFFile(tmp_path / "some.gguf").tensor("plain")


def test_damaged_bytes_are_an_error_or_another_value(path: Path) -> None:
    content = path.read_bytes()
    generator = random.Random(0)
    messages = []
    for _ in range(500):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(600)] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            file = GGUFFile(path)
            for key in ("words", "numbers", "yes", "general.architecture"):
                file.value(key)
            for name in file.names():
                file.tensor(name)
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all("some.gguf: " in message for message in messages)


def test_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "part.gguf", split_count=3)
    with pytest.raises(ModelError, match="one part of a split model"):
        GGUFFile(tmp_path / "part.gguf")
