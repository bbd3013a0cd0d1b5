# SPDX-License-Identifier: MIT
"""Verification of a tree of drafted tokens. Kernels: csrc/sampling/verify_tree.hip."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import check_distinct, check_values
from aiter_like.ops.sampling import parts
from aiter_like.ops.sampling.verify_chain import residual_token

__all__ = ["tree_speculative_sampling_target_only", "verify_tree_greedy"]

_OP = "verify_tree"
_MOST = 2**20 - 1


class VerifyTreeCall(NamedTuple):
    """One call of verify_tree. All tensors are contiguous; node 0 of each request is the root, which is accepted.

    Attributes:
        predicts: at an accepted node's `retrive_index` the token that follows it.
        accept_index: `retrive_index` of the accepted nodes, then -1.
        accept_count: how many are accepted after the root.
        candidates: the token of each node.
        retrive_index: its place in `predicts`.
        retrive_next_token, retrive_next_sibling: its first child, and its next sibling; -1: none.
        target_predict: the target's token after each node; None: by chance.
        coins: uniform in [0, 1]: of the children of each node.
        final_coins: of the last token.
        target_probs: of the token after each node.
        draft_probs: the same of the draft, written where a child is rejected.
        threshold_single, threshold_acc: a child is also accepted if its probability is at least the first; the sum of
            probabilities counts as divided by the second.
    """

    predicts: Annotated[Tensor, "_", torch.int32]
    accept_index: Annotated[Tensor, "requests steps", torch.int32]
    accept_count: Annotated[Tensor, "requests", torch.int32]
    candidates: Annotated[Tensor, "requests nodes", torch.int64]
    retrive_index: Annotated[Tensor, "requests nodes", torch.int64]
    retrive_next_token: Annotated[Tensor, "requests nodes", torch.int64]
    retrive_next_sibling: Annotated[Tensor, "requests nodes", torch.int64]
    target_predict: Annotated[Tensor | None, "requests nodes", torch.int64] = None
    coins: Annotated[Tensor | None, "requests nodes", torch.float32] = None
    final_coins: Annotated[Tensor | None, "requests", torch.float32] = None
    target_probs: Annotated[Tensor | None, "requests nodes columns", torch.float32] = None
    draft_probs: Annotated[Tensor | None, "requests nodes columns", torch.float32] = None
    threshold_single: float = 1.0
    threshold_acc: float = 1.0


def verify_tree_ref(call: VerifyTreeCall) -> None:
    """The rule in torch, request by request, on the host."""
    requests, nodes = call.candidates.shape
    steps, is_greedy = call.accept_index.shape[1], call.target_predict is not None
    links = call.retrive_next_token, call.retrive_next_sibling, call.candidates, call.retrive_index

    def predict(place: int, token: int) -> None:
        if 0 <= place < call.predicts.numel():
            call.predicts[place] = token

    def accepts(r: int, node: int, token: int, total: Tensor) -> bool:
        if is_greedy:
            return token == int(call.target_predict[r, node])
        if not 0 <= token < call.target_probs.shape[2]:
            return False
        q = call.target_probs[r, node, token]
        total += q
        if bool(q > 0) and bool(call.coins[r, node] <= total / call.threshold_acc) or bool(q >= call.threshold_single):
            return True
        call.draft_probs[r, node, token] = q
        return False

    for r in range(requests):
        children, siblings, tokens, places = (each[r].tolist() for each in links)
        node, tries, path = 0, 0, [0]
        while len(path) < steps:
            child, total = children[node], torch.zeros((), device=call.candidates.device, dtype=torch.float32)
            while 0 <= child < nodes and tries < nodes and not accepts(r, node, tokens[child], total):
                child, tries = siblings[child], tries + 1
            if not 0 <= child < nodes or tries >= nodes:
                break
            predict(places[node], tokens[child])
            node, tries = child, tries + 1
            path.append(node)
        call.accept_index[r] = -1
        call.accept_index[r, :len(path)] = torch.tensor([places[each] for each in path], device="cpu")
        call.accept_count[r] = len(path) - 1
        if is_greedy:
            predict(places[node], int(call.target_predict[r, node]))
            continue
        target = call.target_probs[r, node]
        low = torch.zeros_like(target) if len(path) == steps else call.draft_probs[r, node]
        coin = float(call.final_coins[r])
        scaled = coin * 2.0**32 if coin > 0 else 0.0  # a NaN is 0 too, as in the kernel
        largest = (2 - 2.0**-23) * 2.0**31
        predict(places[node], residual_token(target, low, int(scaled) if scaled < largest else 2**32 - 1))


@compile_ops("sampling/verify_tree.hip")
def _verify_tree_hip(call: VerifyTreeCall) -> None: ...


def _check(call: VerifyTreeCall) -> object:
    requests, nodes = call.candidates.shape
    if requests and (nodes == 0 or call.accept_index.shape[1] == 0):
        raise ValueError(f"{_OP}: candidates and accept_index must have a column, got shapes "
                         f"{tuple(call.candidates.shape)} and {tuple(call.accept_index.shape)}")
    check.real(_OP, "threshold_single", call.threshold_single, low=0.0)
    check.real(_OP, "threshold_acc", call.threshold_acc, above=0.0)
    if call.target_predict is None:
        for name in ("coins", "final_coins", "target_probs", "draft_probs"):
            check.tensor(_OP, name, getattr(call, name))
        parts.check_columns(_OP, "target_probs", call.target_probs)
    return SKIP if requests == 0 else None


def _refusal(target: Target, call: VerifyTreeCall) -> str | None:
    for name, tensor in zip(call._fields, call):
        if isinstance(tensor, Tensor) and not tensor.is_contiguous():
            return f"{name} must be contiguous, got strides {tensor.stride()}"
    if any(size > _MOST for size in (*call.candidates.shape, call.accept_index.shape[1])):
        return f"at most {_MOST} requests and nodes, got {tuple(call.candidates.shape)}"
    return None


def _cases(device: torch.device) -> dict[str, VerifyTreeCall]:
    """A root with two children, the second of which has two; greedily and by chance."""
    random = torch.Generator().manual_seed(0)
    target = torch.softmax(2 * torch.randn(3, 5, 20, generator=random), -1).to(device)
    tree = [torch.tensor([each], device=device).repeat(3, 1) for each in
            ([0, 1, 2, 3, 4], [1, -1, 3, -1, -1], [-1, 2, -1, 4, -1])]
    tree[0] += 5 * torch.arange(3, device=device)[:, None]
    best = target.argsort(-1, descending=True)
    candidates = torch.stack((best[:, 0, 5], best[:, 0, 1], best[:, 0, 0], best[:, 2, 2], best[:, 2, 0]), 1)
    outs = [torch.full(shape, -1, dtype=torch.int32, device=device) for shape in ((15,), (3, 3), (3,))]
    coins = torch.rand(3, 5, generator=random).to(device)
    by_chance = {"coins": coins, "final_coins": coins[:, 4].contiguous(), "target_probs": target,
                 "draft_probs": torch.zeros_like(target)}
    return {"greedy": VerifyTreeCall(*outs, candidates, *tree, target_predict=best[..., 0].contiguous()),
            "by chance": VerifyTreeCall(*outs, candidates, *tree, **by_chance)}


_verify_tree = Op(
    _OP, call=VerifyTreeCall, reference=verify_tree_ref, check=_check, cases=_cases,
    writes=("predicts", "accept_index", "accept_count", "draft_probs"),
    backends=(Backend("hip", _verify_tree_hip, refusal=_refusal), Backend("torch", verify_tree_ref)))


def verify_tree_greedy(predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, candidates: Tensor,
                       retrive_index: Tensor, retrive_next_token: Tensor, retrive_next_sibling: Tensor,
                       target_predict: Tensor, *, backend: str | None = None) -> None:
    """The path of a tree of drafted tokens that the target's own tokens follow.

    From an accepted node, the first child whose token is `target_predict` of the node is accepted; then the next level.

    Args:
        predicts: [any] int32, written: at `retrive_index` of an accepted node the token that follows it, after the last
            one the target's.
        accept_index: [requests, steps] int32, written: `retrive_index` of the accepted nodes, then -1.
        accept_token_num: [requests] int32, written: how many are accepted after the root.
        candidates: [requests, nodes] int64|int32, the token of each node; node 0 is the root.
        retrive_index: [requests, nodes] int64|int32, the place of each node in `predicts`, another for each; one that
            several have takes any of their tokens on a GPU, where nobody looks.
        retrive_next_token, retrive_next_sibling: [requests, nodes] int64|int32, first child, next sibling; -1: none.
        target_predict: [requests, nodes] int64|int32, the target's token after each node.

    Notes:
        Nodes outside of the tree end a path, places outside of `predicts` are not written; a circle ends after as many
        nodes as there are. Nothing is copied to the host, but by "torch".

    Source: SGLang's `verify_tree_greedy`.
    """
    _check_numbers("verify_tree_greedy", predicts, retrive_index, candidates=candidates, target_predict=target_predict)
    _verify_tree.run(predicts, accept_index, accept_token_num,
                     *_longs(candidates, retrive_index, retrive_next_token, retrive_next_sibling, target_predict),
                     backend=backend)


def tree_speculative_sampling_target_only(
        predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, candidates: Tensor, retrive_index: Tensor,
        retrive_next_token: Tensor, retrive_next_sibling: Tensor, uniform_samples: Tensor,
        uniform_samples_for_final_sampling: Tensor, target_probs: Tensor, draft_probs: Tensor,
        threshold_single: float = 1.0, threshold_acc: float = 1.0, deterministic: bool = True, *,
        backend: str | None = None) -> None:
    """A path of a tree of drafted tokens, drawn with the target's probabilities. Like `verify_tree_greedy` otherwise.

    From an accepted node, the first child is accepted whose probability is more than 0 and at which the sum of the
    target's probabilities of the children so far, over `threshold_acc`, reaches the node's uniform number, or whose own
    is at least `threshold_single`. After the last node a token is drawn from `max(target - draft, 0)`, where rejected
    children count with the target's probability; after a path of all steps from the target. It is that at which the sum
    over the columns, of integers in units of 2^-44, passes its uniform number.

    Args:
        uniform_samples: [requests, nodes] fp32 in [0, 1].
        uniform_samples_for_final_sampling: [requests] fp32 in [0, 1].
        target_probs: [requests, nodes, columns] fp32, of the token after each node.
        draft_probs: [requests, nodes, columns] fp32, zeros where the draft's are not to count; written where a child is
            rejected.
        threshold_single, threshold_acc: 1: off; the second > 0.
        deterministic: as SGLang has it; results are so in any case.

    Source: SGLang's `tree_speculative_sampling_target_only`.
    """
    _check_numbers("tree_speculative_sampling_target_only", predicts, retrive_index, candidates=candidates)
    _verify_tree.run(predicts, accept_index, accept_token_num,
                     *_longs(candidates, retrive_index, retrive_next_token, retrive_next_sibling),
                     coins=uniform_samples, final_coins=uniform_samples_for_final_sampling, target_probs=target_probs,
                     draft_probs=draft_probs, threshold_single=threshold_single, threshold_acc=threshold_acc,
                     backend=backend)


def _check_numbers(op: str, predicts: Tensor, index: Tensor, **tensors: Tensor) -> None:
    """Numbers that go to results of 32 bits, and can be looked at without waiting, have no more, and places differ."""
    for name, tensor in {**tensors, "retrive_index": index}.items():
        check_values(op, name, tensor, -check.INT32_MAX - 1, check.INT32_MAX)
    if isinstance(predicts, Tensor):
        check_distinct(op, "retrive_index", index, predicts.numel(), "place in predicts")


def _longs(*tensors: Tensor) -> list[Tensor]:
    return [each.long() if isinstance(each, Tensor) and each.dtype in elements.INTEGERS else each for each in tensors]


_verify_tree.public += [verify_tree_greedy, tree_speculative_sampling_target_only]
