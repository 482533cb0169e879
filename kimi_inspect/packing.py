"""What the bytes of each tensor mean: tensors of one module are put together, and `forms` says what they determine.

A weight and its scales share the name of their module: ``….experts.7.w1`` with ``weight_packed`` and ``weight_scale``.
What nothing determines has exact bytes and unknown parameters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.declared import Declaration, declaration_of
from kimi_inspect.dtypes import SAFETENSORS_BITS
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.forms import Verdict
from kimi_inspect.header import Kind
from kimi_inspect.leaves import CONTAINERS, LEAVES, ROLES, SCALES
from kimi_inspect.pairing import Case, Rows, Stored, cases_of
from kimi_inspect.patterns import Patterns
from kimi_inspect.sums import distinct, present
from kimi_inspect.table import Look
from kimi_inspect.values import Finding, Role

__all__ = ["Packing", "block_packing", "find_packing", "leaf_role"]

BLOCK_ROLES: dict[str, Role] = {"scale": Role.SCALE, "input_scale": Role.SCALE}
"""Last parts of GGUF names beside a weight: NVFP4 has a scale for the whole tensor."""

_ROLES = tuple(Role)
_ROLE_CODES = {role: code for code, role in enumerate(_ROLES)}

CONFIGURED = ("int", "affine")
"""Beginnings of the encodings whose widths and groups a config tells."""

# What a name says by itself; the others, `scales` or `biases`, only beside a packed weight.
_ALWAYS = {
    leaf: role
    for leaf, role in LEAVES.items()
    if leaf.startswith(("weight_", "input_", "k_", "v_")) and role is not Role.WEIGHT
}


@frozen(eq=False)
class Packing:
    """What each of n tensors means: `looks`, int32 [n] `look` into them, and what is wrong with it."""

    looks: list[Look]
    look: NDArray[np.int32]
    findings: list[Finding]


def block_packing(patterns: Patterns, kinds: Sequence[Kind], kind: NDArray[np.int32]) -> Packing:
    """Say for each GGUF tensor what its bytes mean: its type tells, scales stand inside the blocks.

    Dimensions are those of the values, so their number is known even where the type is not.
    """
    texts = set(patterns.texts)
    roles = np.array([_ROLE_CODES[_block_role(text, texts)] for text in patterns.texts] or [0])
    combined = kind.astype(np.int64) * len(Role) + roles[patterns.code]
    pairs, look = distinct(combined)
    looks = [_block_look(kinds[code // len(Role)], _ROLES[code % len(Role)]) for code in pairs.tolist()]
    return Packing(looks, look.astype(np.int32), [])


def _block_role(text: str, texts: Collection[str]) -> Role:
    stem, _, leaf = text.rpartition(".")
    return BLOCK_ROLES.get(leaf, Role.WEIGHT) if f"{stem}.weight" in texts else Role.WEIGHT


def _block_look(kind: Kind, role: Role) -> Look:
    return Look(
        encoding=kind.dtype.lower() if kind.nbytes is not None else f"unknown:{kind.dtype}",
        role=role,
        shape=kind.shape[::-1],
        parameters=prod(kind.shape) if role is Role.WEIGHT else 0,
    )


def find_packing(
    patterns: Patterns,
    kinds: Sequence[Kind],
    kind: NDArray[np.int32],
    *,
    config: Mapping[str, Any] | None,
    name_of: Callable[[int], str],
) -> Packing:
    """Say for each safetensors tensor what its bytes mean.

    Args:
        patterns: the patterns of the names.
        kinds: the distinct looks in the file.
        kind: int32 [n], into `kinds`.
        config: the parsed config.json, or None.
        name_of: gives the name of a row.
    """
    stored = Stored(patterns=patterns, kinds=kinds, kind=kind, name_of=name_of)
    return _Packer(stored, declaration_of(config)).packing()


class _Packer:
    def __init__(self, stored: Stored, declaration: Declaration) -> None:
        self._patterns = stored.patterns
        self._kinds = stored.kinds
        self._kind = stored.kind
        self._name_of = stored.name_of
        self._codes: dict[Look, int] = {}
        self._looks: list[Look] = []
        self._look = np.zeros(len(stored.kind), np.int32)
        self._cases = cases_of(stored, declaration)
        self._believed = self._borne_out() | {
            encoding for encoding in declaration.encodings if not encoding.startswith(CONFIGURED)
        }

    def _borne_out(self) -> set[str]:
        """Return the encodings that hold although a tensor may have a wrong shape: others have the right one.

        How wide integers are, and how many share a scale, the config tells: it is wrong where most tensors say so.
        """
        fits: Counter[str] = Counter()
        for case in self._cases:
            if case.verdict:
                fixed = not case.verdict.encoding.startswith(CONFIGURED)
                # Biases that are not as many as the scales say nothing of the width.
                wrong = case.verdict.misfit is not None and case.verdict.misfit[0] != "biases"
                fits[case.verdict.encoding] += 0 if wrong and fixed else len(case.rows) * (-1 if wrong else 1)
        return {encoding for encoding, count in fits.items() if count > 0}

    def packing(self) -> Packing:
        self._plain()
        for case in self._cases:
            self._settle(case)
        return Packing(self._looks, self._look, list(self._findings()))

    def _plain(self) -> None:
        """Give each tensor the look that its type and the last part of its name make."""
        roles = np.array([_ROLE_CODES[leaf_role(text)] for text in self._patterns.texts] or [0])
        combined = self._kind.astype(np.int64) * len(Role) + roles[self._patterns.code]
        pairs, index = distinct(combined)
        looks = [_plain_look(self._kinds[code // len(Role)], _ROLES[code % len(Role)]) for code in pairs.tolist()]
        self._look = np.array([self._code(look) for look in looks] or [0], np.int32)[index]

    def _code(self, look: Look) -> int:
        code = self._codes.setdefault(look, len(self._codes))
        if code == len(self._looks):
            self._looks.append(look)
        return code

    def _settle(self, case: Case) -> None:
        """Give weights and what belongs to them the look that they make together."""
        verdict = case.verdict
        borne_out = verdict is not None and (not verdict.misfit or verdict.encoding in self._believed)
        if verdict is not None and (borne_out or (verdict.by_tensors and verdict.encoding.startswith("int"))):
            look = Look(
                encoding=verdict.encoding,
                role=Role.WEIGHT,
                shape=verdict.shape,
                parameters=verdict.parameters,
                group_size=verdict.group_size,
            )
            self._look[case.rows] = self._code(look)
        elif case.kind.dtype in CONTAINERS and case.suspect:
            unknown = f"unknown:{case.kind.dtype.lower()}"
            look = Look(encoding=unknown, role=Role.WEIGHT, shape=None, parameters=None)
            self._look[case.rows] = self._code(look)
            self._belongs(look, Role.BOOKKEEPING, case.extras)
        elif case.scale:
            look = self._looks[self._look[case.rows[0]]]
        else:
            return
        for leaf, rows in case.partners.items():
            self._belongs(look, ROLES[leaf], rows)

    def _belongs(self, weight: Look, role: Role, rows: Rows) -> None:
        """Give tensors the role that they have for a weight, and its encoding."""
        for code in present(self._kind[rows]).tolist():
            look = Look(
                encoding=weight.encoding,
                role=role,
                shape=self._kinds[code].shape,
                parameters=0,
                group_size=weight.group_size,
            )
            self._look[rows[self._kind[rows] == code]] = self._code(look)

    def _findings(self) -> Iterator[Finding]:
        yield from self._missing()
        yield from self._incomplete()
        yield from self._misshapen()
        yield from self._disagreeing()

    def _missing(self) -> Iterator[Finding]:
        """Find packed weights without a scale: by their name, or since others of the kind have one."""
        scales: dict[tuple[str, str], str] = {}
        for case in self._cases:
            if case.scale:
                scales.setdefault((case.text, case.main), case.scale)
        lacking = [
            (row, case.main, scales.get((case.text, case.main)) or _scale_name(case))
            for case in self._cases
            if not case.scale
            and case.main in SCALES
            and (case.kind.dtype in CONTAINERS or case.kind.dtype.startswith("F8_E"))
            and (case.main != "weight" or (case.text, case.main) in scales or (case.spec and not len(case.extras)))
            for row in case.rows.tolist()
        ]
        if lacking:
            names = [
                self._name_of(row).removesuffix(main) + scale for row, main, scale in sorted(lacking)[:MAX_EXAMPLES]
            ]
            message = "a packed weight has no scale beside it; loaders fail, or put ones in its place"
            yield finding("scale-missing", names[0], message, tensor=names[0], count=len(lacking), examples=names)

    def _incomplete(self) -> Iterator[Finding]:
        """Find packed weights without something else that their form has."""
        lacking = [
            self._name_of(row).removesuffix(case.main) + case.verdict.lacks
            for case in self._cases
            if case.verdict and case.verdict.lacks
            for row in case.rows.tolist()
        ]
        if lacking:
            names = sorted(lacking)
            message = "a packed weight lacks what its form, by the config, has beside it; loaders fail"
            yield finding("tensor-missing", names[0], message, tensor=names[0], count=len(names), examples=names)

    def _misshapen(self) -> Iterator[Finding]:
        """Find scales of a wrong shape."""
        wrong = [
            (case, case.verdict, case.verdict.misfit)
            for case in self._cases
            if case.verdict and case.verdict.misfit and case.verdict.encoding in self._believed
        ]
        if not wrong:
            return
        case, verdict, (leaf, expected) = wrong[0]
        rows = [row for one, _, (scale, _) in wrong for row in one.partners[scale].tolist()]
        names = [self._name_of(row) for row in rows[:MAX_EXAMPLES]]
        yield finding(
            "scale-shape",
            names[0],
            f"a scale does not fit its weight of {_extent(verdict)} in {verdict.encoding}",
            expected=list(expected),
            actual=list(self._kinds[self._kind[case.partners[leaf][0]]].shape),
            tensor=names[0],
            count=len(rows),
            examples=names,
        )

    def _disagreeing(self) -> Iterator[Finding]:
        """Find weights whose tensors show another encoding than the config declares for them."""
        counts: dict[tuple[str, str], list[Case]] = {}
        for case in self._cases:
            declared = case.spec.encoding if case.spec else None
            if case.verdict is None or declared is None:
                continue
            if case.verdict.misfit and case.verdict.encoding not in self._believed:
                counts.setdefault((declared, "groups of another size"), []).append(case)
            elif case.verdict.by_tensors and declared != case.verdict.encoding:
                counts.setdefault((declared, case.verdict.encoding), []).append(case)
            elif case.spec and case.spec.method and case.verdict.layout not in (None, case.spec.method):
                counts.setdefault((case.spec.method, str(case.verdict.layout)), []).append(case)
        for (declared, found), cases in counts.items():
            count = sum(len(case.rows) for case in cases)
            message = f"{count:,} weights are packed as {found}, but the config declares {declared}"
            names = [self._name_of(int(row)) for row in cases[0].rows[:MAX_EXAMPLES]]
            yield finding(
                "packing-disagrees",
                "config.json",
                message,
                expected=declared,
                actual=found,
                tensor=names[0],
                count=count,
                examples=names,
            )


def _scale_name(case: Case) -> str:
    """Return what the scale of a weight would be called, were it there."""
    declared = case.spec.scale if case.spec and case.main == "weight" else None
    return declared or SCALES[case.main][0]


def _extent(verdict: Verdict) -> str:
    return f"{verdict.parameters:,} values" if verdict.shape is None else f"shape {list(verdict.shape)}"


_MASKED_ALWAYS = {re.sub("[0-9]+", "0", leaf): role for leaf, role in _ALWAYS.items()}


def leaf_role(text: str) -> Role:
    """Return what a name, its numbers written as one 0, says by itself of the role."""
    return _MASKED_ALWAYS.get(text.rpartition(".")[2], Role.WEIGHT)


def _plain_look(kind: Kind, role: Role) -> Look:
    known = kind.dtype in SAFETENSORS_BITS
    return Look(
        encoding=kind.dtype.lower() if known else f"unknown:{kind.dtype}",
        role=role,
        shape=kind.shape if known else None,
        parameters=0 if role is not Role.WEIGHT else prod(kind.shape) if known else None,
    )
