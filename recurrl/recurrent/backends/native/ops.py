"""One layer in one direction, differentiable once.

torch computes the matmuls over all steps (input projection, gradients of inputs and weights), the kernel the steps. For
``torch.compile``, which then takes the layer whole, both passes are also custom operators; eager calls skip their
dispatch.

Shape legend: B rows, T steps, P steps of all rows (B·T), I input size, H hidden size, G gate rows (H of each gate), A
columns that memory is kept for (H of each gate, and H for a GRU's last gate, whose two projections stay separate): the
first G take the recurrent product, the last G the input's.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from recurrl.recurrent.backends.native import library

_COLUMNS = 4  # A / H, of either cell
# Fewer multiplications take less time than starting a thread.
_WORK_OF_A_THREAD = 4 << 20
_States = ctypes.c_void_p * 2


class _Layer(ctypes.Structure):
    """The kernel's ``Layer``."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("rows", "steps", "hidden")),
        *((name, ctypes.c_void_p) for name in ("w_hh", "b_hh", "starts")),
        ("stored", _States),
        *((name, ctypes.c_long) for name in ("stored_row", "stored_step")),
        *((name, _States) for name in ("states", "ends")),
        *((name, ctypes.c_void_p) for name in ("gates", "grad_output")),
        ("grad_ends", _States),
        *((name, ctypes.c_void_p) for name in ("grad_gates", "entered")),
        ("grad_stored", _States),
        ("panels", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("begin", "end")),
    )


def _run(
    direction: str,
    cell: str,
    w_hh: Tensor,
    b_hh: Tensor | None,
    starts_BT: Tensor,
    stored_BTH: list[Tensor],
    **memory: Any,
) -> None:
    """Runs the kernel forwards or backwards on a layer's memory.

    Raises:
        ValueError: a stored state does not have the layer's size; the kernel would read beyond it.
    """
    rows, steps, hidden = *starts_BT.shape, w_hh.shape[1]
    stored_BTH = [stored.to(w_hh) for stored in stored_BTH]
    for state in (*memory["states"], *stored_BTH):
        if state.shape != (rows, steps, hidden):
            raise ValueError(f"backend=native needs states [{rows}, {steps}, {hidden}]; there is {list(state.shape)}.")
    if len({stored.stride() for stored in stored_BTH}) > 1 or stored_BTH[0].stride(2) != 1:
        stored_BTH = [stored.contiguous() for stored in stored_BTH]
    w_hh, starts_BT = w_hh.contiguous(), starts_BT.bool().contiguous()
    b_hh = None if b_hh is None else b_hh.contiguous()
    layer = _Layer(rows, steps, hidden)
    layer.stored_row, layer.stored_step, _ = stored_BTH[0].stride()
    for name, value in {"w_hh": w_hh, "b_hh": b_hh, "starts": starts_BT, "stored": stored_BTH, **memory}.items():
        found = tuple(map(_pointer, value)) if isinstance(value, list) else _pointer(value)
        setattr(layer, name, found)
    threads = max(1, min(torch.get_num_threads(), rows * steps * _COLUMNS * hidden**2 // _WORK_OF_A_THREAD))
    kernel = library.kernel(w_hh.dtype)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    if getattr(kernel, direction)(library.CELLS.index(cell), ctypes.c_long(threads), ctypes.byref(layer)):
        raise MemoryError("backend=native: no memory for the recurrent layer's working space.")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def forward(
    x_BTI: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    starts_BT: Tensor,
    stored_BTH: list[Tensor],
    cell: str,
    keep: bool,
) -> list[Tensor]:
    """Each state ``[B, T, H]`` at the segments' last steps and zero elsewhere, then each after every step, then the
    gates ``[P, A]`` that the backward pass reads, which are empty unless ``keep``.
    """
    outputs = _outputs(x_BTI, w_hh, stored_BTH, True)
    states, gates_PA, x_PI = len(stored_BTH), outputs[-1], x_BTI.flatten(0, 1)
    projected_PG = gates_PA[:, -len(w_ih) :]
    if b_ih is None:
        torch.mm(x_PI, w_ih.t(), out=projected_PG)
    else:
        torch.addmm(b_ih, x_PI, w_ih.t(), out=projected_PG)
    memory = {"ends": outputs[:states], "states": outputs[states:-1], "gates": gates_PA}
    _run("forward", cell, w_hh, b_hh, starts_BT, stored_BTH, **memory)
    return outputs if keep else [*outputs[:-1], gates_PA.new_empty(0, gates_PA.shape[1])]


def _outputs(x_BTI: Tensor, w_hh: Tensor, stored_BTH: list[Tensor], keep: bool) -> list[Tensor]:
    rows, steps, _ = x_BTI.shape
    hidden = w_hh.shape[1]
    states = [x_BTI.new_empty(rows, steps, hidden) for _ in range(2 * len(stored_BTH))]
    return [*states, x_BTI.new_empty(rows * steps if keep else 0, _COLUMNS * hidden)]


def backward(
    grad_output_BTH: Tensor | None,
    grad_ends_BTH: list[Tensor | None],
    x_BTI: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    starts_BT: Tensor,
    stored_BTH: list[Tensor],
    states_BTH: list[Tensor],
    gates_PA: Tensor,
    cell: str,
    wants_x: bool,
    wants_stored: bool,
    in_place: bool = False,
) -> list[Tensor]:
    """Gradients of x, w_ih, w_hh, b_ih, b_hh and the stored states; empty for x and the stored states unless wanted.

    With ``in_place`` it overwrites ``gates_PA``, which saves as much memory.
    """
    rows, split, x_PI = len(w_hh), gates_PA.shape[1] - len(w_hh), x_BTI.flatten(0, 1)
    grads = _gradients(x_BTI, w_ih, w_hh, stored_BTH, wants_x, wants_stored)
    grad_gates_PA = gates_PA if in_place else torch.empty_like(gates_PA)
    entered_PH = x_PI.new_empty(len(x_PI), w_hh.shape[1])
    incoming = [None if grad is None else grad.contiguous() for grad in (grad_output_BTH, *grad_ends_BTH)]
    memory = {"grad_ends": incoming[1:], "states": states_BTH, "gates": gates_PA, "grad_output": incoming[0]}
    memory |= {"grad_gates": grad_gates_PA, "entered": entered_PH, "grad_stored": grads[5:] if wants_stored else []}
    _run("backward", cell, w_hh, None, starts_BT, stored_BTH, **memory)
    grad_x_PG, grad_h_PG = grad_gates_PA[:, split:], grad_gates_PA[:, :rows]
    if wants_x:
        torch.mm(grad_x_PG, w_ih, out=grads[0].view_as(x_PI))
    torch.mm(grad_x_PG.t(), x_PI, out=grads[1])
    grad_w_hh, grad_bias_A = grad_h_PG.t() @ entered_PH, grad_gates_PA.sum(0)
    torch.cat((grad_w_hh[split:], grad_w_hh[:split]), out=grads[2])
    grads[3].copy_(grad_bias_A[split:])
    torch.cat((grad_bias_A[split:rows], grad_bias_A[:split]), out=grads[4])
    return grads


def _gradients(
    x_BTI: Tensor, w_ih: Tensor, w_hh: Tensor, stored_BTH: list[Tensor], wants_x: bool, wants_stored: bool
) -> list[Tensor]:
    rows, steps, inputs = x_BTI.shape
    return [
        x_BTI.new_empty(rows if wants_x else 0, steps, inputs),
        w_ih.new_empty(w_ih.shape),
        w_hh.new_empty(w_hh.shape),
        *(w_ih.new_empty(len(w_ih)) for _ in range(2)),
        *(x_BTI.new_empty(rows if wants_stored else 0, steps, w_hh.shape[1]) for _ in stored_BTH),
    ]


_operators = torch.library.Library("recurrl", "FRAGMENT")
_operators.define(
    "native_forward(Tensor x, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor starts, Tensor[] stored, "
    "str cell, bool keep) -> Tensor[]"
)
_operators.define(
    "native_backward(Tensor? grad_output, Tensor?[] grad_ends, Tensor x, Tensor w_ih, Tensor w_hh, Tensor starts, "
    "Tensor[] stored, Tensor[] states, Tensor gates, str cell, bool wants_x, bool wants_stored) -> Tensor[]"
)
_operators.impl("native_forward", forward, "CPU")
_operators.impl("native_backward", backward, "CPU")


@torch.library.register_fake("recurrl::native_forward")
def _(x, w_ih, w_hh, b_ih, b_hh, starts, stored, cell, keep):  # type: ignore[no-untyped-def]
    return _outputs(x, w_hh, stored, keep)


@torch.library.register_fake("recurrl::native_backward")
def _(grad, grad_ends, x, w_ih, w_hh, starts, stored, states, gates, cell, wants_x, wants_stored):  # type: ignore[no-untyped-def]
    return _gradients(x, w_ih, w_hh, stored, wants_x, wants_stored)


def layer(
    x_BTI: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    starts_BT: Tensor,
    stored_BTH: tuple[Tensor, ...],
    cell: str,
    recompute: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output ``[B, T, H]`` of every step, and each state at the segments' last steps, zero elsewhere.

    Args:
        x_BTI: the input.
        w_ih: ``[G, I]``.
        w_hh: ``[G, H]``.
        b_ih: ``[G]``.
        b_hh: ``[G]``.
        starts_BT: true where the stored state enters.
        stored_BTH: the stored states, read only there.
        cell: of :data:`library.CELLS`.
        recompute: run the forward pass again for the backward pass, instead of keeping its gates and states.
    """
    arguments = (x_BTI, w_ih, w_hh, b_ih, b_hh, starts_BT, cell)
    if torch.is_grad_enabled():
        ends_and_output = _Differentiable.apply(*arguments, recompute, *stored_BTH)  # type: ignore[no-untyped-call]
        return ends_and_output[-1], ends_and_output[:-1]
    found = _forward()(*arguments[:-1], list(stored_BTH), cell, False)
    return found[len(stored_BTH)], tuple(found[: len(stored_BTH)])


def _forward() -> Any:
    return torch.ops.recurrl.native_forward.default if torch.compiler.is_compiling() else forward


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BTI: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        starts_BT: Tensor,
        cell: str,
        recompute: bool,
        *stored_BTH: Tensor,
    ) -> tuple[Tensor, ...]:
        found = _forward()(x_BTI, w_ih, w_hh, b_ih, b_hh, starts_BT, list(stored_BTH), cell, not recompute)
        count = len(stored_BTH)
        kept = [] if recompute else found[count:]
        ctx.cell, ctx.is_kept, ctx.count = cell, not recompute, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x_BTI, w_ih, w_hh, b_ih, b_hh, starts_BT, *stored_BTH, *kept)
        return tuple(found[: count + 1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        # once_differentiable would silently omit this layer from a second derivative.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backend=native supports first derivatives only, but create_graph=True asks for a second one. "
                "Choose backend=reference, which supports any order."
            )
        x_BTI, w_ih, w_hh, b_ih, b_hh, starts_BT, *rest = ctx.saved_tensors
        stored_BTH, kept = rest[: ctx.count], rest[ctx.count :]
        wants_x, wants_stored = ctx.needs_input_grad[0], any(ctx.needs_input_grad[8:])
        if not ctx.is_kept:
            kept = _forward()(x_BTI, w_ih, w_hh, b_ih, b_hh, starts_BT, stored_BTH, ctx.cell, True)[ctx.count :]
        arguments = (grads[-1], list(grads[:-1]), x_BTI, w_ih, w_hh, starts_BT, stored_BTH, kept[:-1], kept[-1])
        if torch.compiler.is_compiling():
            found = torch.ops.recurrl.native_backward.default(*arguments, ctx.cell, wants_x, wants_stored)
        else:
            ctx.is_kept = False  # for a second call, with retain_graph
            found = backward(*arguments, ctx.cell, wants_x, wants_stored, in_place=True)
        grad_x, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, *grad_stored = found
        return (
            *(grad_x if wants_x else None, grad_w_ih, grad_w_hh),
            *((None, None) if b_ih is None else (grad_b_ih, grad_b_hh)),
            *(None, None, None),
            *(grad_stored if wants_stored else [None] * ctx.count),
        )
