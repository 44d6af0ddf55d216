# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Results that are printed as they are: JSON objects, whose fields describe themselves."""

from __future__ import annotations

from typing import Annotated

import msgspec


def about(text: str) -> msgspec.Meta:
    """Return the description of a key."""
    return msgspec.Meta(description=text)


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON object with exactly these keys. Its docstring is its description."""


Number = Annotated[float, msgspec.Meta(extra_json_schema={"nullable": True})]
"""A number that is null in JSON where it is not finite."""
