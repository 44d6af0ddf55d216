# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What may go wrong with a request: redirects, strange settings, secrets in the wrong place."""

import logging
import time
from email.utils import formatdate

import pytest

from tests.fakes.exporting_sinks import send, transport

SECRET = "s3cr3t-t0k3n"
BODY = b"a request"


@pytest.mark.parametrize(
    "variables",
    [
        {"HEADERS": "a=x%0Ay"},
        {"ENDPOINT": "http://127.0.0.1:99999"},
        {"CERTIFICATE": "/does/not/exist", "ENDPOINT": "https://127.0.0.1:1"},
        {"HEADERS": "a=%E2%82%AC"},
        {"ENDPOINT": "http://a..b:4318"},
    ],
)
def test_a_strange_setting_never_raises(sink, variables):
    """A header or host that cannot go over the wire is a failed request like any other, and raises nothing."""
    assert not send(sink.url, **variables).ok


def test_a_token_that_is_no_text_never_raises(sink, tmp_path):
    """A token file that is no text is a failed request like any other."""
    token = tmp_path / "token"
    token.write_bytes(b"\xff\xfe")
    with transport(sink.url, token_file=token) as made:
        assert not made.send(BODY, 5).ok


def test_a_netrc_does_not_replace_the_token(sink, tmp_path, monkeypatch):
    """The configured authorization is sent, even when a .netrc has a password for the host."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    send(sink.url, HEADERS="authorization=Bearer%20mine")
    assert sink.requests[0].headers["authorization"] == "Bearer mine"


def test_secrets_are_not_in_reasons_or_logs(sink, tmp_path, caplog):
    """Whatever goes wrong, neither headers nor token are in a reason or in any log line."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    caplog.set_level(logging.DEBUG)
    sink.answers["traces"] = [(401, {}, b""), (503, {}, b"")]
    with transport(sink.url, token_file=token, HEADERS=f"api-key={SECRET},bad=x%0A{SECRET}") as made:
        reasons = [made.send(BODY, 5).reason for _ in range(3)]
    assert all(reasons)
    assert SECRET not in caplog.text + "".join(reasons)


def test_a_retry_after_that_is_no_number_counts_as_absent(sink):
    """A Retry-After of nan counts as none."""
    sink.answers["traces"] = (503, {"Retry-After": "nan"}, b"")
    assert send(sink.url).wait == 0.0


def test_a_retry_after_with_a_date_is_understood(sink):
    """A Retry-After may be a date."""
    sink.answers["traces"] = (503, {"Retry-After": formatdate(time.time() + 60, usegmt=True)}, b"")
    assert 30 < send(sink.url).wait <= 60
