# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every place that is patched is where it was and takes what it took, in every release that is supported.

``golden_hooks.json`` holds what was found when a hook was written; null: that release does not have it. After a change that was meant,
``python -m tests.contracts.test_hooked_symbols`` rewrites it; read the difference.
"""

import ast
import importlib
import json
import pkgutil
from pathlib import Path

import pytest

from tests.contracts import released, signatures
from verl_otel import integrations
from verl_otel.integrations import source_inspection
from verl_otel.integrations.patch import Hook

pytestmark = pytest.mark.sources

GOLDEN = Path(__file__).parent / "golden_hooks.json"
FAKES = released.TOP / "tests" / "fakes" / "engines"
RELEASES = pytest.mark.parametrize("release", released.RELEASES, ids=str)


def find_hooks():
    """Return every hook in the integrations' tables, each place once."""
    found = {}
    for info in pkgutil.walk_packages(integrations.__path__, integrations.__name__ + "."):
        for hook in getattr(importlib.import_module(info.name), "HOOKS", ()):
            assert isinstance(hook, Hook), info.name
            found[f"{hook.module}:{hook.symbol}"] = hook
    return found


HOOKS = find_hooks()


def hooks_of(release):
    return {place: hook for place, hook in HOOKS.items() if hook.module.partition(".")[0] == release.package}


def bound_of(release, text):
    """Return the numbers of a bound if it is about this release's host."""
    name, _, number = text.partition(" ")
    return source_inspection.parse_version(number) if name == release.package else None


def look(release, root):
    """Return what a release has at each place."""
    return {
        place: signatures.describe(root, hook.module, hook.symbol) for place, hook in sorted(hooks_of(release).items())
    }


@pytest.fixture(scope="module")
def sources():
    """Find a release's sources, or skip with the reason; each is tried once."""
    failed = {}

    def find(release):
        try:
            if release not in failed:
                return released.find_sources(release)
        except released.UnreachableError as error:
            failed[release] = str(error)
        return pytest.skip(failed[release])

    return find


@pytest.mark.full
@RELEASES
def test_every_hooked_place_is_as_it_was(sources, release):
    """In each release each place has the signature that was recorded, or is absent as was recorded."""
    recorded = json.loads(GOLDEN.read_text())[str(release)]
    assert look(release, sources(release)) == recorded, f"moved, or new in {GOLDEN.name}: see this file's first lines"


@RELEASES
def test_absence_is_what_the_hook_says(release):
    """A place that a release lacks is one of which its hook says so, and the other way round; so `check` says the truth."""
    recorded = json.loads(GOLDEN.read_text())[str(release)]
    number = tuple(map(int, release.version.split(".")[:2]))
    wrong = []
    for place, hook in hooks_of(release).items():
        since, until = (bound_of(release, bound) for bound in (hook.since, hook.until))
        expected = not (since and number < since) and not (until and number >= until)
        if expected is not (recorded[place] is not None):
            wrong.append(place)
    assert not wrong


def test_every_hook_is_of_a_known_host():
    """No hook is left out: its host's releases are read here, or it is Ray's, which the tests start for real.

    Hydra's is public and used by the trainings of the tests, and torchdata's loader reads their data. uni-agent is in no registry; ``tests/integrations/verl/test_uni_agent.py`` compares a checkout of it.
    """
    known = {release.package for release in released.RELEASES} | {"ray", "uni_agent", "hydra", "torchdata"}
    assert {hook.module.partition(".")[0] for hook in HOOKS.values()} <= known
    assert len(HOOKS) > 30


@pytest.mark.full
@RELEASES
def test_what_check_finds_is_there(sources, release):
    """The reader that `verl-otel check` uses agrees with this one."""
    root = sources(release)
    for place, text in look(release, root).items():
        module, _, symbol = place.partition(":")
        assert source_inspection.has_symbol(root, module, symbol) is (text is not None), place


def fake_modules():
    return sorted(path for path in FAKES.rglob("*.py") if path.stat().st_size > 250)


@pytest.mark.full  # it fetches released wheels
@pytest.mark.parametrize("path", fake_modules(), ids=lambda path: str(path.relative_to(FAKES)))
def test_fakes_are_like_the_real_ones(sources, path):
    """Each function and field of a fake engine is in the real one, with the same arguments; helpers of ours are named so."""
    parts = path.relative_to(FAKES).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    root = sources(next(each for each in released.RELEASES if each.package == parts[0]))
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, signatures.FUNCTIONS) and not node.name.startswith("make_"):
            assert signatures.render(node) == signatures.describe(root, module, node.name)
        if isinstance(node, ast.ClassDef):
            real = signatures.fields(root, module, node.name)
            for each in node.body:
                if isinstance(each, ast.AnnAssign):
                    assert each.target.id in real, f"{node.name}.{each.target.id}"
                elif isinstance(each, signatures.FUNCTIONS) and (each.name[0] != "_" or each.name[:2] == "__"):
                    expected = signatures.describe(root, module, f"{node.name}.{each.name}")
                    assert signatures.render(each) == expected, f"{node.name}.{each.name}"


def test_a_place_that_moved_is_found(tmp_path):
    """The reader sees another argument, another kind and an absence; it follows imports, stars and bases."""
    package = tmp_path / "host"
    package.mkdir()
    (package / "__init__.py").write_text("from .a import *\nfrom .a import f as g\n")
    (package / "a.py").write_text(
        "class Base:\n    @x.y\n    async def run(self, a, /, b=1, *, c, d=2, **e): ...\n"
        "class Thing(Base):\n    z: int\n    def __init__(self): self.w = 1\n"
        "try:\n    def f(a, *b): ...\nexcept E: ...\nh = f\n"
    )
    found = [signatures.describe(tmp_path, "host", name) for name in ("f", "g", "h", "Thing.run", "Thing.no", "no")]
    assert found == ["def (a, *b)"] * 2 + ["assigned", "@x.y async def (self, a, /, b=, *, c, d=, **e)", None, None]
    assert signatures.fields(tmp_path, "host", "Thing") == {"z", "w"}


def write():
    """Record what the releases have now."""
    found = {str(release): look(release, released.find_sources(release)) for release in released.RELEASES}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write()
