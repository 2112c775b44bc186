"""Devices: which are fine, and which are not to be had."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("cuda", ["cuda", "cuda:0", "cuda:1"])
def test_a_cuda_device_that_is_there_is_fine(checked, monkeypatch, cuda):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert checked({"device": cuda}).device == cuda


def test_a_cuda_device_is_refused_on_a_machine_without_one(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = refused("device=cuda")
    assert error.startswith(f"device=cuda was requested, but torch {torch.__version__} finds no CUDA device.")
    assert "Choose device=cpu, or install a CUDA build of torch" in error


def test_a_cuda_device_beyond_those_there_are_is_refused(refusal, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert refusal({"device": "cuda:2"}) == (
        "device=cuda:2 was requested, but there are 2 CUDA devices, numbered from 0."
    )


@pytest.mark.parametrize("device", ["nonsense", "0", "cpu:x", ""])
def test_a_device_torch_does_not_know_is_refused(refusal, device):
    assert refusal({"device": device}) == (f"device={device} is not a torch device. Choose auto, cpu, cuda or cuda:0.")


@pytest.mark.parametrize("device", ["meta", "mps", "xla"])
def test_a_device_recurrl_does_not_train_on_is_refused(refusal, device):
    error = refusal({"device": device})
    assert f"device={device}" in error
    assert "cpu" in error
    assert "cuda" in error
