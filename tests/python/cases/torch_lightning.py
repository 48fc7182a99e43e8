"""Lightning's Trainer: zenps's hook by integrations.lightning(), by its own arguments, and without."""

from __future__ import annotations

from typing import Any

import torch
from integration import STEPS, Net, batches, check, invalid

import pytorch_lightning as pl
import zenps
import zenps.torch as zt
from pytorch_lightning.strategies import DDPStrategy
from zenps.torch import integrations


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.net(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.3)

    def train_dataloader(self) -> Any:
        class Data(torch.utils.data.IterableDataset):
            def __iter__(self) -> Any:
                return batches()

        return torch.utils.data.DataLoader(Data(), batch_size=None)


def trainer(strategy: Any = "ddp", **more: Any) -> Any:
    return pl.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, **more)  # fmt: skip


def fitted(each: Any) -> Module:
    module = Module()
    each.fit(module)
    return module


def case_trainer(job: zenps.Job) -> None:
    print("Lightning", pl.__version__, "torch", torch.__version__)
    ours = trainer()
    states = integrations.lightning(ours, job)
    check(job, fitted(ours), fitted(trainer()), states[0])


def case_accumulation(job: zenps.Job) -> None:
    ours = trainer(accumulate_grad_batches=2)
    states = integrations.lightning(ours, job, name="accumulated")
    check(job, fitted(ours), fitted(trainer(accumulate_grad_batches=2)), states[0], STEPS // 2)


def case_hook_by_lightnings_arguments(job: zenps.Job) -> None:
    """On the CPU Lightning 2 leaves a ddp_comm_hook out, and trains with gloo."""
    state = zt.HookState(job, name="bare")
    fitted(trainer(DDPStrategy(ddp_comm_state=state, ddp_comm_hook=zt.hook)))
    assert state.stats.steps == (STEPS if int(pl.__version__.split(".")[0]) < 2 else 0)


def case_another_strategy(job: zenps.Job) -> None:
    class Other:
        strategy = object()

    invalid('Trainer(strategy="ddp") is wanted', lambda: integrations.lightning(Other(), job))
