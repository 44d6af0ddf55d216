# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Extension of griffe: the code below ``Example:`` in a docstring is shown as code."""

import re
import textwrap

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)


def _fence(match):
    code = textwrap.dedent(match[1]).strip()
    return f"Example:\n    ```python\n{textwrap.indent(code, '    ')}\n    ```\n"


class DocstringExamples(griffe.Extension):
    """Fences examples."""

    def on_object(self, *, obj, **_):
        """Change the docstring of one object, when it has been loaded."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fence, obj.docstring.value)
