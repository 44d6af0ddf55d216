# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tools of a training with verl: the file that ``multi_turn.function_tool_path`` names."""

from tool import add
from verl.tools.function_tool import function_tool

# verl reads the schema for the model from the signature and the docstring, which the decorator of verl-otel keeps.
function_tool(add)
