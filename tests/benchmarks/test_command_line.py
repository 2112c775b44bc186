"""Command-line options shared by benchmarks."""

import argparse

from benchmarks.command_line import add_output, add_threads, publish


def test_threads_and_output_are_options_and_no_files_are_written_by_default():
    parser = argparse.ArgumentParser()
    add_threads(parser, default=2)
    add_output(parser, "one.md", "one.png")
    assert vars(parser.parse_args([])) == {"threads": 2, "output": None}
    assert "folder for one.md and one.png" in " ".join(parser.format_help().split())


def test_a_table_is_printed_and_written_only_to_an_explicit_folder(tmp_path, capsys):
    publish("a table\n", None, "one.md")
    assert list(tmp_path.iterdir()) == []
    publish("a table\n", tmp_path / "new" / "folder", "one.md")
    assert (tmp_path / "new" / "folder" / "one.md").read_text(encoding="utf-8") == "a table\n"
    assert capsys.readouterr().out == "a table\na table\n"
