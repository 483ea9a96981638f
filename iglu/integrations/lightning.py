"""Lightning: a callback that logs the tails of a model's pre-activations during training.

trainer = lightning.Trainer(callbacks=[iglu.integrations.lightning.TailCallback(every=100)])
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from iglu.integrations import require
from iglu.probing.training import TailMonitor

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = require("lightning", "pytorch")[0].Callback


class TailCallback(Callback):  # type: ignore[misc]
    """Log the metrics of :class:`iglu.probing.training.TailMonitor` (tails, dead units, learned sigmas).

    Metrics go directly to all loggers of the trainer; ``self.log`` would log them only every
    ``log_every_n_steps``.  With several processes, only the first one monitors, on its part of the batch.

    Args:
        every: The number of optimizer steps between two logs.
        options: ``k`` and ``keep`` of :class:`~iglu.probing.training.TailMonitor`.
    """

    def __init__(self, every: int = 100, **options: Any) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.every, self.options = every, options
        self._monitor: TailMonitor | None = None
        self._pass = contextlib.ExitStack()
        self._step: int | None = None  # the step being monitored
        self._is_watching = False  # in a batch of that step
        # The trainer counts the steps of every optimizer.
        self._previous, self._per_batch = 0, 1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._previous = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step
        if step > self._previous:
            self._per_batch, self._previous = step - self._previous, step
        is_due = (step + self._per_batch) // self.every > step // self.every
        if not trainer.is_global_zero or not is_due:
            return
        if self._monitor is None or self._monitor.model is not pl_module:
            self._monitor = TailMonitor(pl_module, **self.options)
        if self._step != trainer.global_step:  # else another batch of the same step: gradient accumulation
            self._step = trainer.global_step
            self._monitor.begin()
        self._is_watching = True
        self._pass.enter_context(self._monitor.one_pass())

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._pass.close()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._is_watching and self._monitor is not None:  # manual optimization may run another forward
            self._pass.enter_context(self._monitor.one_pass())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._pass.close()
        self._is_watching = False
        if self._monitor is not None and self._step is not None and trainer.global_step > self._step:
            self._step = None
            metrics = self._monitor.metrics()
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._pass.close()
