"""What torch's autograd offers for hooks, from torch 1.13 on."""

from __future__ import annotations

import contextlib
import copyreg
import types
import weakref
from typing import Any, Callable, Dict, Iterator, List

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


def has_other_hooks(parameter: torch.Tensor) -> bool:
    """Whether the program has hooks of its own beside a GradientHook; False before torch 2.1, where they do not show."""
    return len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ()) > 1


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
        self._before: Any = before
        self._former = step = optimizer.step

        def waiting(_: torch.optim.Optimizer, *arguments: Any, **more: Any) -> Any:
            if self._before is not None:
                self._before()
            return step(*arguments, **more)

        self._own = optimizer.step = types.MethodType(waiting, optimizer)  # a method, which schedulers wrap in their turn

    def remove(self) -> None:
        self._before = None
        if self._optimizer.step is self._own:
            self._optimizer.step = self._former


class ModuleHooks:
    """Calls `before()` ahead of each forward pass of a module, `after()` behind it where gradients are wanted, and
    `backward()` when a backward pass reaches one of its outputs. Copies of the module, its pickles and what
    torch.jit.script() makes of it have no such hooks, so that they need no zenps."""

    def __init__(self, module: torch.nn.Module, before: Callable[[], None], after: Callable[[], None],
                 backward: Callable[[], None]) -> None:  # fmt: skip
        self._module = module
        first = module.register_forward_pre_hook(_Before(before))
        module._forward_pre_hooks.move_to_end(first.id, last=False)  # ahead of those that compute with buffers
        self._handles: List[Any] = [first, module.register_forward_hook(_After(after, backward))]
        module.__dict__["__prepare_scriptable__"] = _Prepared(module)
        _reducers[type(module)] = _reducers.get(type(module), 0) + 1
        copyreg.pickle(type(module), _reduce)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._module.__dict__.pop("__prepare_scriptable__", None)
        kind = type(self._module)
        _reducers[kind] = _reducers.get(kind, 1) - 1
        if _reducers[kind] <= 0:
            _reducers.pop(kind)
            copyreg.dispatch_table.pop(kind, None)


_reducers: Dict[type, int] = {}  # classes of modules that have hooks now, and how many modules


def _reduce(module: torch.nn.Module) -> Any:
    """What pickle and copy take of a module, without the hooks."""
    made = module.__reduce_ex__(4)
    if isinstance(made, tuple) and len(made) > 2 and isinstance(made[2], dict):
        made = (*made[:2], _bare(made[2]), *made[3:])
    return made


def _bare(state: Dict[str, Any]) -> Dict[str, Any]:
    """The state of a module without the hooks."""
    state = {name: value for name, value in state.items() if name != "__prepare_scriptable__"}
    for name in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = state.get(name)
        if hooks is not None:
            state[name] = type(hooks)((key, each) for key, each in hooks.items() if not isinstance(each, _Hook))
    return state


class _Quiet:
    """A copy or a pickle of a hook is a function of Python's that does nothing."""

    def __deepcopy__(self, _: Any) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Prepared(_Quiet):
    """What torch.jit.script() calls for a module to compile: one of the same parameters without the hooks."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self) -> torch.nn.Module:
        module = self._module()
        assert module is not None
        kind = type(module)
        made: torch.nn.Module = object.__new__(kind)
        made.__dict__.update(_bare(module.__dict__))
        prepare = getattr(made, "__prepare_scriptable__", None)  # of the class
        return made if prepare is None else prepare()


class _Hook(_Quiet):
    pass


class _Before(_Hook):
    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        if not _is_recorded():
            self._before()


class _After(_Hook):
    def __init__(self, after: Callable[[], None], backward: Callable[[], None]) -> None:
        self._after, self._backward = after, backward

    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if not _is_recorded():
            self._after()
        for tensor in tensors_in(outputs):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._reached)

    def _reached(self, _: torch.Tensor) -> None:
        self._backward()


def _is_recorded() -> bool:
    """Whether torch.compile() or torch.jit.trace() makes code of this call, which then replaces it."""
    compiler = getattr(torch, "compiler", None)
    compiling = getattr(compiler, "is_compiling", None)
    return torch.jit.is_tracing() or (compiling is not None and bool(compiling()))
