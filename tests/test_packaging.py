"""What an installation holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_folder_of_the_package_is_installed():
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {init.parent.relative_to(ROOT).as_posix() for init in (ROOT / "recurrl").rglob("__init__.py")}
    assert set(packages) - {"recurrl.configs"} == {folder.replace("/", ".") for folder in folders}
