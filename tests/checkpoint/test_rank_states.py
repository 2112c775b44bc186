"""What a run of several ranks saves."""

import pytest
from in_ranks import in_ranks, met

from recurrl import checkpoint
from recurrl.build import make_algorithm, make_policy_for, set_process_state
from recurrl.checkpoint import rank_states
from recurrl.errors import RunError
from recurrl.runtime.ranks import world


@pytest.mark.parametrize("of", ["policy", "algorithm"])
def test_what_is_no_longer_the_same_on_all_ranks_is_not_saved(small, of):
    config = small()

    def of_a_rank():
        set_process_state(config)
        learner = make_algorithm(config, make_policy_for(config))
        components = checkpoint.components(learner)
        assert len(rank_states.gathered_states(components)) == (1 if world().rank == 0 else 0)
        if world().rank == 1:
            next(iter(components[of].state_dict().values())).add_(1)
        try:
            rank_states.gathered_states(components)
        except RunError as error:
            return [str(error)]
        return []

    errors, nothing = in_ranks(2, met(of_a_rank))
    assert len(errors) == 1
    assert errors[0].startswith(f"Rank 0 and rank 1 differ in {of}.")
    assert nothing == []
