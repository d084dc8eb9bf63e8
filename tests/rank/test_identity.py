from __future__ import annotations

import pytest

from xsp.record.rank import Identity, identity

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_torchrun_tells_rank_store_and_which_attempt_it_is() -> None:
    assert identity(TORCHRUN) == Identity(1, 4, "node0", 29500, served=True, run="none/2")


@pytest.mark.parametrize("names", [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")])
def test_other_launchers_tell_the_rank(names: tuple[str, str]) -> None:
    found = identity({names[0]: "0", names[1]: "2"})
    assert found == Identity(0, 2, run="/")
    assert found is not None
    assert found.leads
    assert not found.is_told_where
