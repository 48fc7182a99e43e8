"""What torch's autograd offers for hooks, from torch 1.13 on."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional

import torch
from torch.autograd import Variable


def queue_callback(callback: Callable[[], None]) -> bool:
    """Has `callback` called at the end of the backward pass that is under way in this thread, in the order of these
    calls; what it raises is raised by backward(). False, and nothing done, where no backward pass is under way."""
    queue = getattr(torch.autograd.graph, "queue_callback", None)
    if queue is None:
        queue = Variable._execution_engine.queue_callback
    try:
        queue(callback)
    except RuntimeError:  # "Final callbacks can only be installed during backward pass."
        return False
    return True


def _nothing() -> None:
    pass


def in_backward() -> bool:
    """Whether a backward pass is under way in this thread."""
    return queue_callback(_nothing)


class GradientHook:
    """Calls `ready()` when a backward pass has added to the gradient of a parameter: once in a backward pass, however
    often the parameter was used in the forward pass."""

    def __init__(self, parameter: torch.Tensor, ready: Callable[[], None]) -> None:
        self._node: Any = None
        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
            self._handle = parameter.register_post_accumulate_grad_hook(lambda _: ready())
            return
        with torch.enable_grad():
            alias = parameter.expand_as(parameter)
        # The node that accumulates: its hooks run after it has. The parameter refers to it weakly.
        self._node = alias.grad_fn.next_functions[0][0]
        self._handle = self._node.register_hook(lambda *_: ready())

    def remove(self) -> None:
        self._handle.remove()
        self._node = None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a module returns: in tuples, lists, dicts and objects with attributes."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name))


def before_step(optimizer: torch.optim.Optimizer, before: Callable[[], None]) -> Any:
    """Has `before()` called at the beginning of each step(); what it gives has remove()."""
    if hasattr(optimizer, "register_step_pre_hook"):  # torch 2.0
        return optimizer.register_step_pre_hook(lambda *_: before())
    return _StepPreHook(optimizer, before)


class _StepPreHook:
    """register_step_pre_hook() for torch before 2.0."""

    def __init__(self, optimizer: torch.optim.Optimizer, before: Any) -> None:
        self._optimizer = optimizer
        self._step = step = optimizer.step

        def waiting(*arguments: Any, **more: Any) -> Any:
            before()
            return step(*arguments, **more)

        optimizer.step = waiting

    def remove(self) -> None:
        self._optimizer.step = self._step


class ModuleHooks:
    """Calls `before()` ahead of each forward pass of a module, and `backward()` when a backward pass reaches one of its
    outputs. A copy of the module, or one that was pickled, has hooks that do nothing."""

    def __init__(self, module: torch.nn.Module, before: Callable[[], None], backward: Callable[[], None]) -> None:
        self._handles: List[Any] = [
            module.register_forward_pre_hook(_Before(before)),
            module.register_forward_hook(_After(backward)),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class _Hook:
    def __init__(self, method: Optional[Callable[[], None]] = None) -> None:
        self._method = method

    def _call(self) -> None:
        if self._method is not None:
            self._method()

    def __deepcopy__(self, _: Any) -> "_Hook":
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()


class _Before(_Hook):
    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self._call()


class _After(_Hook):
    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if self._method is None or not torch.is_grad_enabled():
            return
        for tensor in tensors_in(outputs):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._reached)

    def _reached(self, _: torch.Tensor) -> None:
        self._call()
