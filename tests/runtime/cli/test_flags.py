from __future__ import annotations

import argparse
from dataclasses import fields

import pytest

from branchline.runtime.cli.flags import add_config_flags, given_settings
from branchline.runtime.config import RuntimeConfig


def parse(*arguments: str) -> RuntimeConfig:
    parser = argparse.ArgumentParser()
    add_config_flags(parser)
    return RuntimeConfig(**given_settings(parser.parse_args(arguments)))


def test_without_flags_the_defaults_hold() -> None:
    assert parse() == RuntimeConfig()


def test_every_field_has_a_flag_with_its_help() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser)
    help_text = " ".join(parser.format_help().split())
    for field in fields(RuntimeConfig):
        assert "--" + field.name.replace("_", "-") in help_text
        assert " ".join(field.metadata["help"].split()) in help_text


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--model", "m.gguf"], {"model": "m.gguf"}),
        (["--kv-memory", "2GiB"], {"kv_memory": "2GiB"}),
        (["--max-running", "7"], {"max_running": 7}),
        (["--max-context", "2048"], {"max_context": 2048}),
        (["--heartbeat", "0.5"], {"heartbeat": 0.5}),
        (["--overlap"], {"overlap": True}),
        (["--no-overlap"], {"overlap": False}),
        (["--no-cache"], {"cache": False}),
    ],
)
def test_a_flag_sets_its_field(flags: list[str], expected: dict[str, object]) -> None:
    assert parse(*flags) == RuntimeConfig(**expected)  # type: ignore[arg-type]


def test_a_value_of_the_wrong_type_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--max-running", "many")
    assert "--max-running" in capsys.readouterr().err
