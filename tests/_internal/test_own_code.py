# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Where an exception was raised, by names of files that contain no folder of one machine."""

import pytest

from verl_otel._internal import own_code


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/project/rewards/math.py", "rewards/math.py"),
        ("recipes/own/train.py", "recipes/own/train.py"),
        ("/train.py", "/train.py"),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/module.py", "torch/nn/module.py"),
        ("/usr/lib/python3.11/asyncio/runners.py", "asyncio/runners.py"),
        ("<string>", "<string>"),
    ],
)
def test_the_name_of_a_file_is_short(path, name):
    """The end of it, or all of it from an installed package on."""
    assert own_code.shorten(path) == name


def test_the_line_of_a_group_is_that_of_its_first_exception():
    """The line of the task group says nothing."""

    class BaseExceptionGroup(Exception):  # noqa: N818 - the name of Python 3.11
        exceptions = ()

    group = BaseExceptionGroup()
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("x")
    group.exceptions = (raised.value,)
    line = raised.value.__traceback__.tb_lineno
    assert (
        own_code.find_raised(group)
        == f"_internal/test_own_code.py:{line} in {test_the_line_of_a_group_is_that_of_its_first_exception.__name__}"
    )
