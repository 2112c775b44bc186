"""Commands, most of which run in this process, and what they come to."""

import io
import logging
import os
import re
import subprocess
import sys
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import NamedTuple

import pytest
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra


class Outcome(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self):
        """The text after ``error:`` at the beginning of a line of standard error; empty without such a line."""
        match = re.search(r"^error: (.*)", self.err, re.MULTILINE | re.DOTALL)
        return match[1].strip() if match else ""

    def succeeded(self):
        """The same, of a command that succeeded."""
        assert self.code == 0, self.out + self.err
        return self

    def failed(self):
        """The same, of a command that ended with an error."""
        assert self.code == 1, self.err
        return self


def output_of(command, **options):
    """What a command prints, run in another process; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_in_process(main, program, arguments, cwd):
    """Calls the entry point of a command and handles its exit as the interpreter would."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with _state_of_process_kept(cwd), pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", [program, *map(str, arguments)])
        patch.setattr(sys, "path", sys.path[:])
        patch.delenv("HYDRA_FULL_ERROR", raising=False)
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        except KeyboardInterrupt:
            code = 130
        except Exception:
            code = 1
            err.write(traceback.format_exc())
    if isinstance(code, str):
        err.write(code + "\n")
        code = 1
    return Outcome(code, out.getvalue(), err.getvalue())


@contextmanager
def _state_of_process_kept(here):
    """Restores what a command sets for the whole process, and forgets the modules that it imported from ``here``."""
    root = logging.getLogger()
    handlers, level, torchrl_level = root.handlers[:], root.level, logging.getLogger("torchrl").level
    threads, environment, modules = torch.get_num_threads(), dict(os.environ), set(sys.modules)
    try:
        yield
    finally:
        for handler in set(root.handlers) - set(handlers):
            # As at the end of a process; on a full disk the rest of the log cannot be written.
            with suppress(OSError):
                handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("torchrl").setLevel(torchrl_level)
        torch.set_num_threads(threads)
        GlobalHydra.instance().clear()
        for group in filter(lambda entry: isinstance(entry, dict), ConfigStore.instance().repo.values()):
            for name in [name for name, node in group.items() if getattr(node, "provider", "") == "recurrl"]:
                del group[name]
        for name in [name for name, module in sys.modules.items() if name not in modules and _lies_in(here, module)]:
            del sys.modules[name]
        os.environ.clear()
        os.environ.update(environment)
        if loky := sys.modules.get("joblib.externals.loky"):
            # Its processes would run the next command's jobs, too, in the folder in which they began.
            loky.get_reusable_executor(reuse=True).shutdown()


def _lies_in(here, module):
    known = getattr(module, "__dict__", {})  # some modules of torch make up attributes
    places = [known.get("__file__"), *known.get("__path__", ())]
    return any(str(place).startswith(f"{here}{os.sep}") for place in places)
