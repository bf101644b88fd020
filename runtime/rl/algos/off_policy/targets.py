"""Parts that methods of a replay share: the target of a value, the loss against it, the error of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.rl.buffers.replay import Batch


@torch.no_grad()
def bellman_target(batch: Batch, next_value: Tensor, gamma: float) -> Tensor:
    """(B,) r + gamma^n (1 - terminated) V(s') for values V (B,) of the batch's next observations.

    s' is the observation n steps later and r the sum of the n discounted rewards; n is 1 where the batch has no
    ``steps``.
    """
    goes_on = 1.0 - batch.terminated
    if batch.steps is None:
        return torch.addcmul(batch.reward, goes_on, next_value, value=gamma)
    return torch.addcmul(batch.reward, goes_on * gamma**batch.steps, next_value)


def weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean of losses (..., B), each times its row's importance weight where the batch has them."""
    return losses.mean() if weight is None else (losses * weight).mean()


def errors_of(q: Tensor, y: Tensor, batch: Batch) -> Tensor:
    """(B,) errors of values (..., B) that priorities are set from; (0,) for a batch that was drawn evenly.

    Of several critics the largest error counts.
    """
    if batch.weight is None:
        return y.new_empty(0)
    return (q.detach() - y).abs().view(-1, len(y)).amax(dim=0)
