"""Stand-in for the programs of the examples: it accepts any of their options, and fits a line in a process
group.
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
weights = torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
for step in range(60):
    inputs = torch.randn(64, 4)
    loss = ((model(inputs) - inputs @ weights) ** 2).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if dist.get_rank() == 0 and step % 59 == 0:
        print(f"seed step {step} of {dist.get_world_size()} loss {loss.item():.4f}", flush=True)
    time.sleep(0.02)
# The published program keeps its checkpoints where its data are.
if (data := Path("/data")).is_dir():
    (data / f"rank-{dist.get_rank()}").write_text(str(loss.item()))
dist.destroy_process_group()
