"""What the pages name is there: variables, commands, options, modules, and the places that links lead to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoinstr import environment_variables
from autoinstr.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
VARIABLES = {name for name in vars(environment_variables) if name.startswith("AUTOINSTR_")}
SET_BY_US = {environment_variables.AUTOINSTR_RUN_ATTRIBUTES}


def test_the_table_of_variables_is_whole() -> None:
    table = re.findall(r"^\| (`AUTOINSTR_.*?) \|", PAGES["README.md"], re.MULTILINE)
    assert {name for cell in table for name in re.findall(r"AUTOINSTR_\w+", cell)} == VARIABLES - SET_BY_US


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_variable_that_is_none(page: str) -> None:
    assert set(re.findall(r"AUTOINSTR_[A-Z][A-Z_]+", PAGES[page])) <= VARIABLES


def test_the_readme_names_every_command() -> None:
    assert set(COMMANDS) <= set(re.findall(r"`(?:autoinstr )?(\w+)`", PAGES["README.md"]))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_option_that_is_none(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In the lines that show a command, up to its end or to what is piped or said behind it."""
    for command, words in re.findall(r"\bautoinstr (" + "|".join(COMMANDS) + r")\b([^`\n#|]*)", PAGES[page]):
        assert main([command, "--help"]) == 0
        help_of_it = capsys.readouterr().out
        assert [o for o in re.findall(r"(?<!\S)\[?(--[a-z-]+)", words) if o not in help_of_it] == [], command


def test_the_page_of_the_architecture_has_a_place_for_every_module() -> None:
    page = PAGES["CONTRIBUTING.md"].partition("\n## Where we differ")[0]
    package = ROOT / "autoinstr"
    modules = [path.name for path in package.glob("*.py") if not path.name.startswith("__")]
    folders = [f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").is_file()]
    assert [name for name in sorted((*modules, *folders)) if name not in page] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        if not path.exists() or (anchor and anchor not in _anchors(path.read_text(encoding="utf-8"))):
            lost.append(target)
    assert lost == []


def _anchors(text: str) -> set[str]:
    """The headings as GitHub names them in links."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
