# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import contextvars
import decimal
import pickle
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import trace

import verl_otel
from verl_otel.recording.context import bind_context, context_access
from verl_otel.recording.span import current_span


def test_the_context_access_is_one_per_process():
    """The access is made once, and pickling gives that of the process where it arrives."""
    assert context_access() is context_access()
    assert pickle.loads(pickle.dumps(context_access())) is context_access()


def test_an_exit_in_a_copied_context_restores_it(both_paths, caplog):
    """A block left in a copy of the context in which it was entered, as another task does, is not current there any more."""

    def leave():
        block.__exit__(None, None, None)
        return trace.get_current_span()

    block = verl_otel.tool("python")
    block.__enter__()
    assert contextvars.copy_context().run(leave) is trace.INVALID_SPAN
    assert not caplog.records


def test_current_is_ours_or_none(recorded, sdk):
    """The current span is ours if the innermost one is, else None; None too while recording is off."""
    assert current_span() is None
    with verl_otel.step(1) as step:
        assert current_span() is step
        with sdk[0].start_as_current_span("user"):
            assert current_span() is None
        assert current_span() is step


def test_a_bound_function_may_be_called_while_it_runs(recorded):
    """One bound function can be called again while it runs: by itself, or in another thread."""
    with verl_otel.step(1) as step:

        def work(depth):
            return bound(depth - 1) if depth else current_span()

        bound = bind_context(work)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(bound, 3).result() is step
            assert pool.submit(current_span).result() is None


def test_a_bound_function_computes_as_in_its_thread():
    """Precision and error state are context variables, too: those of the submitter would change the result of a reward."""
    with decimal.localcontext() as context, ThreadPoolExecutor(1) as pool:
        context.prec = 6
        assert pool.submit(bind_context(lambda: decimal.Decimal(1) / 3)).result() == decimal.Decimal(
            "0.3333333333333333333333333333"
        )
