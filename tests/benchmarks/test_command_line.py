"""Command-line options shared by benchmarks."""

from benchmarks.command_line import publish


def test_a_table_is_printed_and_written_only_to_an_explicit_folder(tmp_path, capsys):
    publish("a table\n", None, "one.md")
    assert list(tmp_path.iterdir()) == []
    publish("a table\n", tmp_path / "new" / "folder", "one.md")
    assert (tmp_path / "new" / "folder" / "one.md").read_text(encoding="utf-8") == "a table\n"
    assert capsys.readouterr().out == "a table\na table\n"
