# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the documents that a page in one file holds."""

import base64
import gzip
import json
import re


def read(text):
    """The documents by their addresses, as the page asks for them."""
    packed = json.loads(re.search(r'<script type="application/json" id="documents">(.*?)</script>', text, re.DOTALL)[1])
    return {
        address: content if address == "run" else json.loads(gzip.decompress(base64.b64decode(content)))
        for address, content in packed.items()
    }
