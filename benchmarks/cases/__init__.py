# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The cases. One file is one topic and has a tuple ``CASES``; `benchmarks.case.load_cases` finds it by being here."""
