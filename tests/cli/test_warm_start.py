"""``init_from=``: a new run that starts with the weights of another one."""

import shutil
import signal

import torch
from run_files import metrics, settings, summary, without_times

import recurrl
from recurrl.build import make_policy_for
from recurrl.checkpoint import files
from recurrl.checkpoint.warm_start import copy_weights

PREDICTING = ("algorithm=my_package.predicting_ppo:PredictingPPO", "algorithm.prediction_coeff=1")
LAST = "frames_000000000064"


def state_of(run, frames=64):
    return files.state(run / "checkpoints" / f"frames_{frames:012d}", "policy")


def test_the_new_run_starts_with_all_weights_and_statistics_and_nothing_else(small, finished_run):
    policy = make_policy_for(small("cell=lstm", "seed=5"))
    (line,) = copy_weights(policy, finished_run)
    assert line.startswith(f"init_from: copied from {finished_run / 'checkpoints' / LAST}: trunk.preprocess, ")
    saved = state_of(finished_run)
    assert saved["trunk.preprocess.moments.count"] == 64
    assert policy.state_dict().keys() == saved.keys()
    for name, value in policy.state_dict().items():
        assert torch.equal(value, saved[name]), name


def test_a_run_starts_at_no_frames_from_a_run_directory_or_a_checkpoint(train, tiny, finished_run, tmp_path):
    first = finished_run / "checkpoints" / "frames_000000000032"
    for source, name in ((finished_run, LAST), (first, first.name)):
        outcome = train(*tiny, "cell=lstm", *PREDICTING, f"init_from={source}", f"hydra.run.dir={name}").succeeded()
        assert f"init_from: copied from {finished_run / 'checkpoints' / name}: " in outcome.out
        assert "the algorithm's own, left as initialised: predictor.weight, predictor.bias" in outcome.out
        assert [row["frames"] for row in metrics(tmp_path / name)] == ["32", "64"]
        assert settings(tmp_path / name)["init_from"] == str(source)
    assert metrics(tmp_path / LAST)[0]["policy/entropy"] != metrics(tmp_path / first.name)[0]["policy/entropy"]


def test_what_does_not_fit_stays_as_initialised_and_is_named_with_both_shapes(small, train, tiny, tmp_path):
    blind, source = "policy.previous_action=false", tmp_path / "source"
    train(*tiny, "cell=lstm", blind, f"hydra.run.dir={source}").succeeded()
    # Observations of 4 numbers instead of 2, and 3 actions instead of 2.
    other = ("env=gym", "env.id=Acrobot-v1", "env.mask=[4,5]")
    policy = make_policy_for(small("cell=lstm", blind, *other, "algorithm.critic=feedforward"))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    loaded, differing, lacking = copy_weights(policy, source)
    assert loaded.endswith("frames_000000000064: trunk.core.lstm, critic_head")
    assert "does not fit, left as initialised: trunk.preprocess (" in differing
    assert "trunk.encoder.1.weight is 8×2 there and 8×4 here" in differing
    assert "actor_head.network.weight is 2×8 there and 3×8 here" in differing
    assert "init_from: not in the checkpoint, left as initialised: critic_trunk." in lacking
    saved = state_of(source)
    for name, value in policy.state_dict().items():
        expected = saved if name.startswith(("trunk.core.", "critic_head.")) else before
        # The counts of the statistics would fit by their shape, but belong to those of another observation.
        assert torch.equal(value, expected[name]), name


def test_what_is_in_the_checkpoint_only_is_named_by_parameter_if_its_layer_is_taken(small, finished_run, monkeypatch):
    more = dict.fromkeys(("trunk.core.lstm.peephole_l0", "auxiliary.weight", "auxiliary.bias"), torch.ones(3))
    saved = state_of(finished_run) | more
    monkeypatch.setattr(files, "state", lambda *_: saved)
    copied, lacking = copy_weights(make_policy_for(small("cell=lstm")), finished_run)
    assert "trunk.core.lstm" in copied
    assert lacking == "init_from: in the checkpoint only: trunk.core.lstm.peephole_l0, auxiliary"


def test_a_run_that_nothing_fits_is_rejected(train, tiny, finished_run, tmp_path):
    other = ("env=gym", "env.id=Acrobot-v1", "cell.hidden_size=9", "encoder.sizes=[9]", "hydra.run.dir=run")
    outcome = train(*tiny, "cell=lstm", f"init_from={finished_run}", *other).failed()
    assert outcome.error.startswith(f"init_from={finished_run}: nothing of {finished_run / 'checkpoints' / LAST} fits")
    assert "trunk.encoder.1.weight is 8×2 there and 9×6 here" in outcome.error
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_an_explicit_initial_std_is_kept(train, tiny, tmp_path):
    task = (*tiny, "env=pendulum_no_velocity")
    train(*task, "hydra.run.dir=source").succeeded()
    explicit = train(*task, "init_from=source", "policy.initial_std=0.2", "hydra.run.dir=explicit")
    assert "left as initialised: actor_head.network (policy.initial_std was given)" in explicit.out, explicit.err
    assert "old rows" not in explicit.out  # with continuous actions nothing is replayed
    assert "left as initialised" not in train(*task, "init_from=source", "hydra.run.dir=loaded").out
    mapping = {**settings(tmp_path / "source"), "init_from": str(tmp_path / "source"), "policy.initial_std": 0.2}
    recurrl.train(mapping, run_dir=tmp_path / "mapping")
    assert "(policy.initial_std was given)" in (tmp_path / "mapping" / "recurrl.log").read_text()


def test_a_resumed_run_does_not_take_the_weights_again(train, tiny, run, tmp_path, signalled):
    arguments = (*tiny, "cell=lstm", "total_frames=96", f"init_from={run}", "resume=auto")
    train(*arguments, "hydra.run.dir=whole").succeeded()
    signalled(signal.SIGTERM)
    stopped = train(*arguments, "hydra.run.dir=parts")
    assert stopped.code == 143
    assert "init_from: copied from" in stopped.out
    shutil.rmtree(run)
    assert "init_from: " not in train(*arguments, "hydra.run.dir=parts").succeeded().out
    assert summary(tmp_path / "parts")["frames"] == 96
    assert without_times(metrics(tmp_path / "parts")) == without_times(metrics(tmp_path / "whole"))
