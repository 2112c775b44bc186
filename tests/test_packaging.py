"""What an installation holds: the packages that setuptools finds."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_folder_of_modules_is_a_package_that_is_found():
    folders = {module.parent for module in (ROOT / "recurrl").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_configurations_are_found_within_the_package():
    # A link, so that the configurations lie at the top, where a reader looks for them.
    assert (ROOT / "recurrl" / "configs").resolve() == ROOT / "configs"
