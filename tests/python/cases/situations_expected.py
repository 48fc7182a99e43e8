"""A table of expectations: one line for each situation, with one entry for each way.

A situation without a line is EQUAL in both ways. None: the way is not run.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

Summary = Dict[str, Any]


class Expectation:
    """fault(): "" or what is wrong with the outcomes of a way, which are in order of ranks."""

    def fault(self, outcomes: List[Summary]) -> str:
        raise NotImplementedError


def _did_not_end(outcomes: List[Summary]) -> str:
    bad = [(rank, each) for rank, each in enumerate(outcomes) if each["ended"] != "well"]
    return "; ".join(f"rank {rank} {each['ended']}: {each['text']}\n{each.get('trace', '')}" for rank, each in bad)


class Ended(Expectation):
    """It ends on all ranks. alike: what ranks share is equal on all of them. near: the greatest relative difference to
    Gloo's on the same rank; 0: bit for bit; None: not compared."""

    def __init__(self, alike: bool = True, near: Optional[float] = 0.0) -> None:
        self.alike, self.near = alike, near

    def fault(self, outcomes: List[Summary]) -> str:
        said = _did_not_end(outcomes)
        if said:
            return said
        if self.alike and len({each["shared"] for each in outcomes}) > 1:
            return f"ranks differ; {[each['difference'] for each in outcomes]}"
        for rank, each in enumerate(outcomes):
            if self.near is not None and each["worst"] > self.near or self.near == 0 and each["difference"]:
                return f"rank {rank}: {each['difference']}, a relative difference of {each['worst']}"
        return ""


class Refused(Expectation):
    """All ranks raise; of each "CLASS: text" begins with one of the patterns."""

    def __init__(self, *patterns: str) -> None:
        self.patterns = patterns

    def fault(self, outcomes: List[Summary]) -> str:
        for rank, each in enumerate(outcomes):
            if each["ended"] != "raised" or not any(re.match(pattern, each["text"], re.S) for pattern in self.patterns):
                said = f"{each['ended']} {each['text']} {each['difference']}\n{each.get('trace', '')}"
                return f"rank {rank}: {said}; a refusal like {' or '.join(self.patterns)} is wanted"
        return ""


class Either(Expectation):
    """One of these, the same on all ranks."""

    def __init__(self, *legal: Expectation) -> None:
        self.legal = legal

    def fault(self, outcomes: List[Summary]) -> str:
        faults = [each.fault(outcomes) for each in self.legal]
        return "" if "" in faults else " | ".join(faults)


EQUAL = Ended()  # to Gloo, bit for bit
ALIKE = Ended(near=None)  # where Gloo does not do it, or does something else
ANY = Ended(alike=False, near=None)  # ends: the values are torch's own affair, as they are under Gloo
AS_GLOO = Ended(alike=False)  # equal to Gloo on each rank, where Gloo's ranks differ
WRONG_ON_GLOO = Refused(r"\w+")  # torch refuses it, in words of its own


def refused(names: str) -> Refused:
    """By zenps, with a sentence that has this in it."""
    return Refused(rf"(Invalid|Unsupported): .*({names})")


MISMATCH = Refused(r"ShapeMismatch: ")
LATE = Refused(r"MissingRanks: .*rank 0", r"(MissingRanks|RoundTimeout|Canceled): ")

# Situation: Gloo (None: ALIKE), zt.ddp(), GradientSync.
EXPECTED: Dict[str, Tuple[Optional[Expectation], Optional[Expectation], Optional[Expectation]]] = {
    "complex_parameters": (ALIKE, Either(EQUAL, refused("complex|factor")), refused("factor.*complex")),
    "lbfgs": (ANY, AS_GLOO, AS_GLOO),  # a rank's own losses are part of what it does
    "static_graph": (ALIKE, Either(EQUAL, refused("static_graph")), EQUAL),
    "static_graph_checkpoint": (ALIKE, Either(EQUAL, refused("static_graph")), EQUAL),
    "static_graph_unused": (ALIKE, Either(EQUAL, refused("static_graph")), EQUAL),
    # Several passes.
    "retain_graph_two_losses": (ALIKE, ANY, Ended(near=1e-6)),
    "create_graph": (WRONG_ON_GLOO, WRONG_ON_GLOO, ALIKE),
    # Each GradientSync waits at the end of its own pass: where ranks reach these in another order they miss each other.
    "two_models_in_another_order": (ALIKE, EQUAL, Either(EQUAL, LATE)),
    "unused_by_all": (WRONG_ON_GLOO, WRONG_ON_GLOO, ALIKE),
    "optimizer_in_backward": (ANY, Either(ANY, refused("optimi[sz]er")), Either(ALIKE, refused("optimi[sz]er"))),
    "join": (ALIKE, EQUAL, None),  # GradientSync has means over ranks that are present
    "join_of_present_ranks": (ALIKE, None, EQUAL),
    "join_dense_table": (ALIKE, None, EQUAL),
    "join_sparse_table": (None, None, ALIKE),  # Gloo has no join() with sparse gradients
    "a_rank_that_is_late": (None, LATE, LATE),
    # Rows.
    "many_tables_of_one_gradient": (ALIKE, None, EQUAL),
    "nothing_in_a_sparse_table": (None, None, ALIKE),  # DDP's own error: "Expected sparse gradient to be defined."
    "tied_sparse_table": (WRONG_ON_GLOO, WRONG_ON_GLOO, ALIKE),
    # Modules.
    "sync_batch_norm": (WRONG_ON_GLOO, WRONG_ON_GLOO, WRONG_ON_GLOO),
    "sparse_buffer": (ALIKE, EQUAL, Either(EQUAL, refused("adjacency"))),
    "sparse_csr_buffer": (ALIKE, EQUAL, Either(EQUAL, refused("adjacency"))),
    "buffers_of_other_lengths": (None, None, MISMATCH),
    "buffer_of_one_rank": (None, None, MISMATCH),
    "another_vocabulary": (WRONG_ON_GLOO, WRONG_ON_GLOO, MISMATCH),
    "another_vocabulary_sparse": (WRONG_ON_GLOO, WRONG_ON_GLOO, MISMATCH),
    "long_names": (ALIKE, Either(EQUAL, refused("nnnn")), Either(EQUAL, refused("nnnn"))),
    "long_names_of_two_bytes": (ALIKE, Either(EQUAL, refused("\u00e4")), Either(EQUAL, refused("\u00e4"))),
    "names_with_tabs": (ALIKE, Either(EQUAL, refused("a.*b")), Either(EQUAL, refused("a.*b"))),
    "sharded_module": (None, None, refused("FSDP|fully_shard|DTensor")),
    # Later changes: DDP does not see them.
    "added_later": (ALIKE, None, Either(EQUAL, refused("more"))),
    "replaced_later": (ALIKE, None, Either(EQUAL, refused("2.weight"))),
    "table_replaced_later": (ALIKE, None, Either(EQUAL, refused("0.weight"))),
    "removed_later": (ALIKE, None, Either(EQUAL, refused("[24].(weight|bias)"))),
    "unfrozen_later": (ALIKE, None, Either(EQUAL, refused("0.(weight|bias)"))),
    "double_later": (ALIKE, None, Either(EQUAL, refused(r"\.(weight|bias)"))),
    "half_later": (ALIKE, None, Either(EQUAL, refused(r"\.(weight|bias)"))),
    "load_state_dict_assigned_later": (ALIKE, None, Either(EQUAL, refused(r"\.(weight|bias)"))),
    "one_parameter_replaced_later": (ALIKE, None, Either(EQUAL, refused("2.bias"))),
    "pruned_later": (ALIKE, None, Either(EQUAL, refused("2.weight"))),
}


# Situations that end in another way with dense="torch": zt.ddp(), GradientSync.
OVER_TORCH: Dict[str, Tuple[Optional[Expectation], Optional[Expectation]]] = {
    "a_rank_that_is_late": (None, None),  # its barrier is a collective of the same process group
}


def of(name: str) -> Dict[str, Optional[Expectation]]:
    gloo, hook, sync = EXPECTED.get(name, (ALIKE, EQUAL, EQUAL))
    hook_over_torch, sync_over_torch = OVER_TORCH.get(name, (hook, sync))
    return {"gloo": gloo, "hook": hook, "sync": sync, "hook/torch": hook_over_torch, "sync/torch": sync_over_torch}


def faults(name: str, outcomes: Dict[str, List[Summary]]) -> List[str]:
    """What is wrong, a line for each way that was run."""
    found = []
    for kind, expectation in of(name).items():
        said = expectation.fault(outcomes[kind]) if expectation is not None and kind in outcomes else ""
        if said:
            found.append(f"{kind}: {said}")
    return found
