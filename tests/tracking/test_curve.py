import math
import warnings
from unittest.mock import patch

import numpy
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from run_files import write_rows

from recurrl.tracking.curve import plot_learning_curve

TRAIN, EVAL, STD = "train/return_mean", "eval/return_mean", "eval/return_std"
TRAINING = "training (sampled actions, last 100 episodes)"


@pytest.fixture
def plot(tmp_path):
    """Plots rows into a file, where any warning is an error, and gives the axes."""

    def plot(rows):
        write_rows(tmp_path / "metrics.csv", rows)
        kept = patch.object(Figure, "savefig", autospec=True, side_effect=Figure.savefig)
        with kept as save, warnings.catch_warnings():
            warnings.simplefilter("error")
            plot_learning_curve(tmp_path / "metrics.csv", tmp_path / "learning_curve.png")
        [(figure, *_)] = [call.args for call in save.mock_calls]
        [axes] = figure.axes
        return axes

    return plot


def training(axes):
    [line] = [line for line in axes.lines if line.get_label() == TRAINING]
    return list(zip(*line.get_data(), strict=True))


def evaluations(axes):
    """The points, and the ends of their bars."""
    [points] = axes.containers
    segments = points.lines[2][0].get_segments()
    bars = [tuple(segment[:, 1]) for segment in segments if segment.size and numpy.isfinite(segment).all()]
    return list(zip(*points.lines[0].get_data(), strict=True)), bars


def is_drawn(path):
    image = imread(path)
    return image.shape[0] >= 400 and image.shape[1] >= 800 and image[..., :3].std() > 0.01


def test_training_returns_are_a_line_and_evaluations_points_with_bars(plot, tmp_path):
    axes = plot([(10, {TRAIN: 1.0}), (20, {TRAIN: 2.0, EVAL: 4.0, STD: 0.5}), (30, {TRAIN: 3.0})])
    assert training(axes) == [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert evaluations(axes) == ([(20, 4.0)], [(3.5, 4.5)])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("frames (environment steps)", "episode return")
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [TRAINING, "evaluation (most probable actions, mean ± standard deviation)"]
    assert is_drawn(tmp_path / "learning_curve.png")


def test_iterations_without_a_value_are_skipped(plot):
    axes = plot([(10, {TRAIN: math.nan}), (20, {TRAIN: 2.0}), (30, {EVAL: 1.0}), (40, {TRAIN: 4.0, EVAL: math.nan})])
    assert training(axes) == [(20, 2.0), (40, 4.0)]
    assert evaluations(axes) == ([(30, 1.0)], [])


@pytest.mark.parametrize("spread", [{}, {STD: math.nan}])
def test_an_evaluation_without_a_spread_is_a_point_without_a_bar(plot, spread):
    axes = plot([(10, {EVAL: 4.0, STD: 1.0}), (20, {EVAL: 5.0, **spread})])
    assert evaluations(axes) == ([(10, 4.0), (20, 5.0)], [(3.0, 5.0)])


WITHOUT_EPISODES = [[], [(10, {TRAIN: math.nan})], [(10, {"loss/critic": 1.0})]]


@pytest.mark.parametrize("rows", WITHOUT_EPISODES, ids=["no row", "nan", "no such column"])
def test_a_run_without_a_finished_episode_gives_labelled_axes_that_say_so(plot, tmp_path, rows):
    axes = plot(rows)
    assert [text.get_text() for text in axes.texts] == ["no finished episode yet"]
    assert "frames" in axes.get_xlabel()
    assert is_drawn(tmp_path / "learning_curve.png")
