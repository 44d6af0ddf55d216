# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Templates of the generated wrappers, one for each kind of function.

In each of them `active` records and `passive` only calls the function. Their code is exchanged under one closure, which holds the function only:
``torch.compile`` reads every variable of a closure. Everything else is a global. Names in braces are made distinct from the parameters.
"""

from __future__ import annotations

from typing import Final

FILE_PREFIX: Final = "<verl_otel wrapper"
"""Begin of the file name in the code of every wrapper."""

# `begin` and `close` inlined for the common call: a decorated call takes 560 ns, and 680 ns if `begin` is called (CPython 3.11). The common
# call has a verl-otel span around it or none, its span is current when it ends, and it has no details. Everything else is done by the two
# functions. `a` is the call site. All of it is inside the `try`: a signal handler may raise anywhere, and what was done is undone. A span that
# is not held yet is not current yet; its slot `token` is filled last. tests/recording/test_wrapper_source.py compares both ways.
SPAN: Final = """
def make({f}):
    {async_}def active({declared}):
        {span} = None
        try:
            {get}, {make_current} = {context}.get, {context}.set  # CPython 3.11 calls a function in a slot 20 ns slower
            {outer} = {get}()
            {span} = {bare}()
            if {a}.needs_slow_path or ({outer}.token is {leaked} if {type}({outer}) is {bare} else {outer}):
                {b}({span}, {a})
            else:
                {span}.site = {a}
                {span}.outer = {outer}
                {span}.start = {span}.stop = 0.0
                {span}._attributes = {span}._detail = {span}.ids = {span}.last = {span}.token = None
                {span}.token = {make_current}({span})
                if {type}({outer}) is {bare}:
                    {outer}.last = {a}
                if {len}({state}.begun) < {state}.room:
                    {state}.begun.append({span})
                else:
                    {span}.store_or_drop()
                {span}.start = {clock}()
            {result} = {await_}{f}({passed})
            {read}
            if {span}._detail is None and {get}() is {span} and not {span}.stop:
                {span}.stop = {clock}()
                {reset}, {token}, {span}.token = {context}.reset, {span}.token, None
                try:
                    {reset}({token})
                except {misplaced}:
                    {span}.restore_outer()
            else:
                {span}.close()
            return {result}
        except {base} as {error}:
            try:
                {fail_span}({span}, {error})
            except {base}:
                {fail_span}({span}, {error})
                raise
            raise
    {async_}def passive({declared}):
        return {await_}{f}({passed})
    return active, passive
"""

# Two clock readings and one append. The length of the buffer bounds its memory. If `a` is a sampled timer, its threshold is checked, too.
TIMED: Final = """
def make({f}):
    {async_}def active({declared}):
        {span} = {b}()
        try:
            {result} = {await_}{f}({passed})
        except {base} as {error}:
            {fail}({a}, {b}() - {span}, {error})
            raise
        {span} = {b}() - {span}
        if {check}{len}({a}.buffer) < {chunk}:
            {a}.buffer.append({span})
        else:
            {a}.spill({span})
        return {result}
    {async_}def passive({declared}):
        return {await_}{f}({passed})
    return active, passive
"""

# `a` is a call site or, of an async generator, a series; `b` drives the generator: see `verl_otel.recording.generator_wrappers`.
GENERATOR: Final = """
def make({f}):
    def active({declared}):
        {span} = {b}({a}, {f}({passed}), {arguments})
        try:
            while {span}.resume():
                try:
                    {span}.sent = yield {span}.take()
                except {base} as {error}:
                    {span}.thrown = {error}
            return {span}.take()
        except {base} as {error}:
            {span}.abort({error})
            raise
    def passive({declared}):
        return (yield from {f}({passed}))
    return active, passive
"""

# A timed generator has no current span, so `yield from` delegates to it without a cost for each item.
TIMED_GENERATOR: Final = """
def make({f}):
    def active({declared}):
        {span} = {b}()
        try:
            {result} = yield from {f}({passed})
        except {base} as {error}:
            {fail}({a}, {b}() - {span}, {error})
            raise
        {done}({a}, {b}() - {span})
        return {result}
    def passive({declared}):
        return (yield from {f}({passed}))
    return active, passive
"""

ASYNC_GENERATOR: Final = """
def make({f}):
    async def active({declared}):
        {span} = {b}({a}, {f}({passed}), {arguments})
        try:
            while await {span}.resume():
                try:
                    {span}.sent = yield {span}.take()
                except {base} as {error}:
                    {span}.thrown = {error}
        except {base} as {error}:
            {span}.abort({error})
            raise
    return active, active
"""
