"""The recurrent layer: what its backend cannot do on the device is refused."""

from __future__ import annotations

import pytest


def test_a_preset_precision_is_fine_on_a_cpu(checked):
    assert checked({"precision.name": "fast"}).precision.name == "fast"


def test_a_feed_forward_policy_has_no_backend(refusal):
    assert refusal({"cell.name": "none", "backend.name": "triton"}).startswith("backend=triton has no effect here")


def test_full_recomputation_is_fine_where_the_backend_is_free(checked):
    checked({"recompute.name": "full"})
    checked({"recompute.name": "full", "backend.name": "scan"})


@pytest.mark.parametrize("backend", ["pad", "reference"])
def test_recomputation_is_refused_with_a_backend_that_has_none(refusal, backend):
    error = refusal({"recompute.name": "full", "backend.name": backend})
    assert error.startswith(f"recompute=full is not possible with backend={backend}, ")
    assert error.endswith("Choose backend=scan, or recompute=none.")


def test_pieces_of_no_steps_are_refused(refusal):
    assert refusal({"recompute.name": "chunk", "recompute.chunk_len": 0}).endswith("chunk_len=0. Give 1 or more.")


def test_the_triton_backend_is_refused_on_a_cpu(refusal, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert refusal({"backend.name": "triton"}).startswith(
        "backend=triton needs a CUDA device, and this is device=cpu. Choose backend=auto, or backend=pad on a GPU and "
        "backend=scan on a CPU."
    )


def test_the_triton_backend_is_refused_a_cell_that_is_too_large(refusal):
    assert refusal({"backend.name": "triton", "cell.hidden_size": 2048}).startswith(
        "hidden_size=2048 is not possible with backend=triton, whose kernels are tested up to 1024 features"
    )


@pytest.mark.parametrize(
    ("precision", "sentence"),
    [
        ("tf32", "precision=tf32 needs a GPU, and device=cpu has no such format. Choose precision=ieee."),
        ("tf32x3", "precision=tf32x3 is not possible with backend=auto: it needs backend=triton, on a GPU."),
        ("bf16", "precision=bf16 is not possible with backend=auto: it needs backend=triton, on a GPU."),
    ],
)
def test_a_reduced_precision_is_refused_on_a_cpu(refusal, precision, sentence):
    assert refusal({"precision.name": precision}) == sentence
