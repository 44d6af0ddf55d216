# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Steps without detail in 0.6 kB instead of 4 kB each, so that a process that shows a long run stays small.

What differs from step to step is encoded, and compressed with an earlier step as the dictionary: steps of a run resemble each other. It is
decoded on access, in about 10 µs.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple, cast

import msgspec

from verl_otel.analysis.model import Cost, DeviceTime, Phase, Step, Straggler

_ENCODER: Final = msgspec.msgpack.Encoder()
_WINDOW_BITS: Final = -12
"""4 kB without a header: larger than an encoded step."""
_MEMORY_LEVEL: Final = 5


class _Detail(NamedTuple):
    """The fields that are encoded."""

    phases: tuple[Phase, ...]
    no_phase: float
    groups: tuple[tuple[str, str, int], ...]
    between_groups: tuple[tuple[str, str, int], ...]
    stragglers: tuple[Straggler, ...]
    devices: tuple[DeviceTime, ...]
    cost: Cost | None
    quantiles: tuple[float, ...]
    uncertainty: float
    blind_spots: tuple[str, ...]
    gen_start_ns: int
    rollouts_end_ns: int
    gen_end_ns: int
    next_ns: int


_DECODER: Final = msgspec.msgpack.Decoder(_Detail)
_DETAIL: Final = Step._fields.index("phases")
_DICTIONARY: Final = Step._fields.index("groups")
_IS_STARTING: Final = Step._fields.index("between_groups")
_COST: Final = Step._fields.index("cost")
_EMPTY: Final[dict[str, Any]] = dict.fromkeys(_Detail._fields)


class ShortStep(Step):
    """A step whose encoded fields are decoded on access. Its tuple holds other data in the slots of some."""

    __slots__ = ()

    def detail(self) -> _Detail:
        """Return the encoded fields."""
        dictionary, encoded = cast("bytes", self[_DICTIONARY]), cast("bytes", self[_DETAIL])
        return _DECODER.decode(zlib.decompressobj(_WINDOW_BITS, dictionary).decompress(encoded))

    phases = property(lambda self: self.detail().phases)
    no_phase = property(lambda self: self.detail().no_phase)
    groups = property(lambda self: self.detail().groups)
    between_groups = property(lambda self: self.detail().between_groups)
    stragglers = property(lambda self: self.detail().stragglers)
    devices = property(lambda self: self.detail().devices)
    cost = property(lambda self: self.detail().cost if self[_COST] is None else self[_COST])
    """The slot is set where tokens that no step trained on were added later."""
    quantiles = property(lambda self: self.detail().quantiles)
    uncertainty = property(lambda self: self.detail().uncertainty)
    blind_spots = property(lambda self: self.detail().blind_spots)
    gen_start_ns = property(lambda self: self.detail().gen_start_ns)
    rollouts_end_ns = property(lambda self: self.detail().rollouts_end_ns)
    gen_end_ns = property(lambda self: self.detail().gen_end_ns)
    next_ns = property(lambda self: self.detail().next_ns)
    is_starting = property(lambda self: self[_IS_STARTING])
    """Not decoded: the steps of a run are searched for it often."""


class Shortener:
    """Makes short steps. The first one becomes the dictionary of all."""

    def __init__(self) -> None:
        self._dictionary = b""

    def pack(self, step: Step) -> Step:
        """Return a step without detail in its short form; unchanged if it has numbers of more than 64 bits, which damaged files contain."""
        try:
            encoded = _ENCODER.encode(_Detail(*[getattr(step, name) for name in _Detail._fields]))
        except OverflowError:
            return step
        self._dictionary = self._dictionary or encoded
        compressor = zlib.compressobj(
            zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY,
            self._dictionary,
        )  # fmt: skip
        values: list[Any] = list(step._replace(**_EMPTY))
        values[_DETAIL] = compressor.compress(encoded) + compressor.flush()
        values[_DICTIONARY] = self._dictionary
        values[_IS_STARTING] = step.is_starting
        return tuple.__new__(ShortStep, values)


def unpack(step: Step) -> Step:
    """Return a step with all its fields in its tuple, for access to several of them."""
    if not isinstance(step, ShortStep):
        return step
    cost = cast("Cost | None", step[_COST])
    whole = Step._make(step)._replace(**step.detail()._asdict())
    return whole if cost is None else whole._replace(cost=cost)
