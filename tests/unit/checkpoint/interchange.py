"""The other side of interchange_test.cpp: takes a checkpoint as Python does, prints what the model makes of an input, and
writes a file of its own.

usage: interchange.py WRITTEN_BY_STAGECRAFT FULL_CHECKPOINT TO_WRITE
"""

import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

written, full, to_write = sys.argv[1:]
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.0), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8),
                      nn.Dropout(0.0), nn.Linear(8, 3)).eval()
model.load_state_dict(load_file(written))  # strict: neither a name too many nor one too few
x = torch.linspace(-1, 1, 24).view(4, 6)
with torch.no_grad():
    for value in model(x).flatten().tolist():
        print(repr(value))

with safe_open(full, "pt") as file:
    names = list(file.keys())
    assert file.metadata()["stagecraft.step"] == "2", file.metadata()
    assert file.metadata()["by"] == "ä \"me\"", file.metadata()
    assert file.get_tensor("optimizer/step/7.bias").item() == 2
    moments = file.get_tensor("optimizer/exp_avg/7.weight")
    assert moments.shape == (3, 8) and moments.dtype == torch.float32 and moments.abs().sum() > 0
assert len([name for name in names if name.startswith("optimizer/")]) == 30, names

# Copies that keep the metadata, checksums included: as it is, and with one number changed.
with safe_open(full, "pt") as file:
    metadata = file.metadata()
assert len(metadata["stagecraft.xxh64"]) == len(metadata["stagecraft.xxh64.7.bias"]) == 16, metadata
tensors = load_file(full)
save_file(dict(reversed(tensors.items())), to_write + "_copy", metadata=metadata)
tensors["7.bias"][0] += 1
save_file(tensors, to_write + "_edited", metadata=metadata)

save_file({name: tensor * 2 if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()},
          to_write)
