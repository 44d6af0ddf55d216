# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Values that a caller should not give, each made anew by a function."""

import enum
import weakref


class HostileError(Exception):
    """What the methods of hostile objects raise."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def refuse(*_args, **_kwargs):
    raise HostileError


class EverythingFails:
    """Fails whatever it is asked."""

    __str__ = __repr__ = __len__ = __bool__ = __hash__ = __eq__ = __iter__ = __float__ = __int__ = __index__ = refuse
    __format__ = __lt__ = __gt__ = __le__ = __ge__ = __getitem__ = __contains__ = refuse


class NoAttributes:
    def __getattribute__(self, name):
        raise HostileError


class NoClass:
    __class__ = property(refuse)


class Attributeless:
    __getattr__ = refuse


class HostileMeta(type):
    __getattribute__ = refuse


class OfHostileMeta(metaclass=HostileMeta):
    """An object whose class refuses to be asked."""


class HostileType(type):
    __instancecheck__ = __subclasscheck__ = __str__ = __repr__ = __getattribute__ = refuse


class HostileText(str):  # noqa: SLOT000 - as users write it
    __str__ = __repr__ = __len__ = __getitem__ = __hash__ = __eq__ = __format__ = refuse


class HostileFloat(float):
    __float__ = __lt__ = __gt__ = __eq__ = __ne__ = __add__ = __radd__ = __hash__ = refuse


class HostileInteger(int):
    __int__ = __index__ = __float__ = __lt__ = __gt__ = __eq__ = __add__ = __radd__ = __hash__ = __bool__ = refuse


class HostileMapping(dict):
    items = keys = values = get = __iter__ = __len__ = __getitem__ = __contains__ = refuse


class HostileList(list):
    __iter__ = __len__ = __getitem__ = __eq__ = refuse


class Endless:
    """A sequence without an end."""

    def __len__(self):
        return 2**62

    def __getitem__(self, index):
        return index


class Colour(enum.Enum):
    RED = "red"


def dead_proxy():
    return weakref.proxy(type("Short", (), {})())


def circular_list():
    made = []
    made.append(made)
    return made


def circular_mapping():
    made = {}
    made["self"] = made
    return made


def nested_list(depth):
    made = []
    for _ in range(depth):
        made = [made]
    return made


def interrupted_generator():
    raise HostileError
    yield


VALUES = {
    "all methods fail": EverythingFails,
    "no attributes": NoAttributes,
    "attributes fail": Attributeless,
    "no class": NoClass,
    "no metaclass": lambda: object.__new__(OfHostileMeta),
    "hostile type": lambda: HostileType("Hostile", (), {}),
    "hostile exception": HostileError,
    "hostile text": lambda: HostileText("text"),
    "empty hostile text": lambda: HostileText(""),
    "exception with a hostile argument": lambda: ValueError(EverythingFails()),
    "hostile float": lambda: HostileFloat(1.5),
    "hostile integer": lambda: HostileInteger(3),
    "hostile mapping": lambda: HostileMapping(a=1),
    "hostile list": lambda: HostileList([1]),
    "endless sequence": Endless,
    "dead proxy": dead_proxy,
    "circular list": circular_list,
    "circular mapping": circular_mapping,
    "deep list": lambda: nested_list(100_000),
    "nested list": lambda: nested_list(90),
    "generator": interrupted_generator,
    "plain generator": lambda: (number for number in range(3)),
    "unhashable": lambda: [[1], {}],
    "keys that are no text": lambda: {1: 2, None: 3, (1, 2): 4, HostileError(): 5},
    "negative huge integer": lambda: -(10**400),
    "object": object,
    "huge integer": lambda: 10**6000,
    "negative": lambda: -1,
    "not a number": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "complex": lambda: 1j,
    "surrogate": lambda: "\ud800",
    "control characters": lambda: 'a\0b\n"} 1\n# HELP x\r\x1b[31m',
    "empty text": str,
    "long text": lambda: "x" * 1_000_000,
    "bytes": lambda: b"\xff\x00",
    "memory view": lambda: memoryview(b"abc"),
    "none": lambda: None,
    "not implemented": lambda: NotImplemented,
    "ellipsis": lambda: ...,
    "type": lambda: int,
    "enumeration": lambda: Colour.RED,
    "nested mapping": lambda: {"a": {"b": [1, {"c": None}]}, 1: 2, None: 3},
    "mixed list": lambda: [1, "a", None, 2.5, b"x"],
    "many attributes": lambda: {f"key{number}": "v" * 5_000 for number in range(1_000)},
    "module": lambda: enum,
}
