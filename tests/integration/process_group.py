"""A rank of torch.distributed, which finds the others by MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE."""
import datetime
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
total = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(total)
world = dist.get_world_size()
assert world == int(os.environ["ZENPS_WORLD_SIZE"]), (world, os.environ["ZENPS_WORLD_SIZE"])
assert total.tolist() == [world * (world + 1) / 2] * 4, total
print(f"rank {dist.get_rank()} of {world} at {os.environ['MASTER_ADDR']}, local {os.environ['LOCAL_RANK']}: sum {total[0]:g}", flush=True)
dist.destroy_process_group()
