"""What observes the calls of a model's trainable layers while a pass is recorded, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from dpfest.gradients.draws import ExampleDraws
from dpfest.gradients.embeddings import takes_maximum
from dpfest.gradients.factors import factors_of
from dpfest.gradients.tables import PLAIN, Table
from dpfest.nn import OBSERVER

if TYPE_CHECKING:
    from dpfest.gradients.capture import Recorder, Recording


class LayerHooks:
    """What is called before and after a trainable layer's call while a recording observes it.

    Args:
        recorder: of the model.
        name, layer: the layer.
        own: its parameters, which are excluded from autograd within a call, by name.
    """

    def __init__(self, recorder: Recorder, name: str, layer: nn.Module, own: dict[str, nn.Parameter]) -> None:
        self._recorder, self.name, self.layer = recorder, name, layer
        self.named, self.own = own, list(own.values())
        self.is_table, self.factors = isinstance(layer, Table), factors_of(layer)
        self.takes_maximum = takes_maximum(layer)
        self.is_plain = not self.is_table or type(layer) in PLAIN

    def place(self) -> None:
        """Put the hooks behind those that the layer has.

        As ``register_forward_hook`` does, without its handle, which takes ten times as long. A table's subclass may do
        more than look up, within which functions do so: it gets none.
        """
        layer = self.layer
        layer._forward_pre_hooks[OBSERVER] = self.before
        layer._forward_pre_hooks_with_kwargs[OBSERVER] = True
        layer._forward_hooks[OBSERVER] = self.after
        layer._forward_hooks_with_kwargs[OBSERVER] = True

    def remove(self) -> None:
        """Take the hooks away."""
        layer = self.layer
        for hooks in (
            layer._forward_pre_hooks, layer._forward_pre_hooks_with_kwargs,
            layer._forward_hooks, layer._forward_hooks_with_kwargs,
        ):  # fmt: skip
            hooks.pop(OBSERVER, None)

    def before(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See :meth:`dpfest.gradients.recording.Recording.before_layer`."""
        assert self._recorder.recording is not None
        self._recorder.recording.before_layer(self, args, kwargs)

    def after(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """See :meth:`dpfest.gradients.recording.Recording.after_layer`."""
        assert self._recorder.recording is not None
        return self._recorder.recording.after_layer(self, args, kwargs, output)


def own_parameters(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """Return the parameters of every layer whose calls are recorded: tables, layers with factors, self-contained ones.

    A module is self-contained if it holds parameters and no module that does; attention holds a layer that it does not
    call. A layer that shares a parameter with another has none of its own, unless both are tables.
    """
    found: dict[str, dict[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        own = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        if isinstance(module, Table):
            own = {n: p for n, p in own.items() if n == "weight"}
        whole = {n: p for n, p in module.named_parameters() if p.requires_grad}
        if type(module) is nn.MultiheadAttention:
            own = whole
        elif not (isinstance(module, Table) or factors_of(module)) and len(own) < len(whole):
            continue
        inside = any(type(model.get_submodule(n)) is nn.MultiheadAttention for n in _above(name))
        if own and not inside:
            found[name] = own
    holders: dict[int, list[str]] = {}
    for name, own in found.items():
        for parameter in own.values():
            holders.setdefault(id(parameter), []).append(name)
    tied = {
        name for names in holders.values() if len(names) > 1
        for name in names if not isinstance(model.get_submodule(name), Table)
    }  # fmt: skip
    return {name: own for name, own in found.items() if name not in tied}


def _above(name: str) -> list[str]:
    parts = name.split(".") if name else []
    return [".".join(parts[:count]) for count in range(len(parts))]


@contextmanager
def hooked(recording: Recording) -> Iterator[None]:
    """A context in which a recording observes the calls of the trainable layers."""
    recorder = recording.recorder
    recorder.recording = recording
    try:
        for layer in recorder.hooks:
            if layer.is_plain and layer.name not in recorder.sites.in_graph:
                layer.place()
        yield
    finally:
        for layer in recorder.hooks:
            layer.remove()
        recorder.recording = None
        hold(recorder.trainable.values(), out=False)


def hold(parameters: Any, *, out: bool) -> None:
    """Exclude parameters from autograd, or include them again."""
    for parameter in parameters:
        parameter.requires_grad_(not out)


@contextmanager
def drawing(model: nn.Module, draws: ExampleDraws) -> Iterator[ExampleDraws]:
    """A context in which a model's random operations draw by example, within attention and recurrent layers, too."""
    handles = []
    try:
        for module in model.modules():
            if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout:
                for register, inside in ((_before, True), (_behind, False)):
                    handles.append(register(module)(_layout(draws, module, inside)))
        with draws:
            yield draws
    finally:
        for handle in handles:
            handle.remove()


def _before(module: nn.Module) -> Callable[[Any], Any]:
    return module.register_forward_pre_hook


def _behind(module: nn.Module) -> Callable[[Any], Any]:
    return module.register_forward_hook


def _layout(draws: ExampleDraws, module: nn.Module, inside: bool) -> Callable[..., None]:
    def tell(*_: Any) -> None:
        if isinstance(module, nn.MultiheadAttention):
            draws.heads = module.num_heads if inside else None
        else:
            draws.sequence_first = inside

    return tell
