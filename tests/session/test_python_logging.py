# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Records of Python's ``logging`` in the run log; the logging of the user works as before."""

import logging

import pytest

from verl_otel import config
from verl_otel.recording import run_log
from verl_otel.semconv import logs
from verl_otel.session import python_logging
from verl_otel.watchdog.diagnosis import Finding
from verl_otel.watchdog.reporter import Reporter


@pytest.fixture
def copied(recorded):
    """Copy records of this process."""
    run_log.configure(logs.INFO, 0)
    python_logging.install()
    yield run_log
    python_logging.uninstall()
    run_log._reset()


def test_warnings_are_copied_and_still_logged(copied, caplog):
    """A warning is a record of the run log; one below WARNING is not; handlers see all of them."""
    caplog.set_level("INFO")
    logger = logging.getLogger("host")
    logger.info("fine")
    logger.warning("queue of %d", 3)
    logger.critical("gone")
    assert [record.getMessage() for record in caplog.records] == ["fine", "queue of 3", "gone"]
    records = run_log.take()
    assert [(record.level, record.fields["message"]) for record in records] == [
        (logs.WARNING, "queue of %d"),
        (logs.CRITICAL, "gone"),
    ]
    assert records[0].fields["logger"] == "host"


def test_an_exception_is_named(copied):
    """The class of an exception is copied, and neither its message nor a message that was made of values."""
    text = str(KeyError("a prompt"))
    logging.getLogger("host").error("failed: " + text, exc_info=KeyError(text))  # noqa: G003 - as users write
    (record,) = run_log.take()
    assert record.fields["exception.type"] == "KeyError"
    assert "prompt" not in str(record.fields)


def test_another_line_of_this_package_is_copied_without_its_values(copied):
    """The text of an alert, or an error of the user's code, may quote a prompt."""
    logging.getLogger("verl_otel").warning("verl-otel: alert at step %d: %s", 3, "the prompt")
    (record,) = run_log.take()
    assert record.fields["message"] == "verl-otel: alert at step %d: %s"
    assert "prompt" not in str(record.fields)


def test_a_report_of_the_watchdog_is_whole(copied, tmp_path):
    """It is copied with its text, not as the template."""
    settings = config.load_config({}, run_dir=tmp_path, run_id="r1")
    settings.run_path.mkdir(parents=True)
    Reporter(settings, "here").resolve(Finding("frozen", "agent_loop-0", None, ()), 24.0)
    (record,) = run_log.take()
    assert record.fields["message"] == "verl-otel: resolved: agent_loop-0 goes on, 24 s after it was found"


def test_a_repeated_warning_is_counted(copied, monkeypatch):
    """Of a warning that is logged for each sample the first three are copied, and later one a minute with the number of the others."""
    now = python_logging.time.monotonic()
    monkeypatch.setattr(python_logging.time, "monotonic", lambda: now)
    for number in range(11):
        now += 61.0 if number == 10 else 0.0
        logging.getLogger("host").warning("again")
    assert [record.fields.get("repeated") for record in run_log.take()] == [None, None, None, 7]


def test_no_handler_is_added(copied):
    """`logging.basicConfig` and the handler of last resort work as without us: the root logger gets no handler."""
    before = logging.getLogger().handlers[:]
    logging.getLogger("host").warning("x")
    assert logging.getLogger().handlers == before


def mark_records(factory):
    """A factory of the user's around one that is there."""

    def theirs(*args, **kwargs):
        record = factory(*args, **kwargs)
        record.mine = True
        return record

    return theirs


def test_a_factory_that_was_set_before_is_called(recorded):
    """Its records are those that are logged, and it is the factory again afterwards."""
    default = logging.getLogRecordFactory()
    theirs = mark_records(default)
    logging.setLogRecordFactory(theirs)
    try:
        python_logging.install()
        record = logging.getLogger("host").makeRecord("host", logging.WARNING, __file__, 1, "x", (), None)
        assert record.mine
        python_logging.uninstall()
        assert logging.getLogRecordFactory() is theirs
    finally:
        logging.setLogRecordFactory(default)


def test_a_factory_of_the_user_stays(copied):
    """One that is set later stays when ours is removed."""
    ours = logging.getLogRecordFactory()
    theirs = mark_records(ours)
    logging.setLogRecordFactory(theirs)
    try:
        python_logging.uninstall()
        assert logging.getLogRecordFactory() is theirs
    finally:
        logging.setLogRecordFactory(ours)
