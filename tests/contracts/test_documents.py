# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents: their code runs, their commands exist, their links lead somewhere, generated pages are fresh."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import verl_otel
from tests import gate
from verl_otel.cli import COMMANDS

pytestmark = pytest.mark.sources

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"
PAGES = [
    *(TOP / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]
MAX_README_LINES = 107
MAX_LINKS_HOME = 20
MAX_COLUMNS = 150
MAX_TERMS = 50
MAX_TARGETS = 15


def blocks(kind):
    return [
        pytest.param(code, id=f"{page.relative_to(TOP)}-{number}")
        for page in PAGES
        for number, code in enumerate(re.findall(rf"```{kind}\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    ]


@pytest.mark.full
@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(clean_python, code, tmp_path):
    """Each Python block of a document runs by itself, with warnings as errors; one with tests by pytest."""
    script = tmp_path / "test_block.py"
    script.write_text(code)
    by_pytest = (
        ["-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio"] if "\ndef test_" in code else []
    )
    done = clean_python("-W", "error", *by_pytest, script, cwd=tmp_path)
    assert not by_pytest or f"{code.count('def test_')} passed" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("code", blocks("console"))
def test_commands_exist(code):
    """Each ``make`` target, each ``verl-otel`` command and each of its options in a document exists."""
    makefile = (TOP / "Makefile").read_text()
    for line in code.splitlines():
        command = line.removeprefix("$ ").partition("#")[0]
        for target in re.findall(r"\bmake ([a-z-]+)", command):
            assert f"\n{target}:" in makefile, line
        for name, rest in re.findall(r"\bverl-otel ([a-z]+)([^|]*)", command):
            assert name in COMMANDS, line
            executable = Path(sys.executable).with_name("verl-otel")
            text = subprocess.run([executable, name, "--help"], capture_output=True, text=True, check=True).stdout
            for option in re.findall(r"--[a-z-]+", rest.partition(" -- ")[0]):
                assert option in text, line


@pytest.mark.full
def test_make_help_lists_few_targets():
    """``make help`` lists at most `MAX_TARGETS` targets: another variant is a variable of an existing one."""
    done = subprocess.run(["make", "--no-print-directory", "help"], cwd=TOP, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("  make ")]
    assert 0 < len(lines) <= MAX_TARGETS


def slugs(page):
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_lead_somewhere(page):
    """Each relative link of a document names a file of the project, and its fragment a heading."""
    for target, fragment in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text("utf-8")):
        path = (page.parent / target) if target else page
        assert path.exists(), target
        assert not fragment or fragment in slugs(path), f"{target}#{fragment}"


def test_links_of_the_readme_lead_somewhere_from_a_package_page():
    """The README is the page of the package in an index, too: each link is an address, of a file and a heading that exist."""
    text = (TOP / "README.md").read_text("utf-8")
    assert not re.findall(r"\]\((?!https?://)", text)
    defined = re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE)
    prose = re.sub(r"```.*?```|^\[[^\]]+\]: \S+$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert {name for name, _ in defined} == set(re.findall(r"\[([^\[\]]+)\](?![(\[])", prose))
    repository = re.compile(
        r"https://(?:raw\.githubusercontent\.com/\S+?/main|github\.com/\S+?/blob/main)/([^#\s]+)#?(\S*)"
    )
    for _, address in defined:
        target, fragment = repository.fullmatch(address).groups()
        assert (TOP / target).is_file(), address
        assert not fragment or fragment in slugs(TOP / target), address


def test_what_a_newcomer_needs_stands_where_it_is_used():
    """The two commands of a clone in one block, the extra above an export that needs it, and each column of a report."""
    readme = (TOP / "README.md").read_text("utf-8")
    groups = [re.findall(r"^\$ (make \S+)", block, re.MULTILINE) for block in readme.split("```console")]
    assert ["make demo", "make test"] in groups
    for page in (DOCS / "how-to").glob("*.md"):
        above, export, _ = page.read_text("utf-8").partition("verl-otel export parquet")
        assert not export or "verl-otel[parquet]" in above, page.name
    tutorial, training = (DOCS / name for name in ("tutorial/first-run.md", "how-to/training.md"))
    header = re.search(r"^ *step +total .*$", tutorial.read_text("utf-8"), re.MULTILINE)[0]
    for column in re.split(r"  +", header.strip())[-2:]:
        assert re.search(f"`{column}` (is )?the time", training.read_text("utf-8")), column


def load_script(name):
    """Return a module that lies in docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh():
    """The reference is that of the code, and outputs are those of the commands; ``make docs`` writes them."""
    script = load_script("generate")
    for name, make in script.PAGES.items():
        assert (DOCS / "reference" / name).read_text("utf-8") == make(), f"{name}: run make docs"
    for page in script.WITH_OUTPUTS:
        text = page.read_text("utf-8")
        assert script.OUTPUT.search(text), page
        assert text == script.fill_outputs(text), f"{page.name}: run make docs"
    assert script.ARCHITECTURE.read_text("utf-8") == script.fill_modules(ARCHITECTURE), "run make docs"


def test_readme_is_short():
    """What a newcomer reads fits two screens, without the addresses of its links."""
    lines = (TOP / "README.md").read_text("utf-8").splitlines()
    assert len([line for line in lines if not re.match(r"\[[^\]]+\]: ", line)]) <= MAX_README_LINES


def test_the_page_of_the_api_has_every_public_name():
    """With its signatures, so that it can be read in a clone."""
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    assert set(re.findall(r"^### (\w+)\n\n```py\n", page, re.MULTILINE)) >= set(verl_otel.__all__) - {"__version__"}
    assert "def step(number: F, /) -> F: ...\ndef step(number: int | None = None) -> Span: ...\n" in page


def test_glossary_is_short_and_sorted():
    """Few terms, each once, in alphabetical order."""
    terms = re.findall(r"^\| ([^|]+) \| [^-]", (DOCS / "reference" / "glossary.md").read_text("utf-8"), re.MULTILINE)[
        1:
    ]
    assert len(terms) <= MAX_TERMS
    assert terms == sorted(set(terms))


def _find_pages(folder):
    """Return the pages to which the first page of a folder links."""
    return sorted(re.findall(r"\]\(([^)]+\.md)\)", (folder / "README.md").read_text("utf-8")))


def test_navigation_has_every_page():
    """Each page is in the navigation of the site, once, and in the list of its folder; the first page has few links."""
    nav = (TOP / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(re.findall(r"([\w/-]+\.md)", nav)) == pages
    linked = _find_pages(DOCS)
    assert len(linked) <= MAX_LINKS_HOME
    for folder in ("how-to", "reference", "explanation"):
        own = sorted(str(page.relative_to(DOCS / folder)) for page in (DOCS / folder).glob("*.md"))
        assert [page for page in _find_pages(DOCS / folder) if not page.startswith("decisions/")] == own[1:], folder
        assert f"{folder}/README.md" in linked
    assert {page for page in pages if page.startswith("tutorial/")} <= set(linked)


def test_links_out_of_the_site_become_addresses():
    """A link to a file of the repository leads to the repository; one within docs/ stays."""
    links = load_script("repository_links")
    address = links.PROJECT["urls"]["Repository"]
    page = "[a](../../collector/README.md#variables), [b](../how-to/deploy.md), [c](../../verl_otel), [d](https://x.org/), [e](#f)"
    assert links.rewrite(page, "docs/reference") == (
        f"[a]({address}/blob/main/collector/README.md#variables), [b](../how-to/deploy.md), [c]({address}/tree/main/verl_otel), "
        "[d](https://x.org/), [e](#f)"
    )


ARCHITECTURE = (DOCS / "explanation" / "architecture.md").read_text("utf-8")
MAX_ON_THE_WAY = {"Walk 1": 10, "Walk 2": 9, "Walk 3": 15, "Walk 4": 9}
WALKS = [section for section in ARCHITECTURE.split("\n## ") if section.startswith("Walk ")]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.partition(":")[0])
def test_walks_name_what_is_there(walk):
    """Each file and each function of a walk through the code exists, and the numbers of files are right and small."""
    files, on_the_way = set(), set()
    for line in walk.splitlines():
        cells = line.strip("|").split("|")
        for path in re.findall(r"`([\w/]+\.(?:py|yaml))`", cells[1]) if len(cells) == 4 else ():
            files.add(path)
            on_the_way |= {path} if "**" in cells[1] else set()
            code = (TOP / path).read_text("utf-8")
            for name in re.findall(r"`(\w+)`", cells[2]):
                assert re.search(rf"\b(def|class) {name}\b", code), f"{path}: {name}"
    assert f" {len(files)} files, {len(on_the_way)} on the way." in walk
    assert len(on_the_way) <= MAX_ON_THE_WAY[walk[:6]]


def test_the_map_of_packages_is_whole():
    """Each top-level name of the package has a row, and each file and each name in a row exists."""
    tables = ARCHITECTURE.partition("\n## Walk 1")[0]
    named = set(re.findall(r"`(verl_otel/[\w/]+(?:\.py)?)`", tables))
    top = {
        f"verl_otel/{path.name}"
        for path in (TOP / "verl_otel").iterdir()
        if not path.name.startswith("_") and path.suffix in ("", ".py")
    }
    assert not top - named
    assert not [path for path in named if not (TOP / path).exists()]
    for row in tables.splitlines():
        files = [TOP / path for path in re.findall(r"`((?:verl_otel|collector|docs)/[\w/]+\.py)`", row)]
        code = "".join(path.read_text("utf-8") for path in files if path.exists())
        assert not [name for name in re.findall(r"`(_?[A-Za-z]\w+)`", row) if files and name not in code], row


def test_workflows_run_what_is_there():
    """CI runs `make test` and, each night, every part of `make test-full`, and actions of one version; commit hooks run tools of the environment."""
    workflows = "\n".join(path.read_text("utf-8") for path in sorted((TOP / ".github" / "workflows").glob("*.yml")))
    assert set(re.findall(r"run: (?:.* )?make ([a-z-]+)", workflows)) == {"test", "test-full"}
    nightly = set(re.search(r" part: \[(.+)\]", workflows)[1].split(", "))
    assert nightly == {part.name for part in gate.FULL} - {"ruff", "format", "types", "imports"}
    actions = re.findall(r"uses: (\S+)", workflows)
    assert actions
    assert not [action for action in actions if not re.search(r"@[0-9a-f]{40}$", action)]
    hooks = re.findall(r"entry: \.venv/bin/(\S+)", (TOP / ".pre-commit-config.yaml").read_text("utf-8"))
    assert {"ruff", "mypy", "lint-imports"} <= set(hooks)
    assert not [tool for tool in hooks if not Path(sys.executable).with_name(tool).exists()]


def test_what_github_reads_is_what_it_expects():
    """Forms ask for something, updates name folders that have what they update, and only a tag of a version publishes, without a token."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")
    folder = TOP / ".github"
    for path in folder.glob("ISSUE_TEMPLATE/[!c]*.yml"):
        form = yaml.safe_load(path.read_text("utf-8"))
        assert form["name"]
        assert form["description"]
        assert {item["type"] for item in form["body"]} <= {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert len({item["id"] for item in form["body"]}) == len(form["body"])
    updates = yaml.safe_load((folder / "dependabot.yml").read_text("utf-8"))["updates"]
    assert [update["directory"] for update in updates] == ["/", "/collector"]
    text = (folder / "workflows" / "release.yml").read_text("utf-8")
    release = yaml.safe_load(text)
    assert release[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}  # YAML 1.1 reads `on` as a truth value
    assert release["jobs"]["publish"]["needs"] == "build"
    assert release["jobs"]["publish"]["environment"] == "pypi"
    assert "secrets." not in text


def test_every_setting_is_in_the_reference():
    """No variable that the code reads is missing from the settings page."""
    page = (DOCS / "reference" / "settings.md").read_text("utf-8")
    read = set()
    for path in (TOP / "verl_otel").rglob("*.py"):
        read |= set(re.findall(r"[\"'](VERL_OTEL_[A-Z_]+)[\"']", path.read_text("utf-8")))
    others = {
        "VERL_OTEL_RAISE_INTERNAL_ERRORS",  # of our own tests
        "VERL_OTEL_",
        "VERL_OTEL_BOARDS",
    }  # the last one is Grafana's: `verl-otel boards export`
    assert {name for name in read if name not in page} <= others


def test_every_decision_is_in_the_index():
    """Each decision has one row in the index, in order, with title, date and status of its page, and the parts of a decision."""
    folder = DOCS / "explanation" / "decisions"
    index = (folder / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \| ([\d-]+) \| (\w+) \|$", index, re.MULTILINE)
    pages = sorted(page for page in folder.glob("*.md") if page.name != "README.md")
    assert [name for _, name, *_ in rows] == [page.name for page in pages]
    for (number, name, title, date, status), page in zip(rows, pages, strict=True):
        assert name.startswith(f"{number}-")
        head, *parts = page.read_text("utf-8").split("\n## ")
        assert head.startswith(f"# {number} {title}\n\n* Status: {status.capitalize()}")
        assert head.rstrip().endswith(f"* Date: {date}")
        assert [part.partition("\n")[0] for part in parts][:3] == ["Context", "Decision", "Consequences"]


@pytest.mark.full
def test_the_settings_of_the_project_name_what_is_there():
    """Each path in pyproject.toml exists, and the source distribution leaves out nothing that is tracked beside its settings for git and CI."""
    import tomllib  # Python 3.11 has it, which these tests run on

    settings = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))
    lint, build = settings["tool"]["ruff"], settings["tool"]["hatch"]["build"]["targets"]["sdist"]
    named = {*lint.get("extend-exclude", ()), *lint["lint"]["per-file-ignores"], *settings["tool"]["mypy"]["files"]}
    assert not [path for path in named if not list(TOP.glob(path))]
    included = {path.removeprefix("/") for path in build["include"]}
    assert not [path for path in included if not (TOP / path).exists()]
    listed = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the sources are in no git repository")
    tracked = {path.partition("/")[0] for path in listed.stdout.splitlines()}
    assert tracked - included == {".ci", ".github", ".pre-commit-config.yaml", ".gitignore", "pyproject.toml"}
    # hatchling adds the last two by itself


def test_the_tutorial_finds_the_run_of_the_demo():
    """The line that the demo prints is the one of the tutorial."""
    from tests.verl_cpu import demo

    assert demo.COMMANDS in (DOCS / "tutorial" / "first-run.md").read_text("utf-8")


def find_wide_lines(text):
    """Return the numbers of the lines of prose that are too wide: no tables, no code, no results of benchmarks."""
    numbers, skipped = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "<!-- benchmarks:")):
            skipped = not skipped
        if len(line) > MAX_COLUMNS and not skipped and not line.lstrip().startswith("|"):
            numbers.append(number)
    return numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_prose_is_readable_in_a_terminal(page):
    """A line of prose fits a screen. Pages that are made from the code or from results are as they are made."""
    text = page.read_text("utf-8")
    is_made = "generated by" in text[:500] or "made from the results" in text[:500]
    assert is_made or find_wide_lines(text) == []
