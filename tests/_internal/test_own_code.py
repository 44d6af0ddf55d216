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


def test_what_ray_raises_is_named_by_the_line_that_waited_for_it():
    """Its own lines are the same for each death of an actor."""

    def make(path, name, source, **known):
        exec(compile(source, path, "exec"), known)
        return known[name]

    raises = make("/venv/lib/site-packages/ray/worker.py", "get", "def get(): raise RuntimeError")
    waits = make("/venv/lib/site-packages/verl/trainer.py", "fit", "def fit():\n get()", get=raises)
    with pytest.raises(RuntimeError) as raised:
        waits()
    error = raised.value.with_traceback(raised.value.__traceback__.tb_next)  # without the line of this test
    assert own_code.find_raised(error) == "verl/trainer.py:2 in fit"
