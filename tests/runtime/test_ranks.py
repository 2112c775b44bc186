"""Ranks exchange tensors and values."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from in_ranks import in_ranks, met, start
from rejections import error_of
from torch.distributed import HashStore

from recurrl.runtime.ranks import RankLostError, World, world

TENSORS = {
    "a number": lambda rank: torch.tensor(1.5 + rank),
    "one truth": lambda rank: torch.tensor(rank == 1),
    "counts": lambda rank: torch.arange(6).reshape(2, 3) + 10**12 * rank,
    "in double precision": lambda rank: torch.full((3,), 1 / 3, dtype=torch.float64) * (rank + 1),
    "columns, not contiguous": lambda rank: (torch.arange(12.0).reshape(3, 4) + rank).T,
    "none": lambda _: torch.zeros(0),
    "many numbers": lambda rank: torch.arange(2_000_000.0) * (rank + 1),
}


@pytest.mark.parametrize("size", [2, 3])
def test_every_kind_of_tensor_is_gathered_and_summed(size):
    def exchanged():
        own = [make(world().rank) for make in TENSORS.values()]
        gathered = [world().all_gather(tensor).numpy() for tensor in own]
        return gathered, [world().all_reduce_(tensor.clone()).numpy() for tensor in own if tensor.dtype != torch.bool]

    of_ranks = in_ranks(size, met(exchanged))
    expected = [torch.stack([make(rank) for rank in range(size)]) for make in TENSORS.values()]
    sums = [tensors.sum(0) for tensors in expected if tensors.dtype != torch.bool]
    for gathered, summed in of_ranks:
        for tensors, each in zip(expected, gathered, strict=True):
            assert each.dtype == tensors.numpy().dtype
            assert (each == tensors.numpy()).all()
        for total, each, first in zip(sums, summed, of_ranks[0][1], strict=True):
            torch.testing.assert_close(torch.from_numpy(each), total)
            assert (each == first).all()


def test_values_reach_those_they_are_for():
    def exchanged():
        gathered = world().gather_objects({"rank": world().rank, "more": "x" * 1_000_000})
        return gathered, world().broadcast(("from", world().rank)), world().averaged({"a": float(world().rank)})

    for rank, (gathered, broadcast, averaged) in enumerate(in_ranks(3, met(exchanged))):
        assert [each["rank"] for each in gathered] == ([0, 1, 2] if rank == 0 else [rank])
        assert (broadcast, averaged) == (("from", 0), {"a": 1.0})


METRICS = [
    ([{"a": 1.0, "b": 2.0}, {"b": 5.0, "a": 3.0}], {"a": 2.0, "b": 3.5}),
    ([{"a": 1.0}, {"b": 5.0}], {"a": 1.0, "b": 5.0}),
    ([{"a": 1.0}, {"b": 5.0, "a": 3.0}], {"a": 2.0, "b": 5.0}),
    ([{}, {"a": 3.0}], {"a": 3.0}),
    ([{}, {}], {}),
    ([{"a": np.float32(2)}, {"a": torch.tensor(6)}], {"a": 4.0}),
    ([{"a": np.float64(1), "b": torch.tensor(2)}], {"a": 1.0, "b": 2.0}),  # of one process
]


@pytest.mark.parametrize("size", [1, 2])
def test_metrics_are_averaged_by_name_over_the_ranks_that_have_them(size):
    cases = [case for case in METRICS if len(case[0]) == size]
    for averaged in in_ranks(size, met(lambda: [world().averaged(of_ranks[world().rank]) for of_ranks, _ in cases])):
        # As text, which has the order of the names and the types of the values.
        assert repr(averaged) == repr([expected for _, expected in cases])


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_after_a_rank_was_killed_no_exchange_returns_anything_and_all_others_say_the_same_and_what_to_do(killed):
    def averaged(own):
        return world().averaged({"a": own.sum()})

    def exchanging():
        world().gather_objects(None)
        if world().rank == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        messages, own, ranks = [], torch.ones(100_000), world()
        for _ in range(2):
            for exchange in (ranks.all_reduce_, ranks.all_gather, averaged, ranks.gather_objects, ranks.broadcast):
                messages.append(error_of(exchange, own, kind=RankLostError))
                own = torch.full((3,), 7.0)
            began = time.monotonic()
        return [*messages, *(["waited again"] if time.monotonic() - began > 1 else [])]

    began = time.monotonic()
    of_ranks = start(3, met(exchanging)).end()
    assert of_ranks.pop(killed) is None
    assert [len(messages) for messages in of_ranks] == [10, 10]
    (message,) = set(of_ranks[0]) | set(of_ranks[1])
    assert message.startswith("A rank was lost (")
    assert "resume=auto in the same hydra.run.dir continues the run" in message
    assert time.monotonic() - began < 30


def test_a_rank_that_does_not_respond_in_time_is_an_error():
    def waiting():
        world().join()
        world().connect("cpu", 1.0)
        if world().rank == 1:
            time.sleep(3)
            return None
        return error_of(world().all_gather, torch.ones(1), kind=RankLostError)

    message, _ = start(2, waiting).end()
    assert message.startswith("A rank was lost (")
    assert "ranks.timeout_s" in message


def test_ranks_that_start_again_do_not_take_the_keys_of_those_that_ended():
    store = HashStore()
    store.set("recurrl 1", "of a rank that ended before it was answered")

    def named(rank):
        time.sleep(0.1 * rank)  # rank 0 finds the keys of the start before
        each = World()
        each.rank = rank
        return each._agreed_name(store, 3)

    with ThreadPoolExecutor() as pool:
        starts = [set(pool.map(named, range(3))) for _ in range(3)]
    assert [len(names) for names in starts] == [1, 1, 1]
    assert len(set.union(*starts)) == 3
