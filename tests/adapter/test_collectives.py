"""The table of collectives against what torch has registered."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives
import torch.distributed._symmetric_memory
import torch.distributed.fsdp
import torch.distributed.tensor

from coop._native import _C

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)

# What the first argument of each is. (Nothing else is ever written.)
WRITTEN = {
    "_allgather_base_",
    "_reduce_scatter_base_",
    "allgather_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "allreduce_",
    "allreduce_coalesced_",
    "alltoall_",
    "alltoall_base_",
    "broadcast_",
    "gather_",
    "gather_into_tensor_",
    "recv_",
    "recv_any_source_",
    "reduce_",
    "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_",
    "scatter_",
}
NEW = {"gather_into_tensor_"}  # since torch 2.15
READ = {"barrier", "check_for_nan", "monitored_barrier_", "send"}
# Their kernels are made of copies and of the above.
MADE_OF_OTHERS = {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional"}


def _registered(space: str) -> list[torch._C.FunctionSchema]:
    return [s for s in torch._C._jit_get_all_schemas() if s.name.startswith(f"{space}::")]


def _info(schema: torch._C.FunctionSchema) -> dict[str, object]:
    return _C.operator_info(schema.name, schema.overload_name)


def test_the_table_has_every_operator_of_c10d() -> None:
    names = {schema.name.removeprefix("c10d::") for schema in _registered("c10d")}
    assert names | NEW == WRITTEN | READ


@pytest.mark.parametrize("name", sorted(WRITTEN | READ))
def test_a_collective_writes_its_first_argument_or_nothing(name: str) -> None:
    for schema in _registered("c10d"):
        if schema.name != f"c10d::{name}":
            continue
        info = _info(schema)
        assert info["collective"]
        assert not info["unknown"]
        assert info["refusal"] == "collectives are never replayed"
        writes = [index for index, written in enumerate(info["writes"]) if written]  # type: ignore[arg-type,var-annotated]
        assert writes == ([0] if name in WRITTEN else [])


@pytest.mark.parametrize("space", sorted(MADE_OF_OTHERS))
def test_functional_collectives_are_made_of_others(space: str) -> None:
    schemas = _registered(space)
    assert schemas
    for schema in schemas:
        assert _info(schema)["passes_through"], schema.name
        with pytest.raises(ValueError, match="never replayed"):
            _C.allow_replay(schema.name)


def test_what_talks_to_others_besides_is_not_understood() -> None:
    """Symmetric memory, and whatever torch will add: its arguments stay for good."""
    for schema in torch._C._jit_get_all_schemas():
        space = schema.name.split("::")[0]
        if space in MADE_OF_OTHERS | {"c10d", "_dtensor"}:
            continue
        types = [str(argument.type) for argument in [*schema.arguments, *schema.returns]]
        if any(".classes.c10d." in each for each in types):
            assert _info(schema)["unknown"], schema.name
