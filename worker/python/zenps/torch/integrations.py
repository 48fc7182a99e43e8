"""Lightning, Fabric, Accelerate and Transformers wrap models in a DistributedDataParallel; what is here gives that one the
communication hook of :mod:`zenps.torch.ddp`. None of them is imported: the objects of whichever is installed are enough.

    job = zt.init()                                    # before the library starts its process group
    integrations.lightning(trainer)                    # Trainer(strategy="ddp", ...), before fit()
    integrations.fabric(model)                         # what Fabric.setup() gave
    integrations.accelerate(accelerator)               # before prepare()
    integrations.accelerate(trainer.accelerator)       # Trainer of transformers, before train()

job, arguments: those of :func:`zenps.torch.ddp`. Each model gets tensors of its own: the second has NAME.1. All return a
list that gets the HookState of each model when it is wrapped.
"""

from __future__ import annotations

import functools
from typing import Any, List, Optional

from torch.nn.parallel import DistributedDataParallel

from ..errors import Invalid
from ..job import Job
from .ddp import HookState, ddp
from .jobs import current


class _Register:
    """Registers the hook with models as they are wrapped."""

    def __init__(self, who: str, job: Optional[Job], arguments: Any) -> None:
        self._who = who
        self._job = current(job)
        self._arguments = arguments
        self._name: str = arguments.pop("name", who)
        self.states: List[HookState] = []

    def __call__(self, model: Any) -> None:
        inner = getattr(model, "_orig_mod", model)  # torch.compile() wraps it once more
        if isinstance(inner, DistributedDataParallel):
            name = f"{self._name}.{len(self.states)}" if self.states else self._name
            self.states.append(ddp(inner, self._job, name=name, **self._arguments))
        elif self._job.world > 1:
            raise Invalid(
                f"{self._who}: the model is a {type(inner).__name__} and no DistributedDataParallel; {self._job.world} ranks of "
                "one must be what its strategy, and the launcher's environment, ask for"
            )


def lightning(trainer: Any, job: Optional[Job] = None, **arguments: Any) -> List[HookState]:
    """For a Trainer of Lightning whose strategy is "ddp"; on any device, where Lightning itself registers a
    ddp_comm_hook on GPUs alone from 2.0 on."""
    strategy = trainer.strategy
    register = _Register("lightning", job, arguments)
    configure: Any = getattr(strategy, "configure_ddp", None)
    if configure is None:
        if register._job.world > 1:
            raise Invalid(f'lightning: the strategy is a {type(strategy).__name__}; Trainer(strategy="ddp") is wanted')
        return register.states

    @functools.wraps(configure)
    def configure_ddp() -> None:
        configure()
        register(strategy.model)

    strategy.configure_ddp = configure_ddp
    return register.states


def fabric(model: Any, job: Optional[Job] = None, **arguments: Any) -> List[HookState]:
    """For a model that Fabric.setup() gave, with strategy "ddp"."""
    register = _Register("fabric", job, arguments)
    register(model._forward_module)
    return register.states


def accelerate(accelerator: Any, job: Optional[Job] = None, **arguments: Any) -> List[HookState]:
    """For an Accelerator, and so for a Trainer of transformers, from 4.30 on, which has one."""
    register = _Register("accelerate", job, arguments)
    prepare = accelerator.prepare_model

    @functools.wraps(prepare)
    def prepare_model(model: Any, device_placement: Optional[bool] = None, evaluation_mode: bool = False) -> Any:
        prepared = prepare(model, device_placement=device_placement, evaluation_mode=evaluation_mode)
        if not evaluation_mode:
            register(prepared)
        return prepared

    accelerator.prepare_model = prepare_model
    return register.states
