"""The memory tasks in torch equal their definitions, step for step."""

import pytest
import torch

from recurrl.envs.sources.memory import MemoryChain, RepeatPrevious, TMaze


def t_maze(env, i):
    """One environment by Bakker's text; a function from the action to observation, reward and end."""
    north = int(env.way[i]) == 0
    place, junction = env.start, env.length

    def bits():
        if place == 0:
            return [0, 1, 1] if north else [1, 1, 0]
        return [0, 1, 0] if place == junction else [1, 0, 1]

    def step(action):
        nonlocal place
        if place == junction and action in (0, 2):
            return bits(), 4.0 if (action == 0) == north else -0.1, True
        moved = place + {1: 1, 3: -1}.get(action, 0)
        if moved == place or not 0 <= moved <= junction:
            return bits(), -0.1, False
        place = moved
        return bits(), 0.0, False

    return step


def memory_chain(env, i):
    """One environment as bsuite's text has it: the clock ticks after the observation is made."""
    context, query, clock = env.context[i].tolist(), int(env.query[i]), 0

    def step(action):
        nonlocal clock
        seen = [2 * bit - 1 if clock == 0 else 0 for bit in context]
        observation = [1 - clock / env.length, query if clock == env.length - 1 else 0, *seen]
        clock += 1
        if clock - 1 < env.length:
            return observation, 0.0, False
        return observation, 1.0 if action == context[query] else -1.0, True

    return step


CASES = {
    "passive": (lambda n: TMaze(n, 3, max_steps=25), t_maze),
    "active": (lambda n: TMaze(n, 4, active=True, max_steps=25), t_maze),
    "chain 1": (lambda n: MemoryChain(n, 1), memory_chain),
    "chain of 3 bits": (lambda n: MemoryChain(n, 6, bits=3), memory_chain),
}


@pytest.mark.parametrize(("make", "reference"), CASES.values(), ids=CASES)
def test_every_step_is_that_of_the_definition(make, reference):
    count = 6
    env = make(count)
    env.set_seed(1)
    actions = torch.Generator().manual_seed(0)
    env.reset_tensors(None)
    plain = [reference(env, i) for i in range(count)]
    steps, ends = [0] * count, 0
    for _ in range(150):
        action = torch.randint(env.action_spec.space.n, (count,), generator=actions)
        after = env.step_tensors(action)
        for i in range(count):
            observation, reward, terminated = plain[i](int(action[i]))
            steps[i] += 1
            truncated = not terminated and steps[i] == env.max_steps
            assert after["observation"][i].flatten().tolist() == pytest.approx(observation)
            assert float(after["reward"][i]) == pytest.approx(reward)
            flags = [bool(after[name][i]) for name in ("terminated", "truncated", "done")]
            assert flags == [terminated, truncated, terminated or truncated]
        if after["done"].any():
            env.reset_tensors(after["done"])
            for i in after["done"].flatten().nonzero().flatten().tolist():
                plain[i], steps[i] = reference(env, i), 0
                ends += 1
    assert ends >= count


@pytest.mark.parametrize(("k", "decks"), [(4, 1), (1, 1), (32, 2)])
def test_repeat_previous_equals_popgyms(k, decks):
    theirs = pytest.importorskip("popgym.envs.repeat_previous").RepeatPrevious(decks, k)
    first, _ = theirs.reset(seed=0)
    actions = [step % 4 for step in range(52 * decks - 1)]
    played = [theirs.step(action) for action in actions]
    ours = RepeatPrevious(1, k, decks)
    ours.reset_tensors(None)
    assert ours.cards[0].bincount().tolist() == [13 * decks] * 4
    ours.cards[0] = torch.tensor([first, *(step[0] for step in played)])
    for action, (observation, reward, terminated, _, _) in zip(actions, played, strict=True):
        after = ours.step_tensors(torch.tensor([action]))
        assert int(after["observation"]) == observation
        assert float(after["reward"]) == pytest.approx(reward)
        assert bool(after["terminated"]) == terminated


def test_the_same_seed_gives_the_same_episodes_and_another_does_not():
    def episodes(seed):
        env = RepeatPrevious(5)
        env.set_seed(seed)
        env.reset_tensors(None)
        env.reset_tensors(torch.tensor([[True], [False], [True], [False], [False]]))
        return env.cards

    assert torch.equal(episodes(3), episodes(3))
    assert not torch.equal(episodes(3), episodes(4))


TAKES = "It takes: length, active, device."
CHOOSE = "Choose one of: t_maze, memory_chain, repeat_previous; or use module:Class, a MemoryTask of your own."

UNSUPPORTED = [
    ({"env.id": "y_maze"}, f"env.id=y_maze is not a memory task. {CHOOSE}"),
    ({"env.kwargs": {}}, f"env.id=t_maze requires env.kwargs.length, which is not given. {TAKES}"),
    ({"env.packages": ["tasks"]}, 'env.packages must be [] with env.source=memory (got ["tasks"]).'),
]


@pytest.mark.parametrize(("changes", "message"), UNSUPPORTED)
def test_options_that_a_task_does_not_support_are_rejected(changes, message, compose, rejection):
    config = compose("env=t_maze").env
    assert rejection({"env": config, **changes}) == message
