# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The attack suite: what a good guest has to bear, tried in large numbers.

``make attack`` runs it; ``make test`` leaves it out. Each module attacks one surface: damaged files, hostile
values, shapes of decorated functions, forks, signals, full disks, other libraries in the same process.

Rules for a module of this folder:

- ``pytestmark = pytest.mark.attack``, so that only ``make attack`` runs it.
- Bounded: a fixed number of attempts from a fixed seed, and a deadline on everything that waits.
- Loopback addresses and the test's temporary folder only.
- Every test reports what it tried through ``attack_counts``. The counts are printed at the end of the run, failed or not.

Example:
    def test_mutated_lines(attack_counts):
        failures = [...]
        attack_counts("mutated lines", 10_200, len(failures))
        assert not failures
"""

import pytest

SECTION = "attack_counts"


@pytest.fixture
def attack_counts(record_property):
    """Return ``count(name, tried, failed)``: report how many attempts of one kind were made and how many did harm.

    ``name`` is a plural noun phrase. Call it before the assertion, so that a failed test is counted too.
    """

    def count(name, tried, failed):
        record_property(SECTION, (name, tried, failed))

    return count


def pytest_terminal_summary(terminalreporter):
    """Print one line for each kind of attack: tried and failed, added up over the tests that report it."""
    totals = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, value in getattr(report, "user_properties", ()):
                if key == SECTION and report.when == "call":
                    name, tried, failed = value
                    before = totals.get(name, (0, 0))
                    totals[name] = (before[0] + tried, before[1] + failed)
    if not totals:
        return
    terminalreporter.section("attacks")
    for name, (tried, failed) in totals.items():
        terminalreporter.write_line(f"{tried:>9,} {name}: {failed:,} failed", red=bool(failed))
    terminalreporter.write_line(f"{sum(tried for tried, _ in totals.values()):>9,} attempts in all")
