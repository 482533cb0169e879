"""Which engines load a checkpoint, as far as that is known.

An engine has to know the model, and every way in which its weights are packed. What no rule knows is `unknown`, never
a guess; what is damaged no engine loads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.counted import all_opened
from kimi_inspect.engines import ENGINES, Engine
from kimi_inspect.loader_rules import NO, UNKNOWN, YES, Answer, Build
from kimi_inspect.published import CHECKED, OWN_ENGINES, repository_of
from kimi_inspect.report import Report
from kimi_inspect.table import TensorTable
from kimi_inspect.values import Role, Severity
from kimi_inspect.verdict import Loader

__all__ = ["loaders_of"]

_ORDER = (NO, UNKNOWN, YES)
"""The first of these that a rule says is what an engine does."""

_OF_ENGINES = frozenset({"foreign-type", "name-too-long"})
"""Errors that are not the file's but an engine's with it: rules below judge them."""


@frozen
class _Layout:
    """What weights in a layout look like: the end of their names, stored type, start of the encoding; "" fits any."""

    name: str
    leaf: str = ""
    dtype: str = ""
    encoding: str | tuple[str, ...] = ""

    def fits(self, leaf: str, dtype: str, encoding: str) -> bool:
        return leaf.endswith(self.leaf) and self.dtype in ("", dtype) and encoding.startswith(self.encoding)


_LAYOUTS = (
    _Layout("no known form", encoding="unknown:"),
    _Layout("bitsandbytes", encoding=("nf4", "bnb_")),
    _Layout("compressed-tensors", leaf="weight_packed"),
    _Layout("GPTQ or AWQ", leaf="qweight"),
    _Layout("gpt-oss blocks", leaf="_blocks"),
    _Layout("MLX", dtype="U32"),
    _Layout("ModelOpt", dtype="U8", encoding="nvfp4"),
    _Layout("FP8 blocks", encoding="fp8_block"),
    _Layout("FP8", encoding="f8_"),
    _Layout("INT8", encoding="int8"),
    _Layout("bytes", encoding=("mxfp4", "mxfp8", "nvfp4")),
    _Layout("plain"),
)
"""The first that fits. Source: the forms in docs/encodings.md."""


def loaders_of(checkpoint: Checkpoint, report: Report) -> tuple[Loader, ...]:
    """Say of each engine whether it loads a checkpoint, as far as that is known; nothing is read.

    A build that its publisher made for an engine of its own has a row for that too.
    """
    trouble, build = _trouble(checkpoint, report), _build(checkpoint, report)
    rows = [_row(engine.name, trouble or _answer(engine, build, report.format)) for engine in ENGINES]
    own = OWN_ENGINES.get(repository_of(checkpoint.source, checkpoint.commit) or "")
    if own is not None:
        named = Answer(YES, own.reason, f"notes of the repository, read {CHECKED}")
        rows.append(_row(own.engine, trouble or named))
    return tuple(rows)


def _row(engine: str, answer: Answer) -> Loader:
    return Loader(engine=engine, support=answer.support, reason=answer.reason, rule=answer.rule)


def _trouble(checkpoint: Checkpoint, report: Report) -> Answer | None:
    """Say what keeps any engine from a checkpoint, or keeps us from judging it; None if nothing does."""
    errors = [item.code for item in report.findings if item.severity is Severity.ERROR and item.code not in _OF_ENGINES]
    if errors:
        shown = ", ".join(dict.fromkeys(errors))
        return Answer(NO, f"it is damaged: {shown}", "docs/findings.md: an error is what a loader fails at")
    if not all_opened([shard.path for shard in checkpoint.shards]):
        return Answer(UNKNOWN, "only a part of the set was opened", "the numbers in the names of its files")
    return None


def _build(checkpoint: Checkpoint, report: Report) -> Build:
    is_gguf = checkpoint.format == "gguf"
    sides = {item.path for item in checkpoint.companions if item.counted}
    by_mlx = checkpoint.metadata.get("format") == "mlx"
    found = dict.fromkeys(_packings(checkpoint.tensors))
    return Build(
        architecture=checkpoint.architecture if is_gguf else checkpoint.family,
        packings=tuple(
            ("plain by MLX" if by_mlx and layout == "plain" else layout, encoding) for layout, encoding in found
        ),
        codes=frozenset(item.code for item in report.findings),
        config=checkpoint.config or {},
        paths=tuple(shard.path for shard in checkpoint.shards if shard.path not in sides),
    )


def _packings(tensors: TensorTable) -> Iterator[tuple[str, str]]:
    """Yield layout and encoding of the weights: of each look in the files, one tensor stands for all."""
    columns, rows = tensors.columns, tensors.rows
    pairs = columns.kind[rows].astype(np.int64) * max(len(columns.looks), 1) + columns.look[rows]
    _, firsts = np.unique(pairs, return_index=True)
    for row in rows[firsts].tolist():
        kind, look = columns.kinds[columns.kind[row]], columns.looks[columns.look[row]]
        if look.role is Role.WEIGHT:
            leaf = tensors.name_of(row).rpartition(".")[2]
            layout = next(one.name for one in _LAYOUTS if one.fits(leaf, kind.dtype, look.encoding))
            if layout == "GPTQ or AWQ":
                # A matrix of [in, out]: GPTQ packs what comes in, AWQ what goes out.
                layout = "GPTQ" if look.shape and kind.shape[1:] == look.shape[:1] else "AWQ"
            yield layout, look.encoding


def _answer(engine: Engine, build: Build, weights_format: str) -> Answer:
    """Put together what the rules of an engine say: the worst of it, or all where nothing stands against it."""
    if weights_format != engine.format:
        return engine.otherwise
    answers = [answer for rule in engine.rules for answer in rule(build)]
    worst = min(answers, key=lambda answer: _ORDER.index(answer.support))
    if worst.support is not YES:
        return worst
    reasons, rules = (dict.fromkeys(texts) for texts in zip(*((one.reason, one.rule) for one in answers), strict=True))
    return Answer(YES, "; ".join(reasons), "; ".join(rules))
