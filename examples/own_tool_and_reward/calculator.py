# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The same tool as a class, for tools that hold something for the time of a trajectory."""

from typing import Any
from uuid import uuid4

from tool import read_digits
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

import verl_otel


def read_answer(arguments: dict[str, Any], result: Any) -> dict[str, Any]:
    """Return the attributes of one call."""
    return read_digits(arguments, result[0].text)


class Calculator(BaseTool):
    """Adds numbers and counts its calls in each trajectory.

    The call (``execute_tool add``) is recorded without any code here. The decorator adds attributes to the same span.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.calls: dict[str, int] = {}

    @verl_otel.span("calculator.create")
    async def create(self, instance_id: str | None = None, **_kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin a trajectory."""
        identity = instance_id or str(uuid4())
        self.calls[identity] = 0
        return identity, ToolResponse()

    @verl_otel.tool("add", extract=read_answer)
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Return the sum, the reward of the call and its metrics."""
        self.calls[instance_id] += 1
        return ToolResponse(text=str(int(parameters["a"]) + int(parameters["b"]))), 0.0, {}

    async def release(self, instance_id: str, **_kwargs: Any) -> None:
        """End the trajectory."""
        self.calls.pop(instance_id, None)
