# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Content is removed from the user's ordinary spans; what is no content stays."""

import pytest

from tests.builders.exporting_records import NOW, make_span
from verl_otel.exporting.content_filter import clean_attributes, remove_content
from verl_otel.model import EventRecord, LinkRecord

HOLD_CONTENT = """
    exception.message exception.stacktrace gen_ai.prompt gen_ai.prompt.0.content gen_ai.completion
    gen_ai.completion.0.content gen_ai.input.messages gen_ai.output.messages gen_ai.system_instructions
    gen_ai.tool.call.arguments gen_ai.tool.call.result gen_ai.tool.definitions
    llm.input_messages.0.message.content llm.prompts input.value output.value traceloop.entity.input
    db.statement db.query.text db.query.parameter.0 http.request.body http.response.body
    http.request.header.authorization process.command_line process.command_args
"""


@pytest.mark.parametrize("name", HOLD_CONTENT.split())
def test_an_attribute_that_holds_content_is_removed(name):
    """Prompts, answers, tool arguments, bodies, queries of databases and command lines do not stay."""
    assert clean_attributes({name: "S3CRET", "a": 1}) == {"a": 1}
    assert clean_attributes({name: ("S3CRET",), "a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exception.type", "ValueError"),
        ("gen_ai.request.model", "tiny"),
        ("gen_ai.usage.input_tokens", 17),
        ("gen_ai.response.finish_reasons", ("stop",)),
        ("gen_ai.tool.name", "python"),
        ("http.request.body.size", 4711),
        ("url.full", "https://host:8000/v1/chat"),
        ("url.path", "/v1/chat"),
        ("db.operation.name", "SELECT"),
        ("my.prompt", "the user's own attribute"),
        ("input.values", 3),
    ],
)
def test_an_attribute_that_holds_no_content_stays(name, value):
    """Names of models, numbers of tokens and the user's own attributes stay, and nothing is copied."""
    given = {name: value}
    assert clean_attributes(given) is given


@pytest.mark.parametrize("name", ["url.full", "http.url", "http.target", "my.address"])
def test_a_url_loses_login_and_query(name):
    """A signature in a query and a password in an address do not stay."""
    kept = clean_attributes({name: "https://me:S3CRET@host/path?sig=S3CRET"})[name]
    assert "S3CRET" not in kept
    assert kept.startswith("https://***@host/path?")


def test_a_query_is_masked():
    """``url.query`` holds what ``url.full`` has behind its question mark."""
    assert clean_attributes({"url.query": "sig=S3CRET"}) == {"url.query": "***"}


def test_events_links_and_the_status_are_cleaned():
    """The type of an exception stays, its message and stack do not; so with messages of language models and links."""
    span = make_span(
        status=2,
        message="ValueError: S3CRET",
        attributes={"a": 1},
        events=(
            EventRecord(
                "exception",
                NOW,
                {"exception.type": "E", "exception.message": "S3CRET", "exception.stacktrace": "S3CRET"},
            ),
            EventRecord("gen_ai.user.message", NOW, {"content": "S3CRET", "role": "user"}),
            EventRecord("gen_ai.choice", NOW, {"message": "S3CRET", "index": 0}),
            EventRecord("mine", NOW, {"b": 2}),
        ),
        links=(LinkRecord(1, 2, {"url.full": "http://h/?S3CRET"}),),
    )
    found = remove_content(span)
    assert "S3CRET" not in repr(found)
    assert found.status == 2
    assert [dict(each.attributes) for each in found.events] == [
        {"exception.type": "E"},
        {"role": "user"},
        {"index": 0},
        {"b": 2},
    ]


def test_a_span_without_content_is_not_copied():
    """Most spans hold none."""
    span = make_span(attributes={"a": 1}, events=(EventRecord("mine", NOW, {"b": 2}),))
    assert remove_content(span) is span
