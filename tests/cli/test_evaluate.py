"""``recurrl-evaluate``: evaluating a run, or one of its checkpoints."""

import inspect
import json

import numpy as np
import pytest
import torch
from rejections import error_of
from run_files import settings, summary

from recurrl import evaluation
from recurrl.api import Run, load
from recurrl.checkpoint import files
from recurrl.returns import return_format
from recurrl.runs.open_run import open_run


def test_evaluating_a_run_prints_the_returns_of_its_last_evaluation_and_leaves_it_as_it_was(evaluate, finished_run):
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    _, normal, *without_memory = evaluate(finished_run, "--memory").succeeded().out.splitlines()
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before
    result = summary(finished_run)
    mean, std = result["eval_return_mean"], result["eval_return_std"]
    form = return_format(mean, std)
    assert normal.split()[:3] == [str(finished_run), f"{mean:{form}}", f"{std:{form}}"]
    assert " too few episodes " in normal
    assert normal.split()[-1] == "2"
    names = {"zeroed": "its memory zeroed", "shuffled": "another episode's memory"}
    for line, (key, name) in zip(without_memory, names.items(), strict=True):
        words = line.partition(f"{finished_run} with {name} ")[2].split()
        assert float(words[0]) == pytest.approx(result[f"eval_return_mean_{key}_state"], rel=1e-3)


def test_a_policy_that_has_no_memory_cannot_be_evaluated_without_it(train, evaluate, tiny):
    train(*tiny, "cell=none", "evaluation.episodes=0", "hydra.run.dir=run").succeeded()
    assert evaluate("run", "--device", "auto").out.split()[-1] == "20"
    assert evaluate("run", "--memory").error == (
        "--memory needs recurrent states, but the policy of run/checkpoints/frames_000000000064 has none. Leave it out."
    )


def test_an_evaluation_uses_the_threads_of_its_run(evaluate, run, monkeypatch):
    (run / "config.yaml").write_text(json.dumps(settings(run) | {"num_threads": 3}))
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    evaluate("run").succeeded()
    assert threads[0] == 3


NO_RUN = "Pass a run directory (it holds config.yaml and checkpoints/), or one of its checkpoints."


WRONG = [
    ("nowhere", f"nowhere does not exist. {NO_RUN}"),
    (".", f". is neither a run directory nor a checkpoint in one. {NO_RUN}"),
    ("run --episodes 0", "--episodes must be at least 1 (got 0)."),
    ("run --seed 1,2,1", "--seed must be an integer from 0 to 2_147_483_647, each of several a different one (got ["),
    ("run --device cuda", "device must be auto, cpu or one of the 0 CUDA devices that torch "),
    ("run lr=1", "lr=1 does not change the environment of the run. Use env.key=value"),
    ("run env.action_mask_from_info=true", "env.action_mask_from_info must stay what the policy was trained with."),
    ("run env.num_envs=3", "env.num_envs=3 has no effect on returns. Leave it out."),
    ("run env.max_episode_steps=soon", "with env.max_episode_steps=soon: env."),
    ("run env.maximum=3", "config.yaml with env.maximum=3: Unknown configuration key 'env.maximum'"),
    ("run env.max_episode_steps=9,10", "Use env.key=value with one value, such"),
    ("run env.mask=[1]", "does not fit this configuration"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_what_cannot_be_evaluated_is_rejected(evaluate, finished_run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "run").symlink_to(finished_run)
    outcome = evaluate(*arguments.split()).failed()
    assert sentence in outcome.error
    assert len(outcome.err.splitlines()) == 1


def printed_by(outcome):
    return json.loads(outcome.succeeded().out)


def test_json_holds_all_returns_and_their_statistics(evaluate, finished_run):
    (result,) = printed_by(evaluate(finished_run, "--json", "--episodes", 8, "--seed", "3,4", "--memory"))
    assert result["run"] == str(finished_run)
    assert result["deterministic"] is True
    assert list(result["returns"]) == ["kept", "zeroed", "shuffled"]
    kept = result["returns"]["kept"]
    each = [open_run(finished_run).evaluate(episodes=8, seed=seed)["kept"] for seed in (3, 4)]
    assert kept["returns"] == [*each[0], *each[1]]
    assert kept["episodes"] == 16
    assert kept["mean"] == pytest.approx(np.mean(kept["returns"]))
    assert kept["interquartile_mean"] == pytest.approx(np.mean(sorted(kept["returns"])[4:12]))
    low, high = kept["interval_95"]
    assert low < kept["mean"] < high
    assert high - low == pytest.approx(2 * 1.96 * kept["std"] / 4, rel=0.2)


def test_sampled_actions_are_repeatable_and_not_the_deterministic_ones(evaluate, finished_run):
    ways = (["--sampled"], ["--sampled"], [])
    of_ways = (printed_by(evaluate(finished_run, "--json", "--episodes", 6, *way)) for way in ways)
    (sampled,), (again,), (not_sampled,) = of_ways
    assert sampled == again
    assert sampled["deterministic"] is False
    assert sampled["returns"]["kept"]["returns"] != not_sampled["returns"]["kept"]["returns"]


def test_several_runs_are_compared_in_a_table(evaluate, finished_run):
    checkpoint = finished_run / "checkpoints" / "frames_000000000032"
    outcome = evaluate(finished_run, checkpoint, "--episodes", 3, "env.max_episode_steps=5").succeeded()
    head, first, second = outcome.out.splitlines()
    assert head.split() == ["run", "mean", "std", "95%", "interval", "interquartile", "mean", "min", "max", "episodes"]
    assert " ".join(first.split()) == f"{finished_run} 5.000 0.000 5.000 to 5.000 5.000 5.000 5.000 3"
    assert second.split()[0] == str(checkpoint)


def test_the_best_checkpoint_is_the_default_of_all_that_open_runs(evaluate, recurrl_export, tmp_path, run):
    first, last = sorted(run.glob("checkpoints/frames_*"))
    files.complete(first, {"eval/return_mean": 1e9})
    assert [open_run(run, which).saved.path for which in ("best", "last")] == [first, last]
    default, of_first = (printed_by(evaluate(path, "--json"))[0] for path in (run, first))
    assert default["returns"] == of_first["returns"]
    recurrl_export(run, "--format", "pt2", cwd=tmp_path).succeeded()
    assert json.loads((run / "export" / "policy.json").read_text())["run"]["checkpoint"] == first.name
    (last / "state-policy.pt").write_bytes(b"")  # it may have been the best
    assert f"The checkpoint {last} is damaged" in error_of(open_run, run)
    opening = (open_run, load, Run.load)
    assert {inspect.signature(each).parameters["which"].default for each in opening} == {"best"}


def test_fewer_environments_than_episodes_play_equally_many_each(finished_run, monkeypatch):
    whole = open_run(finished_run).evaluate(episodes=7, seed=2)["kept"]
    monkeypatch.setattr(evaluation, "MAX_COPIES", 3)
    returns = open_run(finished_run).evaluate(episodes=7, seed=2)["kept"]
    assert len(returns) == 7
    assert returns[:3] == whole[:3]
    assert returns[3:] != returns[:3] + returns[:1]
