"""Operators that say where elements stood. Which of equal ones stands first is nobody's promise (eager's own answer changes with the length of a row and between
devices), so positions are compared by what stands there: the elements at them must be eager's, and no position may be named twice. A sort that is asked to be
stable has one answer, which is compared as it is.
"""

import torch

# Operator to where its dimension stands among the arguments behind the tensor.
DIM_AT = {"argsort": 0, "sort": 0, "topk": 1, "kthvalue": 1, "median": 0, "nanmedian": 0, "mode": 0}


def compared(name, out, inputs):
    """The outputs of an operator of the database as they are compared."""
    (x, *args), kwargs = inputs
    alone = isinstance(out, torch.Tensor)
    if name not in DIM_AT or kwargs.get("stable") or (alone and name != "argsort"):
        return out
    values, places = ([], out) if alone else (out[:1], out[1])
    at = DIM_AT[name]
    dim = args[at] if at < len(args) else kwargs.get("dim", -1)
    return (*values, torch.zeros_like(places), *told(x.detach(), places.detach(), dim))


def told(x, places, dim):
    """The elements at positions along a dimension, and whether each position differs from the one below it."""
    if x.dim() == 0:
        x, places = x.reshape(1), places.reshape(-1)
    if places.dim() < x.dim():
        places = places.unsqueeze(dim)
    return x.gather(dim, places), places.sort(dim).values.diff(dim=dim) > 0
