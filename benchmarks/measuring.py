"""Timing and memory measurement."""

import ctypes
import gc
import platform
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

Run = Callable[[], object]


def interleaved(
    runs: Mapping[str, Run],
    repetitions: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    summarize: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """The seconds of each run: by default the median, by the wall clock.

    The runs alternate, so that a slowdown of the machine affects all of them: compare ratios, not times. The order is
    shuffled every round, because each run affects the caches of the next. The first round is a warm-up.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(0)
    for repetition in range(repetitions + 1):
        for name in order.sample(list(runs), len(runs)):
            begin = clock()
            runs[name]()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if repetition > 0:
                times[name].append(clock() - begin)
    return {name: summarize(seconds) for name, seconds in times.items()}


def peak_memory(run: Run, device: torch.device) -> float | None:
    """Peak MB allocated by ``run`` above the starting level; None on a CPU outside Linux."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        run()
        return (torch.cuda.max_memory_allocated(device) - allocated) / 1e6
    if platform.system() != "Linux":
        return None
    # Memory cached by the allocator would hide what the run takes.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak, see proc(5)
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 1e3


@contextmanager
def peak_proportional_memory(pid: int, every_s: float = 0.02) -> Iterator[Callable[[], float | None]]:
    """Watches a process and its descendants; call the yielded function afterwards for their joint peak MB.

    Uses proportional set size: a page shared by several processes counts once. None outside Linux.
    """
    samples: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            samples.append(sum(_proportional(each) for each in _process_tree(pid)))

    watcher = threading.Thread(target=watch, daemon=True)
    if platform.system() == "Linux":
        watcher.start()
    try:
        yield lambda: max(samples) / 1e3 if samples else None
    finally:
        ended.set()
        if watcher.is_alive():
            watcher.join()


def _process_tree(pid: int) -> list[int]:
    """A process and its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except FileNotFoundError:  # it has ended
        return []
    return [pid, *(each for child in children for each in _process_tree(int(child)))]


def _proportional(pid: int) -> float:
    """A process's proportional set size in kB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("Pss:")), 0.0)


def _status(field: str) -> float:
    """A field of ``/proc/self/status`` in kB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def machine(device: torch.device) -> str:
    """Hardware and versions, in one line."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return f"{name}, threads: {torch.get_num_threads()}, torch {torch.__version__}, Python {platform.python_version()}"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
