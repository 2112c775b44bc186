"""``torch.compile(module, fullgraph=True)`` works on modules as they are constructed, and equals eager mode."""

import os
import sys
import textwrap
from itertools import product

import pytest
import torch
from commands import output_of
from drop_ins import KINDS, B, T, batch_of, made
from slow_cases import slow

FORMS = {"default": {}, "python": {"python_based": True}, "scan": {"recurrent_backend": "scan", "bidirectional": True}}


def check_equal(compiled, module):
    data, outputs = batch_of(module, B, T).select("x", "is_init"), []
    for run in (compiled, module):
        x = data["x"].clone().requires_grad_()
        returned = run(data.clone().set("x", x))
        total = sum(returned[key].sin().sum() for key in module.out_keys)
        outputs.append([returned["y"], total, *torch.autograd.grad(total, [x, *module.parameters()])])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)


ONE_GRAPH = [case if case == ("lstm", "default") else slow(*case) for case in product(KINDS, FORMS)]


@pytest.mark.parametrize(("kind", "form"), ONE_GRAPH)
def test_a_module_is_one_graph(kind, form):
    with torch._dynamo.config.patch(allow_rnn=False):
        module = made(kind, default_recurrent_mode=True, **FORMS[form])
        check_equal(torch.compile(module, fullgraph=True, backend="aot_eager"), module)
        assert not torch._dynamo.config.allow_rnn  # restored


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["native", "scan"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_module_compiles_as_a_newcomer_constructs_it(kind, compiler, tmp_path):
    """In a new process, with torch's default compiler: with and without a C compiler for the kernel of ``native``."""
    script = f"""
        import torch
        from tensordict import TensorDict
        from recurrl.recurrent import {kind.upper()}Module, set_recurrent_mode

        torch.manual_seed(0)
        module = {kind.upper()}Module(4, 8, in_key="x", out_key="y")
        compiled = torch.compile(module, fullgraph=True)
        data = TensorDict({{"x": torch.randn(3, 6, 4), "is_init": torch.rand(3, 6, 1) < 0.3}}, [3, 6])
        results = []
        for run in (compiled, module):
            x = data["x"].clone().requires_grad_()
            with set_recurrent_mode(True):
                y = run(data.clone().set("x", x))["y"]
            results.append([y, *torch.autograd.grad(y.sin().sum(), [x, *module.parameters()])])
            print(module.backend_in_use)
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(compiled(data[:, 0].clone())["y"], module(data[:, 0].clone())["y"])
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment |= {"CC": "/nonexistent"} if compiler == "scan" else {}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert output_of(command, env=environment, timeout=600).split()[0] == compiler
