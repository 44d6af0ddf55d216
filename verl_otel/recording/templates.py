# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The source of the generated wrappers, one template for each kind of function.

In each of them `active` records and `passive` passes through. Both must have the same free variables, since their code is exchanged
under one closure: hence the unreachable tuple after a `return`. Names in braces are made unique against the parameters.
"""

from __future__ import annotations

from typing import Final

# What `begin` and `close` do, written out for what nearly every call is: three calls of Python functions cost as much as the rest of it.
# The usual call has a span of ours around it, or none at all; its span is current when it ends, and nobody has said more about it.
# Everything else is left to the two functions. `a` is a site.
SPAN: Final = """
def make({f}, {a}, {b}):
    {async_}def active({declared}):
        {get}, {make_current} = {kernel}.get, {kernel}.set  # CPython 3.11 calls what lies in a slot 20 ns slower
        {outer} = {get}()
        if {a}.special or ({outer}.token is {leaked} if {type}({outer}) is {bare} else {outer}):
            {span} = {b}({a})
        else:
            {span} = {bare}()
            {span}.site = {a}
            {span}.outer = {outer}
            {span}._attributes = {span}._detail = {span}.ids = {span}.last = {span}.token = None
            {span}.start = {span}.stop = 0.0
            {span}.token = {make_current}({span})
            if {type}({outer}) is {bare}:
                {outer}.last = {a}
            if {len}({store}.begun) < {store}.room:
                {store}.begun.append({span})
            else:
                {span}.lose()
            {span}.start = {clock}()
        try:
            {result} = {await_}{f}({passed})
            {read}
        except {base} as {error}:
            {span}.close({error})
            raise
        if {span}._detail is None and {get}() is {span} and not {span}.stop:
            {span}.stop = {clock}()
            {reset}, {token}, {span}.token = {kernel}.reset, {span}.token, None
            try:
                {reset}({token})
            except {misplaced}:
                {span}.leave_elsewhere()
        else:
            {span}.close()
        return {result}
    {async_}def passive({declared}):
        return {await_}{f}({passed})
        ({a}, {b})
    return active, passive
"""

# Two clock reads and one append; the rest is the call itself. The buffer's length is its bound on memory. A leaf (`a` is one then)
# checks its threshold as well.
TIMED: Final = """
def make({f}, {a}, {b}):
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
        ({a}, {b})
    return active, passive
"""

# `a` is a site (of an async generator: or a series), `b` drives the generator: see `verl_otel.recording.generators`.
# `yield from` is all there is to do while off.
GENERATOR: Final = """
def make({f}, {a}, {b}):
    def active({declared}):
        {span} = {b}({a}, {f}({passed}), {{{arguments}}})
        while {span}.resume():
            try:
                {span}.sent = yield {span}.take()
            except {base} as {error}:
                {span}.thrown = {error}
        return {span}.take()
    def passive({declared}):
        return (yield from {f}({passed}))
        ({a}, {b})
    return active, passive
"""

# Nothing is current in a timed generator's body, so CPython may hand the items on: no price by the item.
TIMED_GENERATOR: Final = """
def make({f}, {a}, {b}):
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
        ({a}, {b})
    return active, passive
"""

ASYNC_GENERATOR: Final = """
def make({f}, {a}, {b}):
    async def active({declared}):
        {span} = {b}({a}, {f}({passed}), {{{arguments}}})
        while await {span}.resume():
            try:
                {span}.sent = yield {span}.take()
            except {base} as {error}:
                {span}.thrown = {error}
    return active, active
"""
