"""The Trainer of Hugging Face's transformers."""

from __future__ import annotations

import tempfile
from typing import Any, Dict

import torch
from integration import STEPS, Net, check

import transformers
import zenps
from zenps.torch import integrations


class Model(Net):
    def forward(self, ids: torch.Tensor, labels: Any = None) -> Dict[str, torch.Tensor]:
        return {"loss": super().forward(ids.view(-1))}


def trained(attach: Any) -> Any:
    """All ranks have the same data, of which the Trainer gives each its share; no row is in two examples."""
    data = [{"ids": row} for row in torch.randperm(5000, generator=torch.Generator().manual_seed(1)).view(-1, 10)]
    on_cpu = "use_cpu" if "use_cpu" in transformers.TrainingArguments.__dataclass_fields__ else "no_cuda"
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=5, report_to=[], save_strategy="no", disable_tqdm=True,
            remove_unused_columns=False, ddp_backend="gloo", learning_rate=0.3, max_grad_norm=0.0, **{on_cpu: True},
        )  # fmt: skip
        model = Model()
        sgd = torch.optim.SGD(model.parameters(), 0.3)
        trainer = transformers.Trainer(model, arguments, train_dataset=data, optimizers=(sgd, None))
        states = attach(trainer)
        trainer.train()
    return model, states


def case_trainer(job: zenps.Job) -> None:
    print("Transformers", transformers.__version__, "torch", torch.__version__)
    model, states = trained(lambda trainer: integrations.accelerate(trainer.accelerator, job))
    check(job, model, trained(lambda _: None)[0], states[0])
