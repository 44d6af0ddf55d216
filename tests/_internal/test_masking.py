# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines and URLs are kept without secrets."""

import time

import pytest

from verl_otel._internal.masking import hide_url, is_secret_name, mask_text, mask_url


@pytest.mark.parametrize(
    "line",
    [
        "POST https://user:S3CRET@host/path failed",
        "GET https://host/path?sig=S3CRET&x=1 200",
        "authorization: Bearer S3CRET",
        "{'Authorization': 'Basic S3CRETabc='}",
        "export HF_TOKEN=S3CRET",
        "login(key='S3CRET')",
        "accessToken=S3CRET",
        "using sk-S3CRETabcdefgh for this run",
        "hf_S3CRETabcdefgh",
        '{"api_key": "S3CRET with spaces"}',
        "wandb login --api-key S3CRET",
        "DefaultEndpointsProtocol=https;AccountKey=S3CRET;x=1",
    ],
)
def test_a_secret_in_a_log_line_is_masked(line):
    """The last lines of a log are kept without secrets."""
    assert "S3CRET" not in mask_text(line)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000)",
        '  File "/a/b/python3.11/site-packages/torch/nn/modules/module.py", line 1518, in _wrapped_call_impl',
        "torch.OutOfMemoryError: Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        "step:5 - actor/entropy:0.41 - response_length/mean:512.0 - num_tokens=81234",
        "Segmentation fault (core dumped)",
    ],
)
def test_an_ordinary_log_line_is_kept(line):
    """What helps to understand the end of a process stays."""
    assert mask_text(line) == line


@pytest.mark.full
@pytest.mark.parametrize(
    "line", ["a" * 20000, "a=" * 10000, "://" * 7000, "-a " * 7000, "a1" * 10000, "=" * 20000, "a." * 9000]
)
def test_a_long_line_takes_no_time(line):
    """No line makes the masking slow."""
    begin = time.process_time()
    mask_text(line)
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize("name", ["max_tokens", "tokenizer", "keyboard", "monkey_patch", "author"])
def test_an_ordinary_name_is_none_of_a_secret(name):
    """Numbers of tokens are no secrets."""
    assert not is_secret_name(name)


def test_a_url_is_kept_without_login_and_query():
    """Scheme, host and path stay."""
    assert mask_url("https://me:pw@host:8443/v1/x?sig=a#b") == "https://***@host:8443/v1/x?***#***"
    assert mask_url("http://host/v1/x") == "http://host/v1/x"
    assert mask_url("/x?a=b") == "/x?***"
    assert mask_url("http://[bad") == "***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@host:8443/v1/x?sig=a#b", "https://host:8443/v1/x"),
        ("http://host/x#S3CRET?a", "http://host/x"),
        ("http://me:pw@host/x?next=http://other", "http://host/x"),
        ("http://host", "http://host"),
        ("me:pw@host:4318", "host:4318"),
        ("http://[bad", "http://[bad"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url, shown):
    """Login, query and fragment are left out, and what is no URL is shown all the same: it may be a mistake in a setting."""
    assert hide_url(url) == shown
