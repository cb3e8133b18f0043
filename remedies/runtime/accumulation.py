"""gradient-accumulation at run time: the DataLoader yields micro-batches, the optimizer acts on the last of them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .application import Application, CannotApplyError
from .batches import SplitIterator
from .loss import Reduction, reduction_of
from .session import Session, current_piece, refuse_closure

_BATCH_STATISTICS = torch.nn.modules.batchnorm._BatchNorm


def loss_weight(session: Session, loss: torch.Tensor) -> float:
    """The share of this piece in the gradient of the whole batch.

    A loss that is a mean over samples counts with its samples over the batch's; a sum counts whole. FSDP averages
    gradients over ranks, so a share of a batch counts times the number of ranks that share it.
    """
    piece = current_piece(session)
    if piece is None or (piece.samples == piece.of):
        return 1.0
    ranks = session.batches.current.ranks if session.batches.current is not None else 1
    reduction = reduction_of(loss)
    if reduction is Reduction.SUM:
        return float(ranks)
    if reduction is Reduction.MIXED:
        raise CannotApplyError(
            "the loss adds a term that is a sum over samples to one that is a mean, so no single weight keeps the "
            "gradient of the whole batch. Use reduction='mean' in both, or accumulate in the script."
        )
    if reduction is Reduction.RATIO:
        session.note(
            "the loss is a sum divided by a count: each piece is weighted by its samples, which is the whole "
            "batch's loss only where the counts are equal"
        )
    if reduction is Reduction.UNKNOWN:
        session.note("the graph does not say how the loss is reduced; it is taken as a mean over samples")
    return ranks * piece.samples / piece.of


class GradientAccumulation(Application):
    """`micro_batches: m`. Gradients of the pieces add up to the gradient of the whole batch."""

    name = "gradient-accumulation"
    options = frozenset({"micro_batches"})

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        super().__init__(session, options)
        self.micro_batches = int(options.get("micro_batches", 2))
        self.holds_gradients = False  # gradients wait for the rest of their batch
        self._backwards = 0  # of the present piece
        self._attempts_before = 0
        self._cut_any = False
        self._witness: tuple[torch.Tensor, int, int] | None = None

    def before_script(self) -> None:
        self.session.micro_batches = self.micro_batches
        self.session.batches.observers.append(self._next_piece)

    def _next_piece(self, iterator: SplitIterator) -> None:
        if iterator is not self.session.batches.current:
            return
        if self._backwards and iterator.cut and self.session.step_attempts == self._attempts_before:
            raise CannotApplyError(
                "the script does not step its optimizer after every backward(): it accumulates gradients itself, and "
                "counts its own iterations. Raise the script's accumulation and lower its batch size instead."
            )
        self._backwards, self._attempts_before = 0, self.session.step_attempts

    def root_called(self, module: torch.nn.Module) -> None:
        if module.training and any(isinstance(m, _BATCH_STATISTICS) for m in module.modules()):
            self.session.note(
                "the model has batch normalisation: its statistics are now those of a micro-batch, "
                "so the training is not the same"
            )

    def gradient_scale(self, loss: torch.Tensor) -> float | None:
        iterator = self.session.batches.current
        if iterator is None or iterator.piece is None:
            raise CannotApplyError(
                "gradient accumulation needs a torch DataLoader to cut: this script called backward() without having "
                "drawn a batch from one. Lower the script's batch size and accumulate there."
            )
        self._cut_any = self._cut_any or iterator.cut
        self._check_witness()
        weight = loss_weight(self.session, loss)
        return None if weight == 1.0 else weight

    def after_backward(self) -> None:
        self._backwards += 1
        self.holds_gradients = not self.session.batches.last_piece
        if not self.holds_gradients:
            self._witness = None
            return
        for optimizer_parameter in self._parameters():
            gradient = optimizer_parameter.grad
            if gradient is not None:
                self._witness = (optimizer_parameter, id(gradient), gradient._version)
                return

    def _check_witness(self) -> None:
        """Refuse when the script dropped or changed gradients by hand between two micro-batches."""
        if self._witness is None:
            return
        parameter, identity, version = self._witness
        gradient = parameter.grad
        if gradient is None or id(gradient) != identity or gradient._version != version:
            raise CannotApplyError(
                "the script changes or clears .grad by hand after backward(), which oomdoc cannot hold back until "
                "the last micro-batch. Use optimizer.zero_grad() and clip_grad_norm_, or accumulate in the script."
            )

    def _parameters(self) -> list[torch.Tensor]:
        return [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]

    @functools.cached_property
    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return []

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        refuse_closure(optimizer, self.name)
        self._optimizers.append(optimizer)

    def around_step(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
        if not self.session.batches.last_piece:
            return None
        self.holds_gradients = False
        return step()

    def unapplied(self) -> str | None:
        if self._cut_any or self.micro_batches == 1:
            return None
        return "no batch of a DataLoader was cut into micro-batches"
