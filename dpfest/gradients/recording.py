"""The recording of one micro-batch's forward and backward pass; :mod:`dpfest.gradients.capture` says how it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfest.errors import UserError
from dpfest.gradients.draws import ExampleDraws, NoDraws, generator_states
from dpfest.gradients.embeddings import EveryRow, Lookups, chosen_rows, lacking_id, look_up
from dpfest.gradients.factors import Factors
from dpfest.gradients.formed import FormedGradients, by_unit
from dpfest.gradients.hooks import LayerHooks, hold, hooked
from dpfest.gradients.layers import Call
from dpfest.gradients.module_gradients import Rerun, floats, module_call, output_dims, replace_floats
from dpfest.gradients.outside import OutsideUses, by_losses, refuse_overflow, refuse_whole_tables, warn_of_passes
from dpfest.gradients.padding import first_of
from dpfest.gradients.sites import Again
from dpfest.gradients.tables import Table
from dpfest.gradients.units import Groups, weighted
from dpfest.gradients.validation import StateWatch, check_losses

if TYPE_CHECKING:
    from dpfest.gradients.capture import Recorder

_IN_PLACE = (
    "is changed in place (inplace=True or x += ... after it?); its gradient cannot be clipped. "
    "Use the out-of-place form."
)


class Recording:
    """The recording of one micro-batch.

    After :meth:`look_up`, :attr:`lookups` holds the (example, row) pairs; after :meth:`backward`, it and
    :attr:`factors` hold every per-example (or per-unit) gradient. The backward pass hooks the layers too, as
    checkpointing reruns them.
    """

    def __init__(self, recorder: Recorder, backward: bool, groups: Groups | None = None) -> None:
        self.recorder, self.groups = recorder, groups
        self._losses = torch.empty(0)
        self.lookups: Lookups
        self.factors: list[Factors] = []
        self.in_graph = False  # whether a graph is made of it: the model is known to draw nothing, and may not be asked
        self.overflowed: Tensor | None = None  # bool [b]: the examples whose gradients a clipped sum set to zero
        self._backward, self._recording, self._propagated = backward, False, False
        self._looked_up: tuple[nn.Parameter, Tensor] | None = None
        self._parts: list[tuple[Call, Call]] = []  # of a padded batch: the batch's part of a call, and the call
        self._calls: dict[str, list[Call]] = {}  # of tables and of layers with factors
        self._shared: list[tuple[Table, Call]] = []  # look-ups that all examples share
        self._reruns: dict[str, list[Rerun]] = {}
        self._begun: dict[str, Any] = {}
        self._outside: OutsideUses | None = None
        self._found: dict[int, Tensor] = {}  # gradients [b, *shape], by what they are of
        self._expansions: list[tuple[Call, Tensor]] = []

    def forward(
        self, batch: Any, examples: NDArray[np.int64], step: int, held: tuple[Any, NDArray[np.int64]] | None = None
    ) -> bool:
        """Run the loss function; return False if it drew random numbers that were not drawn by example.

        Args:
            batch: argument of the loss function.
            examples: identities of its examples.
            step: step number.
            held: both, padded (:mod:`dpfest.gradients.padding`); None for a batch as it is.
        """
        recorder = self.recorder
        self._source, self._count = (batch, examples, step), len(examples)
        if held is not None:
            batch, examples = held
        self._examples = len(examples)
        device = recorder.device if recorder.device.type == "cuda" else None
        with ExitStack() as stack:
            stack.enter_context(hooked(self))
            stack.enter_context(torch.set_grad_enabled(self._backward))
            draws = None
            if recorder.draws is not False:
                draws = stack.enter_context(recorder.drawing(step, examples))
            self._draws, before = draws, None if draws or self.in_graph else generator_states(device)
            self._watch = StateWatch(recorder.held)
            if (self._backward and recorder.sites.tracking) or recorder.sites.by_function:
                self._outside = OutsideUses(
                    recorder.sites, recorder.trainable, self._examples, draws, self._look_up_by_function
                )
                stack.enter_context(self._outside)
            self._recording = True
            try:
                self._losses = recorder.loss_fn(recorder.model, batch)
            except (RuntimeError, IndexError) as error:
                self._name_id(error)
                if "leaf Variable that requires grad" in str(error):
                    raise UserError(f"The output of a trainable layer {_IN_PLACE}") from error
                raise
            self._recording = False
            if draws is None:
                return self.in_graph or generator_states(device) == before
            recorder.draws = draws.calls > 0
        return True

    def before_layer(self, hook: LayerHooks, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a recorded layer's call: exclude its parameters from autograd; apply noise pending on its rows."""
        recorder, own = self.recorder, hook.own
        if hook.is_table:
            ids = args[0] if args else kwargs["input"]
            if self._recording and recorder.lazy is not None:
                recorder.lazy.read(recorder.table_of[id(own[0])], ids)
                recorder.lazy.looking_up = True
                name = next(name for name, table in recorder.tables.items() if table.weight is own[0])
                self._watch.expect(f"{name}.weight", own[0])
            self._looked_up = own[0], ids
        elif self._recording and hook.factors:
            site, input = self._site(hook, self._calls), args[0] if args else kwargs["input"]
            shared = not input.dim() or (self._outside is not None and self._outside.shares(input))
            if shared or not recorder.sites.counts(site, input.size(0), self._examples):
                recorder.sites.open_layer(hook.name)
        elif not hook.factors:
            site = self._site(hook, self._reruns)
            call = module_call(hook.layer, site, hook.named, args, kwargs, self._examples, recorder.sites)
            if call is None:
                recorder.sites.open_layer(hook.name)
            self._begun[hook.name] = call, self._draws and self._draws.calls
        hold(own, out=True)

    def _site(self, hook: LayerHooks, calls: dict[str, Any]) -> tuple[str, int]:
        return hook.name, len(calls.get(hook.name, ()))

    def _name_id(self, error: Exception) -> None:
        """Raise another error if the last look-up asked for a row that its table has not."""
        if self._looked_up is None:
            return
        weight, ids = self._looked_up
        name, table = next(table for table in self.recorder.tables.items() if table[1].weight is weight)
        if wrong := lacking_id(name, table.num_embeddings, ids):
            raise wrong from error

    def after_layer(self, hook: LayerHooks, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """After a recorded layer's call: make its output an autograd leaf if it requires no gradient; keep the call."""
        hold(hook.own, out=False)
        if self._backward and not torch.is_grad_enabled():
            raise UserError(
                f"The layer {hook.name} is called without gradients (torch.no_grad, torch.inference_mode, or a "
                "checkpoint with use_reentrant=True), though it is trainable. Enable them, or freeze it."
            )
        if not (hook.is_table or hook.factors):
            return self._after_module(hook, output) if self._backward else None
        call = Call(args, kwargs, output)
        if hook.is_table:
            self._looked_up = None
            if hook.takes_maximum:
                call.chosen = chosen_rows(hook.layer, *args, **kwargs)  # type: ignore[arg-type]
            if self.recorder.lazy is not None:
                self.recorder.lazy.looking_up = False
        if self._backward and not output.requires_grad:
            output.requires_grad_(True)
        if self._recording:
            if isinstance(hook.layer, nn.Embedding) and not self._counts(hook, call):
                self._share(hook, call)
            self._calls.setdefault(hook.name, []).append(call)
        return None

    def _look_up_by_function(self, ids: Tensor, weight: Tensor, run: Callable[[], Tensor]) -> Tensor | None:
        """Record a look-up by ``torch.nn.functional.embedding``; None if it is within a layer's, or of no table."""
        if not weight.requires_grad:
            return None
        for hook in self.recorder.hooks:
            if hook.is_table and hook.own[0] is weight and isinstance(hook.layer, nn.Embedding):
                self.recorder.sites.by_function = self.recorder.sites.tracking = True
                self.before_layer(hook, (ids,), {})
                output = run()
                self.after_layer(hook, (ids,), {}, output)
                return output
        return None

    def _counts(self, hook: LayerHooks, call: Call) -> bool:
        ids = call.args[0] if call.args else call.kwargs["input"]
        return ids.dim() > 0 and self.recorder.sites.counts(self._site(hook, self._calls), ids.size(0), self._examples)

    def _share(self, hook: LayerHooks, call: Call) -> None:
        """Keep a look-up that all examples share."""
        assert isinstance(hook.layer, nn.Embedding)
        if refusal := getattr(hook.layer, "shared_look_up", ""):
            raise UserError(refusal.format(hook.name))
        call.shared = True
        self._shared.append((hook.layer, call))
        if self._backward:
            if self._outside is None:
                self.recorder.sites.tracking = True
                raise Again
            self._outside.share(call.output)

    def _after_module(self, hook: LayerHooks, output: Any) -> Any:
        """Cut the results of a call that will be run again by example from all other uses of their values."""
        (run, leaves, dims), first_draw = self._begun.pop(hook.name)
        outputs = floats(output)
        out_dims, sites, site = output_dims(hook.layer, outputs), self.recorder.sites, self._site(hook, self._reruns)
        if not outputs or not all(
            one.dim() > dim and sites.counts((*site, "output", k), one.shape[dim], self._examples)
            for k, (one, dim) in enumerate(zip(outputs, out_dims, strict=True))
        ):
            sites.open_layer(hook.name)
        outputs = [one.view_as(one) for one in outputs]
        for one in outputs:
            if not one.requires_grad:
                one.requires_grad_(True)
        drew = self._draws is not None and self._draws.calls != first_draw
        if self._recording:
            rerun = Rerun(run, hook.own, leaves, dims, outputs, out_dims, first_draw if drew else None)
            self._reruns.setdefault(hook.name, []).append(rerun)
        return replace_floats(output, outputs)

    def check(self) -> None:
        """Refuse losses or layers that do not count the examples, and a forward pass that wrote into the model.

        Raises:
            UserError: says which.
        """
        self._watch.check()
        layers = self.recorder.layers
        own = ((n, layers[n], call.output) for n, calls in self._calls.items() for call in calls if not call.shared)
        check_losses(self._losses, own, self._examples)

    def look_up(self, known: Lookups | None = None) -> None:
        """Find which example touched which row, unless it is known; call after the forward pass."""
        recorder, count = self.recorder, self._count
        by_table: list[list[tuple[Table | EveryRow, Call]]] = [[] for _ in recorder.tables]
        for name, calls in self._calls.items():
            layer: Any = recorder.layers[name]
            if isinstance(layer, Table):
                uses = by_table[recorder.table_of[id(layer.weight)]]
                uses += [
                    (layer, self._expanded(call, call.output) if call.shared else self._own(call)) for call in calls
                ]
        for number, (name, table) in enumerate(recorder.tables.items()):
            if f"{name}.weight" in recorder.sites.open:  # each example touches every row
                rows = torch.arange(table.num_embeddings, device=recorder.device)
                every = Call((rows,), {}, table.weight.detach())
                by_table[number].append(
                    (EveryRow(table.weight, table.padding_idx), self._expanded(every, table.weight))
                )
        if known is None:
            known = look_up(recorder.layout, by_table, torch.arange(count, device=recorder.device), self.groups)
        else:
            known.take_calls(by_table)
        self.lookups = known

    def _own(self, call: Call) -> Call:
        """Return the part of a call that is the batch's own examples'."""
        if self._count == self._examples:
            return call
        own = first_of(call, self._count)
        self._parts.append((own, call))
        return own

    def _expanded(self, call: Call, root: Tensor) -> Call:
        """Return a look-up that all examples share as one of each example."""
        count = self._examples
        own = Call(
            (call.input.expand(count, *call.input.shape),), {}, call.output.detach().expand(count, *call.output.shape)
        )
        self._expansions.append((own, root))
        return own

    def backward(self) -> None:
        """Back-propagate the per-example losses to the outputs of all recorded layers, once.

        Raises:
            UserError: a layer's input or output was changed in place, so its gradient would be wrong; the losses depend
                on no trainable parameter.
        """
        if not self._backward:
            return
        while not self._propagated:
            try:
                self.propagate()
            except Again:
                again = self.recorder.record(*self._source, groups=self.groups, known=self.lookups)
                self.__dict__.update(again.__dict__)
        self._backward = False
        for call, root in self._expansions:
            found = self._found.get(id(root))
            call.gradient = torch.zeros_like(call.output) if found is None else found
        for own, call in self._parts:
            own.gradient = call.gradient[: self._count]
        self.lookups.take_gradients()
        layers = {hook.name: hook for hook in self.recorder.hooks}
        for name, calls in self._calls.items():
            if not layers[name].is_table:
                own_calls = [self._own(call) for call in calls]
                self.factors.append(layers[name].factors(layers[name].layer, own_calls, self.groups))
        formed: dict[Tensor, Tensor] = {
            parameter: by_unit(self._found[id(parameter)], self.groups)
            for parameter in self.recorder.dense_parameters.values() if id(parameter) in self._found
        }  # fmt: skip
        if formed:
            self.factors.append(FormedGradients(formed))
        if self._outside is not None:  # whose graph was kept for single examples
            self._losses, self._outside, self._shared = self._losses.detach(), None, []
            self._calls, self._reruns, self._found = {}, {}, {}

    def propagate(self) -> None:
        """Compute the gradients that :meth:`backward` collects, once.

        Raises:
            Again: the pass showed what it has to be run again for.
        """
        recorder, outside = self.recorder, self._outside
        roots = [*recorder.trainable.values(), *(call.output for _, call in self._shared)]
        calls: list[tuple[str, Any]] = [
            (name, call) for of in (self._calls, self._reruns) for name, each in of.items() for call in each
        ]
        calls += [(f"that calls {site[-1]}", call) for site, call in (outside.calls if outside else ())]
        for name, call in calls:
            if call.changed_since:
                raise UserError(f"An input or output of the layer {name} {_IN_PLACE}")
        outputs = [output for _, call in calls for output in call.outputs]
        total = self._weighted().sum()
        gradients: Sequence[Tensor | None] = [None] * (len(outputs) + len(roots))
        if not total.requires_grad and len(self._losses):
            raise UserError("The losses depend on no trainable parameter (detach, no_grad?): nothing would be learnt.")
        keep = outside is not None
        if total.requires_grad:
            with self._going_back():
                gradients = torch.autograd.grad(total, [*outputs, *roots], allow_unused=True, retain_graph=keep)
        self._watch.check()
        reached = [root for root, g in zip(roots, gradients[len(outputs) :], strict=True) if g is not None]
        found = iter(gradients)
        for _, call in calls:
            pairs = zip(call.outputs, found, strict=False)
            call.take([torch.zeros_like(output) if gradient is None else gradient for output, gradient in pairs])
        self._open(reached)
        if outside is not None:
            self._take_outside(outside, roots, reached)
        for hook in recorder.hooks:
            if hook.name in self._reruns:
                self._rerun(hook)
        self._propagated = True

    def _weighted(self) -> Tensor:
        return weighted(self._losses, self.groups)

    @contextmanager
    def _going_back(self) -> Iterator[None]:
        with hooked(self), NoDraws() if self.recorder.draws else nullcontext():
            yield

    def _open(self, reached: Sequence[Tensor]) -> None:
        """Note which parameters are used outside of recorded calls; run the pass again if that changes it."""
        recorder, sites = self.recorder, self.recorder.sites
        opened = {id(parameter) for parameter in reached} | (self._outside.opened() if self._outside else set())
        names = {name for name, parameter in recorder.trainable.items() if id(parameter) in opened}
        if new := names - sites.open:
            sites.open |= new
            dense = {hook.name for hook in recorder.hooks if not hook.is_table and opened & set(map(id, hook.own))}
            tables = sorted(name for name in new if name not in recorder.dense_parameters)
            if tables:
                refuse_whole_tables(tables, lazy=recorder.lazy is not None, known=sites.complete)
            if dense - sites.in_graph or self._outside is None:
                sites.in_graph |= dense
                sites.tracking = True
                raise Again

    def _take_outside(self, outside: OutsideUses, roots: Sequence[Tensor], reached: Sequence[Tensor]) -> None:
        """Find each example's gradient of what is used outside of recorded calls."""
        recorder, count = self.recorder, len(self._losses)
        opened = outside.opened() | set(map(id, reached))
        self._found = {id(one): one.new_zeros(count, *one.shape) for one in roots if id(one) in opened}
        if reached:
            with self._going_back():
                each = by_losses(self._weighted(), reached)
            names = {id(one): name for name, one in recorder.trainable.items()}
            named = {names.get(id(root), "a shared look-up"): g for root, g in zip(reached, each, strict=True)}
            refuse_overflow(named)
            warn_of_passes(named.keys() - recorder.sites.slow)
            recorder.sites.slow |= named.keys()
            for root, gradients in zip(reached, each, strict=True):
                self._found[id(root)] += gradients
        outside.add_gradients(self._found, self._draws_again)

    def _rerun(self, hook: LayerHooks) -> None:
        """Run a module's calls again by example."""
        total = [parameter.new_zeros(len(self._losses), *parameter.shape) for parameter in hook.own]
        try:
            for call in self._reruns[hook.name]:
                for part, gradients in zip(total, call.per_example(self._draws_again), strict=True):
                    part += gradients
        except Exception:  # whatever vmap cannot do
            self.recorder.sites.open_layer(hook.name)
        self._found |= dict(zip(map(id, hook.own), total, strict=True))

    def _draws_again(self) -> ExampleDraws:
        _, examples, step = self._source
        return self.recorder.draws_of(step, examples)

    def calls(self) -> list[Call]:
        """Return the recorded calls of tables and of layers with factors."""
        return [call for calls in self._calls.values() for call in calls]

    def of_another(self, batch: Any, examples: NDArray[np.int64], step: int) -> Recording:
        """Return the recording of another batch, whose passes have overwritten the results of this one's."""
        own = Recording(self.recorder, backward=True)
        own.__dict__.update(self.__dict__, factors=[], _parts=[], _backward=True, overflowed=None)
        own._source, own._count = (batch, examples, step), len(examples)
        return own

    def __len__(self) -> int:
        """Number of its examples, or units."""
        return self._count if self.groups is None else len(self.groups)

    @property
    def losses(self) -> Tensor:
        """Losses of the batch's examples, ``[b]``."""
        return self._losses[: self._count]
