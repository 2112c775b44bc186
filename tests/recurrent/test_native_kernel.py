"""The compiled loop: how its kernel is built and cached, and what it does that the other backends do not."""

import errno
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from found import layers_of
from in_ranks import in_ranks
from parity import batch, outputs_and_gradients, relative_errors, resets, sequence

from recurrl.recurrent.backends import native
from recurrl.recurrent.backends.native import library
from recurrl.runtime.atomic import replacing

pytestmark = pytest.mark.native


@pytest.fixture(scope="session")
def machine_kernel():
    """The kernel in the session's own cache, built at most once."""
    library.kernel.cache_clear()
    assert library.unavailable_reason() is None
    digest = library._digest(library._source(), library._compiler(), library._FLAGS)
    return next((library._cache_folder() / "native").glob(f"kernel-{digest}-*.so"))


@pytest.fixture
def built(machine_kernel, folder):
    """The kernel, already in the folder."""
    folder.mkdir(mode=0o700, parents=True)
    return Path(shutil.copy2(machine_kernel, folder))


@pytest.fixture
def copying_compiler(machine_kernel, monkeypatch):
    """Compiles in no time, by copying this machine's kernel."""
    monkeypatch.setattr(library, "_compiled", lambda *_: machine_kernel.read_bytes())


def build():
    """Builds and loads the kernel, and runs it."""
    library.kernel.cache_clear()
    assert outputs_and_gradients(*small_layer())["y"].isfinite().all()
    (built,) = (Path(os.environ["RECURRL_CACHE_DIR"]) / "native").glob("*.so")
    return built


def small_layer():
    return both("gru", (2, 3, 4, 5))[::2]


def both(cell, size, other="reference", dtype=torch.float32):
    """Two layers of a size (rows, steps, inputs, hidden), of this backend and of another, and rows for them."""
    modules = [layers_of(cell, backend, "none", size).to(dtype) for backend in ("native", other)]
    return *modules, batch(modules[0], resets("random", *size[:2]))


def messages(caplog):
    with caplog.at_level(logging.INFO):
        library.kernel.cache_clear()
        assert library.unavailable_reason() is None
    return caplog.text


@pytest.mark.usefixtures("copying_compiler")
def test_it_is_built_once_in_a_private_folder(folder):
    built = build()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = built.stat().st_mtime_ns
    assert build() == built
    assert built.stat().st_mtime_ns == before
    assert [path.name for path in folder.iterdir()] == [built.name]


@pytest.mark.usefixtures("copying_compiler")
@pytest.mark.parametrize("changed", ["_FLAGS", "_processor", "CC"])
def test_another_compiler_processor_or_flag_is_another_kernel(folder, built, monkeypatch, caplog, changed):
    if changed == "_FLAGS":
        monkeypatch.setattr(library, "_FLAGS", ("-DANYTHING", *library._FLAGS))
    elif changed == "_processor":
        monkeypatch.setattr(library, "_processor", lambda: "another")
    else:
        monkeypatch.setenv("CC", "cc -DANYTHING")
    assert messages(caplog) == ""
    assert len([*folder.glob("*.so")]) == 2
    assert built.exists()


def another_library(path):
    """An ELF without the kernel's functions, intact by its name."""
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", str(path)], input=b"int other;", check=True)
    name, _, _ = path.stem.rpartition("-")
    path.rename(path.with_name(f"{name}-{library._sha256(path.read_bytes())}.so"))


def instead(make):
    def replaced(path):
        path.unlink()
        make(path)

    return replaced


def owned_by_another_user(path):
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1)


HOSTILE_FILES = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "another library": another_library,
    "a pipe": instead(os.mkfifo),
    "a folder": instead(Path.mkdir),
    "a link to nothing": instead(lambda path: path.symlink_to("nothing")),
    "writable by others": lambda path: path.chmod(0o666),
    "another user's": owned_by_another_user,
}


@pytest.mark.usefixtures("copying_compiler")
@pytest.mark.parametrize("harm", HOSTILE_FILES.values(), ids=HOSTILE_FILES.keys())
def test_a_file_in_the_cache_that_is_not_the_kernel_is_never_loaded(built, caplog, harm):
    harm(built)
    assert "backend=native compiles its kernel again" in messages(caplog)
    if not built.is_dir():
        library._loaded(built)  # repaired
    assert outputs_and_gradients(*small_layer())["y"].isfinite().all()


HOSTILE_CACHES = {
    "writable by others": lambda folder, _: (folder.mkdir(parents=True), folder.chmod(0o770)),
    "a file in the folder's place": lambda folder, _: folder.parent.write_text("", encoding="utf-8"),
    "no home directory": lambda _, patch: (
        [patch.delenv(name, raising=False) for name in ("RECURRL_CACHE_DIR", "XDG_CACHE_HOME", "HOME")],
        patch.setattr("os.path.expanduser", lambda path: path),
    ),
    "no space": lambda folder, patch: patch.setattr(library, "replacing", partial(without_space, folder)),
}


def without_space(folder, path):
    if path.parent == folder:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    return replacing(path)


@pytest.mark.usefixtures("copying_compiler")
@pytest.mark.parametrize("harm", HOSTILE_CACHES.values(), ids=HOSTILE_CACHES.keys())
def test_a_cache_that_cannot_be_used_costs_a_build_in_each_process(folder, caplog, monkeypatch, harm):
    harm(folder, monkeypatch)
    temporary = {*Path(tempfile.gettempdir()).glob("recurrl-native-*")}
    assert messages(caplog).count("backend=native has no usable cache, so each process compiles the kernel") == 1
    assert {*Path(tempfile.gettempdir()).glob("recurrl-native-*")} == temporary
    assert not [*folder.glob("*")]


def test_processes_that_build_at_once_both_get_it(folder, machine_kernel, monkeypatch):
    both = get_context("fork").Barrier(2, timeout=60)

    def compiled(*_):
        both.wait()
        return machine_kernel.read_bytes()

    monkeypatch.setattr(library, "_compiled", compiled)
    (kernel,) = set(in_ranks(2, build))
    assert [*folder.iterdir()] == [kernel]


def test_auto_leaves_dtypes_that_it_does_not_have_to_others():
    module = layers_of("gru", "auto", "none", (2, 3, 4, 5)).bfloat16()
    outputs_and_gradients(module, batch(module, resets("none", 2, 3)))
    assert module.backend_in_use == "scan"
    module.recurrent_backend = "native"
    with pytest.raises(ValueError, match=r"but the layer's dtype is torch\.bfloat16\. Choose backend=scan"):
        outputs_and_gradients(module, batch(module, resets("none", 2, 3)))


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 33, 70])
def test_rows_do_not_depend_on_one_another_or_on_threads(cell, rows, monkeypatch):
    """Bit for bit, except what torch sums: the gradients of inputs and weights."""
    module, _, data = both(cell, (rows, 5, 4, 19))
    whole = outputs_and_gradients(module, data)
    monkeypatch.setattr(native, "_WORK_OF_A_THREAD", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        divided = outputs_and_gradients(module, data)
    finally:
        torch.set_num_threads(threads)
    for name in whole:
        tolerance = 1e-4 if "weight" in name or "bias" in name or name.endswith(" x") else 0
        torch.testing.assert_close(divided[name], whole[name], rtol=tolerance, atol=tolerance)
    one = sequence(module, data[-1:])
    torch.testing.assert_close(one["y"], whole["y"][-1:], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (33, 9, 40, 70), (70, 3, 33, 32), (5, 140, 1, 16)], ids=str)
def test_sizes_around_its_tiles_and_panels(cell, sizes):
    module, reference, data = both(cell, sizes, dtype=torch.float64)
    results, expected = (outputs_and_gradients(each, data) for each in (module, reference))
    torch.testing.assert_close(results, expected, rtol=1e-9, atol=1e-10)


def test_large_memory_of_which_it_asks_for_large_pages():
    module, other, data = both("gru", (70, 128, 8, 256), "scan")
    results, expected = (outputs_and_gradients(each, data) for each in (module, other))
    assert all(error < 1e-5 for error in relative_errors(results, expected).values())


def test_what_does_not_fit_the_weights_is_rejected(cell):
    module, _, data = both(cell, (2, 3, 4, 5))
    with pytest.raises(ValueError, match="inputs have 4 features; these have 6"):
        sequence(module, data.copy().set("x", torch.randn(2, 3, 6)))
    with pytest.raises(ValueError, match="float64"):
        sequence(module, data.copy().set("x", data["x"].double()))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_passed_on_up_to_the_next_reset(cell, bad):
    module, reference, data = both(cell, (3, 9, 4, 19))
    data["is_init"][:] = torch.arange(9) == 6
    data["x"][1, 2] = bad
    results, expected = (outputs_and_gradients(each, data)["y"] for each in (module, reference))
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert results[1, 6:].isfinite().all()
    assert results[1, 2:6].isnan().any() == (bad != bad or expected[1, 2:6].isnan().any())


GRADIENTS = {
    "of a sum": lambda g: g[:1, :1, :1].expand_as(g),
    "one for all features of a step": lambda g: g[:, :, :1].expand_as(g),
    "the same for all rows": lambda g: g[:1].expand_as(g),
    "the same at all steps": lambda g: g[:, :1].expand_as(g),
    "half of the features of a larger one": lambda g: torch.cat((g, g), 2)[:, :, : g.shape[2]],
    "steps first": lambda g: g.transpose(0, 1).contiguous().transpose(0, 1),
    "features first": lambda g: g.transpose(1, 2).contiguous().transpose(1, 2),
    "every other step": lambda g: g.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.parametrize("layout", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_gradients_of_any_layout_give_the_same(cell, layout):
    module, _, data = both(cell, (3, 7, 4, 19), dtype=torch.float64)
    output = sequence(module, data)["y"]
    upstream = layout(torch.randn_like(output))
    gradients = partial(torch.autograd.grad, output, list(module.parameters()), retain_graph=True)
    assert all(map(torch.equal, gradients(upstream), gradients(upstream.contiguous())))


def test_extreme_gates_are_exact_enough():
    module, reference, data = both("lstm", (2, 4, 3, 17))
    data["x"] *= 1000
    results, expected = (outputs_and_gradients(each, data) for each in (module, reference))
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)
