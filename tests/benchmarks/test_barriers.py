"""The barrier check on hand-written PTX."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ptx
from benchmarks.barriers import faults
from benchmarks.ptx import UnsupportedPTXError

POINTERS = """
    ld.param.b64 %rd1, [kernel_param_0];
    ld.param.b64 %rd2, [kernel_param_1];
    ld.param.b32 %r9, [kernel_param_2];
"""


def module(body: str, threads: int = 128) -> str:
    return f"""
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
    .param .u64 .ptr .global .align 1 kernel_param_0, // one
    .param .u64 .ptr .global .align 1 kernel_param_1,
    .param .u32 kernel_param_2
)
.reqntid {threads}
{{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
{POINTERS}
{body}
    ret;
}}
    .file 1 "/somewhere/kernels.py"
    .section .debug_info {{ .b8 1 }}
"""


def found(body: str, **options: object) -> list[tuple[str, str]]:
    """The opcodes of each faulty pair."""
    return [(f.store.instruction.opcode, f.load.instruction.opcode) for f in faults(module(body), **options)]  # type: ignore[arg-type]


STORE = "st.global.b32 [%rd1], %r1;"
LOAD = "ld.global.b32 %r2, [%rd1+4];"
FAULT = [("st.global.b32", "ld.global.b32")]


def test_a_load_after_a_store_to_the_same_tensor_is_a_fault() -> None:
    assert found(STORE + LOAD) == FAULT


def test_a_load_before_the_store_is_not_a_fault() -> None:
    assert found(LOAD + STORE) == []


@pytest.mark.parametrize(
    "barrier", ["bar.sync 0;", "barrier.sync 0;", "barrier.cta.sync.aligned 1, 128;", "bar.red.popc.u32 %r3, 0, %p1;"]
)
def test_a_barrier_of_the_whole_program_orders(barrier: str) -> None:
    assert found(STORE + barrier + LOAD) == []


@pytest.mark.parametrize(
    "no_barrier",
    [
        "membar.cta;",
        "fence.acq_rel.cta;",
        "bar.warp.sync 0xffffffff;",
        "bar.arrive 0, 128;",
        "bar.sync 1, 64;",
        "bar.sync 1, %r3;",
        "bar.red.popc.u32 %r3, 1, 64, %p1;",
        "@%p1 bar.sync 0;",
        "barrier.cluster.arrive.aligned;",
        "mbarrier.arrive.shared::cta.b64 _, [%r3];",
    ],
)
def test_partial_and_guarded_barriers_do_not_order(no_barrier: str) -> None:
    assert found(STORE + no_barrier + LOAD) == FAULT


@pytest.mark.parametrize("branch", ["@%p1 bra $around;", "@!%p1 bra.uni $around;"])
def test_a_branch_can_bypass_the_barrier(branch: str) -> None:
    assert found(f"{STORE} {branch} bar.sync 0; $around: {LOAD}") == FAULT


def test_a_barrier_on_both_sides_of_a_branch_orders() -> None:
    assert found(f"{STORE} @%p1 bra $else; bar.sync 0; bra $end; $else: bar.sync 0; $end: {LOAD}") == []


def test_an_unconditional_branch_does_not_fall_through() -> None:
    assert found(f"{STORE} bra $end; {LOAD} $end:") == []


def test_a_return_ends_a_path_unless_guarded() -> None:
    assert found(f"{STORE} ret; {LOAD}") == []
    assert found(f"{STORE} @%p1 ret; {LOAD}") == FAULT


@pytest.mark.parametrize(("at_the_end", "expected"), [("", FAULT), ("bar.sync 0;", [])])
def test_a_store_reaches_the_load_of_the_next_iteration(at_the_end: str, expected: list[tuple[str, str]]) -> None:
    # A barrier between the load and the store of one iteration orders nothing between two.
    assert found(f"$loop: {LOAD} bar.sync 0; {STORE} {at_the_end} @%p1 bra $loop;") == expected
    assert found(f"$loop: {LOAD} {STORE} {at_the_end} @%p1 bra $loop;") == expected


@given(
    st.lists(st.tuples(st.sampled_from(["store", "load", "barrier", "jump", "branch", "return"]), st.integers(0, 9)))
)
def test_faults_are_exactly_the_paths_without_a_barrier(program: list[tuple[str, int]]) -> None:
    size = len(program)
    texts = {"store": STORE, "load": LOAD, "barrier": "bar.sync 0;", "return": "ret;"}
    targets = [number % (size + 1) for _, number in program]
    jumps = {"jump": "bra $L{};", "branch": "@%p1 bra $L{};"}
    lines = [texts.get(kind) or jumps[kind].format(to) for (kind, _), to in zip(program, targets, strict=True)]
    body = "".join(f"$L{k}: {line}\n" for k, line in enumerate([*lines, "ret;"]))

    # Transitive closure of the steps that do not leave a barrier.
    reached = [[False] * (size + 1) for _ in range(size + 1)]
    for k, (kind, _) in enumerate(program):
        if kind in ("store", "load", "branch"):
            reached[k][k + 1] = True
        if kind in ("jump", "branch"):
            reached[k][targets[k]] = True
    for middle, one, other in product(range(size + 1), repeat=3):
        reached[one][other] |= reached[one][middle] and reached[middle][other]
    ways = [(i, j) for i in range(size) for j in range(size) if program[i][0] == "store" and program[j][0] == "load"]
    assert len(found(body)) == sum(reached[i][j] for i, j in ways)


def test_labels_resolve_to_the_nearest_scope() -> None:
    wait = "{ .reg .pred done; again: mbarrier.try_wait.shared::cta.b64 done, [%r3], 0; @!done bra.uni again; }"
    # If the second branch led to the first label, the store would reach the load.
    assert found(f"{wait} {LOAD} bar.sync 0; {STORE} {wait}") == []


def test_tensors_of_different_parameters_are_different_unless_the_launch_says_otherwise() -> None:
    body = STORE + "ld.global.b32 %r2, [%rd2];"
    assert found(body) == []
    assert found(body, arguments=["h", "c"]) == []
    assert found(body, arguments=["h", "c"], same=[("h", "c")]) == FAULT


@pytest.mark.parametrize(
    "address",
    [
        "mad.wide.s32 %rd3, %r9, 4, %rd1;",
        "shl.b64 %rd4, %rd2, 2; add.s64 %rd3, %rd1, 8; selp.b64 %rd3, %rd3, %rd4, %p1;",
        "cvta.to.global.u64 %rd4, %rd1; mov.b64 %rd3, %rd4;",
        "mov.b64 {%r3, %r4}, %rd1; mov.b64 %rd3, {%r3, %r4};",
        "shfl.sync.idx.b32 %r3|%p2, %rd1, 0, 31, -1; mov.b64 %rd3, %r3;",
        "st.shared.b64 [%r3], %rd1; ld.shared.v2.b64 {%rd4, %rd3}, [%r4];",
    ],
)
def test_a_pointer_is_followed(address: str) -> None:
    assert found(f"{address} {STORE} ld.global.b32 %r2, [ %rd3 + 0 ];") == FAULT
    assert found(f"{address} st.global.b32 [%rd3], %r1; {LOAD}") == FAULT


def test_an_address_of_unknown_origin_may_alias_anything() -> None:
    assert found(f"ld.global.b64 %rd5, [%rd2]; {STORE} ld.global.b32 %r2, [%rd5];") == FAULT
    assert found(f"{STORE} ld.b32 %r2, [%rd5];") == [("st.global.b32", "ld.b32")]


def test_numbers_that_came_from_a_tensor_do_not_make_an_offset_a_pointer_into_it() -> None:
    assert found(f"ld.global.b64 %rd5, [%rd1]; add.s64 %rd6, %rd2, %rd5; {STORE} ld.global.b32 %r2, [%rd6];") == []
    assert (
        found(
            f"setp.lt.u64 %p1, %rd1, %rd2; selp.b32 %r3, 1, 0, %p1; mad.wide.u32 %rd6, %r3, 4, %rd2; {STORE} "
            "ld.global.b32 %r2, [%rd6];"
        )
        == []
    )


def test_shared_memory_is_not_global() -> None:
    assert found("mov.b32 %r3, global_smem; st.shared.b32 [%r3], %r1; ld.shared.b32 %r2, [%r3];") == []
    assert found("mov.b64 %rd3, global_smem; st.b32 [%rd3], %r1; ld.global.b32 %r2, [%rd1];") == []


@pytest.mark.parametrize(
    ("store", "load"),
    [
        ("@%p1 st.global.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };", LOAD),
        (STORE, "@!%p1 ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];"),
        ("red.global.add.f32 [%rd1], %r1;", LOAD),
        ("atom.global.add.f32 %r3, [%rd1], %r1;", LOAD),
        (STORE, "atom.global.exch.b32 %r3, [%rd1], %r1;"),
        (STORE, "cp.async.cg.shared.global [ %r3 + 0 ], [ %rd1 + 0 ], 0x10, %r4;"),
        (STORE, "ldu.global.b32 %r2, [%rd1];"),
    ],
)
def test_every_kind_of_access_counts(store: str, load: str) -> None:
    assert len(found(store + load)) == 1


def test_two_atomic_operations_order_themselves() -> None:
    assert found("atom.global.add.u32 %r3, [%rd1], 1; atom.global.add.u32 %r3, [%rd1], 1;") == []


def test_no_barrier_makes_the_read_only_cache_see_a_store() -> None:
    assert found(STORE + "bar.sync 0; ld.global.nc.b32 %r2, [%rd1];") == [("st.global.b32", "ld.global.nc.b32")]


@pytest.mark.parametrize(
    "body",
    [
        "call.uni (%r1), function, (%r2);",
        "brx.idx %r1, targets;",
        "bra $nowhere;",
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 16;",
        "multimem.ld_reduce.global.add.f32 %r1, [%rd1];",
    ],
)
def test_unsupported_ptx_is_refused(body: str) -> None:
    with pytest.raises(UnsupportedPTXError):
        found(body)


def test_a_fault_names_the_kernel_both_instructions_and_where_they_come_from() -> None:
    text = module(f".loc 1 7 3 // kernels.py:7:3\n {STORE}\n .loc 1 9 3, function_name $L, inlined_at 1 2 3\n {LOAD}")
    lines = text.splitlines()
    store, load = (1 + next(k for k, line in enumerate(lines) if each in line) for each in (STORE, LOAD))
    assert [str(fault) for fault in faults(text, ["h", "c", "steps"])] == [
        f"kernel: st.global.b32 of h in line {store} (kernels.py:7) reaches ld.global.b32 of h in line {load} "
        "(kernels.py:9) without a barrier"
    ]


def test_parameters_are_pointers_or_numbers_and_the_threads_are_counted() -> None:
    kernel = ptx.parse(module("").replace(".reqntid 128", ".reqntid 32, 4, 1"))
    assert kernel.parameters == {"kernel_param_0": True, "kernel_param_1": True, "kernel_param_2": False}
    assert kernel.threads == 128
    assert kernel.variables == {"global_smem"}


def test_operands_are_split_outside_brackets() -> None:
    assert ptx.operands_of("{ %r1, %r2 }, [ %rd1 + 0 ], (a, b)") == ("{ %r1, %r2 }", "[ %rd1 + 0 ]", "(a, b)")
