# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Damage to JSON documents."""

import json


def places(thing, path=()):
    """Yield the path of every value in a document; a path is a tuple of keys and indices."""
    yield path
    children = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def replace_value(draw, document, values):
    """Replace one value of a document, in place, by one of ``values``; return the document as JSON.

    Args:
        draw: The `random.Random` that chooses.
        document: The document; not empty.
        values: What may stand in the place. None: the value is removed.
    """
    *above, last = draw.choice([path for path in places(document) if path])
    target = document
    for key in above:
        target = target[key]
    if values is None:
        del target[last]
    else:
        target[last] = draw.choice(values)
    return json.dumps(document).encode()
