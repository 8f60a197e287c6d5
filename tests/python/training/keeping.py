"""What modules keep, as steps that are replayed as graphs see it: what the tests of it share."""

import torch

import stagecraft.torch as sc  # noqa: F401: finds the package's own folder
from stagecraft.torch._memory import Memory


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def number(value=1.0):
    return torch.full((2,), float(value))


def memory_of(*modules):
    return Memory(lambda: list(modules))
