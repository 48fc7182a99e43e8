"""A model with an embedding, on every rank: gradients of the embedding are rows. Put your own training here."""
import torch

import zenps.torch as zt

job = zt.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.EmbeddingBag(100_000, 16, sparse=True), torch.nn.Linear(16, 1))
sync = zt.GradientSync(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(2 + job.rank)
for step in range(100):
    rows = torch.randint(0, 100_000, (64, 8))
    loss = (model(rows).squeeze(1) - (rows % 7).float().mean(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
print(f"rank {job.rank} of {job.world}: loss {loss.item():.4f}, parameters {total:.12g}", flush=True)
job.close()
