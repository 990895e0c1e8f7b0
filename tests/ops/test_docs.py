"""The documentation says what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from ops.cli import COMMANDS, main
from ops.reference import page
from ops.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_reference_of_the_settings_is_current() -> None:
    """docs/settings.md is what `python -m ops.reference` writes now."""
    assert (ROOT / "docs" / "settings.md").read_text("utf-8") == page()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_variable_in_the_pages_exists(path: Path) -> None:
    """A DECIBATCH_ variable that a page names is a setting."""
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {"DECIBATCH_CONFIG"}
    assert set(re.findall(r"DECIBATCH_[A-Z_]*[A-Z]", path.read_text("utf-8"))) <= known


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    """A relative link or image of a page is a file of this repository."""
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_command_line_in_the_pages_is_understood(path: Path) -> None:
    """Commands and options that a page shows are those of the program."""
    shown = re.findall(r"^\s*(?:\$ )?decibatch ([a-z]+)(.*)$", path.read_text("utf-8"), re.MULTILINE)
    for name, rest in shown:
        assert name in COMMANDS
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            command = command.commands[rest.split()[0]]
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"(?<=\s)--[a-z-]+", rest)) <= options


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help(name: str) -> None:
    """Each command in the list can be loaded and says what it does."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.help


def test_every_line_of_the_threat_model_has_its_test() -> None:
    """Each row of docs/security.md names tests, and each of them is there."""
    page_ = (ROOT / "docs" / "security.md").read_text("utf-8")
    rows = [line for line in page_.splitlines() if line.startswith("| ")]
    rows = [line for line in rows if not line.startswith(("| threat", "| ---"))]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, test in named:
            assert f"def {test}(" in (ROOT / "tests" / path).read_text("utf-8"), test
