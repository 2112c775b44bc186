"""Which rollout the start-up check examines: one of the weights that it replays, also in resumed runs; saved rows."""

from collections import defaultdict, deque
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_processes import OPTIONS, make_policy, value_everything

from recurrl.build import make_collector
from recurrl.callbacks.builtin import ConsistencyCheck
from recurrl.collector.collector import RolloutSpec
from recurrl.collector.single import SingleCollector
from recurrl.collector.workers import Worker, WorkerCollector
from recurrl.policy import VALUE
from recurrl.runtime.serialization import from_bytes, to_bytes


class InProcess:
    """Runs workers in this process."""

    def __init__(self):
        self.frames, self.workers = 0, defaultdict(Worker)
        self.results = defaultdict(deque)

    def start(self, worker, spec, seed):
        self.call(worker, "start", deepcopy(spec), seed)

    def publish(self, policy, slot):
        return deepcopy(policy.state_dict())

    def call(self, worker, method, *arguments):
        # Copies, because the next rollout is collected before these rows are received.
        self.results[worker].append(deepcopy(getattr(self.workers[worker], method)(*arguments)))

    def receive(self, worker):
        return self.results[worker].popleft()

    def shutdown(self):
        for worker in self.workers.values():
            worker.close()


def collector_of(config, policy, ahead):
    if ahead is None:
        return make_collector(config, policy)
    spec = RolloutSpec(config.env, policy, config.frames_per_batch, config.seed)
    return WorkerCollector(replace(config.collector, ahead=ahead), spec, InProcess())


@pytest.mark.parametrize("resumed_after", [0, 1, 5])
@pytest.mark.parametrize("ahead", [None, 0, 1, 3])
def test_the_check_examines_the_first_rollout_of_the_processs_first_weights(ahead, resumed_after, small, monkeypatch):
    config = small(*OPTIONS, "collector=single" if ahead is None else "collector=multi_sync")
    policy = make_policy(config)
    checked = []

    def iterate(collector, begin, count):
        def check(acting, rollout, _, resumed):
            (value,) = set(rollout[VALUE].flatten().tolist())
            checked.append((trainer.iteration, acting.critic_head.bias.item(), value, resumed))
            return ""

        monkeypatch.setattr("recurrl.callbacks.builtin.check_consistency", check)
        callback = ConsistencyCheck(config)
        trainer = SimpleNamespace(policy=policy, collector=collector)
        for trainer.iteration in range(begin, begin + count):
            trainer.frames = trainer.iteration * config.frames_per_batch
            callback.on_rollout(trainer, collector.collect())
            value_everything(policy, trainer.iteration + 1.0)

    first = collector_of(config, policy, ahead)
    iterate(first, 0, resumed_after or 6)
    assert checked == [(0, 0.0, 0.0, False)]
    if resumed_after:
        checked.clear()
        again = collector_of(config, policy, ahead)
        again.load_state_dict(first.state_dict())
        iterate(again, resumed_after, 6)
        assert checked == [(resumed_after + (ahead or 0), float(resumed_after), float(resumed_after), True)]
        again.shutdown()
    first.shutdown()


@pytest.mark.parametrize("number", [2, np.float64(2), torch.tensor(2)], ids=repr)
def test_rows_that_are_ahead_are_saved_with_any_numbers_that_their_environments_log(number, small, monkeypatch):
    monkeypatch.setattr(SingleCollector, "metrics", lambda _: {"env/count": number})
    config = small(*OPTIONS, "collector=multi_sync")
    first, again = (collector_of(config, make_policy(config), 1) for _ in range(2))
    first.collect()
    again.load_state_dict(from_bytes(to_bytes(first.state_dict())))
    again.collect()
    assert again.metrics() == {"env/count": 2.0, "collect/staleness": 1.0}
    first.shutdown()
    again.shutdown()
