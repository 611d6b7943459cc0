"""Who may import whom: the table of ARCHITECTURE.md, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# folder: (its package, the packages of ours and of others that it may import)
LIGHT = {"msgpack", "pydantic", "rich", "tqdm", "zmq"}
TABLE = {
    "frontend": ("branchline", {"branchline"} | LIGHT),
    "radix": ("branchline.radix", {"branchline.radix", "numpy"}),
    "kernels": (
        "branchline.kernels",
        {"branchline.kernels", "llvmlite", "numba", "numpy", "torch", "triton"},
    ),
    "runtime": (
        "branchline.runtime",
        {"branchline", "branchline.kernels", "branchline.radix", "branchline.runtime"}
        | LIGHT
        | {"gguf", "huggingface_hub", "jinja2", "llguidance", "numpy"}
        | {"safetensors", "tokenizers", "torch", "transformers", "triton"},
    ),
    "gateway": (
        "branchline.gateway",
        {"branchline", "branchline.gateway", "fastapi", "prometheus_client", "starlette", "uvicorn"}
        | LIGHT,
    ),
    "examples": ("", {"branchline"}),
}

# `branchline.Engine` resolves, when it is first named, to the engine of the runtime.
EXCEPTIONS = {("frontend/__init__.py", "branchline.runtime")}

PARTS = {"branchline.gateway", "branchline.radix", "branchline.kernels", "branchline.runtime"}


def _package(module: str) -> str:
    """The unit that the table speaks of: one of our packages, else the top-level name."""
    ours = ".".join(module.split(".")[:2])
    return ours if ours in PARTS else module.split(".", maxsplit=1)[0]


def _imports(source: str, package: str) -> set[str]:
    """Every module that a file names in an import, wherever in the file it stands."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import in {package}"
            # `from branchline import runtime` names branchline.runtime
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args:
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            literal = node.args[0]
            if name in {"import_module", "__import__"} and isinstance(literal, ast.Constant):
                found.add(str(literal.value))
    return found


def _violations(file: str, source: str, package: str, allowed: set[str]) -> list[str]:
    named = {_package(module) for module in _imports(source, package)}
    named = {one for one in named if one not in sys.stdlib_module_names and one not in allowed}
    return [f"{file} imports {one}" for one in sorted(named) if (file, one) not in EXCEPTIONS]


@pytest.mark.parametrize("folder", TABLE)
def test_imports_follow_the_table(folder: str) -> None:
    package, allowed = TABLE[folder]
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder}/ has no source"
    found = []
    for path in files:
        file = path.relative_to(ROOT).as_posix()
        found += _violations(file, path.read_text(encoding="utf-8"), package, allowed)
    assert not found


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("frontend", "import torch"),
        ("frontend", "def f():\n    from branchline.runtime import loop"),
        ("frontend", "from branchline import radix"),
        ("frontend", "import importlib\nimportlib.import_module('numpy')"),
        ("radix", "from branchline.errors import InvalidRequest"),
        ("radix", "import torch.nn"),
        ("kernels", "from branchline.radix import PagePool"),
        ("examples", "from branchline.runtime import Engine"),
    ],
)
def test_a_violation_is_seen(folder: str, line: str) -> None:
    assert _violations(f"{folder}/x.py", line, *TABLE[folder])


def test_every_sub_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {folder: package for folder, (package, _) in TABLE.items() if package}
    there = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for folder, package in folders.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert there == set(project["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("module", ["branchline", "branchline.runtime.cli"])
def test_light_imports_stay_light(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'numpy', 'transformers', 'tokenizers'} & set(sys.modules)\n"
        "print(*sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
