"""How fast attention is: batches of decodes, shared prefixes, extends; other configurations."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.nn import functional

from branchline.kernels import Segment
from branchline.kernels.triton import aot, attention, extend, tiles
from branchline.kernels.triton.tile_shapes import NARROW, SIZES, WIDE
from gpu_stages.cases import Case
from gpu_stages.record import Row
from gpu_stages.targets import ATTENTION_LARGE, ATTENTION_SMALL, EXTEND_RATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from branchline.kernels.triton.tile_shapes import Heads
    from branchline.kernels.triton.variant import Variant
    from gpu_stages.bench import Bench

LARGE, SMALL = 65536, 16384  # positions of a batch, from which there are targets
MOST_SETS = 64


def run(bench: Bench) -> Iterator[Row]:
    """Each kind of batch at the sizes of the protocol."""
    for rows, context in bench.scale.attention:
        yield _decode(bench, rows, context)
    rows, context = bench.scale.attention[-1]
    yield _decode(bench, rows, context, scattered=False)
    if bench.on_device:
        yield _dense(bench, rows, context)
    for rows, shared, own in bench.scale.cascade:
        yield from _cascade(bench, rows, shared, own)
    yield _short(bench, *bench.scale.short_extend)
    yield _long(bench, bench.scale.long_extend)


def _case(
    bench: Bench,
    queries: list[int],
    lengths: list[int],
    segments: list[Segment] | None = None,
    *,
    scattered: bool = True,
) -> Case:
    """With as many pools as no cache holds."""
    heads = bench.scale.heads
    saved = sum((one.end - one.start) * (len(one.rows) - 1) for one in segments or ())
    read = sum(lengths) - saved
    once = 2 * read * heads.kv_heads * heads.size * heads.dtype.itemsize
    sets = min(MOST_SETS, max(1, -(-bench.scale.pool_bytes // once)))
    arguments = (bench.device, heads, queries, lengths, segments or ())
    return Case(*arguments, scattered=scattered, sets=sets)


def _decode(bench: Bench, rows: int, context: int, *, scattered: bool = True) -> Row:
    case = _case(bench, [1] * rows, [context] * rows, scattered=scattered)
    times = bench.timer.calls(case.calls())
    reads = rows * context * case.position_bytes
    percent = bench.percent(reads, times.median)
    target = None
    if bench.on_device and rows * context >= SMALL:
        target = ATTENTION_LARGE if rows * context >= LARGE else ATTENTION_SMALL
    where = "" if scattered else ", pages in order"
    note = f"{1e6 * times.median:.1f} us, {times.note}"
    return Row(f"decode {rows} × {context}{where}: of copy", percent, "%", target, note)


def _dense(bench: Bench, rows: int, context: int) -> Row:
    """What torch has, over K and V without pages."""
    heads = bench.scale.heads
    q = bench.normal(rows, heads.kv_heads * heads.group, 1, heads.size)
    k, v = (bench.normal(rows, heads.kv_heads, context, heads.size) for _ in range(2))

    def call() -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    times = bench.timer.calls([call])
    percent = bench.percent(2 * k.numel() * k.dtype.itemsize, times.median)
    return Row(f"torch's, dense {rows} × {context}: of copy", percent, "%", note=times.note)


def _cascade(bench: Bench, rows: int, shared: int, own: int) -> Iterator[Row]:
    lengths = [shared + own] * rows
    segment = Segment(0, shared, tuple(range(rows)))
    case = _case(bench, [1] * rows, lengths, [segment])
    once = bench.timer.calls(case.calls())
    case.load(lengths)  # the same pages, read by each row for itself
    apart = bench.timer.calls(case.calls())
    note = f"{1e6 * once.median:.1f} us, unshared {1e6 * apart.median:.1f} us"
    yield Row(f"shared {rows} × {shared} + {own}", apart.median / once.median, "x", note=note)


def _short(bench: Bench, new: int, cached: int) -> Row:
    case = _case(bench, [new], [cached + new])
    times = bench.timer.calls(case.calls())
    percent = bench.percent((cached + new) * case.position_bytes, times.median)
    note = f"{1e6 * times.median:.1f} us, {times.note}"
    return Row(f"{new} new after {cached}: of copy", percent, "%", note=note)


def _long(bench: Bench, tokens: int) -> Row:
    heads = bench.scale.heads
    case = Case(bench.device, heads, [tokens], [tokens])
    times = bench.timer.calls(case.calls(), 5)
    operations = 2 * tokens**2 * heads.kv_heads * heads.group * heads.size
    rate = operations / times.median / 1e12
    target = EXTEND_RATE if bench.on_device else None
    return Row(f"prompt of {tokens}", rate, "TFLOP/s", target, f"{1e3 * times.median:.3f} ms")


# ------------------------------------------------------------------------------ configurations

# Block of positions, warps, stages, programs of a multiprocessor; beside what is shipped.
_TILES = {
    NARROW: (
        (64, 4, 3, 3),
        (64, 8, 3, 2),
        (32, 4, 5, 4),
        (32, 4, 2, 5),
        (128, 4, 3, 3),
        (64, 4, 7, 2),
        (64, 2, 5, 3),
    ),
    WIDE: ((64, 8, 3, 1), (32, 4, 3, 2), (128, 8, 3, 1), (64, 4, 5, 2)),
}
# Block of queries, block of positions, warps, stages.
_EXTENDS = ((64, 64, 4, 3), (128, 64, 8, 5), (128, 64, 8, 2), (128, 128, 8, 3), (128, 32, 8, 3))
_SIZE = 128  # of a head


def candidates() -> list[tuple[Any, Any, Any]]:
    """Table of launches, key, launch: what is shipped for heads of 128, then the others."""
    found: list[tuple[Any, Any, Any]] = []
    for rows, launches in _TILES.items():
        found.append((tiles, (rows, _SIZE), tiles._LAUNCHES[rows, _SIZE]))
        found += [(tiles, (rows, _SIZE), tiles.Launch(*launch)) for launch in launches]
    found.append((extend, _SIZE, extend._LAUNCHES[_SIZE]))
    found += [(extend, _SIZE, extend.Launch(*launch)) for launch in _EXTENDS]
    return found


def build_candidate(number: int, architecture: int) -> int:
    """Compile one; how often it spills."""
    module, key, launch = candidates()[number]
    with _launched(module, key, launch):
        variant = _variant(SIZES[0], key[0] if module is tiles else None)
    return aot.build(variant, architecture).spills


def build_shipped(heads: Heads, architecture: int) -> int:
    """Compile what these heads are launched with; how often it spills."""
    variants = [_variant(heads, rows) for rows in (NARROW, WIDE, None)]
    return sum(aot.build(variant, architecture).spills for variant in variants)


def _variant(heads: Heads, rows: int | None) -> Variant:
    """Tiles of so many rows, or the extend; as it is launched over a runner's page table.

    The compiler is told that 16 divides its stride, so that what it makes is found in its cache.
    """
    variant = extend.extend_variant(heads) if rows is None else tiles.tiles_variant(rows, heads)
    return replace(variant, aligned=frozenset({"table_stride"}))


@contextmanager
def _launched(module: Any, key: Any, launch: Any) -> Iterator[None]:
    """A block in which a kernel is launched in this way."""
    shipped = module._LAUNCHES[key]
    module._LAUNCHES[key] = launch
    _forget()
    try:
        yield
    finally:
        module._LAUNCHES[key] = shipped
        _forget()


def _forget() -> None:
    for cached in (tiles.tiles_variant, extend.extend_variant, attention.geometry_of):
        cached.cache_clear()


def configurations(bench: Bench) -> Iterator[Row]:
    """Each configuration on the batches that depend on it most."""
    bench.need_device()
    rows, shared = 64, 5920
    segment = Segment(0, shared, tuple(range(rows)))
    batches: dict[int | None, dict[str, tuple[list[int], list[int], list[Segment]]]] = {
        NARROW: {
            "64 × 2048": ([1] * 64, [2048] * 64, []),
            "1 × 32768": ([1], [32768], []),
            "1 × 1024": ([1], [1024], []),
        },
        WIDE: {
            f"{rows} × {shared} + 64": ([1] * rows, [shared + 64] * rows, [segment]),
            "17 new after 5920": ([17], [5937], []),
        },
        None: {"prompt of 8192": ([8192], [8192], [])},
    }
    first: dict[str, float] = {}  # batch -> seconds as shipped, which comes first
    for module, key, launch in candidates():
        rows_of_tiles = key[0] if module is tiles else None
        for name, (queries, lengths, segments) in batches[rows_of_tiles].items():
            with _launched(module, key, launch):
                try:
                    case = _case(bench, queries, lengths, segments)
                    times = bench.timer.calls(case.calls(), 10)
                except Exception as error:  # noqa: BLE001 - it does not fit the device: the next one
                    note = type(error).__name__
                    yield Row(f"{name} {_short_name(launch)}", float("nan"), "us", note=note)
                    continue
            shipped = first.setdefault(name, times.median)
            note = f"{shipped / times.median:.2f} of the shipped one's speed, {times.note}"
            yield Row(f"{name} {_short_name(launch)}", 1e6 * times.median, "us", note=note)


def _short_name(launch: Any) -> str:
    fields = [str(getattr(launch, name)) for name in launch.__slots__]
    return "/".join(fields)
